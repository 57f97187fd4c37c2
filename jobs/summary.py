"""What a job says when it has ended."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from drawloom.pipelines.progress import Figures, duration


def print_summary(output: str, sums: Mapping[str, Any], figures: Figures | None, console: Console) -> None:
    """`sums` are ledger.totals of the whole output; `figures` are of this run, None when it had nothing to do."""
    if figures is None:
        console.print(f"nothing to do: all {sums['rows']:,} rows of {output} are done ({sums['errors']:,} errors)", highlight=False)
        return
    table = Table(title="summary", title_justify="left", show_header=False)
    for name, value in _lines(sums, figures):
        table.add_row(name, value)
    console.print(table)
    if figures.slowest:
        console.print(_slowest(figures))
    console.print(f"output: {output}", highlight=False, soft_wrap=True)


def _lines(sums: Mapping[str, Any], figures: Figures) -> list[tuple[str, str]]:
    speed = figures.completion_tokens / figures.elapsed_s if figures.elapsed_s else 0.0
    lines = [
        ("rows", f"{sums['rows']:,}, {sums['completed']:,} completed, {sums['errors']:,} errors"),
        *((f"error {code}", f"{count:,}") for code, count in sums["error_codes"].items()),
        ("time", f"{duration(figures.elapsed_s)}, start included"),
        ("tokens", f"{figures.prompt_tokens:,} prompt, {figures.completion_tokens:,} completion, {speed:,.1f}/s in this run"),
    ]
    if figures.tokens_per_forward is not None:
        lines.append(("tokens per forward", f"{figures.tokens_per_forward:.2f}"))
    if figures.acceptance is not None:
        lines.append(("drafts accepted", f"{figures.acceptance:.1%}"))
    if len(figures.rows_by_replica) > 1:
        lines.append(("rows by replica", ", ".join(f"{rows:,}" for rows in figures.rows_by_replica)))
    for name, count in (("replica restarts", figures.restarts), ("engine restarts", figures.deaths)):
        lines += [(name, f"{count:,}")] if count else []
    return lines


def _slowest(figures: Figures) -> Table:
    table = Table("seconds", "tokens", "row", title="slowest rows of this run", title_justify="left")
    for seconds, tokens, file, row in figures.slowest:
        table.add_row(f"{seconds:.2f}", f"{tokens:,}", f"{file}:{row}")
    return table
