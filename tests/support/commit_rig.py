"""A job without Ray or model: reads, answers and commits unit after unit in this process. Run as a script it is killed, again and again."""

import hashlib
import os
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from drawloom.actors.fake import FakeText
from drawloom.actors.request import Completion, Request, Sample, Stats, TokenLogprob
from drawloom.pipelines.commits import Hook, Job, JobIdentity, no_hook, open_job
from drawloom.pipelines.manifests import Entry
from drawloom.pipelines.objects import Store
from drawloom.pipelines.outcomes import Outcome, outcome_table
from drawloom.pipelines.reading import UnitReader
from drawloom.pipelines.rows import RowSettings, requests_of
from drawloom.pipelines.sources import find_inputs
from drawloom.pipelines.store import open_store
from drawloom.pipelines.units import Unit, plan_units

POINTS = ("before_data", "after_data", "before_manifest", "after_manifest")


def answer(request: Request) -> Completion:
    """Text from (prompt, seed) alone; times from the clock, so that two answers never have the same bytes."""
    samples = tuple(_sample(request, index) for index in range(request.sampling.n))
    stats = Stats(forwards=2, rows=4, drafted=2, accepted=1, total_s=time.perf_counter())
    return Completion(request.id, samples, len(request.prompt_token_ids), stats, request.decoder)


def _sample(request: Request, index: int) -> Sample:
    seen = f"{list(request.prompt_token_ids)} {request.seed} {index} {request.sampling.max_tokens}".encode()
    tokens = tuple(hashlib.blake2b(seen, digest_size=4).digest())
    logprobs = tuple((TokenLogprob(token, -0.5, 1),) for token in tokens) if request.sampling.logprobs is not None else None
    return Sample(index, tokens, FakeText().decode(tokens), "stop", 7 if index % 2 else "\n\n", -0.5 * len(tokens), logprobs)


@dataclass(frozen=True)
class Rig:
    """One job: input, output, settings."""

    spec: str
    output: str
    settings: RowSettings = field(default_factory=RowSettings)
    rows_per_unit: int = 4
    config: Mapping[str, Any] = field(default_factory=lambda: {"sampling": {"temperature": 1.0}})
    model: str = "fake"
    code: str = "1"
    store: Store | None = None

    def open(self, hook: Hook = no_hook) -> Job:
        files = find_inputs(self.spec)
        columns = self.settings.columns
        identity = JobIdentity(self.config, self.model, self.code, {"replicas": 1})
        store = self.store or open_store(self.output)
        return open_job(store, identity, files, lambda: plan_units(files, self.rows_per_unit, columns), columns, hook)

    def table(self, job: Job, unit: Unit, reader: UnitReader | None = None) -> pa.Table:
        """The unit's rows with their outcomes."""
        rows = (reader or UnitReader(job.plan.schema, self.settings.columns)).read(unit)
        entries = requests_of(unit, rows, job.log.roles, self.settings, FakeText())
        outcomes = [one if isinstance(one, Outcome) else Outcome.of(answer(one), one.seed) for one in entries]
        return outcome_table(rows.table, outcomes, job.log.roles)

    def commit(self, job: Job, unit: Unit, reader: UnitReader | None = None) -> Entry:
        return job.log.commit(unit, self.table(job, unit, reader))

    def run(self, hook: Hook = no_hook, order: random.Random | None = None) -> Job:
        """Open or resume the job and bring it to its end."""
        job = self.open(hook)
        reader = UnitReader(job.plan.schema, self.settings.columns)
        units = list(job.pending())
        if order:
            order.shuffle(units)
        for unit in units:
            job.record(self.commit(job, unit, reader))
        reader.close()
        job.finish()
        return job


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None, row_group_size: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), path, row_group_size=row_group_size)
    return path


def prompts(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"id": index, "prompt": f"prompt number {index}"} for index in range(start, start + count)]


class KillAt:
    """A hook that ends the process by SIGKILL when it is called for the nth time at one point."""

    def __init__(self, point: str, after: int) -> None:
        self.point, self.left = point, after

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


def rounds(spec: str, folder: str, seed: int, count: int) -> None:
    """Run `count` jobs; each is killed at a named point, then at any moment (opening and finishing included), and then let through."""
    chance = random.Random(seed)
    pa.array(["pyarrow imports pandas at its first array: here, once, not in every child"])
    os.fsync = lambda _: None  # a killed process loses nothing that the kernel has taken; only a power cut would
    for number in range(count):
        rig = Rig(spec, os.path.join(folder, f"job-{number:03d}"), rows_per_unit=chance.choice((2, 3, 4, 7)))
        killed = _run_in_child(rig, KillAt(POINTS[number % len(POINTS)], chance.randrange(2)), chance.random())
        assert killed == signal.SIGKILL, killed
        assert _run_in_child(rig, no_hook, chance.random(), chance.uniform(0, 0.15)) in (0, signal.SIGKILL)
        assert _run_in_child(rig, no_hook, chance.random()) == 0


def _run_in_child(rig: Rig, hook: Hook, order: float, kill_after_s: float | None = None) -> int:
    """The signal that ended a run of the job in a process of its own; 0 when it came to its end."""
    child = os.fork()
    if child == 0:
        rig.run(hook, random.Random(order))
        os._exit(0)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    rounds(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
