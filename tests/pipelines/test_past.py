"""A job drafts from what an earlier one said: the same texts in fewer forwards."""

from pathlib import Path

import pytest
from job_rig import job, lines, run, write

from drawloom.errors import SettingError
from drawloom.pipelines.past import past_texts

HASH = {"model": "hash", "replicas": 1, "decoder": "suffix", "sampling": {"max_tokens": 50, "temperature": 0.7, "ignore_eos": True}}


def test_the_second_job_needs_fewer_forwards(ray_address: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", [{"prompt": f"tell me about {k % 5}"} for k in range(20)])
    first = job(source, tmp_path / "first", seed=3, address=ray_address, **HASH)
    run(first)
    second = job(source, tmp_path / "second", seed=3, engine={"drafts_from": str(tmp_path / "first")}, address=ray_address, **HASH)
    run(second)
    before, after = lines(tmp_path / "first"), lines(tmp_path / "second")
    assert [row["samples"][0]["token_ids"] for row in before] == [row["samples"][0]["token_ids"] for row in after]
    cost = [sum(row["engine"]["forwards"] for row in rows) for rows in (before, after)]
    assert cost[1] < 0.7 * cost[0]


def test_past_texts_are_the_last_ones(ray_address: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", [{"prompt": f"row {k}"} for k in range(40)])
    run(job(source, tmp_path / "out", rows_per_unit=4, address=ray_address))
    everything = past_texts(str(tmp_path / "out"), 1 << 20)
    assert [list(text) for text in everything] == [row["samples"][0]["token_ids"] for row in lines(tmp_path / "out")]
    some = past_texts(str(tmp_path / "out"), 1)
    assert len(some) == 4
    assert [list(text) for text in some] == [list(text) for text in everything[-4:]]


def test_a_folder_without_texts_is_refused_before_any_work(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", [{"prompt": "x"}])
    with pytest.raises(SettingError, match="holds no job"):
        run(job(source, tmp_path / "out", engine={"drafts_from": str(tmp_path / "nothing")}, **HASH))
    assert not (tmp_path / "out").exists()
