"""drawloom bench decode: recipes x thresholds on tasks whose answers can be checked. One JSON line a point, then the AUP of each curve."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from drawloom.actors.build import build_engine, build_text
from drawloom.actors.engine import Engine
from drawloom.actors.request import Completion, Request, Sampling
from drawloom.actors.settings import EngineSettings
from drawloom.errors import SettingError
from drawloom.jobs.bench.aup import aup
from drawloom.jobs.bench.limits import commit, hardware
from drawloom.jobs.train.data import read_rows
from drawloom.jobs.train.grade import grade_all
from drawloom.jobs.train.tasks import rows
from drawloom.models.settings import ModelSettings
from drawloom.settings import nearest

MAX_TOKENS = 96  # the longest reference answer has fewer
COLUMNS = ("task", "prompt", "check")
THRESHOLDS = (0.5, 0.7, 0.9, 0.99)
WIDTHS = (2, 4, 6)
NODES = (0, 8, 16, 32)  # of a tree; 0: a chain


@dataclass(frozen=True)
class Curve:
    """One method: a recipe on a model, and the parameter that is swept ("" for a single point)."""

    model: str
    recipe: str
    params: Mapping[str, Any]
    sweep: str = ""
    values: tuple[float, ...] = ()
    note: str = ""  # tells two of one recipe apart
    group: str = "zoo"  # what is measured when nobody asks for more
    temperature: float = 0.0  # every task has a seed of its own

    def below(self, zoo: Path | None) -> "Curve":
        """The same with models of that folder."""
        draft = {"draft": str(zoo / self.params["draft"])} if zoo and "draft" in self.params else {}
        return replace(self, params={**self.params, **draft})

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.model, self.recipe, self.note)))

    def points(self) -> Iterator[dict[str, Any]]:
        """Parameters of each point."""
        if not self.sweep:
            yield dict(self.params)
        for value in self.values:
            yield {**self.params, self.sweep: value}


ZOO_CURVES = (
    Curve("tiny-ar", "ar", {}),
    Curve("tiny-ar", "lookup", {}),
    Curve("tiny-ar", "suffix", {}),
    Curve("tiny-ar", "recycling", {}),
    Curve("tiny-ar", "draft-model", {"draft": "tiny-draft"}, "width", WIDTHS),
    Curve("tiny-ar", "medusa", {"draft": "tiny-medusa"}, "nodes", NODES),
    Curve("tiny-ar", "eagle", {"draft": "tiny-eagle3"}, "nodes", NODES),
    Curve("tiny-ar", "dflash", {"draft": "tiny-dflash"}, "nodes", NODES),
    Curve("tiny-ar", "jacobi", {"width": 16}),
    Curve("tiny-ar", "jacobi-forcing", {}),
    Curve("tiny-ar", "lookahead", {}),
    Curve("tiny-jf", "ar", {}),
    Curve("tiny-jf", "jacobi", {"width": 16}),
    Curve("tiny-jf", "jacobi-forcing", {}),
    Curve("tiny-bd", "block", {}, "threshold", THRESHOLDS),
    Curve("tiny-bd", "s2d2", {}, "threshold", THRESHOLDS),
    Curve("tiny-bd", "multi-block", {"buffer": 4}, "threshold", THRESHOLDS),
    Curve("tiny-bd", "dmax-multi-block", {"buffer": 4}, "threshold", THRESHOLDS),
    Curve("tiny-bd", "llada2.1", {}, "threshold", THRESHOLDS),
    Curve("tiny-mbd", "block", {}, "threshold", THRESHOLDS),
    Curve("tiny-mbd", "multi-block", {"buffer": 4}, "threshold", THRESHOLDS),
    Curve("tiny-mbd", "multi-block", {"buffer": 4, "semi_at": 0.5}, "threshold", THRESHOLDS, "eager"),
    Curve("tiny-mbd-dmax", "dmax", {}, "threshold", THRESHOLDS),
    Curve("tiny-mbd-dmax", "dmax-multi-block", {"buffer": 4}, "threshold", THRESHOLDS),
    Curve("tiny-mbd-dmax", "llada2.1", {}, "threshold", THRESHOLDS),
)


VERIFIERS = ("rejection", "block", "kseq", "best-path")
PATHS = tuple({"draft": "tiny-draft", "width": 4, "paths": paths} for paths in (2, 3))
MORE_CURVES = (
    # The same drafts under other tests; warm, for at temperature 0 all accept the same.
    *(
        Curve("tiny-ar", "draft-model", {"draft": "tiny-draft", "width": 4, "verifier": one}, "", (), one, "verifiers", 1.0)
        for one in VERIFIERS[:2]
    ),
    *(
        Curve("tiny-ar", "sampled-paths", {**shape, "verifier": one}, "", (), f"{shape['paths']} {one}", "verifiers", 1.0)
        for shape in PATHS
        for one in VERIFIERS
    ),
    *(Curve("embedded", recipe, {}, "", (), "", "retrieval") for recipe in ("ar", "lookup", "suffix", "recycling", "jacobi", "lookahead")),
)


@dataclass(frozen=True)
class Task:
    task: str
    prompt: str
    check: str


def chosen(only: Sequence[str], values: tuple[float, ...]) -> list[Curve]:
    """The zoo's curves, those of certain models or methods, with other thresholds when given. Raises SettingError for a stranger."""
    every = ZOO_CURVES + MORE_CURVES
    known = list(dict.fromkeys(name for curve in every for name in (curve.name, curve.model, curve.group)))
    if strange := [name for name in only if name not in known]:
        raise SettingError(f"{strange[0]!r} is no method, model or group of them; {nearest(strange[0], known)}")
    found = [curve for curve in every if (curve.model in only and curve.group == "zoo") or {curve.name, curve.group} & {*only}]
    found = found or list(ZOO_CURVES)
    return [replace(curve, values=values) if values and curve.sweep == "threshold" else curve for curve in found]


