"""drawloom bench peers, from settings to table."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel
from transformers.utils import logging

from drawloom.actors.build import load_draft
from drawloom.actors.engine import Engine
from drawloom.actors.settings import EngineSettings
from drawloom.decoders.drafting import Drafting
from drawloom.errors import SettingError
from drawloom.jobs.bench.compare import Judge, Measurement, judge_with, measure
from drawloom.jobs.bench.limits import Machine, Network, commit, hardware, limits, measure_machine, size_of
from drawloom.jobs.bench.remote import PEERS, start
from drawloom.jobs.bench.report import line_of, table_of
from drawloom.jobs.bench.systems import Continuous, Drawloom, Generate, System
from drawloom.jobs.bench.workload import Workload, read_sources, workloads
from drawloom.models.checkpoint import Checkpoint, locate
from drawloom.models.drafters.kinds import DECODERS, kind_of
from drawloom.models.load import info_of, load_model, load_network
from drawloom.models.settings import ModelSettings
from drawloom.models.tokenizer import TokenizerText, text_of
from drawloom.models.transformer import TransformersModel
from drawloom.settings import nearest

PEER_FOLDER = Path(".cache/peers")  # below the current folder: environments of several GB that nothing else needs
BUSY = 0.5  # processes; above it a two-core machine gives other numbers
PLAIN_LAYOUT = "padded"  # transformers' own classes on float32 weights, attention in torch
LOOKUP_TOKENS = 10  # drafted a step by transformers' prompt lookup


@dataclass(frozen=True)
class Plan:
    """What was asked for. `others` and `only` are names; empty `only` means every workload."""

    prompts: Path
    model: str
    others: tuple[str, ...]
    only: tuple[str, ...]
    rounds: int
    new_tokens: int
    threads: int
    assistant: str = ""  # a smaller model of the same tokenizer, to draft


def run_peers(plan: Plan, console: Console) -> bool:
    """Print a table for each workload on `console` and JSON lines on stdout; False when a system failed or answered differently.

    Raises SettingError for an unknown peer or workload, or for a model or prompts that cannot be read.
    """
    _known(plan.others, list(PEERS), "peer")
    settings = ModelSettings(name=plan.model, dtype="float32", device="cpu")
    checkpoint = locate(settings)
    todo = _chosen(workloads(read_sources(plan.prompts, text_of(checkpoint)), plan.new_tokens), plan.only)
    load = os.getloadavg()[0]  # before any work of ours
    with _threads(plan.threads), ExitStack() as stack:
        network = load_network(checkpoint, torch.float32, "cpu")
        remotes = [stack.enter_context(start(name, PEER_FOLDER, checkpoint.folder, torch.get_num_threads())) for name in plan.others]
        bench = _Bench(checkpoint, settings, network, remotes, plan.assistant)
        where = {"model": checkpoint.name, "dtype": "float32", "commit": commit(), "hardware": hardware(load), **_versions(remotes)}
        where["drawloom"] = bench.model.describe()
        _introduce(bench, where, console)
        found = [item for workload in todo for item in _print(bench, workload, plan.rounds, where, console)]
    return not any(item.fault for item in found)


class _Bench:
    """The systems, built once and used for every workload, and what they run on.

    Our faster layouts keep the weights in the narrowest format that gives back every bit; our engine on float32 weights joins too, so
    that the table tells what the format does from what the engine does.
    """

    def __init__(
        self, checkpoint: Checkpoint, settings: ModelSettings, network: PreTrainedModel, remotes: list[Any], assistant: str
    ) -> None:
        text = text_of(checkpoint)
        self.model = load_model(settings)
        eos = text.eos_token_ids
        drafts, self.assisted, self.ours_assisted = {}, [], []
        if assistant:
            other = locate(settings.model_copy(update={"name": assistant}))
            kind = kind_of(other.config()) or "network"
            drafts = {assistant: load_draft(Drafting(assistant, 1, 0.0, coupled=True, laws=False, kind=kind), settings, self.model)}
            if kind == "network":  # transformers has no drafters on hidden states
                self.assisted = [Generate(network, eos, assistant=load_network(other, torch.float32, "cpu"))]
        engine = Engine(self.model, text, EngineSettings(share_prefix=False, kv_gib=1.0), drafts=drafts)
        if assistant:
            params: dict[str, float | int | str] = {"draft": assistant}
            if kind != "network":
                params["nodes"] = 0
            self.ours_assisted = [Drawloom(engine, DECODERS[kind], params=params)]
        self.generate, self.lookup = Generate(network, eos), Generate(network, eos, lookup=LOOKUP_TOKENS)
        self.continuous = Continuous(network, eos)
        self.ours, self.ours_lookup = Drawloom(engine, "ar"), Drawloom(engine, "lookup")
        self.plain = [Drawloom(_float32(checkpoint, text), "ar", PLAIN_LAYOUT)] if self.model.layout != PLAIN_LAYOUT else []
        self.remotes: list[System] = list(remotes)
        self.judge: Judge = judge_with(network, eos)
        self.machine: Machine = measure_machine()
        self.size: Network = size_of(network)

    def systems(self, workload: Workload) -> list[System]:
        """transformers generate first: it is the reference. Prompt lookup joins where answers copy; transformers drafts for one prompt."""
        found: list[System] = [self.generate, self.ours, *self.plain, self.continuous, *self.remotes]
        found += [*self.ours_assisted, *(self.assisted if workload.batch == 1 else [])]
        if not workload.ends:
            return found
        return [*found, self.ours_lookup, *([self.lookup] if workload.batch == 1 else [])]

    def bounds(self, workload: Workload, num_tokens: int) -> dict[str, float]:
        """Limits of the machine, in tokens/s: for float32 weights, and for the weights as our layout keeps them."""
        found = limits(self.machine, self.size, workload, num_tokens)
        own = replace(self.size, weight_bytes=self.model.weight_bytes)
        return {**found, "memory, packed weights": limits(self.machine, own, workload, num_tokens)["memory"]} if self.plain else found


def _float32(checkpoint: Checkpoint, text: TokenizerText) -> Engine:
    network = load_network(checkpoint, torch.float32, "cpu")
    model = TransformersModel(network, info_of(checkpoint, network), PLAIN_LAYOUT)
    return Engine(model, text, EngineSettings(share_prefix=False, kv_gib=1.0))


def _introduce(bench: _Bench, where: dict[str, Any], console: Console) -> None:
    found = where["hardware"]
    console.print(f"{found['cpu']}, {found['threads']} threads, {where['model']} {where['dtype']}, commit {where['commit']}")
    console.print(f"measured: memory {bench.machine.read_bytes_s / 1e9:.1f} GB/s, arithmetic {bench.machine.flops / 1e9:.0f} GFLOP/s")
    console.print(f"float32 weights {bench.size.weight_bytes / 1e6:.0f} MB; drawloom runs the {bench.model.describe()}")
    if found["load_before"] > BUSY:
        console.print(f"the load before the start was {found['load_before']}: something else is running, these speeds mean little")


def _print(bench: _Bench, workload: Workload, rounds: int, where: dict[str, Any], console: Console) -> Iterator[Measurement]:
    """Measure one workload and show it at once."""
    found = measure(workload, bench.systems(workload), bench.judge, rounds)
    bounds = bench.bounds(workload, found[0].runs[0].num_tokens)
    console.print(table_of(found, bounds))
    for item in found:
        print(line_of(item, found, bounds, where), flush=True)
    yield from found


def _chosen(found: list[Workload], names: tuple[str, ...]) -> list[Workload]:
    _known(names, [workload.name for workload in found], "workload")
    return [workload for workload in found if not names or workload.name in names]


def _known(names: tuple[str, ...], known: list[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise SettingError(f"{name!r} is not a {what}; {nearest(name, known)}")


def _versions(remotes: list[Any]) -> dict[str, Any]:
    return {"peers": {name: version for remote in remotes for name, version in remote.versions.items()}} if remotes else {}


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Run with `number` torch threads (0 leaves them) and without transformers' advice, which would interrupt the table."""
    before, level = torch.get_num_threads(), logging.get_verbosity()
    torch.set_num_threads(number or before)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        torch.set_num_threads(before)
        logging.set_verbosity(level)
        logging.enable_progress_bar()
