"""Measurements as a table for people and as one JSON line each for programs."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from drawloom.jobs.bench.compare import Measurement

OWN = "drawloom ar"
DETAILS = ("forwards", "tokens_per_forward", "acceptance", "outside_forward")


def table_of(measurements: Sequence[Measurement], bounds: Mapping[str, float]) -> Table:
    """One workload: systems in the order measured, then the machine's limits. The first system is the base of the first ratio."""
    workload = measurements[0].workload
    table = Table(title=f"{workload.name}: {workload.describe()}", title_justify="left")
    table.add_column("system")
    bases = _bases(measurements)
    for column in ("tokens/s", "lowest-highest", *(f"x {base.system}" for base in bases), "tokens/forward", "accepted", "outside forward"):
        table.add_column(column, justify="right")
    table.add_column("near ties", justify="right")
    for item in measurements:
        table.add_row(item.system, *([item.fault] if item.fault else _cells(item, bases)))
    for name, value in bounds.items():
        table.add_row(f"limit: {name}", f"{value:.0f}", style="dim")
    return table


def line_of(item: Measurement, measurements: Sequence[Measurement], bounds: Mapping[str, float], where: Mapping[str, Any]) -> str:
    """One of the measurements of a workload, its rounds, and where it was made, as one JSON object."""
    found: dict[str, Any] = {"workload": item.workload.name, "what": item.workload.describe(), "system": item.system}
    if item.fault:
        found["fault"] = item.fault
    else:
        found |= {
            "tokens_per_s": round(statistics.median(item.speeds), 2),
            "ratios": {base.system: round(item.ratio(base), 3) for base in _bases(measurements)},
            "seconds": [round(run.seconds, 4) for run in item.runs],
            "tokens": [run.num_tokens for run in item.runs],
            "near_ties": item.near_ties,
            **{name: round(value, 4) for name in DETAILS if (value := item.detail(name)) is not None},
        }
    return json.dumps({**found, "limits_tokens_per_s": {name: round(value, 1) for name, value in bounds.items()}, **where})


def _bases(measurements: Sequence[Measurement]) -> list[Measurement]:
    """What speeds are compared with: the first system, and our own autoregression."""
    return [item for index, item in enumerate(measurements) if not item.fault and (index == 0 or item.system == OWN)]


def _cells(item: Measurement, bases: Sequence[Measurement]) -> list[str]:
    forward, accepted, outside = (item.detail(name) for name in DETAILS[1:])
    return [
        f"{statistics.median(item.speeds):.1f}",
        f"{min(item.speeds):.1f}-{max(item.speeds):.1f}",
        *(f"{item.ratio(base):.2f}" for base in bases),
        "" if forward is None else f"{forward:.2f}",
        "" if accepted is None or item.system == OWN else f"{accepted:.0%}",
        "" if outside is None else f"{outside:.1%}",
        str(item.near_ties),
    ]
