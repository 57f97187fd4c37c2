"""drawloom report map: how one row came to be. Position x forward; colour is the forward that revealed a token, edits are marked, blocks
outlined. Under it the text, each token in its colour."""

import html
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed
from matplotlib import colormaps, colors
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from drawloom.actors.request import Reveal, Sample
from drawloom.jobs.folders import made
from drawloom.jobs.report.decode import DOTS, STYLE, embedded

COLOURS = "viridis"


def report_map(sample: Sample, tokens: Sequence[str], prompt_len: int, block: int, title: str, folder: Path) -> list[Path]:
    """Write map.png and map.html. tokens: text of each token, the end token too when it was generated; block 0: none to outline."""
    assert sample.reveals is not None, "the request asked for no trace"
    made(folder)
    figure = draw_map(sample.reveals, tokens, prompt_len, block, title)
    picture = folder / "map.png"
    figure.savefig(picture, dpi=DOTS, bbox_inches="tight")
    plt.close(figure)
    page = folder / "map.html"
    page.write_text(_page(sample.reveals, tokens, title, picture))
    return [picture, page]


def facts(reveals: Sequence[Reveal]) -> Mapping[str, Any]:
    """What a trace says by itself: forwards, tokens per forward, edits."""
    forwards = max(one.final for one in reveals)
    return {"forwards": forwards, "tpf": len(reveals) / forwards, "edits": sum(one.edits for one in reveals)}


def draw_map(reveals: Sequence[Reveal], tokens: Sequence[str], prompt_len: int, block: int, title: str) -> Figure:
    """The picture. A cell is filled from the forward that gave a token its value on; a cross marks tokens that were edited."""
    forwards, count = max(one.final for one in reveals), len(reveals)
    width = max(6, 0.22 * count)
    figure, axes = plt.subplots(figsize=(width, max(2.5, 0.22 * forwards + 1.2)))
    paint = colormaps[COLOURS].resampled(forwards)
    for place, one in enumerate(reveals):
        axes.add_patch(Rectangle((place, one.shown - 1), 1, forwards - one.shown + 1, color=paint(one.shown - 1), alpha=0.35, linewidth=0))
        axes.add_patch(Rectangle((place, one.shown - 1), 1, 1, color=paint(one.shown - 1), linewidth=0))
        if one.edits:
            axes.text(place + 0.5, one.shown - 0.5, "×", ha="center", va="center", color="white", fontsize=9)
    for edge in _edges(prompt_len, block, count):
        axes.axvline(edge, color="black", linewidth=1)
    axes.set_xlim(0, count)
    axes.set_ylim(forwards, 0)
    axes.set_xticks([place + 0.5 for place in range(count)], [repr(token)[1:-1] for token in tokens], rotation=90, fontsize=7)
    axes.set_yticks([step + 0.5 for step in range(forwards)], [str(step + 1) for step in range(forwards)], fontsize=7)
    axes.set_ylabel("forward")
    axes.set_title(textwrap.fill(textwrap.shorten(title, 300), int(12 * width)), fontsize=9)
    return figure


def _edges(prompt_len: int, block: int, count: int) -> list[int]:
    """Places, counted from the first new token, at which a block begins."""
    return [] if block < 2 else [edge - prompt_len for edge in range(-(-prompt_len // block) * block, prompt_len + count, block)]


def _page(reveals: Sequence[Reveal], tokens: Sequence[str], title: str, picture: Path) -> str:
    known = facts(reveals)
    paint = colormaps[COLOURS].resampled(known["forwards"])
    text = "".join(_span(one, token, colors.to_hex(paint(one.shown - 1))) for one, token in zip(reveals, tokens, strict=True))
    said = f"{len(reveals)} tokens in {known['forwards']} forwards: {known['tpf']:.2f} tokens a forward, {known['edits']} edits."
    return (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<style>{STYLE} pre{{font-size:1.1em;white-space:pre-wrap}}</style><h1>{html.escape(title)}</h1>"
        f"<p>{said} Colour: the forward that gave a token its value.</p>{embedded(picture)}<pre>{text}</pre>"
    )


def _span(one: Reveal, token: str, colour: str) -> str:
    note, line = (f", {one.edits} edits", "text-decoration:underline;") if one.edits else ("", "")
    return f'<span title="forward {one.shown}{note}" style="background:{colour}66;{line}">{html.escape(token)}</span>'
