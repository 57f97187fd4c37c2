"""The command `drawloom`. Exit codes: 0 done, 3 done with rows that ended as errors, 2 a setting is wrong, 1 anything else."""

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from drawloom.errors import DrawloomError, SettingError
from drawloom.jobs.bench.command import app as bench
from drawloom.jobs.report.command import app as report
from drawloom.jobs.train.command import app as train

DONE, FAILED, WRONG_SETTING, ROW_ERRORS = 0, 1, 2, 3
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(bench, name="bench")
app.add_typer(report, name="report")
app.add_typer(train, name="train")


@app.callback()
def drawloom() -> None:
    """Prompts in, completions out, exactly once."""


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of jobs/flags.py in place of its **flags."""
    from drawloom.jobs.flags import parameters

    own = [one for one in inspect.signature(command).parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = inspect.Signature([*own, *parameters()])  # pyright: ignore[reportFunctionMemberAccess]
    return command


@app.command()
@with_flags
def generate(
    input: Annotated[str | None, typer.Argument(help="file, folder or glob of Parquet, JSONL or CSV", show_default=False)] = None,
    output: Annotated[str | None, typer.Argument(help="folder for the completed rows", show_default=False)] = None,
    config: Annotated[str | None, typer.Option("--config", help="YAML file with any of the settings; flags go before it")] = None,
    **flags: Any,
) -> None:
    """Complete every row of INPUT into OUTPUT. Run the same command again to resume; a finished job is left as it is."""
    from drawloom.jobs.flags import nested
    from drawloom.jobs.generate import generate as run
    from drawloom.jobs.quiet import quiet
    from drawloom.jobs.settings import load_settings

    paths = {name: value for name, value in (("input", input), ("output", output)) if value is not None}
    console = Console(file=sys.stdout, soft_wrap=not sys.stdout.isatty())
    with_resume = f"run the same command again to resume{f' {output}' if output else ''}"
    try:
        settings = load_settings(config, nested(flags) | paths)
        with quiet():
            result = run(settings, console)
    except KeyboardInterrupt:
        _leave(f"interrupted; what was committed is kept: {with_resume}", FAILED)
    raise typer.Exit(ROW_ERRORS if result.num_errors else DONE)


@app.command()
def status(output: Annotated[str, typer.Argument(help="folder that `generate` wrote")]) -> None:
    """Show how far a job is, running or not."""
    from drawloom.jobs.status import show
    from drawloom.jobs.status import status as find

    show(find(output), Console())


@app.command()
def verify(
    output: Annotated[str, typer.Argument(help="folder that `generate` wrote")],
    deep: Annotated[bool, typer.Option("--deep", help="also read every part and hash its content again")] = False,
) -> None:
    """Prove from the folder's own records that every input row has exactly one outcome."""
    from drawloom.jobs.verify import show
    from drawloom.jobs.verify import verify as check

    verdict = check(output, deep)
    show(verdict, Console())
    raise typer.Exit(DONE if verdict.ok else FAILED)


@app.command()
def recipes() -> None:
    """List the decoders: what each does, its parameters, whether it is lossless."""
    from drawloom.jobs.recipes import table

    Console().print(table())


def main() -> None:
    """Entry point: run a command and turn its errors into exit codes."""
    try:
        app()
    except SettingError as error:
        _leave(str(error), WRONG_SETTING)
    except DrawloomError as error:
        _leave(str(error), FAILED)


def _leave(message: str, code: int) -> NoReturn:
    Console(stderr=True, soft_wrap=True).print(f"[bold red]drawloom:[/bold red] {escape(message)}", highlight=False)
    sys.exit(code)
