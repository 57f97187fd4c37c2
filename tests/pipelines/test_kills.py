"""Replicas, engines and drivers killed in the middle: afterwards every row is there once, with the content of an unbroken run.

The commit path alone is killed many more times, and more cheaply, in test_commits.py.
"""

import contextlib
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import job_rig
import psutil
import pytest
from job_rig import KillOnce, command, content, job, plainly, prompts, run, write
from ray import cloudpickle

from drawloom.pipelines.board import Snapshot
from drawloom.pipelines.progress import Tally

POINTS = ("before_data", "after_data", "before_manifest", "after_manifest")
ROWS = 120
SLOW = {row: f"[[fake slow {0.2 + row % 5 / 10}]]" for row in range(ROWS)}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("in") / "in.parquet", prompts(ROWS, SLOW))


@pytest.fixture(scope="module")
def unbroken(source: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The content of a run that nobody disturbed."""
    return plainly(job(source, tmp_path_factory.mktemp("unbroken") / "out", rows_per_unit=30))


def test_replicas_killed_at_each_named_point(ray_address: str, source: str, unbroken: str, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(job_rig)
    hook = KillOnce(str(tmp_path), POINTS, times=1)
    run(job(source, tmp_path / "out", address=ray_address, rows_per_unit=5), hook)
    assert sorted(hook.kills()) == sorted(f"{point}-{time}" for point in POINTS for time in range(1))
    assert content(tmp_path / "out") == unbroken


@contextmanager
def killing(monkeypatch: pytest.MonkeyPatch, seed: int, kills: list[tuple[str, str]]) -> Iterator[None]:
    """Kill three engines and three replicas, in a random order at random moments of work, and write down whose.

    Not one engine twice, and no more than that: a row that ends its process whenever it runs is rightly given up, and a machine
    that starts a replica more slowly than the next kill comes would make every row one of those.
    """
    chance, over, seen = random.Random(seed), threading.Event(), []
    original = Tally.seen

    def look(tally: Tally, snapshot: Snapshot) -> None:
        seen[:] = [snapshot]
        original(tally, snapshot)

    def kill() -> None:
        left = ["engine", "replica"] * 3
        chance.shuffle(left)
        while left and not over.wait(chance.uniform(0.5, 1.5)):
            replicas = seen[0].replicas if seen else {}
            spared = {name for name, kind in kills if kind == left[-1]}
            busy = {name: one.stats.pid for name, one in replicas.items() if one.age_s < 2 and one.stats.in_flight and name not in spared}
            if busy:
                name = chance.choice(sorted(busy))
                with contextlib.suppress(psutil.NoSuchProcess):
                    engine = psutil.Process(busy[name])
                    victim = engine if left[-1] == "engine" else psutil.Process(engine.ppid())
                    if victim.pid != 1:
                        victim.kill()
                        kills.append((name, left.pop()))

    monkeypatch.setattr(Tally, "seen", look)
    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_replicas_and_engines_killed_at_random(
    ray_address: str, source: str, unbroken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[tuple[str, str]] = []
    with killing(monkeypatch, 7, kills):
        run(job(source, tmp_path / "out", address=ray_address, replicas=3, rows_per_unit=5, engine={"max_sequences": 2}))
    assert {kind for _, kind in kills} == {"engine", "replica"}
    assert content(tmp_path / "out") == unbroken


@pytest.mark.slow
def test_drivers_ended_at_random_moments_and_resumed(source: str, unbroken: str, tmp_path: Path) -> None:
    """The whole command, its own Ray included: Ctrl-C, SIGKILL twice, then left alone, then run again though it is done."""
    output, chance = tmp_path / "out", random.Random(3)
    arguments = ["generate", source, str(output), "--model", "fake", "--max-tokens", "16", "--replicas", "2", "--rows-per-unit", "5"]
    arguments += ["--max-sequences", "2", "--progress", "lines"]
    for number in (signal.SIGINT, signal.SIGKILL, signal.SIGKILL):
        before = len(list(output.glob("part-*"))) if output.exists() else 0
        driver = command(*arguments)
        wait_for_parts(output, before + chance.randint(1, 5), driver)
        workers = [one for one in psutil.Process(driver.pid).children(recursive=True) if works(one)]
        driver.send_signal(number)
        said, _ = driver.communicate(timeout=60)
        assert driver.returncode == (1 if number == signal.SIGINT else -number), said
        assert ("run the same command again to resume" in said) == (number == signal.SIGINT)
        assert "Traceback" not in said
        assert len(workers) >= 4  # two replicas, and an engine of each
        assert psutil.wait_procs(workers, timeout=60)[1] == []
    last = command(*arguments)
    said, _ = last.communicate(timeout=120)
    assert last.returncode == 0, said
    assert "resuming: " in said
    assert content(output) == unbroken
    again = command(*arguments)
    said, _ = again.communicate(timeout=60)
    assert (again.returncode, "nothing to do: all 120 rows" in said) == (0, True)


def works(process: psutil.Process) -> bool:
    """An engine or a replica; Ray's own agents take their time to find out that they are alone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return "drawloom.actors.child" in process.cmdline() or process.name().startswith("ray::MapWorker")
    return False


def wait_for_parts(output: Path, count: int, driver: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while len(list(output.glob("part-*"))) < count:
        assert driver.poll() is None, driver.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.01)
