"""Full-attention recipes written plainly, with books of which positions a forward recomputed and what their K/V was then."""

from typing import Any

import torch
from canvas_books import books_of
from oracles import choose

from drawloom.actors.request import Sampling
from drawloom.kernels.noise import uniform_at


def naive(model: Any, prompt: list[int], sampling: Sampling, seed: int, name: str, params: dict[str, Any]) -> tuple[list[int], int]:
    """Text and number of forwards."""
    mask, limit = model.info.mask_token_id, len(prompt) + sampling.max_tokens
    ends = () if sampling.ignore_eos else model.info.eos_token_ids
    canvas = [*prompt, *[mask] * sampling.max_tokens]
    shift, size, forwards = int(name.startswith("dream")), params.get("block", 1 << 20), 0
    chance = {p: lot(seed, p) for p in range(limit)}
    for start in range(len(prompt), limit, size):
        stop, age, books = min(start + size, limit), 0, books_of(model)
        while mask in canvas[start:stop]:
            cache = params.get("cache", "none")
            if age == 0 or cache == "none":
                places = list(range(limit))
            else:
                places = list(range(start - shift, limit if cache == "prefix" else stop))
            logits = books.forward(canvas, places)
            if scale := params.get("guidance"):
                without = books_of(model).forward([mask] * len(prompt) + canvas[len(prompt) :], places)
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
