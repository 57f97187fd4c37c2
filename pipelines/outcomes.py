"""The output row: all input columns unchanged, then what became of the row. One Arrow schema, whatever the values."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, islice
from typing import Any, Self

import pyarrow as pa

from drawloom.actors.request import Completion, Sample
from drawloom.pipelines.columns import Roles

TOKEN_LOGPROB = pa.struct([("token_id", pa.int32()), ("logprob", pa.float32()), ("rank", pa.int32())])
SAMPLE = pa.struct(
    [
        ("index", pa.int32()),
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("finish_reason", pa.string()),
        ("stop_reason", pa.string()),
        ("cumulative_logprob", pa.float64()),
        ("logprobs", pa.list_(pa.list_(TOKEN_LOGPROB))),
    ]
)
USAGE = pa.struct([("prompt_tokens", pa.int32()), ("completion_tokens", pa.int32()), ("cached_prompt_tokens", pa.int32())])
ERROR = pa.struct(
    [
        ("code", pa.string()),
        ("message", pa.string()),
        ("retryable", pa.bool_()),
        ("attempts", pa.int32()),
        ("signal", pa.string()),
        ("stderr_tail", pa.string()),
        ("raw", pa.string()),
    ]
)
ENGINE = pa.struct(
    [
        ("decoder", pa.string()),
        ("decoder_params", pa.string()),  # JSON of what was not left at the recipe's default
        ("lossless", pa.bool_()),
        *((name, pa.int64()) for name in ("forwards", "rows", "drafted", "accepted", "preemptions")),
        ("accepted_by_position", pa.list_(pa.int64())),
        *((name, pa.float64()) for name in ("queued_s", "first_token_s", "total_s")),
    ]
)
MEANT = ("index", "text", "token_ids", "finish_reason", "stop_reason")  # fields of SAMPLE that the content digest covers
TYPES = {"samples": pa.list_(SAMPLE), "prompt_tokens": pa.int32(), "usage": USAGE, "seed": pa.uint64(), "error": ERROR, "engine": ENGINE}


@dataclass(frozen=True)
class Failure:
    """Why a row has no completion. retryable: the same row may succeed in another run. attempts: times it was started."""

    code: str
    message: str
    retryable: bool = False
    attempts: int = 1
    signal: str | None = None  # that ended the row's process, such as "SIGSEGV"
    stderr_tail: str | None = None
    raw: str | None = None  # the record as it stands in the input file, when it could not be read


@dataclass(frozen=True)
class Outcome:
    """What became of one row: a completion or a failure (both when a request ran and failed)."""

    completion: Completion | None
    failure: Failure | None
    seed: int

    @classmethod
    def of(cls, completion: Completion, seed: int) -> Self:
        """The outcome of a request that the engine ended; its error, if any, becomes the failure."""
        return cls(completion, Failure(*completion.error) if completion.error else None, seed)


def outcome_schema(input_schema: pa.Schema, roles: Roles) -> pa.Schema:
    """The schema of every part: the input's columns, then TYPES under the names that `roles` gives them."""
    return pa.schema([*input_schema, *(pa.field(roles.outputs[name], kind) for name, kind in TYPES.items())])


def outcome_table(inputs: pa.Table, outcomes: Sequence[Outcome], roles: Roles) -> pa.Table:
    """Input rows and their outcomes, side by side, as one table of `outcome_schema`. Both have the same length and order."""
    assert len(outcomes) == inputs.num_rows, f"{len(outcomes)} outcomes for {inputs.num_rows} rows"
    lines = [_line(one) for one in outcomes]
    added = [pa.array([line[name] for line in lines], kind) for name, kind in TYPES.items() if name != "samples"]
    samples = _samples([one.completion.samples if one.completion else () for one in outcomes])
    return pa.table([*inputs.columns, samples, *added], schema=outcome_schema(inputs.schema, roles))