def numbers(words: Sequence[str]) -> tuple[float, ...]:
    """Raises SettingError for a word that is no number."""
    try:
        return tuple(map(float, words))
    except ValueError:
        raise SettingError(f"thresholds are numbers by comma, such as 0.5,0.9; got {','.join(words)!r}") from None


def run_decode(curves: Sequence[Curve], tasks: Sequence[Task], batch: int, zoo: Path | None = None) -> Iterator[dict[str, Any]]:
    """A record for each point, then one for each curve. `zoo`: the folder of the models, when they are not known by their own names."""
    where = {"commit": commit(), "hardware": hardware(0.0), "threads": torch.get_num_threads(), "rows": len(tasks), "batch": batch}
    found: dict[str, list[dict[str, Any]]] = {}
    engines: dict[str, tuple[Engine, Any]] = {}
    for curve in curves:
        name = str(zoo / curve.model) if zoo else curve.model
        own = curve.below(zoo)
        key = f"{name} {own.params.get('draft', '')}"
        if key not in engines:
            engines = {key: engine_and_text(name, batch, own)}  # one model in memory at a time, with what drafts for it
        for params, told in zip(own.points(), curve.points(), strict=True):
            record = {"curve": curve.name, "model": curve.model, "recipe": curve.recipe, "params": told}
            record["temperature"] = curve.temperature
            record |= measure(*engines[key], tasks, curve.recipe, params, curve.temperature) | where
            found.setdefault(curve.name, []).append(record)
            yield record
    best = max(record["accuracy"] for records in found.values() for record in records)
    for name, records in found.items():
        yield {"aup_of": name, **_aup(records, best)}


