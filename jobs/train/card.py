"""The zoo as it ships: each model's files, without its training state, and a card that says where it comes from and what it can do."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drawloom.actors.engine import Engine
from drawloom.actors.probe import accepted
from drawloom.errors import SettingError
from drawloom.jobs.bench.decode import Curve, engine_and_text, held_out, measure
from drawloom.jobs.bench.limits import cpu_name
from drawloom.jobs.folders import made
from drawloom.jobs.train.tasks import rows as tasks
from drawloom.jobs.train.zoo import DATA, DRAFTERS, NATIVE, OWN_ROWS
from drawloom.models.drafters.contract import TRIAL

FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "adapter_config.json",
    "adapter_model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
WHAT = {
    "tiny-ar": "A causal language model in the style of Qwen3, trained from nothing on synthetic tasks whose answers can be checked.",
    "tiny-bd": "A block-diffusion model (blocks see those before them; a masked position predicts itself), adapted from `tiny-ar`: "
    "BD3-LM's two views with complementary masks.",
    "tiny-mbd": "`tiny-bd` post-trained with MultiTF (Multi-Block Diffusion LMs): noise groups of consecutive blocks, chain-uniform noise. "
    "It decodes several unfinished blocks at once.",
    "tiny-mbd-dmax": "`tiny-bd` post-trained on its own guesses (DMax's on-policy uniform training, in MultiTF's groups). It corrects what "
    "it has filled in.",
    "tiny-jf": "`tiny-ar` after Jacobi forcing on its own greedy answers: it reaches the same kind of text in fewer Jacobi iterations.",
    "tiny-draft": "Two layers of width 128 with the tokenizer of `tiny-ar`, for which it drafts: `--model tiny-ar --decoder draft-model`.",
    "tiny-dflash": "A block drafter (DFlash) of two layers that reads hidden states of `tiny-ar`: a block of 8, of which it says 7 tokens.",
    "tiny-eagle3": "An EAGLE-3 drafter for `tiny-ar`: one layer that reads its hidden states, and then its own.",
    "tiny-medusa": "Four Medusa heads on the last hidden state of `tiny-ar`.",
}
ON_FEATURES = [name for name in DRAFTERS if name not in NATIVE]


STRETCH = 2  # the long tasks that a card tells of
NUMBERS = (
    "steps",
    "rows",
    "row_tokens",
    "learning_rate",
    "seed",
    "lora_rank",
    "block",
    "most",
    "masked",
    "fed_back",
    "width",
    "iterations",
    "layers",
    "depth",
    "anchors",
    "ahead",
    "heads",
    "decay",
)


def publish(zoo: Path, target: Path, rows: int, seed: int) -> list[str]:
    """Copy every finished model of `zoo` to `target` with a card; returns their names. Accuracy is that of `rows` held-out tasks.

    Raises SettingError when no model is finished.
    """
    found = [name for name in (*NATIVE, *ON_FEATURES) if (zoo / name / "config.json").is_file()]
    if not found:
        raise SettingError(f"{zoo} holds no finished model; train them with `drawloom train zoo {zoo}`")
    for name in found:
        folder = made(target / name)
        for file in FILES:
            if (zoo / name / file).is_file():
                shutil.copyfile(zoo / name / file, folder / file)
        recipe, params = NATIVE.get(name) or (DRAFTERS[name], {"draft": str(folder)})
        curve = Curve("", recipe, params) if name in ON_FEATURES else None
        machine = engine_and_text(str(target / "tiny-ar" if curve else folder), 16, curve)
        usual, long = (measure(*machine, held_out(rows, seed, stretch), recipe, params) for stretch in (1, STRETCH))
        if curve:
            promise(machine[0], folder, seed)
        (folder / "README.md").write_text(card(name, zoo / name, usual, long, rows, seed))
    return found


def promise(engine: Engine, folder: Path, seed: int) -> None:
    """Write down what a drafter's drafts are worth on a few held-out tasks, for the trial when it is loaded."""
    prompts = [task.prompt for kind in ("arithmetic", "json") for task in tasks("held-out", seed, 3, (kind,))]
    found = {"prompts": prompts, "accepted": round(accepted(engine, str(folder), prompts), 4)}
    (folder / TRIAL).write_text(json.dumps(found, indent=2) + "\n")


