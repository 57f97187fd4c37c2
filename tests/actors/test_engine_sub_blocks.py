"""Fast-dLLM v2 equals a plain version with books of its own, with and without the sub-block cache."""

import random
from typing import Any

import pytest
import torch
from oracles import GOLD, choose
from rig import engine, ids, request, run, same_in_company

from drawloom.actors.request import Sampling
from drawloom.decoders.recipes import build
from drawloom.errors import SettingError
from drawloom.models.hash_lm import HashLM, mix


class Books:
    """K/V of HashLM up to the end of the current block, as of the forward that computed it last; visibility by blocks."""

    def __init__(self, model: HashLM, size: int) -> None:
        self.model, self.size = model, size
        self.pairs, self.deep = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)

    def forward(self, tokens: list[int], places: list[int]) -> torch.Tensor:
        """Recompute `places`, all in blocks that `tokens` holds whole; logits [len(tokens), V], right for those places."""
        more = torch.zeros(len(tokens) - len(self.pairs), dtype=torch.int64)
        self.pairs, self.deep = torch.cat([self.pairs, more]), torch.cat([self.deep, more])
        position = torch.arange(len(tokens))
        self.pairs[places] = self.model.pair(position, torch.tensor(tokens))[places]
        seen = (position[None, :] // self.size <= position[:, None] // self.size).long()
        self.deep[places] = mix((self.pairs * seen).sum(1) + position * GOLD)[places]
        return self.model.logits((self.deep * seen).sum(1), position)


def naive(model: HashLM, prompt: list[int], sampling: Sampling, seed: int, params: dict[str, Any]) -> tuple[list[int], int]:
    """Text and number of decoding forwards."""
    mask, size, sub, tau = model.info.vocab_size - 1, params["block"], params["sub"], params["threshold"]
    limit, ends = len(prompt) + sampling.max_tokens, () if sampling.ignore_eos else model.info.eos_token_ids
    books, first, forwards = Books(model, size), (len(prompt) - 1) // size * size, 0
    canvas = [*prompt, *[mask] * (first + size - len(prompt))]
    books.forward(canvas[:first], list(range(first))) if first else None

    def ask(places: list[int], wanted: list[int]) -> dict[int, tuple[int, float]]:
        logits = books.forward(canvas, places)
        logits[:, mask] = -torch.inf
        picks = {p: choose(logits[p - 1], sampling, [], 0, seed, 0, p) for p in wanted}
        return {p: (token, float(logits[p - 1].softmax(0)[token])) for p, token in picks.items()}

    while True:
        block, fresh = list(range(first, first + size)), True
        while mask in canvas[first:]:
            at = canvas.index(mask, first)
            part = list(range(first + (at - first) // sub * sub, first + (at - first) // sub * sub + sub))
            open_ = [p for p in part if canvas[p] == mask]
            alone = params["cache"] == "sub" and not fresh and canvas[part[0]] != mask
            said = ask(part if alone else block, open_)
            best = max(open_, key=lambda p: (said[p][1], -p))
            for p in open_:
                if said[p][1] > tau or p == best:
                    canvas[p] = said[p][0]
            fresh, forwards = False, forwards + 1
            if (out := text(canvas, prompt, limit, ends, mask)) is not None:
                return out, forwards
        said = ask(block, [first + size])
        forwards += 1
        canvas = [*canvas, said[first + size][0], *[mask] * (size - 1)]
        first += size
        if (out := text(canvas, prompt, limit, ends, mask)) is not None:
            return out, forwards


def text(canvas: list[int], prompt: list[int], limit: int, ends: Any, mask: int) -> list[int] | None:
    out = []
    for token in canvas[len(prompt) : limit]:
        if token == mask:
            return None
        if token in ends:
            return out
        out.append(token)
    return out if len(prompt) + len(out) == limit else None


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
