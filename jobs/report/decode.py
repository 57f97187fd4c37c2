"""drawloom report decode: accuracy against tokens per forward, as PNG and as one HTML file that needs nothing else."""

import base64
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from drawloom.errors import SettingError
from drawloom.jobs.folders import made

DOTS = 150  # an inch
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}img{max-width:100%}"""


def read_records(path: Path) -> list[dict[str, Any]]:
    """The lines that `drawloom bench decode` printed. Raises SettingError when they are something else."""
    try:
        records = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read as lines of JSON: {error}; give it what `drawloom bench decode` printed") from None
    if not any("tpf" in record for record in records):
        raise SettingError(f"{path} holds no measurement; give it what `drawloom bench decode` printed")
    return records


def report_decode(records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write decode.png and decode.html into `folder`."""
    made(folder)
    points, areas = [one for one in records if "tpf" in one], {one["aup_of"]: one for one in records if "aup_of" in one}
    picture = folder / "decode.png"
    figure = draw_curves(points)
    figure.savefig(picture, dpi=DOTS, bbox_inches="tight")
    plt.close(figure)
    page = folder / "decode.html"
    page.write_text(_page("Accuracy against tokens per forward", [embedded(picture), _areas(areas), _table(points)]))
    return [picture, page]


def draw_curves(points: Sequence[Mapping[str, Any]]) -> Figure:
    """One line a method; a method without thresholds is a single mark."""
    figure, axes = plt.subplots(figsize=(8, 5))
    for index, name in enumerate(dict.fromkeys(point["curve"] for point in points)):
        own = sorted((point["tpf"], point["accuracy"]) for point in points if point["curve"] == name)
        axes.plot(*zip(*own, strict=True), marker="os^Dvp"[index % 6], color=f"C{index % 10}", label=name, linewidth=1.5, markersize=6)
    axes.set_xlabel("tokens per forward")
    axes.set_ylabel("held-out accuracy, %")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def embedded(picture: Path) -> str:
    """An image that is a part of its page."""
    data = base64.b64encode(picture.read_bytes()).decode()
    return f'<img alt="{html.escape(picture.stem)}" src="data:image/png;base64,{data}">'


def _areas(areas: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [[name, "" if one["aup"] is None else f"{one['aup']:.1f}", one.get("why", "")] for name, one in areas.items()]
    return "<h2>AUP</h2>" + _grid(["method", "AUP", ""], rows) if rows else ""


def _table(points: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            point["curve"],
            ", ".join(f"{name}={value}" for name, value in point["params"].items()),
            *(f"{point[name]:.{digits}f}" for name, digits in (("accuracy", 1), ("tpf", 2), ("rows_per_forward", 1), ("tokens_per_s", 0))),
        ]
        for point in points
    ]
    return "<h2>Points</h2>" + _grid(["method", "parameters", "accuracy %", "tokens/forward", "rows/forward", "tokens/s"], rows)


def _grid(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _page(title: str, parts: Sequence[str]) -> str:
    return f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>" + "".join(parts)
