"""A replica outlives its engine: every row ends once, with the content of an undisturbed run or with an error that says why."""

import asyncio
import functools
import os
import signal
import time
from collections.abc import Iterator

import pytest

from drawloom.actors.build import build_engine
from drawloom.actors.fake import FakeText
from drawloom.actors.keeper import ReplicaSettings
from drawloom.actors.replica import Replica
from drawloom.actors.request import Completion, Request, Sampling
from drawloom.actors.settings import EngineSettings
from drawloom.errors import ReplicaError, SettingError
from drawloom.models.settings import ModelSettings

TEXT = FakeText()
FAKE = functools.partial(build_engine, ModelSettings(name="fake"), EngineSettings(max_sequences=64))


def rows(num_rows: int, directives: dict[int, str] | None = None) -> list[Request]:
    texts = [f"row {place} {(directives or {}).get(place, '')}" for place in range(num_rows)]
    return [Request(f"r{place}", TEXT.encode(text), Sampling(max_tokens=12), seed=place) for place, text in enumerate(texts)]


@pytest.fixture(scope="module")
def replica() -> Iterator[Replica]:
    kept = Replica(FAKE)
    yield kept
    kept.close()


def by_id(completions: list[Completion]) -> dict[str, tuple]:
    return {completion.id: completion.samples for completion in completions}


def test_completions_come_in_the_order_of_requests(replica: Replica) -> None:
    async def both() -> list[list[Completion]]:
        calls = [rows(100, {0: "[[fake slow 0.3]]"}), rows(7), []]
        return await asyncio.gather(*map(replica.submit, calls))

    many, few, none = asyncio.run(both())
    assert [completion.id for completion in many] == [f"r{place}" for place in range(100)]
    assert [completion.id for completion in few] == [f"r{place}" for place in range(7)]
    assert none == []
    assert many[3].samples == few[3].samples


def test_a_slow_row_does_not_hold_up_others(replica: Replica) -> None:
    slow = replica.submit_soon(rows(1, {0: "[[fake slow 3]]"}))
    replica.submit_soon(rows(200)).result(timeout=10)
    assert not slow.done()
    assert slow.result(timeout=10)[0].error is None


BAD = {
    4: ("[[fake exit 3]]", "killed_process", "exit code 3"),
    20: ("[[fake kill 9]]", "killed_process", "SIGKILL"),
    21: ("[[fake segfault]]", "killed_process", "SIGSEGV"),
    29: ("[[fake raise the shed jammed]]", "engine_error", "RuntimeError: the shed jammed"),
    30: ("[[fake rowerror no yarn]]", "fake", "no yarn"),
}


def test_rows_that_kill_are_found_and_the_others_complete(replica: Replica) -> None:
    expected = by_id(replica.submit_soon(rows(32)).result(timeout=30))
    before = replica.stats()
    done = replica.submit_soon(rows(32, {place: bad[0] for place, bad in BAD.items()})).result(timeout=90)
    errors = {completion.id: completion.error for completion in done if completion.error}
    assert sorted(errors) == sorted(f"r{place}" for place in BAD)
    for place, (_, code, words) in BAD.items():
        error = errors[f"r{place}"]
        assert error is not None
        assert error[0] == code
        assert words in error[1]
    innocent = {completion.id: completion.samples for completion in done if not completion.error}
    assert innocent == {row: samples for row, samples in expected.items() if row not in errors}
    after = replica.stats()
    assert after.convicted - before.convicted == 4
    assert after.deaths - before.deaths <= 4 * (5 + 2)
    assert after.engine.finished - before.engine.finished >= 27


def test_a_row_that_hangs_is_found() -> None:
    kept = Replica(FAKE, ReplicaSettings(step_timeout_s=1.5))
    done = kept.submit_soon(rows(2, {1: "[[fake hang]]"})).result(timeout=60)
    kept.close()
    assert done[0].error is None
    assert done[1].error is not None
    assert done[1].error[0] == "hang"
    assert "no step for 1.5 s" in done[1].error[1]


def test_the_traceback_of_a_row_is_kept(replica: Replica) -> None:
    (done,) = replica.submit_soon(rows(1, {0: "[[fake raise]]"})).result(timeout=30)
    assert done.error is not None
    assert "told to fail" in done.error[1]
    assert done.post_mortem is not None
    assert "Traceback" in done.post_mortem.stderr_tail
    assert done.post_mortem.signal is None


def test_accidents_from_outside_convict_nobody(replica: Replica) -> None:
    before = replica.stats()
    running = replica.submit_soon(rows(32, dict.fromkeys(range(32), "[[fake slow 0.5]]")))
    for _ in range(2):
        time.sleep(0.15)
        os.kill(replica.stats().pid, signal.SIGKILL)
        time.sleep(0.15)
    done = running.result(timeout=60)
    assert [completion.error for completion in done] == [None] * 32
    assert replica.stats().deaths - before.deaths >= 1


def test_cancelled_calls_take_their_rows_along(replica: Replica) -> None:
    async def impatient() -> None:
        await asyncio.wait_for(replica.submit(rows(5, {2: "[[fake slow 600]]"})), timeout=0.3)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(impatient())
    replica.submit_soon(rows(3)).result(timeout=10)
    assert replica.stats().in_flight == replica.stats().waiting == 0


REFUSES = functools.partial(ModelSettings.parse, {"nmae": "x"})
EXPLODES = functools.partial(int, "these weights")


def test_a_process_that_is_unfit_blames_no_row_and_ends_soon() -> None:
    kept = Replica(FAKE)
    with pytest.raises(ReplicaError, match="fell off the bus"):
        kept.submit_soon(rows(5, {3: "[[fake unfit the device fell off the bus]]"})).result(timeout=30)
    with pytest.raises(ReplicaError):  # later callers are refused as well
        kept.submit_soon(rows(1)).result(timeout=5)
    assert (kept.stats().deaths, kept.stats().convicted) == (3, 0)
    kept.close()


@pytest.mark.parametrize(
    ("build", "error", "words"), [(REFUSES, SettingError, "did you mean 'name'"), (EXPLODES, ReplicaError, "these weights")]
)
def test_a_start_that_must_fail_is_not_repeated(build, error: type[Exception], words: str) -> None:
    kept = Replica(build)
    with pytest.raises(error, match=words):
        kept.wait_ready()
    with pytest.raises(error, match=words):
        kept.submit_soon(rows(1)).result(timeout=5)
    assert kept.stats().deaths == 1
    kept.close()


def test_rows_of_a_closed_replica_fail() -> None:
    kept = Replica(FAKE)
    kept.wait_ready()
    waiting = kept.submit_soon(rows(1, {0: "[[fake slow 600]]"}))
    kept.close()
    for future in (waiting, kept.submit_soon(rows(1))):
        with pytest.raises(ReplicaError, match="closed"):
            future.result(timeout=5)


def test_the_engine_dies_with_its_owner(tmp_path) -> None:
    """A replica that is killed leaves no engine behind, even when the engine is stuck."""
    pid = os.fork()
    if pid == 0:
        kept = Replica(FAKE)
        kept.submit_soon(rows(1, {0: "[[fake hang]]"}))
        kept.wait_ready()
        (tmp_path / "pid").write_text(str(kept.stats().pid))
        time.sleep(60)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_until(lambda: not alive(int((tmp_path / "pid").read_text())))


def wait_until(holds, timeout_s: float = 15.0) -> None:
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