def _line(outcome: Outcome) -> dict[str, Any]:
    done = outcome.completion
    failed = _failed(outcome.failure) if outcome.failure else None
    if done is None:
        return {"prompt_tokens": None, "usage": None, "seed": outcome.seed, "error": failed, "engine": None}
    stats = asdict(done.stats)
    usage = {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": sum(len(sample.token_ids) for sample in done.samples),
        "cached_prompt_tokens": stats.pop("cached_prompt_tokens"),
    }
    params = json.dumps(dict(done.decoder_params), sort_keys=True)
    engine = {"decoder": done.decoder, "decoder_params": params, "lossless": done.lossless, **stats}
    return {"prompt_tokens": done.prompt_tokens, "usage": usage, "seed": outcome.seed, "error": failed, "engine": engine}


def _failed(failure: Failure) -> dict[str, Any]:
    """Messages and a dying process's last words may hold bytes that are no text; they are shown as escapes."""
    found = asdict(failure)
    return {name: value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value for name, value in found.items()}


def _samples(rows: Sequence[Sequence[Sample]]) -> pa.Array:
    """list<SAMPLE> [rows], built column by column: a dict per token would cost more than all the rest."""
    flat = [sample for row in rows for sample in row]
    values = {
        "index": [sample.index for sample in flat],
        "text": [sample.text for sample in flat],
        "token_ids": [sample.token_ids for sample in flat],
        "finish_reason": [sample.finish_reason for sample in flat],
        "stop_reason": [None if sample.stop_reason is None else str(sample.stop_reason) for sample in flat],
        "cumulative_logprob": [sample.cumulative_logprob for sample in flat],
    }
    columns = [_logprobs(flat) if field.name == "logprobs" else pa.array(values[field.name], field.type) for field in SAMPLE]
    return pa.ListArray.from_arrays(_offsets(rows), pa.StructArray.from_arrays(columns, fields=list(SAMPLE)))


def _logprobs(samples: Sequence[Sample]) -> pa.Array:
    """list<list<TOKEN_LOGPROB>> [samples], null where a sample has none."""
    tokens = [token for sample in samples for token in sample.logprobs or ()]
    flat = [one for token in tokens for one in token]
    columns = [pa.array([getattr(one, field.name) for one in flat], field.type) for field in TOKEN_LOGPROB]
    inner = pa.ListArray.from_arrays(_offsets(tokens), pa.StructArray.from_arrays(columns, fields=list(TOKEN_LOGPROB)))
    return pa.ListArray.from_arrays(_offsets([sample.logprobs for sample in samples]), inner)


def _offsets(lists: Sequence[Sequence[Any] | None]) -> pa.Array:
    """Where each list starts in the joined values, and their end; a list that is None is null."""
    starts = list(accumulate((len(one or ()) for one in lists), initial=0))
    return pa.array([None if one is None else start for one, start in zip(lists, starts, strict=False)] + starts[-1:], pa.int32())


def content_digest(table: pa.Table, roles: Roles, file: str, start: int) -> int:
    """A 128-bit sum over the rows' meaning: input columns, token ids, texts, reasons, seed and error code, with (file, row).

    Sums of units add up modulo 2**128 to the same number for any unit size and order. Left out: times, attempts, messages, counters
    and log-probabilities, which may differ between two runs that gave the same text.
    """
    results = [table.column(roles.outputs[name]).to_pylist() for name in ("prompt_tokens", "seed", "error")]
    samples = _meanings(table.column(roles.outputs["samples"]))
    inputs = table.drop_columns(list(roles.outputs.values())).to_pylist()
    total = 0
    for row, (line, texts, prompt_tokens, seed, error) in enumerate(zip(inputs, samples, *results, strict=True)):
        meaning = [file, start + row, line, prompt_tokens, texts, seed, error and error["code"]]
        data = json.dumps(meaning, sort_keys=True, default=_canonical).encode("utf-8", "surrogateescape")
        total += int.from_bytes(hashlib.blake2b(data, digest_size=16).digest(), "little")
    return total % (1 << 128)


def _meanings(samples: pa.ChunkedArray) -> Iterator[list[tuple[Any, ...]]]:
    """Per row the samples' fields that carry meaning; log-probabilities are not even converted."""
    for chunk in samples.chunks:
        flat = chunk.flatten()
        fields = zip(*(flat.field(name).to_pylist() for name in MEANT), strict=True)
        for count in chunk.value_lengths().to_pylist():
            yield list(islice(fields, count or 0))


def _canonical(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
