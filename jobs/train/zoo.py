"""The small models of models/zoo, from nothing: data, a fresh network, and the five recipes in order. A broken run goes on where it was.

A network learns to answer (tiny-ar), then to fill blocks (tiny-bd), those of long answers too; adapters on these learn to fill several
blocks at once (tiny-mbd), to correct their guesses (tiny-mbd-dmax), and to reach their greedy text in few Jacobi iterations (tiny-jf). A
smaller network of the same tokenizer (tiny-draft) learns to draft for tiny-ar, and so do three that read its hidden states.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from drawloom.jobs.generate import generate
from drawloom.jobs.settings import JobSettings
from drawloom.jobs.train import autoregressive, block, dflash, eagle, jacobi, medusa, multi_block, on_policy
from drawloom.jobs.train.fresh import FreshSettings, fresh
from drawloom.jobs.train.loop import is_done
from drawloom.jobs.train.settings import (
    BlockSettings,
    DFlashSettings,
    EagleSettings,
    JacobiSettings,
    MedusaSettings,
    MultiBlockSettings,
    OnPolicySettings,
    TrainSettings,
)
from drawloom.jobs.train.tasks import write

NATIVE: dict[str, tuple[str, dict[str, float]]] = {  # the recipe that each model was trained for
    "tiny-ar": ("ar", {}),
    "tiny-bd": ("block", {"threshold": 0.9}),
    "tiny-mbd": ("multi-block", {"threshold": 0.9}),
    "tiny-mbd-dmax": ("dmax-multi-block", {"threshold": 0.5}),
    "tiny-jf": ("jacobi", {"width": 16}),
    "tiny-draft": ("ar", {}),
}
# Of tiny-ar, and the decoder that each drafts for.
DRAFTERS = {"tiny-draft": "draft-model", "tiny-dflash": "dflash", "tiny-eagle3": "eagle", "tiny-medusa": "medusa"}
# What `drawloom train tasks` writes for each file. The first stage learns sums, which take longest; in the second lists and records come as
# often as they do; the third has long answers, of several blocks.
DATA: dict[str, dict[str, Any]] = {
    "tasks": {"count": 400_000, "seed": 1},
    "even": {
        "count": 200_000,
        "seed": 2,
        "weights": {"arithmetic": 2.0, "json": 1.5, "code": 0.3, "shuffle": 0.3, "copy": 0.5, "reverse": 1.5, "sort": 1.5},
    },
    "long": {
        "count": 200_000,
        "seed": 3,
        "weights": {"arithmetic": 2.0, "json": 1.5, "code": 0.3, "shuffle": 0.2, "copy": 0.5, "insert": 2.0, "remove": 1.5},
        "stretch": 2,
    },
}
OWN_ROWS, OWN_TOKENS, BLOCK, RANK = 10_000, 96, 8, 16
COMMON: dict[str, Any] = {"row_tokens": 256, "save_every": 100}
LONG = {"row_tokens": 384, "rows": 8}


def zoo(output: Path, threads: int = 0) -> None:
    """Train all of them below `output`; hours on a CPU."""
    paths = {name: output / f"{name}.parquet" for name in DATA}
    for name, path in paths.items():
        _write_once(path, DATA[name])
    if not (output / "fresh/config.json").exists():
        fresh(FreshSettings(data=str(paths["tasks"]), output=str(output / "fresh")))

    def step(train: Callable[[Any], None], settings: type[TrainSettings], name: str, base: str, data: Path, **more: Any) -> None:
        given = {**COMMON, "threads": threads, **more, "data": str(data), "output": str(output / name), "base": str(output / base)}
        one = settings(**given)
        if not is_done(one):
            train(one)

    step(autoregressive.train, TrainSettings, "tiny-ar-first", "fresh", paths["tasks"], steps=1400, rows=16)
    step(autoregressive.train, TrainSettings, "tiny-ar", "tiny-ar-first", paths["even"], steps=1100, rows=16, learning_rate=1.5e-3)
    blocks = {"block": BLOCK, "learning_rate": 1.5e-3}
    step(block.train, BlockSettings, "tiny-bd-first", "tiny-ar", paths["even"], steps=550, rows=12, **blocks)
    step(block.train, BlockSettings, "tiny-bd", "tiny-bd-first", paths["long"], steps=600, **LONG, **blocks)
    adapter = {"lora_rank": RANK, "block": BLOCK, **LONG}
    step(multi_block.train, MultiBlockSettings, "tiny-mbd", "tiny-bd", paths["long"], steps=420, **adapter)
    step(on_policy.train, OnPolicySettings, "tiny-mbd-dmax", "tiny-bd", paths["long"], steps=130, **adapter)
    own = own_answers(output, paths["even"])
    step(jacobi.train, JacobiSettings, "tiny-jf", "tiny-ar", own, steps=130, rows=12, lora_rank=RANK)
    step(medusa.train, MedusaSettings, "tiny-medusa", "tiny-ar", own, steps=400, rows=16, learning_rate=1e-3)
    step(dflash.train, DFlashSettings, "tiny-dflash", "tiny-ar", own, steps=1200, rows=16, block=BLOCK)
    step(eagle.train, EagleSettings, "tiny-eagle3", "tiny-ar", own, steps=400, rows=12, learning_rate=1.5e-3)
    if not (output / "fresh-draft/config.json").exists():
        small = {"layers": 2, "hidden": 128, "inner": 320, "tokenizer": str(output / "fresh")}
        fresh(FreshSettings(data=str(paths["tasks"]), output=str(output / "fresh-draft"), **small))
    step(autoregressive.train, TrainSettings, "tiny-draft", "fresh-draft", paths["even"], steps=250, rows=16, learning_rate=3e-3)


def _write_once(path: Path, told: Mapping[str, Any]) -> None:
    if not path.exists():
        write(path.with_suffix(".tmp"), "train", **told)
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
        "sampling": {"max_tokens": OWN_TOKENS, "temperature": 0.0},
    }
    generate(JobSettings.parse(settings), Console())
    table = pq.read_table(job, columns=["prompt", "samples"])
    answers = [samples[0]["text"] for samples in table["samples"].to_pylist()]
    pq.write_table(table.select(["prompt"]).append_column("answer", [answers]), output / "own.tmp")
    (output / "own.tmp").rename(found)
    shutil.rmtree(job)
    return found
