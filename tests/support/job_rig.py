"""Jobs with the fake engine: made, run here or as a command, killed, and read back."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from drawloom.actors.fake import FakeEngine, FakeText
from drawloom.actors.request import Request
from drawloom.jobs.generate import Result, generate, open_output
from drawloom.jobs.settings import JobSettings
from drawloom.jobs.verify import verify
from drawloom.pipelines.commits import Hook, no_hook
from drawloom.pipelines.outcomes import outcome_table
from drawloom.pipelines.reading import UnitReader
from drawloom.pipelines.receipts import outcomes_of
from drawloom.pipelines.rows import requests_of

QUIET = Console(file=io.StringIO())


def prompts(count: int, directives: Mapping[int, str] | None = None, every: str = "") -> list[dict[str, Any]]:
    """Rows with a prompt; some with a directive of the fake engine."""
    return [{"id": row, "prompt": f"row {row} {every}{(directives or {}).get(row, '')}"} for row in range(count)]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    return str(path)


def job(source: str, output: str | Path, **settings: Any) -> JobSettings:
    """A small job: one quick engine of one CPU, two replicas unless told otherwise."""
    defaults = {
        "model": "fake",
        "replicas": 2,
        "cpus_per_replica": 1,
        "progress": "none",
        "sampling": {"max_tokens": 16},
        "lost_after_s": 60,
    }
    return JobSettings.parse(defaults | {"input": source, "output": str(output)} | settings)


def run(settings: JobSettings, hook: Hook = no_hook) -> Result:
    return generate(settings, QUIET, hook)


def plainly(settings: JobSettings) -> str:
    """The content of the job's output when nobody disturbs it: one fake engine in this process, unit after unit, no Ray."""
    log = (job := open_output(settings)).log
    reader = UnitReader(job.plan.schema, settings.columns)
    for unit in job.pending():
        rows, engine, done = reader.read(unit), FakeEngine(), {}
        entries = requests_of(unit, rows, log.roles, settings, FakeText())
        requests = [one for one in entries if isinstance(one, Request)]
        for request in requests:
            engine.add(request)
        while engine.num_unfinished:
            done |= {completion.id: completion for completion in engine.step()}
        outcomes = list(outcomes_of(entries, [done[request.id] for request in requests]))
        job.record(log.commit(unit, outcome_table(rows.table, outcomes, log.roles)))
    reader.close()
    job.finish()
    return content(settings.output)


def content(output: str | Path) -> str:
    """The hash of an output whose every unit is in order: equal for equal outputs, whatever the unit size, order and interruptions."""
    verdict = verify(str(output), deep=True)
    assert verdict.ok, verdict.problems
    assert verdict.sums["rows"] == verdict.rows
    return verdict.sums["content"]


def lines(output: str | Path) -> list[dict[str, Any]]:
    return pq.read_table(str(output)).to_pylist()


def command(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """`drawloom ARGUMENTS` as a process; its output is text, errors among it."""
    program = str(Path(sys.executable).with_name("drawloom"))
    environment = {**os.environ, **(env or {})}
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell leaves it for what runs in the background; a child would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


class KillOnce:
    """A hook that ends the replica's process by SIGKILL at each point, `times` times in all, whichever process comes by."""

    def __init__(self, folder: str, points: Sequence[str], times: int) -> None:
        self.folder, self.points, self.times = os.path.join(folder, "kills"), tuple(points), times
        os.makedirs(self.folder)

    def __call__(self, point: str) -> None:
        for time in range(self.times if point in self.points else 0):
            try:
                os.close(os.open(os.path.join(self.folder, f"{point}-{time}"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)

    def kills(self) -> list[str]:
        return os.listdir(self.folder)
