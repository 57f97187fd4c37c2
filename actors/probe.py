"""A short trial of a drafter beside its target: one that was made for other layers or another model drafts, but little of it is right."""

from collections.abc import Sequence

from drawloom.actors.engine import Engine
from drawloom.actors.request import Request, Sampling
from drawloom.decoders.recipes import recipe
from drawloom.errors import SettingError
from drawloom.models.drafters.contract import FeatureDrafter, Trial
from drawloom.models.drafters.kinds import DECODERS

PROMPTS = (
    "Question: Tom has 3 apples and buys 4 more. How many apples does he have now?\nAnswer:",
    "Copy the list: red green blue red green blue\n",
    'def add(a, b):\n    """The sum of a and b."""\n    return',
    'A record with a name and an age: {"name": "Ada", "age": ',
)
TOKENS = 48  # of each answer, at most
SHARE = 0.9  # of what a drafter's own files promise: its drafts are the same ones, but for rounding


def accepted(engine: Engine, draft: str, prompts: Sequence[str]) -> float:
    """Share of drafted tokens (of chains) that the target accepted, at temperature 0. Leaves no trace in the engine."""
    drafter = engine.drafts[draft]
    assert isinstance(drafter, FeatureDrafter)
    decoder = DECODERS[drafter.kind]
    usual = recipe(decoder).params["width"]
    params: dict[str, float | int | str] = {"draft": draft, "nodes": 0, "width": min(int(usual), drafter.most)}
    for number, prompt in enumerate(prompts):
        sampling = Sampling(max_tokens=TOKENS, temperature=0.0)
        engine.add(Request(f"probe {number}", engine.text.encode(prompt), sampling, decoder=decoder, decoder_params=params))
    done = []
    while engine.num_unfinished:
        done += engine.step()
    engine.forget()
    return sum(one.stats.accepted for one in done) / max(1, sum(one.stats.drafted for one in done))


def probe(engine: Engine, draft: str, trial: Trial | None, floor: float) -> None:
    """Raises SettingError when less is accepted than the drafter's own files promise, or than `floor` where they do not say."""
    least = floor if trial is None else SHARE * trial.accepted
    found = accepted(engine, draft, PROMPTS if trial is None else trial.prompts)
    if found < least:
        raise SettingError(
            f"{engine.model.info.name} accepts {found:.0%} of what {draft!r} drafts (at least {least:.0%} is expected): it was "
            "probably made for other layers or another model; take another, or set draft_floor=0 to run it nevertheless"
        )
