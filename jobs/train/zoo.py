"""The small models of models/zoo, from nothing: data, a fresh network, and the five recipes in order. A broken run goes on where it was.

A network learns to answer (tiny-ar), then to fill blocks (tiny-bd); adapters on these learn to fill several blocks at once (tiny-mbd), to
correct their guesses (tiny-mbd-dmax), and to reach their greedy text in few Jacobi iterations (tiny-jf).
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from drawloom.jobs.generate import generate
from drawloom.jobs.settings import JobSettings
from drawloom.jobs.train import autoregressive, block, jacobi, multi_block, on_policy
from drawloom.jobs.train.fresh import FreshSettings, fresh
from drawloom.jobs.train.loop import is_done
from drawloom.jobs.train.settings import BlockSettings, JacobiSettings, MultiBlockSettings, OnPolicySettings, TrainSettings
from drawloom.jobs.train.tasks import write

NATIVE: dict[str, tuple[str, dict[str, float]]] = {  # the recipe that each model was trained for
    "tiny-ar": ("ar", {}),
    "tiny-bd": ("block", {"threshold": 0.9}),
    "tiny-mbd": ("multi-block", {"threshold": 0.9}),
    "tiny-mbd-dmax": ("dmax-multi-block", {"threshold": 0.5}),
    "tiny-jf": ("jacobi", {"width": 16}),
}
FIRST, EVEN = {"count": 400_000, "seed": 1}, {"count": 200_000, "seed": 2}
# The first stage learns sums, which take longest; in the second lists and records come as often as they do.
EVEN_WEIGHTS = {"arithmetic": 2.0, "json": 1.5, "code": 0.3, "shuffle": 0.3, "copy": 0.5, "reverse": 1.5, "sort": 1.5}
OWN_ROWS, BLOCK, RANK = 20_000, 8, 16
COMMON = {"row_tokens": 256, "rows": 16, "save_every": 100}


def zoo(output: Path, threads: int = 0) -> None:
    """Train all five below `output`; hours on a CPU."""
    first, data, common = output / "tasks.parquet", output / "even.parquet", {**COMMON, "threads": threads}
    _write_once(first, FIRST)
    _write_once(data, EVEN, EVEN_WEIGHTS)
    if not (output / "fresh/config.json").exists():
        fresh(FreshSettings(data=str(first), output=str(output / "fresh")))

    def step(train: Callable[[Any], None], settings: type[TrainSettings], name: str, base: str, **more: Any) -> None:
        one = settings(**{"data": str(data), **common, **more, "output": str(output / name), "base": str(output / base)})
        if not is_done(one):
            train(one)

    step(autoregressive.train, TrainSettings, "tiny-ar-first", "fresh", steps=1400, data=str(first))
    step(autoregressive.train, TrainSettings, "tiny-ar", "tiny-ar-first", steps=1100, learning_rate=1.5e-3)
    step(block.train, BlockSettings, "tiny-bd", "tiny-ar", steps=550, rows=12, learning_rate=1.5e-3, block=BLOCK)
    adapter = {"lora_rank": RANK, "block": BLOCK, "rows": 12}
    step(multi_block.train, MultiBlockSettings, "tiny-mbd", "tiny-bd", steps=160, **adapter)
    step(on_policy.train, OnPolicySettings, "tiny-mbd-dmax", "tiny-bd", steps=250, **adapter)
    own = own_answers(output, data)
    step(jacobi.train, JacobiSettings, "tiny-jf", "tiny-ar", steps=250, rows=12, data=str(own), lora_rank=RANK)


def _write_once(path: Path, size: Mapping[str, int], weights: Mapping[str, float] | None = None) -> None:
    if not path.exists():
        write(path.with_suffix(".tmp"), "train", size["seed"], size["count"], weights=weights)
        path.with_suffix(".tmp").rename(path)


def own_answers(output: Path, data: Path) -> Path:
    """The greedy answers of tiny-ar to the first prompts: what Jacobi decoding must arrive at."""
    found, job = output / "own.parquet", output / "own"
    if found.exists():
        return found
    prompts = output / "prompts.parquet"
    pq.write_table(pq.read_table(data, columns=["prompt"]).slice(0, OWN_ROWS), prompts)
    settings = {
        "input": str(prompts),
        "output": str(job),
        "model": {"name": str(output / "tiny-ar")},
        "sampling": {"max_tokens": 96, "temperature": 0.0},
    }
    generate(JobSettings.parse(settings), Console())
    table = pq.read_table(job, columns=["prompt", "samples"])
    answers = [samples[0]["text"] for samples in table["samples"].to_pylist()]
    pq.write_table(table.select(["prompt"]).append_column("answer", [answers]), output / "own.tmp")
    (output / "own.tmp").rename(found)
    shutil.rmtree(job)
    return found
