"""Jobs with the fake engine: made, run here or as a command, killed, and read back."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from drawloom.jobs.generate import Result, generate
from drawloom.jobs.settings import JobSettings
from drawloom.jobs.verify import verify
from drawloom.pipelines.commits import Hook, no_hook

QUIET = Console(file=open(os.devnull, "w"))  # noqa: SIM115 lives as long as the tests


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
    environment = {**os.environ, "PYTHONWARNINGS": "default", **(env or {})}
    return subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
