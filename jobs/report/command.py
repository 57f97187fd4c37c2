"""drawloom report: the commands. Heavy imports happen inside, so that --help is instant."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def report() -> None:
    """Pictures of what was measured: PNG, and HTML in one file."""


@app.command()
def decode(
    records: Annotated[Path, typer.Argument(help="what `drawloom bench decode` printed")],
    output: Annotated[Path, typer.Argument(help="folder for decode.png and decode.html")],
) -> None:
    """Accuracy against tokens per forward, with the AUP table."""
    from drawloom.jobs.report.decode import read_records, report_decode

    for path in report_decode(read_records(records), output):
        typer.echo(str(path))


@app.command("map")
def decode_map(
    output: Annotated[Path, typer.Argument(help="folder for map.png and map.html")],
    model: Annotated[str, typer.Option(help="as in `generate`")],
    decoder: Annotated[str, typer.Option(help="a recipe")] = "ar",
    decoder_params: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of the decoder; may be repeated")] = None,
    prompt: Annotated[str, typer.Option(help="text; empty: a held-out task")] = "",
    row: Annotated[int, typer.Option(min=0, help="which held-out task")] = 0,
    seed: int = 0,
) -> None:
    """How one answer came to be: position x forward, edits marked, blocks outlined."""
    from drawloom.jobs.flags import pair
    from drawloom.jobs.report.row import held_out_prompt, trace_row

    params = dict(map(pair, decoder_params or []))
    for path in trace_row(model, decoder, params, prompt or held_out_prompt(row), seed, output):
        typer.echo(str(path))
