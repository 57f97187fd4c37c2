"""S2D2 equals a plain version: what each forward drafted, verified and revealed."""

import random
from typing import Any

import pytest
from rig import engine, ids, request, run, same_in_company
from self_verify_oracle import Naive

from drawloom.decoders.recipes import RECIPES, build
from drawloom.errors import SettingError
from drawloom.models.hash_lm import HashLM

NAMES = [name for name in RECIPES if name.startswith("s2d2")]


def some(name: str, number: int) -> tuple[list[int], dict[str, Any], Any]:
    rng = random.Random(f"{name} {number}")
    params: dict[str, Any] = {"block": rng.choice([4, 8, 32]), "threshold": rng.choice([0.3, 0.7, 0.9])}
    if name == "s2d2-span":
        params["least"] = rng.choice([1, 2, 5])
    else:
        params |= {"estimate": rng.choice(["entropy", "margin"]), "sharpness": rng.choice([0.1, 0.7])}
    if name in ("s2d2", "s2d2-hysteresis"):
        params |= {"on": rng.choice([-1.0, 0.3, 1.5]), "cost": rng.choice([0.5, 1.0]), "cost_of": rng.choice(["static", "dynamic"])}
    if name == "s2d2-hysteresis":
        params["off"] = params["on"] - rng.choice([0.0, 1.0, 5.0])
    if name == "s2d2-bandit":
        params["wide"] = rng.choice([0.2, 1.0])
    length = params["block"] * rng.randrange(1, 3) if number % 3 == 0 else rng.randrange(1, 40)
    prompt = [rng.randrange(62) for _ in range(length)]
    one = request(
        f"{name}-{number}", prompt, name, number, params,
        max_tokens=rng.randrange(1, 50), temperature=rng.choice([0.0, 0.8]), ignore_eos=number % 4 == 3,
    )  # fmt: skip
    return prompt, params, one


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", range(12))
def test_equals_its_oracle_forward_by_forward(name: str, number: int) -> None:
    prompt, params, one = some(name, number)
    model = HashLM(number)
    done = run(engine(model), [one])[one.id]
    want, counts = Naive(model, name, params).run(prompt, one.sampling, number)
    assert ids(done) == want
    prefill = int(len(prompt) >= params["block"])
    assert done.stats.forwards == len(counts) + prefill
    assert done.stats.accepted == sum(counts)


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_pages": 60}, {"pack": "padded"}, {"prefill_rows": 5}],
    ids=["many pages", "preempting", "fixed shapes", "chunked"],
)
def test_in_any_company_the_same_text(settings: dict[str, Any]) -> None:
    model = HashLM(4)
    asked = [some(name, number)[2] for number in range(4) for name in NAMES]
    asked += [request(f"{name}-{k}", [5, 6, k], name, k, max_tokens=30) for k in range(3) for name in ("ar", "multi-block", "llada")]
    same_in_company(model, asked, **settings)


@pytest.mark.parametrize("params", [{"cost_of": "random"}, {"estimate": "luck"}])
def test_unknown_words_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="unknown"):
        build("s2d2", params, 63)
