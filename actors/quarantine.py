"""Who killed the process? Bisection over the rows that were in flight at a death. Pure: no clock, no process, no ray."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

DEATHS_ALONE = 2  # one death may be an accident from outside (memory pressure, an operator); two, alone, are the row's


@dataclass(frozen=True)
class Suspects:
    """`groups` is a stack of ids still to be tried, the last one next, each with nobody else in the process.

    `deaths_alone` counts, per row, the deaths of a process that held this row only.
    """

    groups: tuple[tuple[str, ...], ...] = ()
    deaths_alone: Mapping[str, int] = field(default_factory=dict)


def blame(state: Suspects, in_flight: Sequence[str]) -> tuple[Suspects, str | None]:
    """A process died while exactly `in_flight` were unfinished in it: what to try next, and the row that is convicted now, if any.

    Several rows are halved. A single row is tried again alone until it has died DEATHS_ALONE times.
    """
    if not in_flight:
        return state, None
    if len(in_flight) > 1:
        half = len(in_flight) // 2
        return replace(state, groups=(*state.groups, tuple(in_flight[half:]), tuple(in_flight[:half]))), None
    row = in_flight[0]
    deaths = state.deaths_alone.get(row, 0) + 1
    if deaths >= DEATHS_ALONE:
        others = {other: count for other, count in state.deaths_alone.items() if other != row}
        return replace(state, deaths_alone=others), row
    return Suspects((*state.groups, (row,)), {**state.deaths_alone, row: deaths}), None


def next_group(state: Suspects) -> tuple[Suspects, tuple[str, ...]]:
    """Take the next group to try; an empty group means that nobody is under suspicion any more."""
    if not state.groups:
        return Suspects(), ()
    return replace(state, groups=state.groups[:-1]), state.groups[-1]
