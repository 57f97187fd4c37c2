"""Grade completed tasks: python examples/compare.py OUTPUT_FOLDER... Accuracy and tokens per forward of each, on the same rows."""

import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from drawloom.jobs.train.grade import grade_all


def main(folders: list[str]) -> None:
    """One line a folder; below them an answer of the last one."""
    found = {Path(folder).name: sorted(pq.read_table(folder).to_pylist(), key=lambda row: row["prompt"]) for folder in folders}
    table = Table("output", "decoder", "rows", "right", "tokens", "forwards", "tokens per forward")
    for name, rows in found.items():
        table.add_row(name, rows[0]["engine"]["decoder"] if rows[0]["engine"] else "", *_cells(rows))
    Console().print(table)
    shown = next(row for row in rows if row["samples"])
    print(f"\n{name} was asked: {shown['prompt'].strip()}\nand answered:   {_text(shown)}")


def _cells(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    done = [row for row in rows if row["samples"]]
    right = sum(grade_all([(row["task"], row["check"], _text(row)) for row in done]))
    tokens, forwards = (sum(numbers) for numbers in zip(*(_cost(row) for row in done), strict=True))
    return str(len(rows)), f"{100 * right / len(rows):.1f} %", str(tokens), str(forwards), f"{tokens / forwards:.2f}"


def _text(row: dict[str, Any]) -> str:
    return row["samples"][0]["text"]


def _cost(row: dict[str, Any]) -> tuple[int, int]:
    return row["usage"]["completion_tokens"], row["engine"]["forwards"]


if __name__ == "__main__":
    main(sys.argv[1:])
