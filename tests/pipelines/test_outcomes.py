"""The output table: one schema whatever the values, and every reader reads it."""

import warnings
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from commit_rig import Rig, prompts, write_rows

from drawloom.actors.request import Completion, Sample, Stats, TokenLogprob
from drawloom.pipelines.columns import Columns, resolve
from drawloom.pipelines.commits import Job
from drawloom.pipelines.outcomes import Failure, Outcome, content_digest, outcome_schema, outcome_table
from drawloom.pipelines.store import LocalStore

INPUT = pa.table({"id": [1, 2, 3], "prompt": ["a", None, "c"]})
ROLES = resolve(Columns(), INPUT.schema)
TOKENS = ((TokenLogprob(5, -0.25, 1), TokenLogprob(6, -1.5, 2)), ())
SAMPLES = (Sample(0, (5, 6), "x", "stop", 7, -1.0, TOKENS), Sample(1, (), "", "length", None, 0.0, None))
GOOD = Completion("u:0", SAMPLES, 3, Stats(forwards=2, accepted_by_position=(2, 1)), "lookup", decoder_params={"width": 4})
BAD = Outcome(None, Failure("killed", "the row ended its process", True, 3, "SIGSEGV", "tail", None), 8)


def test_one_schema_whatever_the_values() -> None:
    full = outcome_table(INPUT, [Outcome.of(GOOD, 1 << 63), BAD, Outcome(GOOD, Failure("e", "m"), 1)], ROLES)
    empty = outcome_table(INPUT.slice(0, 1), [BAD], ROLES)
    assert full.schema == empty.schema == outcome_table(INPUT.slice(0, 0), [], ROLES).schema == outcome_schema(INPUT.schema, ROLES)
    first, second, third = full.to_pylist()
    assert first["samples"][0] == {
        "index": 0,
        "text": "x",
        "token_ids": [5, 6],
        "finish_reason": "stop",
        "stop_reason": "7",
        "cumulative_logprob": -1.0,
        "logprobs": [[{"token_id": 5, "logprob": -0.25, "rank": 1}, {"token_id": 6, "logprob": -1.5, "rank": 2}], []],
    }
    assert first["samples"][1]["stop_reason"] is None
    assert first["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "cached_prompt_tokens": 0}
    assert (first["seed"], first["error"], first["engine"]["forwards"]) == (1 << 63, None, 2)
    assert first["engine"]["decoder_params"] == '{"width": 4}'
    assert first["engine"]["accepted_by_position"] == [2, 1]
    assert second["error"]["signal"] == "SIGSEGV"
    assert (second["samples"], second["engine"], second["seed"]) == ([], None, 8)
    assert third["error"]["code"] == "e"
    assert len(third["samples"]) == 2


def test_an_engine_error_becomes_the_rows_error() -> None:
    ended = Completion("u:0", (), 3, Stats(), error=("too_long", "prompt has 9 tokens"))
    row = outcome_table(INPUT.slice(0, 1), [Outcome.of(ended, 1)], ROLES).to_pylist()[0]
    assert (row["error"]["code"], row["error"]["message"], row["error"]["retryable"]) == ("too_long", "prompt has 9 tokens", False)


def test_last_words_that_are_no_text_are_escaped() -> None:
    failed = Outcome(None, Failure("killed", "bytes \udcff", stderr_tail="\ud800"), 1)
    assert outcome_table(INPUT.slice(0, 1), [failed], ROLES).to_pylist()[0]["error"]["stderr_tail"] == "\\ud800"


def _digest(table: pa.Table, start: int = 0) -> int:
    return content_digest(table, ROLES, "in.parquet", start)


def test_the_digest_adds_up_and_leaves_times_out() -> None:
    table = outcome_table(INPUT, [Outcome.of(GOOD, 1), BAD, Outcome.of(GOOD, 2)], ROLES)
    parts = [_digest(table.slice(start, length), start) for start, length in ((0, 1), (1, 2))]
    assert sum(parts) % (1 << 128) == _digest(table)
    slower = Completion(GOOD.id, GOOD.samples, 3, Stats(forwards=99, total_s=5.0, cached_prompt_tokens=2), "other")
    again = Outcome(None, Failure("killed", "other words", attempts=9), 8)
    assert _digest(outcome_table(INPUT, [Outcome.of(slower, 1), again, Outcome.of(slower, 2)], ROLES)) == _digest(table)
    assert _digest(pa.concat_tables([table.slice(0, 2), table.slice(2)])) == _digest(table)  # whatever the chunks


@pytest.mark.parametrize(
    "other",
    [
        Sample(0, (5, 7), "x", "stop", 7, -1.0, TOKENS),
        Sample(0, (5, 6), "y", "stop", 7, -1.0, TOKENS),
        Sample(0, (5, 6), "x", "length", 7, -1.0, TOKENS),
        Sample(0, (5, 6), "x", "stop", None, -1.0, TOKENS),
        Sample(1, (5, 6), "x", "stop", 7, -1.0, TOKENS),
    ],
)
def test_the_digest_sees_every_change_of_meaning(other: Sample) -> None:
    one = INPUT.slice(0, 1)
    base = Completion("u:0", (Sample(0, (5, 6), "x", "stop", 7, -1.0, TOKENS),), 3, Stats())
    table = outcome_table(one, [Outcome.of(base, 1)], ROLES)
    assert _digest(outcome_table(one, [Outcome.of(Completion("u:0", (other,), 3, Stats()), 1)], ROLES)) != _digest(table)
    assert _digest(outcome_table(one, [Outcome.of(base, 2)], ROLES)) != _digest(table)
    assert _digest(outcome_table(INPUT.slice(2, 1), [Outcome.of(base, 1)], ROLES)) != _digest(table)
    assert _digest(table, start=1) != _digest(table)
    assert content_digest(table, ROLES, "other.parquet", 0) != _digest(table)


@pytest.fixture
def half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Rig, Job]:
    """A job in the middle: one unit completed with logprobs, one all errors, one missing, manifests of both kinds, leftovers in tmp."""
    rows = [{**row, "logprobs": 1 if row["id"] < 4 else None, "meta": {"k": None}, "tags": [], "raw": b"\0\xff"} for row in prompts(12)]
    for row in rows[4:8]:
        row["prompt"] = None
    rig = Rig(str(write_rows(tmp_path / "in.parquet", rows)), str(tmp_path / "out"))
    job = rig.open()
    first, second, third = job.plan.units()
    job.record(rig.commit(job, first))
    job.fold()
    job.record(rig.commit(job, second))
    monkeypatch.setattr(LocalStore, "put_if_absent", LocalStore._temp)  # as a writer that is killed half-way leaves it
    rig.commit(job, third)
    monkeypatch.undo()
    return rig, job


