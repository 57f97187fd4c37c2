"""The whole command on S3: moto; SeaweedFS with signatures, behind a proxy that fails a fifth of the requests; wrong settings."""

import json
import time
import uuid
from collections.abc import Callable

import job_rig
import pytest
from s3_rig import BUCKET, Faults, Server, faulting_proxy

from drawloom.pipelines.store import open_store

Use = Callable[..., None]
ROWS = 60


def generate(server: Server, source: str, output: str, **other: str) -> tuple[int, str]:
    """Exit code and output of the command, with its own Ray."""
    arguments = ["generate", source, output, "--model", "fake", "--max-tokens", "16", "--replicas", "2", "--rows-per-unit", "5"]
    command = job_rig.command(*arguments, "--progress", "lines", env=server.environment | other)
    said, _ = command.communicate(timeout=240)
    return command.returncode, said


def test_a_job_on_moto(moto_server: Server, use_s3: Use) -> None:
    use_s3(moto_server)
    place = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    open_store(place).put("in/prompts.jsonl", "".join(json.dumps(row) + "\n" for row in job_rig.prompts(ROWS)).encode())
    code, said = generate(moto_server, place + "/in", place + "/out")
    assert code == 0, said
    assert job_rig.content(place + "/out")  # verified deeply
    code, said = generate(moto_server, place + "/in", place + "/out")
    assert (code, f"all {ROWS} rows" in said) == (0, True), said


@pytest.mark.s3
def test_a_job_behind_a_faulting_proxy_loses_nothing(weed_server: Server, use_s3: Use) -> None:
    use_s3(weed_server)
    place = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    rows = job_rig.prompts(ROWS, {7: "[[fake exit 3]]"})
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    open_store(place).put("in/prompts.jsonl", lines)
    faults = Faults(busy=0.2, reset=0.02, cut=0.02, seed=5)
    with faulting_proxy(weed_server, faults) as proxy:
        code, said = generate(proxy, f"{place}/in/*.jsonl", place + "/out")
        assert code == 3, said  # one row kills its process, and is an error
    assert faults.seen["busy"] > 10
    use_s3(weed_server)
    assert job_rig.content(place + "/out")
    code, said = generate(weed_server, f"{place}/in/*.jsonl", place + "/out")
    assert (code, "nothing to do" in said) == (3, True), said


@pytest.mark.s3
def test_a_wrong_secret_ends_the_command_in_time(weed_server: Server) -> None:
    started = time.monotonic()
    code, said = generate(weed_server, f"s3://{BUCKET}/in", f"s3://{BUCKET}/out", AWS_SECRET_ACCESS_KEY="wrong")
    assert time.monotonic() - started < 60  # retries in mid-job go on for minutes
    said = " ".join(said.split())
    assert code == 2, said
    for word in (BUCKET, "'in'", "GetObject", "AWS_SECRET_ACCESS_KEY"):
        assert word in said, said
