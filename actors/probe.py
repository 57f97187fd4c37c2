"""A short trial of a drafter beside its target: one that was made for other layers or another model drafts, but nothing of it is right."""

from collections.abc import Mapping

from drawloom.actors.engine import Engine
from drawloom.actors.request import Request, Sampling
from drawloom.errors import SettingError

PROMPTS = (
    "Question: Tom has 3 apples and buys 4 more. How many apples does he have now?\nAnswer:",
    "Copy the list: red green blue red green blue\n",
    'def add(a, b):\n    """The sum of a and b."""\n    return',
    'A record with a name and an age: {"name": "Ada", "age": ',
)
TOKENS = 24  # of each answer


def accepted_first(engine: Engine, decoder: str, params: Mapping[str, float | int | str]) -> float:
    """In which share of its drafts the first token was what the target said, at temperature 0. Leaves no trace in the engine."""
    for number, prompt in enumerate(PROMPTS):
        sampling = Sampling(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
        engine.add(Request(f"probe {number}", engine.text.encode(prompt), sampling, decoder=decoder, decoder_params=params))
    done = []
    while engine.num_unfinished:
        done += engine.step()
    engine.forget()
    drafts = sum(one.stats.forwards - 1 for one in done)  # a text's first forward has none
    return sum(sum(one.stats.accepted_by_position[:1]) for one in done) / max(1, drafts)


def probe(engine: Engine, decoder: str, params: Mapping[str, float | int | str], floor: float) -> None:
    """Raises SettingError when less than `floor` of the drafts begin right."""
    share = accepted_first(engine, decoder, params)
    if share < floor:
        raise SettingError(
            f"the drafter of {decoder!r} begins right in {share:.0%} of its drafts for {engine.model.info.name} (at least {floor:.0%} is "
            "expected): it was probably made for other layers or another model; take another, or set draft_floor=0 to run it nevertheless"
        )
