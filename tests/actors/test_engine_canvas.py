"""Full-attention recipes equal a plain version with books of its own: which positions a forward recomputed, and what their K/V was then."""

import random
from typing import Any

import pytest
import torch
from canvas_books import Books
from oracles import choose
from rig import engine, ids, request, run, same_in_company

from drawloom.actors.request import Sampling
from drawloom.kernels.noise import uniform_at
from drawloom.models.hash_lm import HashLM

RECIPES = ("llada", "dream", "dream-origin", "fast-dllm", "fast-dllm-factor")


def naive(model: HashLM, prompt: list[int], sampling: Sampling, seed: int, name: str, params: dict[str, Any]) -> tuple[list[int], int]:
    """Text and number of forwards."""
    mask, limit = model.info.vocab_size - 1, len(prompt) + sampling.max_tokens
    ends = () if sampling.ignore_eos else model.info.eos_token_ids
    canvas = [*prompt, *[mask] * sampling.max_tokens]
    shift, size, forwards = int(name.startswith("dream")), params.get("block", 1 << 20), 0
    chance = {p: lot(seed, p) for p in range(limit)}
    for start in range(len(prompt), limit, size):
        stop, age, books = (
            min(start + size, limit),
            0,
            Books(model, torch.zeros(limit, dtype=torch.int64), torch.zeros(limit, dtype=torch.int64)),
        )
        while mask in canvas[start:stop]:
            cache = params.get("cache", "none")
            if age == 0 or cache == "none":
                places = list(range(limit))
            else:
                places = list(range(start - shift, limit if cache == "prefix" else stop))
            logits = books.forward(canvas, places)
            if scale := params.get("guidance"):
                bare = Books(model, torch.zeros_like(books.pairs), torch.zeros_like(books.deep))
                without = bare.forward([mask] * len(prompt) + canvas[len(prompt) :], places)
                logits = without + (scale + 1) * (logits - without)
            logits[:, mask] = float("-inf")
            open_ = [p for p in range(start, stop) if canvas[p] == mask]
            picks = {p: choose(logits[p - shift], sampling, [], 0, seed, 0, p) for p in open_}
            probs = {p: logits[p - shift].softmax(0) for p in open_}
            sure = {p: float((logits[p - shift][picks[p]] - logits[p - shift].logsumexp(0)).exp()) for p in open_}
            if params.get("score") == "margin":
                sure = {p: float(probs[p].topk(2).values.diff().abs()) for p in open_}
            if name == "dream" and params.get("score", "neg_entropy") == "neg_entropy":
                sure = {p: float((probs[p] * probs[p].log()).nan_to_num(0).sum()) for p in open_}
            if params.get("score") == "random" or name == "dream-origin":
                sure = {p: chance[p] for p in open_}
            for p in revealed(name, params, sure, age):
                canvas[p] = picks[p]
            age, forwards = age + 1, forwards + 1
            text = canvas[len(prompt) :]
            known = text[: text.index(mask)] if mask in text else text
            if hit := [k for k, token in enumerate(known) if token in ends]:
                return known[: hit[0]], forwards
    return canvas[len(prompt) :], forwards


def lot(seed: int, position: int) -> float:
    """The number that the documented stream gives this position of the first sample."""
    one = torch.tensor([position])
    return float(uniform_at(one * 0 + seed, one * 0, one).float())


def revealed(name: str, params: dict[str, Any], sure: dict[int, float], age: int) -> list[int]:
    order = sorted(sure, key=lambda p: (-sure[p], p))
    if name == "llada":
        size, steps = params["block"], params["steps"]
        return order[: size // steps + (age < size % steps)]
    if name == "dream-origin":
        steps = params["steps"]
        return [p for p in order if age >= steps - 1 or sure[p] >= 1 - (age + 1) * (1 - 1e-3) / steps]
    if name == "dream":
        steps, eps = params["steps"], 1e-3
        t, s = (1 - k * (1 - eps) / steps for k in (age, age + 1))
        return order if age >= steps - 1 else order[: max(1, int(len(order) * (1 - s / t) + 1e-6))]
    if name == "fast-dllm":
        return [p for p in order if sure[p] >= params["threshold"]] or order[:1]
    taken = order[:1]
    for k, p in enumerate(order[1:], 2):
        if sure[p] < 1 - params["factor"] / (k + 1):
            break
        taken.append(p)
    return taken


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
