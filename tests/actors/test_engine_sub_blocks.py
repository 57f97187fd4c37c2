"""Fast-dLLM v2 equals a plain version with books of its own, with and without the sub-block cache."""

import random
from typing import Any

import pytest
from rig import engine, ids, request, run, same_in_company
from sub_blocks_oracle import naive

from drawloom.decoders.recipes import build
from drawloom.errors import SettingError
from drawloom.models.hash_lm import HashLM


def some(number: int) -> tuple[list[int], dict[str, Any], Any]:
    rng = random.Random(f"fast-dllm-v2 {number}")
    block = rng.choice([4, 8, 32])
    length = block * rng.randrange(1, 4) if number % 3 == 0 else rng.randrange(1, 50)
    prompt = [rng.randrange(62) for _ in range(length)]
    params = {
        "block": block, "sub": rng.choice([1, 2, 4]), "threshold": rng.choice([0.3, 0.7, 0.9, 1.0]), "cache": ["none", "sub"][number % 2]
    }  # fmt: skip
    one = request(
        f"v2-{number}", prompt, "fast-dllm-v2", number, params,
        max_tokens=rng.randrange(1, 60), temperature=rng.choice([0.0, 0.8]), ignore_eos=number % 4 == 3,
    )  # fmt: skip
    return prompt, params, one


@pytest.mark.parametrize("number", range(40))
def test_equals_its_books(number: int) -> None:
    prompt, params, one = some(number)
    model = HashLM(number)
    done = run(engine(model), [one])[one.id]
    want, forwards = naive(model, prompt, one.sampling, number, params)
    assert ids(done) == want
    prefill = int(len(prompt) > params["block"])
    assert done.stats.forwards == forwards + prefill


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_pages": 60}, {"pack": "padded"}, {"prefill_rows": 5}],
    ids=["many pages", "preempting", "fixed shapes", "chunked"],
)
def test_in_any_company_the_same_text(settings: dict[str, Any]) -> None:
    model = HashLM(4)
    asked = [some(number)[2] for number in range(14)]
    asked += [request(f"{name}-{k}", [5, 6, k], name, k, max_tokens=30) for k in range(3) for name in ("ar", "multi-block", "llada")]
    done = same_in_company(model, asked, **settings)
    if "num_pages" in settings:
        assert sum(done.stats.preemptions for done in done.values()) > 0


def test_the_cache_changes_the_text_and_saves_rows() -> None:
    """It is an approximation, and says so."""
    sampling = {"max_tokens": 120, "temperature": 0.0, "ignore_eos": True}
    params = {"block": 32, "sub": 8, "threshold": 0.9}
    done = {
        cache: run(engine(HashLM(2)), [request("x", [1, 2, 3], "fast-dllm-v2", params={**params, "cache": cache}, **sampling)])["x"]
        for cache in ("none", "sub")
    }
    assert ids(done["none"]) != ids(done["sub"])
    assert done["sub"].stats.rows / done["sub"].stats.forwards < 0.8 * done["none"].stats.rows / done["none"].stats.forwards


@pytest.mark.parametrize("params", [{"sub": 5}, {"sub": 0}, {"cache": "dual"}])
def test_sub_blocks_that_cannot_work_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"sub|cache"):
        build("fast-dllm-v2", params, 63)
