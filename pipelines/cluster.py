"""Where a job runs: a Ray of its own on this machine, or a cluster that must be able to hold it. Refuses what could only hang."""

import contextlib
import logging
import math
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources
from ray.data import DataContext

from drawloom.errors import DrawloomError, SettingError
from drawloom.pipelines.shape import READERS, Shape, room

CONNECT_TIMEOUT_S = 5.0
POLL_S = 1.0
LOGGERS = ("ray", "ray.data", "ray._private", "ray.util")


@contextmanager
def connected(shape: Shape, address: str | None, wait_s: float = 0.0, start_s: float = 3600.0) -> Iterator[None]:
    """A quiet Ray for the time of a job: one of its own on this machine, or the cluster at `address`, which may take wait_s to grow.

    start_s: how long replicas may take to stand, models loaded. Raises SettingError when the cluster could never hold the replicas and
    one task that reads, or cannot be reached.
    """
    if ray.is_initialized():
        raise SettingError("this process is connected to a Ray cluster already; a job opens its own connection: call ray.shutdown() first")
    _hush()
    # Ray puts the driver's working directory on the workers' sys.path. A folder `kernels` there would be imported by transformers.
    with contextlib.chdir(sys.prefix):
        if address is None:
            _start_local(shape)
        else:
            _join(address)
    try:
        if address is not None:
            refuse_too_small(shape, address, wait_s)
        with DataContext.current(data_context(start_s)):
            yield
    finally:
        ray.shutdown()


def refuse_too_small(shape: Shape, address: str, wait_s: float = 0.0) -> None:
    """Raise SettingError when the cluster cannot hold the job. With wait_s, ask its autoscaler for room and look again until then."""
    until = time.monotonic() + wait_s
    while (most := room(nodes := live_nodes(), shape)) < shape.replicas:
        if time.monotonic() >= until:
            have = ", ".join(f"{node.get('CPU', 0):g} CPU/{node.get('GPU', 0):g} GPU" for node in nodes)
            raise SettingError(
                f"{shape} and one CPU to read do not fit the cluster at {address} ({len(nodes)} nodes: {have}); at most {max(most, 0)} "
                "fit: lower replicas, cpus_per_replica or gpus_per_replica, or give the cluster time to grow (wait_for_nodes_s)"
            )
        request_resources(bundles=[*[{"CPU": shape.cpus, "GPU": shape.gpus}] * shape.replicas, {"CPU": 1}])
        time.sleep(POLL_S)


def live_nodes() -> list[Mapping[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _start_local(shape: Shape) -> None:
    """CPUs are counted so that the pool and the readers always fit; the operating system shares the real ones."""
    with _starts_up():
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


@contextmanager
def _starts_up() -> Iterator[None]:
    """Say in our words that Ray's processes did not come up, and leave none of them behind."""
    try:
        yield
    except Exception as error:
        ray.shutdown()
        if type(error) is Exception or isinstance(error, OSError | RuntimeError):  # Ray raises plain Exceptions here
            raise DrawloomError(
                f"Ray did not start on this machine: {error}; it waits 30 s for its own processes, so the machine may be overloaded, or "
                f"{tempfile.gettempdir()} full; run again when it has calmed down, or name a running cluster with --address"
            ) from error
        raise


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


def data_context(start_s: float) -> Any:
    """Ray Data as this project needs it."""
    context: Any = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = -1  # a row may take hours; the driver watches signs of life instead
    context.wait_for_min_actors_s = start_s  # all replicas stand before units are dealt, so that a small file is shared by all
    context.target_max_block_size = 1  # every yielded unit is a block of its own
    context.max_errored_blocks = 0
    return context


def _hush() -> None:
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
