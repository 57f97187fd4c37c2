"""Print a few completed rows: python examples/show.py OUTPUT_FOLDER [NUMBER]. The output is ordinary Parquet, so this is all it takes."""

import sys
import textwrap

import pyarrow.parquet as pq


def main(folder: str, number: int = 6) -> None:
    """One row of each kind first, then more of them until `number` are shown."""
    rows = sorted(pq.read_table(folder).to_pylist(), key=lambda row: row["id"])
    seen: dict[str, int] = {}
    for row in rows:
        row["turn"] = seen[row["kind"]] = seen.get(row["kind"], -1) + 1
    for row in sorted(rows, key=lambda row: row["turn"])[:number]:
        print(f"\n{row['id']}")
        print(_block("prompt", row["messages"][-1]["content"]))
        print(_block("answer", row["samples"][0]["text"] if row["samples"] else f"no answer: {row['error']['message']}"))


def _block(name: str, text: str) -> str:
    return textwrap.fill(textwrap.shorten(text, 400), 110, initial_indent=f"  {name}: ", subsequent_indent=" " * 10)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
