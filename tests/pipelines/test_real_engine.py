"""The job on the real engine (HashLM): one text for a seed, whatever the replicas, units, decoders, kills and resumes."""

from pathlib import Path

import job_rig
import pytest
from job_rig import KillOnce, content, job, lines, run, write
from oracles import autoregressive
from ray import cloudpickle

from drawloom.actors.request import Sampling
from drawloom.models.hash_lm import HashLM, HashText

DECODERS = ("ar", "lookup", "jacobi", "multi-block")
SAMPLING = {"max_tokens": 24, "temperature": 0.8}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """32 rows with a seed each, every fourth for each decoder, every eighth with two samples."""
    rows = [
        {
            "prompt": f"the {row % 5} weavers of row {row}",
            "seed": row * 7,
            "decoder": DECODERS[row % 4],
            "n": 2 if row % 8 == 0 else 1,
        }
        for row in range(32)
    ]
    return write(tmp_path_factory.mktemp("in") / "in.parquet", rows)


def test_one_text_for_a_seed(ray_address: str, source: str, tmp_path: Path) -> None:
    common = {"address": ray_address, "model": "hash", "sampling": SAMPLING}
    run(job(source, tmp_path / "one", replicas=1, rows_per_unit=32, **common))
    run(job(source, tmp_path / "three", replicas=3, rows_per_unit=5, engine={"max_sequences": 3, "num_pages": 14}, **common))
    cloudpickle.register_pickle_by_value(job_rig)
    hook = KillOnce(str(tmp_path), ("after_data",), times=1)
    run(job(source, tmp_path / "killed", replicas=1, rows_per_unit=4, **common), hook)
    assert hook.kills() == ["after_data-0"]
    assert content(tmp_path / "one") == content(tmp_path / "three") == content(tmp_path / "killed")
    rows = lines(tmp_path / "three")
    assert sum(row["engine"]["preemptions"] for row in rows) > 0
    for row in rows:
        assert row["error"] is None
        assert row["engine"]["lossless"] == (row["decoder"] != "multi-block")
        if row["decoder"] != "multi-block":
            prompt = HashText().encode(row["prompt"])
            for sample in row["samples"]:
                want = autoregressive(HashLM(), prompt, Sampling(**SAMPLING), row["seed"], sample["index"])
                assert (sample["token_ids"], sample["finish_reason"]) == want
