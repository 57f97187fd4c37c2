"""What the replicas of a job take, and whether that fits. Pure arithmetic; knows no ray."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

READERS = 2  # tasks that read input at one time, one CPU each


@dataclass(frozen=True)
class Shape:
    """What one replica takes, and how many there are. CPUs and GPUs may be fractions."""

    replicas: int
    cpus: float
    gpus: float = 0.0

    def __str__(self) -> str:
        each = f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
        return f"{self.replicas} replica{'s' if self.replicas > 1 else ''} of {each}"


def room(nodes: Sequence[Mapping[str, float]], shape: Shape) -> int:
    """How many replicas these nodes hold while one CPU stays free somewhere for the tasks that read. Nodes: resource -> amount."""
    return max(
        (sum(_slots(node, shape, spare=float(place == host)) for place, node in enumerate(nodes)) for host in range(len(nodes))), default=0
    )


def _slots(node: Mapping[str, float], shape: Shape, spare: float) -> int:
    cpus = node.get("CPU", 0.0) - spare
    if cpus < 0:
        return -(10**9) if spare else 0  # a node without a free CPU cannot be the one that reads
    slots = math.floor(cpus / shape.cpus + 1e-9)
    return min(slots, math.floor(node.get("GPU", 0.0) / shape.gpus + 1e-9)) if shape.gpus else slots


def local_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
