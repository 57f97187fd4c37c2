"""drawloom train: the commands. Heavy imports happen inside, so that --help is instant."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True)
Data = Annotated[str, typer.Argument(help="Parquet file or folder with prompts and answers")]
Output = Annotated[str, typer.Argument(help="folder of the new checkpoint; run the same command again to go on")]
Base = Annotated[str, typer.Option(help="checkpoint to start from: a folder, or a word that --model knows")]
Target = Annotated[str, typer.Option("--base", help="the target to draft for: a folder, or a word that --model knows")]
Set = Annotated[list[str] | None, typer.Option("--set", help="any setting of the recipe as NAME=VALUE; may be repeated")]


@app.callback()
def train() -> None:
    """Train small models, or post-train your own: tasks with checkable answers, a fresh network, and five recipes."""


@app.command()
def tasks(
    output: Annotated[Path, typer.Argument(help="Parquet file to write")],
    count: Annotated[int, typer.Option(min=1, help="rows")] = 1000,
    split: Annotated[str, typer.Option(help="train, or held-out")] = "train",
    seed: int = 0,
    only: Annotated[str, typer.Option(help="kinds by comma; empty: all")] = "",
    weights: Annotated[str, typer.Option(help="how often a kind is trained on, such as arithmetic=2,sort=1.5")] = "",
    stretch: Annotated[int, typer.Option(min=1, help="sums and lists up to so many times as long")] = 1,
) -> None:
    """Write tasks: columns task, prompt, answer, check."""
    from drawloom.errors import SettingError
    from drawloom.jobs.train.tasks import write

    told = _given([pair for pair in weights.split(",") if pair])
    if wrong := [kind for kind, weight in told.items() if isinstance(weight, bool) or not isinstance(weight, int | float)]:
        raise SettingError(f"the weight of {wrong[0]!r} is {told[wrong[0]]!r}; a number is needed")
    write(output, split, seed, count, tuple(word for word in only.split(",") if word), told, stretch)


@app.command()
def fresh(data: Data, output: Output, set_: Set = None) -> None:
    """A tokenizer learned from DATA, and random weights."""
    from drawloom.jobs.train.fresh import FreshSettings, fresh

    fresh(FreshSettings.parse(_given(set_) | {"data": data, "output": output}))


@app.command("ar")
def autoregressive(data: Data, output: Output, base: Base, set_: Set = None) -> None:
    """Next-token prediction."""
    from drawloom.jobs.train.autoregressive import train
    from drawloom.jobs.train.settings import TrainSettings

    _run(train, TrainSettings, data, output, base, set_)


@app.command()
def block(data: Data, output: Output, base: Base, set_: Set = None) -> None:
    """Block diffusion from an autoregressive base."""
    from drawloom.jobs.train.block import train
    from drawloom.jobs.train.settings import BlockSettings

    _run(train, BlockSettings, data, output, base, set_)


@app.command("multi-block")
def multi_block(data: Data, output: Output, base: Base, set_: Set = None) -> None:
    """MultiTF: decode several unfinished blocks at once."""
    from drawloom.jobs.train.multi_block import train
    from drawloom.jobs.train.settings import MultiBlockSettings

    _run(train, MultiBlockSettings, data, output, base, set_)


@app.command("on-policy")
def on_policy(data: Data, output: Output, base: Base, set_: Set = None) -> None:
    """On-policy uniform training (DMax): correct one's own guesses."""
    from drawloom.jobs.train.on_policy import train
    from drawloom.jobs.train.settings import OnPolicySettings

    _run(train, OnPolicySettings, data, output, base, set_)


@app.command()
def jacobi(data: Data, output: Output, base: Base, set_: Set = None) -> None:
    """Jacobi forcing: fewer Jacobi iterations for the same text."""
    from drawloom.jobs.train.jacobi import train
    from drawloom.jobs.train.settings import JacobiSettings

    _run(train, JacobiSettings, data, output, base, set_)


@app.command()
def dflash(data: Data, output: Output, base: Target, set_: Set = None) -> None:
    """A block drafter (DFlash) for BASE, from the output folder of a job that BASE did, or from prompts."""
    from drawloom.jobs.train.dflash import train
    from drawloom.jobs.train.settings import DFlashSettings

    _run(train, DFlashSettings, data, output, base, set_)


@app.command()
def eagle(data: Data, output: Output, base: Target, set_: Set = None) -> None:
    """An EAGLE-3 drafter for BASE, from the output folder of a job that BASE did, or from prompts."""
    from drawloom.jobs.train.eagle import train
    from drawloom.jobs.train.settings import EagleSettings

    _run(train, EagleSettings, data, output, base, set_)


@app.command()
def medusa(data: Data, output: Output, base: Target, set_: Set = None) -> None:
    """Medusa heads for BASE, from the output folder of a job that BASE did, or from prompts."""
    from drawloom.jobs.train.medusa import train
    from drawloom.jobs.train.settings import MedusaSettings

    _run(train, MedusaSettings, data, output, base, set_)


@app.command()
def zoo(
    output: Annotated[Path, typer.Argument(help="folder for the five models")],
    threads: Annotated[int, typer.Option(min=0, help="0: torch's own count")] = 0,
) -> None:
    """The small models of models/zoo, from nothing; run it again to go on."""
    from drawloom.jobs.train.zoo import zoo

    zoo(output, threads)


@app.command()
def publish(
    zoo: Annotated[Path, typer.Argument(help="folder that `drawloom train zoo` filled")],
    target: Annotated[Path, typer.Argument(help="folder for the models and their cards")],
    rows: Annotated[int, typer.Option(min=1, help="held-out tasks to measure each on")] = 500,
    seed: int = 7,
) -> None:
    """Copy the zoo's finished models without training state, each with a model card."""
    from drawloom.jobs.train.card import publish

    for name in publish(zoo, target, rows, seed):
        typer.echo(f"{target / name}")


def _run(train: Callable[[Any], None], settings: Any, data: str, output: str, base: str, given: list[str] | None) -> None:
    from drawloom.jobs.train.loop import is_done
    from drawloom.jobs.train.workers import run

    parsed = settings.parse(_given(given) | {"data": data, "output": output, "base": base})
    if is_done(parsed):
        typer.echo(f"{output} is trained already")
        return
    run(train, parsed)


def _given(pairs: list[str] | None) -> dict[str, Any]:
    """NAME=VALUE as YAML reads the value."""
    import yaml

    from drawloom.errors import SettingError

    found = {}
    for pair in pairs or []:
        name, sign, value = pair.partition("=")
        if not sign:
            raise SettingError(f"{pair!r} is not NAME=VALUE")
        found[name.strip()] = yaml.safe_load(value)
    return found
