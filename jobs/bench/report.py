"""Measurements as a table for people and as one JSON line each for programs."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from drawloom.jobs.bench.compare import Measurement

OWN = "drawloom ar"
DETAILS = ("forwards", "tokens_per_forward", "acceptance", "outside_forward")


def table_of(measurements: Sequence[Measurement], bounds: Mapping[str, float]) -> Table:
    """One workload: systems in the order measured; below them what went wrong, and the machine's limits in tokens/s.

    Ratios are medians within a round; the first base is the first system, the second our own autoregression.
    """
    workload, bases = measurements[0].workload, _bases(measurements)
    below = [f"{item.system} has no speed: {item.fault}" for item in measurements if item.fault]
    below += ["limits, tokens/s: " + "; ".join(f"{name} {value:.0f}" for name, value in bounds.items())]
    title = f"{workload.name}: {workload.describe()}"
    table = Table(title=title, title_justify="left", caption="\n".join(below), caption_justify="left", box=SIMPLE_HEAD)
    table.add_column("system", no_wrap=True)
    for column in ("tok/s", "range", *(f"x {base.system}" for base in bases), "tok/forward", "accepted", "outside", "ties"):
        table.add_column(column, justify="right")
    for item in measurements:
        table.add_row(item.system, *([] if item.fault else _cells(item, bases)))
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
        "" if accepted is None or item.system.startswith(OWN) else f"{accepted:.0%}",
        "" if outside is None else f"{outside:.1%}",
        str(item.near_ties),
    ]
