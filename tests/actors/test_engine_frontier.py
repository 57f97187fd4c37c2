"""d3LLM's decoding equals a plain version with books of its own: what each forward recomputed, revealed and kept."""

import random
from dataclasses import replace
from typing import Any

import pytest
from frontier_oracle import naive
from rig import engine, ids, request, run, same_in_company

from drawloom.decoders import recipes
from drawloom.decoders.frontier import Frontier
from drawloom.decoders.recipe import Recipe
from drawloom.decoders.recipes import build
from drawloom.errors import SettingError
from drawloom.models.hash_lm import HashLM


def some(number: int) -> tuple[list[int], dict[str, Any], Any]:
    rng = random.Random(f"d3llm {number}")
    prompt = [rng.randrange(62) for _ in range(rng.randrange(1, 40))]
    params = {
        "block": rng.choice([4, 8, 32]), "threshold": rng.choice([0.2, 1.0, 2.5]), "open_at": rng.choice([0.1, 0.5, 1.0]),
        "full_at": rng.choice([0.5, 0.95]), "delay": rng.choice([-1, 0, 1, 2, 4]), "refresh": rng.choice([3, 7, 10000]),
    }  # fmt: skip
    one = request(
        f"d3llm-{number}", prompt, "d3llm", number, params,
        max_tokens=rng.randrange(1, 60), temperature=rng.choice([0.0, 0.8]), ignore_eos=number % 3 == 0,
    )  # fmt: skip
    return prompt, params, one


@pytest.mark.parametrize("number", range(40))
def test_equals_its_books(number: int) -> None:
    prompt, params, one = some(number)
    model = HashLM(number)
    done = run(engine(model), [one])[one.id]
    assert (ids(done), done.stats.forwards) == naive(model, prompt, one.sampling, number, params)


@pytest.mark.parametrize("number", range(12))
def test_with_shifted_logits(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for Dream: row i predicts position i + 1."""
    prompt, params, one = some(number)
    found = recipes.RECIPES["d3llm"]
    monkeypatch.setitem(recipes.RECIPES, "d3llm-dream", Recipe(found.make, "", "", found.model, lossless=False, shifted=True))
    model = HashLM(number)
    done = run(engine(model), [replace(one, decoder="d3llm-dream")])[one.id]
    assert (ids(done), done.stats.forwards) == naive(model, prompt, one.sampling, number, params, shift=1)


@pytest.mark.parametrize("settings", [{}, {"num_pages": 60}, {"pack": "padded"}], ids=["many pages", "preempting", "fixed shapes"])
def test_in_any_company_the_same_text(settings: dict[str, Any]) -> None:
    model = HashLM(4)
    asked = [some(number)[2] for number in range(12)] + [request(f"ar-{k}", [5, 6, k], "ar", k, max_tokens=30) for k in range(3)]
    same_in_company(model, asked, **settings)


@pytest.mark.parametrize("open_at", [1.5, float("nan")])
def test_blocks_that_would_never_open_are_refused(open_at: float) -> None:
    with pytest.raises(SettingError, match="open_at is"):
        build("d3llm", {"open_at": open_at}, 63)


def test_a_kept_cache_recomputes_less() -> None:
    """The same text length, fewer rows; and a delay that never ends recomputes everything."""
    sampling = {"max_tokens": 64, "temperature": 0.0, "ignore_eos": True}
    params = {"block": 8, "threshold": 0.0, "open_at": 1.0}
    rows = {}
    for delay in (-1, 0):
        done = run(engine(HashLM(1)), [request("x", [1] * 40, "d3llm", params={**params, "delay": delay}, **sampling)])["x"]
        assert len(ids(done)) == 64
        rows[delay] = done.stats.rows / done.stats.forwards
    assert rows[-1] == 104
    assert rows[0] < 80
    assert isinstance(build("d3llm", {}, 63), Frontier)