def measure(
    engine: Engine, text: Any, tasks: Sequence[Task], recipe: str, params: Mapping[str, Any], temperature: float = 0.0
) -> dict[str, Any]:
    """One point: all tasks through the engine, graded."""
    prompts = [text.encode(task.prompt) for task in tasks]
    _answers(engine, prompts[:2], recipe, params, temperature)  # warms up
    before, started = engine.stats(), time.perf_counter()
    done = _answers(engine, prompts, recipe, params, temperature)
    seconds, after = time.perf_counter() - started, engine.stats()
    samples = [one.samples[0] for one in done]
    right = grade_all([(task.task, task.check, sample.text) for task, sample in zip(tasks, samples, strict=True)])
    by_task = {
        kind: percent([one for one, task in zip(right, tasks, strict=True) if task.task == kind])
        for kind in dict.fromkeys(t.task for t in tasks)
    }
    tpf_by_task = {
        kind: sum(len(sample.token_ids) for sample, task in zip(samples, tasks, strict=True) if task.task == kind)
        / sum(one.stats.forwards for one, task in zip(done, tasks, strict=True) if task.task == kind)
        for kind in by_task
    }
    tokens = sum(len(sample.token_ids) for sample in samples)
    forwards = sum(one.stats.forwards for one in done)
    return {
        "accuracy": percent(right),
        "accuracy_by_task": by_task,
        "tpf": tokens / forwards,
        "tpf_by_task": tpf_by_task,
        "tokens": tokens,
        "forwards": forwards,
        "rows_per_forward": sum(one.stats.rows for one in done) / forwards,
        "tokens_per_s": tokens / seconds,
        "ms_per_step": 1000 * (after.step_s - before.step_s) / (after.steps - before.steps),
        "outside_forward": 1 - (after.forward_s - before.forward_s + after.draft_s - before.draft_s) / (after.step_s - before.step_s),
        "drafting": (after.draft_s - before.draft_s) / (after.step_s - before.step_s),
        "accepted_per_forward": (after.accepted - before.accepted) / forwards,
        "kv_bytes": engine.pool.num_pages * engine.model.page_bytes(engine.pool.page_tokens),
        "weight_bytes": getattr(engine.model, "weight_bytes", 0),
        "ended_by_length": sum(sample.finish_reason == "length" for sample in samples),
    }


def percent(flags: Sequence[bool]) -> float:
    return 100 * sum(flags) / len(flags)


def held_out(count: int, seed: int, stretch: int = 1) -> list[Task]:
    """Held-out tasks made on the spot."""
    return [Task(one.task, one.prompt, one.check) for one in rows("held-out", seed, count, stretch=stretch)]


def read_tasks(path: Path, count: int) -> list[Task]:
    """The first `count` rows of a file that `drawloom train tasks` wrote. Raises SettingError when it is another file."""
    if not path.is_file():
        raise SettingError(f"tasks {str(path)!r}: there is no such file; write one with `drawloom train tasks FILE --split held-out`")
    found = chain.from_iterable(read_rows(str(path), COLUMNS))
    return [Task(row["task"], row["prompt"], row["check"]) for row in islice(found, count)]


def lines(records: Iterator[dict[str, Any]]) -> Iterator[str]:
    return (json.dumps(record) for record in records)


def engine_and_text(name: str, batch: int, curve: Curve | None = None) -> tuple[Engine, Any]:
    """A model's engine for `batch` sequences at once, and its tokenizer."""
    settings = ModelSettings(name=name)
    drafting = (curve.recipe, curve.params) if curve and "draft" in curve.params else (None, None)
    engine = build_engine(settings, EngineSettings(max_sequences=batch, share_prefix=False, draft_floor=0), *drafting)
    assert isinstance(engine, Engine)
    return engine, build_text(settings)


def _answers(
    engine: Engine, prompts: Sequence[Sequence[int]], recipe: str, params: Mapping[str, Any], temperature: float
) -> list[Completion]:
    sampling = Sampling(max_tokens=MAX_TOKENS, temperature=temperature)
    for index, prompt in enumerate(prompts):
        engine.add(Request(str(index), prompt, sampling, seed=index, decoder=recipe, decoder_params=params))
    done: dict[str, Completion] = {}
    while engine.num_unfinished:
        done |= {one.id: one for one in engine.step()}
    return [done[str(index)] for index in range(len(prompts))]


def _aup(records: Sequence[Mapping[str, Any]], best: float) -> dict[str, Any]:
    try:
        return {"aup": aup([(record["tpf"], record["accuracy"]) for record in records], best)}
    except SettingError as error:
        return {"aup": None, "why": str(error)}
