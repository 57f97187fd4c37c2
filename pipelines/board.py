"""What replicas tell the driver while a job runs: units started and ended, and signs of life. `pipelines/run.py` makes it an actor.

Ray Data restarts a pool actor that died and hands its units out again without telling anybody. The board counts how often a unit or
a row was started, so that one that takes its whole actor down is noticed, and holds what progress is drawn from.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drawloom.actors.keeper import ReplicaStats
from drawloom.errors import DrawloomError


@dataclass(frozen=True)
class ReplicaSeen:
    """A replica as last heard of."""

    stats: ReplicaStats
    handle: Any  # of its actor
    age_s: float  # since its last sign of life
    rows: int  # rows of units that it completed


@dataclass(frozen=True)
class Snapshot:
    replicas: Mapping[str, ReplicaSeen]
    open_units: Mapping[str, str]  # unit -> replica that has it
    num_starts: int  # of replicas, restarts included
    failure: DrawloomError | None  # that ends the job, told by whoever met it first


class Board:
    """One per run of a dataset. Every method is one message of a replica, except `snapshot`."""

    def __init__(self) -> None:
        self._starts: Counter[str] = Counter()
        self._replicas: dict[str, tuple[ReplicaStats, Any, float]] = {}
        self._rows: Counter[str] = Counter()
        self._open: dict[str, str] = {}
        self._num_starts = 0
        self._failure: DrawloomError | None = None

    def fail(self, error: DrawloomError) -> None:
        """The job cannot go on. Kept here because what Ray makes of an exception on its way to the driver has another type."""
        self._failure = self._failure or error

    def join(self, replica: str, handle: Any) -> None:
        """A replica stands. The same name again is a restart: its units are handed out anew."""
        self._num_starts += 1
        self._replicas[replica] = (ReplicaStats(), handle, time.monotonic())
        self._open = {unit: owner for unit, owner in self._open.items() if owner != replica}

    def beat(self, replica: str, stats: ReplicaStats) -> None:
        handle = self._replicas[replica][1] if replica in self._replicas else None
        self._replicas[replica] = (stats, handle, time.monotonic())

    def start(self, unit: str, replica: str) -> int:
        """Note that a unit is being worked on; how often it has been started by now."""
        self._open[unit] = replica
        self._starts[unit] += 1
        return self._starts[unit]

    def try_row(self, row: str) -> int:
        """Note that a row is being worked on alone; how often by now."""
        self._starts[row] += 1
        return self._starts[row]

    def end_row(self, row: str) -> None:
        """A row that was worked on alone has ended, so its starts were no deaths."""
        del self._starts[row]

    def end(self, unit: str, replica: str, num_rows: int) -> None:
        self._open.pop(unit, None)
        self._rows[replica] += num_rows

    def snapshot(self) -> Snapshot:
        now = time.monotonic()
        seen = {name: ReplicaSeen(stats, handle, now - at, self._rows[name]) for name, (stats, handle, at) in self._replicas.items()}
        return Snapshot(seen, dict(self._open), self._num_starts, self._failure)


def stalled(snapshot: Snapshot, patience_s: float) -> bool:
    """Every unit that is being worked on belongs to a replica that has been silent for longer than patience_s, so nothing will move."""
    owners = set(snapshot.open_units.values())
    return bool(owners) and all(owner in snapshot.replicas and snapshot.replicas[owner].age_s > patience_s for owner in owners)
