"""Full-attention recipes equal a plain version with books of its own: which positions a forward recomputed, and what their K/V was then."""

import random
from typing import Any

import pytest
from canvas_oracle import naive
from rig import engine, ids, request, run, same_in_company

from drawloom.models.hash_lm import HashLM

RECIPES = ("llada", "dream", "dream-origin", "fast-dllm", "fast-dllm-factor")


def some_params(name: str, rng: random.Random) -> dict[str, Any]:
    block = rng.choice([4, 8, 32])
    if name == "llada":
        asked = {"score": rng.choice(["max_probability", "random"]), "guidance": rng.choice([0.0, 0.0, 0.5, 2.0])}
        return {"block": block, "steps": rng.randrange(1, block + 1), **asked}
    if name == "dream-origin":
        return {"steps": rng.randrange(1, 40)}
    if name == "dream":
        return {"steps": rng.randrange(1, 40), "score": rng.choice(["neg_entropy", "margin", "max_probability"])}
    cache = rng.choice(["none", "prefix", "dual"])
    swept = {"threshold": rng.choice([0.3, 0.7, 0.9])} if name == "fast-dllm" else {"factor": rng.choice([0.5, 1.0, 2.0])}
    return {"block": block, "cache": cache, **swept}


def some_request(name: str, number: int) -> Any:
    rng = random.Random(f"{name} {number}")
    prompt = [rng.randrange(62) for _ in range(rng.randrange(1, 40))]
    return request(
        f"{name}-{number}", prompt, name, number, some_params(name, rng),
        max_tokens=rng.randrange(1, 60), temperature=rng.choice([0.0, 0.8]), ignore_eos=number % 3 == 0,
    )  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("number", range(14))
def test_equals_its_books(name: str, number: int) -> None:
    one, model = some_request(name, number), HashLM(number)
    done = run(engine(model), [one])[one.id]
    want, forwards = naive(model, list(one.prompt_token_ids), one.sampling, number, name, dict(one.decoder_params))
    assert ids(done) == want
    assert done.stats.forwards == forwards
    assert model.info.mask_token_id not in ids(done)


@pytest.mark.parametrize("settings", [{}, {"num_pages": 50}, {"pack": "padded"}], ids=["many pages", "preempting", "fixed shapes"])
def test_in_any_company_the_same_text(settings: dict[str, Any]) -> None:
    """Beside each other, autoregression and block recipes; with few pages canvases are preempted and start over."""
    model = HashLM(4)
    asked = [some_request(name, number) for number in range(4) for name in RECIPES]
    asked += [
        request(f"{name}-{k}", [5, 6, 7, k], name, k, {}, max_tokens=30) for k in range(3) for name in ("ar", "jacobi", "multi-block")
    ]
    done = same_in_company(model, asked, **settings)
    if "num_pages" in settings:
        assert sum(done.stats.preemptions for done in done.values()) > 0
