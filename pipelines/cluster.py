"""Where a job runs: a Ray of its own on this machine, or a cluster that must be able to hold it. Refuses what could only hang."""

import logging
import math
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.data import DataContext

from drawloom.errors import SettingError
from drawloom.pipelines.shape import READERS, Shape, room

CONNECT_TIMEOUT_S = 5.0
LOGGERS = ("ray", "ray.data", "ray._private", "ray.util")


@contextmanager
def connected(shape: Shape, address: str | None) -> Iterator[None]:
    """A quiet Ray for the time of a job: one of its own on this machine, or the cluster at `address`.

    Raises SettingError when it could never hold the replicas and one task that reads, or cannot be reached.
    """
    if ray.is_initialized():
        raise SettingError("this process is connected to a Ray cluster already; a job opens its own connection: call ray.shutdown() first")
    _hush()
    if address is None:
        _start_local(shape)
    else:
        _join(address)
    try:
        if address is not None:
            refuse_too_small(shape, address)
        configure_data()
        yield
    finally:
        ray.shutdown()


def refuse_too_small(shape: Shape, address: str) -> None:
    """Raise SettingError when the cluster as it is now cannot hold the job."""
    nodes = live_nodes()
    if (most := room(nodes, shape)) < shape.replicas:
        have = ", ".join(f"{node.get('CPU', 0):g} CPU/{node.get('GPU', 0):g} GPU" for node in nodes)
        raise SettingError(
            f"{shape} and one CPU to read do not fit the cluster at {address} ({len(nodes)} nodes: {have}); at most {max(most, 0)} fit: "
            "lower replicas, cpus_per_replica or gpus_per_replica, or let the cluster grow first"
        )


def live_nodes() -> list[Mapping[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _start_local(shape: Shape) -> None:
    """CPUs are counted so that the pool and the readers always fit; the operating system shares the real ones."""
    ray.init(
        address="local",  # never a stranger's cluster that happens to run here
        num_cpus=math.ceil(shape.replicas * shape.cpus) + READERS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )
    gpus = ray.cluster_resources().get("GPU", 0.0)
    if shape.gpus and room([{"CPU": 1e9, "GPU": gpus}], shape) < shape.replicas:
        ray.shutdown()
        raise SettingError(f"{shape} do not fit the {gpus:g} GPUs of this machine; lower replicas or gpus_per_replica")


def _join(address: str) -> None:
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise SettingError(f"no Ray cluster answers at {address!r}: {error}") from error


def _check_reachable(address: str) -> None:
    """Fail in seconds where Ray would try for minutes."""
    if address.startswith("ray://"):
        raise SettingError(
            f"{address}: a job runs inside the cluster, not through Ray Client; use `ray job submit`, or --address auto there"
        )
    host, _, port = address.rpartition(":")
    if not host:
        return  # a word such as auto
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise SettingError(f"no Ray cluster answers at {address!r}: {error}; name the address that `ray start --head` printed") from error


def configure_data() -> None:
    """Ray Data as this project needs it."""
    context: Any = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = -1  # a row may take hours; the driver watches signs of life instead
    context.wait_for_min_actors_s = 3600  # all replicas stand before units are dealt, so that a small file is shared by all
    context.target_max_block_size = 1  # every yielded unit is a block of its own
    context.max_errored_blocks = 0


def _hush() -> None:
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
