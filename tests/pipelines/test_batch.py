"""The flow on a real Ray: every row once, the same text however it is spread, and bad rows as errors."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_rig import content, job, lines, plainly, prompts, run, write

from drawloom.errors import DrawloomError, SettingError


def test_text_does_not_depend_on_replicas_or_units(ray_address: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", prompts(100))
    three = run(job(source, tmp_path / "three", address=ray_address, replicas=3, rows_per_unit=7))
    assert content(tmp_path / "three") == plainly(job(source, tmp_path / "one", rows_per_unit=100))
    assert (three.num_rows, three.num_errors) == (100, 0)
    done = lines(tmp_path / "three")
    assert [line["id"] for line in done] == list(range(100))
    assert all(line["samples"][0]["text"] and line["engine"]["forwards"] for line in done)


def test_every_replica_gets_work_from_a_small_file(ray_address: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", prompts(48, every="[[fake slow 0.5]]"))
    found = run(job(source, tmp_path / "out", address=ray_address, replicas=3, engine={"max_sequences": 4})).figures
    assert found is not None
    assert len(found.rows_by_replica) == 3
    assert min(found.rows_by_replica) >= 8


def test_a_long_row_holds_nobody_up(ray_address: str, tmp_path: Path) -> None:
    """One row lasts as long as the job; the others of its replica are committed long before it ends."""
    source = write(tmp_path / "in.parquet", prompts(64, {0: "[[fake slow 6]]"}))
    output = tmp_path / "out"
    run(job(source, output, address=ray_address, replicas=1, rows_per_unit=4))
    made = sorted((path.stat().st_mtime, path.name) for path in output.glob("part-*"))
    names = [name.split("-")[1] for _, name in made]
    assert names.index("00000000") >= len(names) // 2  # all of them, unless committing takes as long as the row
    assert made[-1][0] - made[-2][0] > 3


BAD = {  # ten rows that are bad in ten ways: (column -> value), the error's code, words of its message
    11: ({"prompt": None}, "empty_prompt", "give the row a prompt"),
    110: ({"prompt": ""}, "empty_prompt", "empty"),
    220: ({"prompt": "x" * 5000}, "too_long", "at most 4080 fit beside max_tokens=16"),
    333: ({"temperature": -1.0}, "invalid_sampling", "temperature"),
    334: ({"stop": [""]}, "invalid_sampling", "empty stop string"),
    450: ({"max_tokens": 0}, "invalid_sampling", "max_tokens"),
    560: ({"prompt": "[[fake rowerror no such yarn]]"}, "fake", "no such yarn"),
    670: ({"prompt": "[[fake raise the shed jammed]]"}, "engine_error", "RuntimeError: the shed jammed"),
    780: ({"prompt": "[[fake exit 3]]"}, "killed_process", "exit code 3"),
    990: ({"prompt": "[[fake segfault]]"}, "killed_process", "SIGSEGV"),
}
BAD_TYPES = {"id": pa.int64(), "prompt": pa.string(), "temperature": pa.float64(), "stop": pa.list_(pa.string()), "max_tokens": pa.int64()}


def test_ten_bad_rows_of_a_thousand_become_ten_errors(ray_address: str, tmp_path: Path) -> None:
    rows = [{**row, **BAD.get(row["id"], ({},))[0]} for row in prompts(1000)]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(BAD_TYPES)), tmp_path / "in.parquet")
    result = run(job(str(tmp_path / "in.parquet"), tmp_path / "out", address=ray_address, rows_per_unit=50))
    assert (result.num_rows, result.num_errors) == (1000, 10)
    content(tmp_path / "out")
    schemas = {pq.read_schema(path) for path in (tmp_path / "out").glob("*.parquet")}
    assert len(schemas) == 1
    done = lines(tmp_path / "out")
    assert {line["id"] for line in done if line["error"]} == set(BAD)
    for number, (_, code, words) in BAD.items():
        error = done[number]["error"]
        assert (done[number]["samples"], error["code"]) == ([], code)
        assert words in error["message"]
    assert done[990]["error"]["signal"] == "SIGSEGV"
    assert done[780]["error"]["attempts"] == 2
    assert "the shed jammed" in done[670]["error"]["stderr_tail"]
    assert sum(len(line["samples"]) for line in done) == 990


def test_a_row_that_kills_the_whole_replica_ends_as_an_error(ray_address: str, tmp_path: Path) -> None:
    """No witness is left but the board: the unit is run row by row at its fourth start, and the row is known at the sixth."""
    source = write(tmp_path / "in.parquet", prompts(8, {3: "[[fake parent 9]]"}))
    result = run(job(source, tmp_path / "out", address=ray_address, replicas=1, rows_per_unit=8))
    assert (result.num_rows, result.num_errors) == (8, 1)
    content(tmp_path / "out")
    (bad,) = [line for line in lines(tmp_path / "out") if line["error"]]
    assert (bad["id"], bad["error"]["code"]) == (3, "killed_replica")


def test_a_row_that_kills_whoever_reads_it_ends_as_an_error(ray_address: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", prompts(8, {5: "[[fake encode 11]]"}))
    result = run(job(source, tmp_path / "out", address=ray_address, replicas=1, rows_per_unit=8))
    assert (result.num_rows, result.num_errors) == (8, 1)
    content(tmp_path / "out")
    (bad,) = [line for line in lines(tmp_path / "out") if line["error"]]
    assert (bad["id"], bad["error"]["code"]) == (5, "killed_reader")


def test_a_wrong_model_is_a_setting_error_and_ends_the_job_at_once(ray_address: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", prompts(8))
    with pytest.raises(SettingError, match=r"lookop.*did you mean 'lookup'"):
        run(job(source, tmp_path / "out", address=ray_address, model="hash", decoder="lookop"))


def test_a_replica_without_an_engine_ends_the_job_with_its_last_words(ray_address: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", prompts(4, every="[[fake unfit the device fell off the bus]]"))
    with pytest.raises(DrawloomError, match="the device fell off the bus"):
        run(job(source, tmp_path / "out", address=ray_address, replicas=1))


def test_a_cluster_that_can_never_hold_the_job_is_refused(ray_address: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", prompts(8))
    with pytest.raises(SettingError, match=r"6 replicas of 1 CPU .* at most 5 fit"):
        run(job(source, tmp_path / "out", address=ray_address, replicas=6))
    with pytest.raises(SettingError, match=r"ray job submit"):
        run(job(source, tmp_path / "out", address="ray://127.0.0.1:10001"))
    with pytest.raises(SettingError, match="GPU"):
        run(job(source, tmp_path / "out2", address=ray_address, gpus_per_replica=1))


def test_nobody_answers_at_a_wrong_address(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", prompts(8))
    with pytest.raises(SettingError, match=r"no Ray cluster answers at '127\.0\.0\.1:1'"):
        run(job(source, tmp_path / "out", address="127.0.0.1:1"))
