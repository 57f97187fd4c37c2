"""The output row: all input columns unchanged, then what became of the row. One Arrow schema, whatever the values."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
        ("lossless", pa.bool_()),
        *((name, pa.int64()) for name in ("forwards", "rows", "drafted", "accepted", "preemptions")),
        *((name, pa.float64()) for name in ("queued_s", "first_token_s", "total_s")),
    ]
)
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
    added = [pa.array([line[name] for line in lines], kind) for name, kind in TYPES.items()]
    return pa.table([*inputs.columns, *added], schema=outcome_schema(inputs.schema, roles))


def _line(outcome: Outcome) -> dict[str, Any]:
    done = outcome.completion
    failed = asdict(outcome.failure) if outcome.failure else None
    if done is None:
        return {"samples": [], "prompt_tokens": None, "usage": None, "seed": outcome.seed, "error": failed, "engine": None}
    stats = asdict(done.stats)
    usage = {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": sum(len(sample.token_ids) for sample in done.samples),
        "cached_prompt_tokens": stats.pop("cached_prompt_tokens"),
    }
    return {
        "samples": [_sample(sample) for sample in done.samples],
        "prompt_tokens": done.prompt_tokens,
        "usage": usage,
        "seed": outcome.seed,
        "error": failed,
        "engine": {"decoder": done.decoder, "lossless": done.lossless, **stats},
    }


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "index": sample.index,
        "text": sample.text,
        "token_ids": sample.token_ids,
        "finish_reason": sample.finish_reason,
        "stop_reason": None if sample.stop_reason is None else str(sample.stop_reason),
        "cumulative_logprob": sample.cumulative_logprob,
        "logprobs": None if sample.logprobs is None else [[asdict(one) for one in token] for token in sample.logprobs],
    }


def content_digest(table: pa.Table, roles: Roles, file: str, start: int) -> int:
    """A 128-bit sum over the rows' meaning: input columns, token ids, texts, reasons, seed and error code, with (file, row).

    Sums of units add up modulo 2**128 to the same number for any unit size and order. Left out: times, attempts, messages, counters
    and log-probabilities, which may differ between two runs that gave the same text.
    """
    results = [table.column(roles.outputs[name]).to_pylist() for name in ("samples", "prompt_tokens", "seed", "error")]
    inputs = table.drop_columns(list(roles.outputs.values())).to_pylist()
    total = 0
    for row, (line, samples, prompt_tokens, seed, error) in enumerate(zip(inputs, *results, strict=True)):
        texts = [[s["index"], s["text"], s["token_ids"], s["finish_reason"], s["stop_reason"]] for s in samples or []]
        meaning = [file, start + row, line, prompt_tokens, texts, seed, error and error["code"]]
        data = json.dumps(meaning, sort_keys=True, default=_canonical).encode("utf-8", "surrogateescape")
        total += int.from_bytes(hashlib.blake2b(data, digest_size=16).digest(), "little")
    return total % (1 << 128)


def _canonical(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