def test_pyarrow_pandas_duckdb_and_datasets_read_a_job_in_the_middle(half_done: tuple[Rig, Job], tmp_path: Path) -> None:
    rig, _ = half_done
    _check_readers(rig.output, 8, tmp_path / "cache1")
    rig.run()
    _check_readers(rig.output, 12, tmp_path / "cache2")


def _check_readers(output: str, count: int, cache: Path) -> None:
    table = pq.read_table(output)
    assert table.column("id").to_pylist() == list(range(count))
    assert ds.dataset(output, format="parquet").count_rows() == count
    assert {str(pq.read_schema(path).remove_metadata()) for path in Path(output).glob("*.parquet")} == {str(table.schema.remove_metadata())}
    frame = pd.read_parquet(output).to_dict("list")
    assert frame["id"] == list(range(count))
    assert frame["samples"][0][0]["finish_reason"] == "stop"
    assert frame["error"][5]["code"] == "empty_prompt"
    for pattern in (f"{output}/*.parquet", f"{output}/**/*.parquet"):
        query = f"select count(*), count(error), count(distinct id), sum(len(samples)), max(samples[1].text is not null) from '{pattern}'"
        assert duckdb.execute(query).fetchall() == [(count, 4, count, count - 4, True)]
    _check_datasets(output, count, cache)


def _check_datasets(output: str, count: int, cache: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library itself, on import
        import datasets

        datasets.disable_progress_bars()
        for data in (
            datasets.load_dataset(output, cache_dir=str(cache / "a"), split="train"),
            datasets.load_dataset("parquet", data_files=f"{output}/*.parquet", cache_dir=str(cache / "b"), split="train"),
        ):
            assert sorted(data["id"]) == list(range(count))
            assert data[0]["samples"][0]["token_ids"]
            assert data[0]["samples"][0]["logprobs"][0][0]["rank"] == 1