def card(name: str, trained: Path, usual: Mapping[str, Any], long: Mapping[str, Any], rows: int, seed: int) -> str:
    """The Markdown of a model card, from what was measured on usual tasks and on stretched ones."""
    recipe, params = NATIVE.get(name) or (DRAFTERS[name], {})
    user = "tiny-ar" if name in ON_FEATURES else name
    asked = " ".join([recipe, *(f"{key}={value:g}" for key, value in params.items())])
    other = {kind: f"{share:.1f} %" for kind, share in long["accuracy_by_task"].items()}
    kinds = "\n".join(f"| {kind} | {share:.1f} % | {other.get(kind, '')} |" for kind, share in usual["accuracy_by_task"].items())
    trained_on = "\n".join(f"- {stage(folder)}" for folder in stages(trained))
    return f"""---
license: apache-2.0
library_name: transformers
---
# {name}

{WHAT[name]}

Trained, in order, in float32 on two threads of {cpu_name()}:

{trained_on}

No prompt of the held-out split was trained on. Answers to {rows} held-out tasks (seed {seed}), decoded with `{asked}` at temperature 0:

| task | right | with `--stretch {STRETCH}` |
|---|---|---|
| **all** | **{usual["accuracy"]:.1f} %** | **{long["accuracy"]:.1f} %** |
{kinds}
| tokens per forward | {usual["tpf"]:.2f} | {long["tpf"]:.2f} |

`shuffle` takes any order of the same items but the one that was given.

`drawloom train zoo DIR` trains it again; `--model {user} --decoder {recipe}` uses it. It knows these tasks and nothing else.
"""


def stages(trained: Path) -> list[Path]:
    """The folder of a run, behind those of the runs that it began from, as far as they ship under no name of their own."""
    base = Path(json.loads((trained / "settings.json").read_text())["base"])
    before = trained.parent / base.name
    return [*(stages(before) if (before / "settings.json").is_file() and base.name not in NATIVE else []), trained]


def data_told(name: str) -> str:
    """How a file of training data was made."""
    if name == "own.parquet":
        return f"greedy answers of `tiny-ar` to the first {OWN_ROWS:,} of the same prompts"
    told = DATA.get(name.removesuffix(".parquet"))
    if told is None:
        return name
    weights = ",".join(f"{kind}={weight:g}" for kind, weight in told.get("weights", {}).items())
    options = [f"--seed {told['seed']}", *([f"--weights {weights}"] if weights else [])]
    options += [f"--stretch {told['stretch']}"] if "stretch" in told else []
    return f"{told['count']:,} rows of `drawloom train tasks {' '.join(options)}`"


def stage(folder: Path) -> str:
    """One run: what from, on what, how long."""
    told = json.loads((folder / "settings.json").read_text())
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    base, data = Path(told["base"]).name, Path(told["data"]).name
    numbers = ", ".join(f"{name} {told[name]}" for name in NUMBERS if told.get(name))
    begin = "random weights" if base.startswith("fresh") else f"`{base}`" if base in NATIVE else "the stage before"
    return f"from {begin}, on {data_told(data)}; {numbers}; last loss {log[-1]['loss']:.3f}; {hours(log, told)}"


def hours(log: list[dict[str, Any]], told: Mapping[str, Any]) -> str:
    """Wall-clock time of the logged steps, estimated from their speed where it was not written down."""
    steps = {record["step"]: record for record in log}  # a resumed run logs some steps again
    before, seconds = 0, 0.0
    for step, record in sorted(steps.items()):
        guessed = (step - before) * told["rows"] * told["row_tokens"] * 0.95 / max(1, record["tokens_per_s"])
        seconds += record.get("seconds", guessed)
        before = step
    return f"{seconds / 3600:.1f} hours"
