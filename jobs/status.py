"""`drawloom status OUTPUT`: how far a job is, running or not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from drawloom.pipelines.ledger import totals
from drawloom.pipelines.verify import read_folder

MAX_SHOWN = 5


@dataclass(frozen=True)
class Status:
    """Where a job stands. `sums` are ledger.totals of the committed units; `pending` names the first units without an outcome."""

    output: str
    state: Literal["finished", "resumable"]  # a running job is resumable too
    rows: int  # of the input
    units: int
    sums: Mapping[str, Any]
    pending: tuple[str, ...]
    model_fingerprint: str
    config_hash: str
    code_version: str


def status(output: str) -> Status:
    """Read an output folder (local or s3://), also while its job runs. Raises SettingError when it holds no job."""
    folder = read_folder(output)
    settled = {unit.id: folder.ledger.settled(unit.id) for unit in folder.plan.units()}
    facts = folder.stored.facts
    pending = tuple(unit_id for unit_id, entry in settled.items() if entry is None)
    return Status(
        output=folder.store.uri,
        state="finished" if folder.success is not None and not pending else "resumable",
        rows=folder.plan.num_rows,
        units=folder.plan.num_units,
        sums=totals(entry for entry in settled.values() if entry is not None),
        pending=pending,
        model_fingerprint=facts["model_fingerprint"],
        config_hash=facts["config_hash"],
        code_version=facts["code_version"],
    )


def show(found: Status, console: Console) -> None:
    """A small table: state, rows, errors by code, tokens, units that wait."""
    sums = found.sums
    table = Table(title=found.output, show_header=False, title_justify="left")
    table.add_row("state", found.state)
    table.add_row("rows", f"{sums['rows']:,} of {found.rows:,} ({100 * sums['rows'] / found.rows:.1f} %)")
    table.add_row("completed", f"{sums['completed']:,}")
    for code, count in sums["error_codes"].items():
        table.add_row(f"error {code}", f"{count:,}")
    table.add_row("tokens", f"{sums['prompt_tokens']:,} prompt, {sums['completion_tokens']:,} completion")
    table.add_row("units", f"{sums['units']:,} of {found.units:,}")
    if found.pending:
        more = ", ..." if len(found.pending) > MAX_SHOWN else ""
        table.add_row("waiting", ", ".join(found.pending[:MAX_SHOWN]) + more)
    table.add_row("job", f"model {found.model_fingerprint}, config {found.config_hash}, code {found.code_version}")
    table.add_row("content", sums["content"])
    console.print(table)
