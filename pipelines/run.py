"""A job from its pending units to its last commit, in rounds: what a lost machine leaves undone, the next round does."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from drawloom.errors import DrawloomError
from drawloom.pipelines.batch import Spec, receipts
from drawloom.pipelines.board import Board, Snapshot, stalled
from drawloom.pipelines.cluster import live_nodes
from drawloom.pipelines.commits import Job
from drawloom.pipelines.receipts import Receipt
from drawloom.pipelines.shape import Shape, room

EMPTY_ROUNDS = 3  # rounds in a row that may end early without one committed unit
POLL_S = 0.5


@dataclass(frozen=True)
class Pool:
    """How replicas are used."""

    shape: Shape
    units_in_flight: int  # in each replica
    patience_s: float  # silence after which a replica counts as lost


@dataclass(frozen=True)
class Watcher:
    """Who wants to know how a job goes. Both are called often and must return soon; `seen` from another thread."""

    committed: Callable[[Receipt], None]
    seen: Callable[[Snapshot], None]


def run_job(job: Job, spec: Spec, pool: Pool, watcher: Watcher) -> None:
    """Complete every pending unit of the job. Needs a connected Ray.

    A round ends early when a machine is lost for good (its replica cannot be placed again and holds units). The next one has as many
    replicas as fit then. Raises DrawloomError when EMPTY_ROUNDS rounds in a row get nowhere, or for what no repetition could cure.
    """
    empty = 0
    while not job.finished:
        before = len(job.entries)
        fault = _round(job, spec, replace(pool, shape=_fitting(pool)), watcher)
        empty = 0 if len(job.entries) > before else empty + 1
        if fault is not None and empty == EMPTY_ROUNDS:
            raise DrawloomError(f"{empty} attempts in a row completed no unit; the last ended with: {fault}") from fault


def _round(job: Job, spec: Spec, pool: Pool, watcher: Watcher) -> RayError | None:
    """One pass over the pending units. Returns the fault of Ray that ended it early, if any."""
    board = _make_board()
    try:
        with _watching(board, pool.patience_s, watcher.seen):
            for receipt in receipts(spec, list(job.pending()), pool.shape, pool.units_in_flight, board):
                job.record(receipt.entry)
                watcher.committed(receipt)
            watcher.seen(ray.get(board.snapshot.remote()))
    except RayError as fault:
        with contextlib.suppress(RayError):
            snapshot: Snapshot = ray.get(board.snapshot.remote())
            if snapshot.failure is not None:
                raise snapshot.failure from None
        return fault
    finally:
        ray.kill(board)
    return None


def _make_board() -> Any:
    """The board as an actor beside the driver: what it holds is worth nothing without the driver."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(Board)
    return actor.options(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=1, scheduling_strategy=here).remote()


def _fitting(pool: Pool) -> Shape:
    """As many of the replicas as the living nodes hold; waits for room for at least one. Raises DrawloomError when there is none."""
    until = time.monotonic() + pool.patience_s
    while (fitting := min(pool.shape.replicas, room(live_nodes(), pool.shape))) < 1:
        if time.monotonic() > until:
            each = replace(pool.shape, replicas=1)
            raise DrawloomError(f"no living node holds {each} beside one CPU to read; run the job again when the cluster has grown")
        time.sleep(POLL_S)
    return replace(pool.shape, replicas=fitting)


@contextmanager
def _watching(board: Any, patience_s: float, seen: Callable[[Snapshot], None]) -> Iterator[None]:
    """Look at the board every POLL_S from a thread; a round that can only wait for the dead is ended by killing its replicas."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_S):
            with contextlib.suppress(RayError):
                snapshot: Snapshot = ray.get(board.snapshot.remote(), timeout=30.0)
                seen(snapshot)
                if stalled(snapshot, patience_s):
                    give_up(snapshot)

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5.0)


def give_up(snapshot: Snapshot) -> None:
    """Kill every replica for good, which makes Ray Data raise what it would otherwise wait for."""
    for replica in snapshot.replicas.values():
        if replica.handle is not None:
            ray.kill(replica.handle, no_restart=True)
