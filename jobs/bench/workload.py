"""The prompts of a measurement: how many at once, how long, and whether an answer may end by itself."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from drawloom.errors import SettingError
from drawloom.models.text import Text

COPIES = ("copy", "replace", "insert", "remove")
SPREAD = 10  # the longest answer of the ragged workload over its shortest


@dataclass(frozen=True)
class Prompt:
    """Token ids, and how many new tokens are wanted (at most, when the answer may end by itself)."""

    token_ids: tuple[int, ...]
    num_new: int


@dataclass(frozen=True)
class Workload:
    """Prompts that a system gets `batch` at a time, greedy. With `ends` an end-of-text token ends an answer, without it never does."""

    name: str
    prompts: tuple[Prompt, ...]
    batch: int
    ends: bool = False

    @property
    def chunks(self) -> list[tuple[Prompt, ...]]:
        """What is in flight together, one group after the other."""
        return [self.prompts[start : start + self.batch] for start in range(0, len(self.prompts), self.batch)]

    def describe(self) -> str:
        """Sizes in words, for the report."""
        prompt, new = [len(item.token_ids) for item in self.prompts], [item.num_new for item in self.prompts]
        ends = "at most " if self.ends else ""
        return f"{len(prompt)} prompts of {_range(prompt)} tokens, {self.batch} at once, {ends}{_range(new)} new tokens each"


@dataclass(frozen=True)
class Source:
    """One row of the prompt file as token ids."""

    kind: str
    token_ids: tuple[int, ...]


def read_sources(path: Path, text: Text) -> list[Source]:
    """All rows of a Parquet file with the columns `kind` and `messages`, rendered by the model's own chat template, shortest first; or of
    one that `drawloom train tasks` wrote, whose lists are edited and so mostly copied.

    Raises SettingError when the file or a column is missing.
    """
    if not path.is_file():
        raise SettingError(f"prompts {str(path)!r}: there is no such file; the repository has examples/prompts.parquet")
    table = pq.read_table(path)
    if {"task", "prompt"} <= set(table.column_names):
        tasks = table.select(["task", "prompt"]).to_pylist()
        some = [Source("extraction" if row["task"] in COPIES else row["task"], tuple(text.encode(row["prompt"]))) for row in tasks]
        return sorted(some, key=lambda source: (len(source.token_ids), source.token_ids))
    if missing := {"kind", "messages"} - set(table.column_names):
        raise SettingError(f"prompts {str(path)!r}: no column {sorted(missing)[0]!r}; a benchmark needs kind and messages")
    rows: list[dict[str, Any]] = table.to_pylist()
    found = [Source(row["kind"], tuple(text.render(row["messages"]))) for row in rows]
    return sorted(found, key=lambda source: (len(source.token_ids), source.token_ids))


def workloads(sources: Sequence[Source], num_new: int) -> list[Workload]:
    """single and padded-8/16 (prompts differ in length, answers do not), ragged-16 (answers differ SPREAD-fold too), extraction at 1 and 8.

    Raises SettingError when there are too few prompts, or none of kind extraction.
    """
    copied = [source for source in sources if source.kind == "extraction"]
    if len(sources) < 16 or len(copied) < 8:
        raise SettingError(f"{len(sources)} prompts, {len(copied)} of kind extraction: a benchmark needs at least 16 and 8")
    few, many = _spread(sources, 8), _spread(sources, 16)
    lengths = [round(num_new * (0.2 + 1.8 * index / 15)) for index in range(16)]
    random.Random(0).shuffle(lengths)
    long = _same(_spread(copied, 8), 2 * num_new)
    return [
        Workload("single", _same([sources[len(sources) // 4], sources[-len(sources) // 4]], num_new), 1),
        Workload("padded-8", _same(few, num_new), 8),
        Workload("padded-16", _same(many, num_new), 16),
        Workload("ragged-16", tuple(Prompt(item.token_ids, max(length, 1)) for item, length in zip(many, lengths, strict=True)), 16),
        Workload("extraction-1", long[::2], 1, ends=True),
        Workload("extraction-8", long, 8, ends=True),
    ]


def _spread(sources: Sequence[Source], number: int) -> list[Source]:
    """The shortest, the longest, and what lies evenly between them; in a fixed order that is not sorted."""
    picked = [sources[round(index * (len(sources) - 1) / (number - 1))] for index in range(number)]
    random.Random(0).shuffle(picked)
    return picked


def _same(sources: Sequence[Source], num_new: int) -> tuple[Prompt, ...]:
    return tuple(Prompt(source.token_ids, num_new) for source in sources)


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"
