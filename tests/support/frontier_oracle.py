"""d3LLM's decoding written plainly, with books of every position's K/V."""

from typing import Any

import torch
from canvas_books import books_of
from oracles import choose

from drawloom.actors.request import Sampling


def naive(model: Any, prompt: list[int], sampling: Sampling, seed: int, params: dict[str, Any], shift: int = 0) -> tuple[list[int], int]:
    """Text and number of forwards."""
    mask, start, limit, size = model.info.mask_token_id, len(prompt), len(prompt) + sampling.max_tokens, params["block"]
    ends = () if sampling.ignore_eos else model.info.eos_token_ids
    canvas = [*prompt, *[mask] * sampling.max_tokens]
    books = books_of(model)
    blocks = [range(at, min(at + size, limit)) for at in range(start, limit, size)]
    waited, taken, age = [0] * len(blocks), 0, 0

    def progress(k: int) -> float:
        return 1.0 if k < 0 else sum(canvas[p] != mask for p in blocks[k]) / len(blocks[k])

    while True:
        if taken < len(blocks) and (taken == 0 or progress(taken - 1) >= params["open_at"]):
            taken += 1
        full = leading(progress(k) == 1 for k in range(len(blocks)))
        rested = leading(progress(k) == 1 and waited[k] >= params["delay"] for k in range(len(blocks)))
        kept = 0 if age < params["delay"] else min(start + rested * size, limit)
        whole = params["delay"] < 0 or min(start + full * size, limit) > kept or age % params["refresh"] == 0
        logits = books.forward(canvas, list(range(0 if whole else max(0, kept - shift), limit)))
        logits[:, mask] = -torch.inf
        open_ = [p for block in blocks[:taken] for p in block if canvas[p] == mask]
        picks = {p: choose(logits[p - shift], sampling, [], 0, seed, 0, p) for p in open_}
        probs = {p: logits[p - shift].softmax(0) for p in open_}
        entropy = {p: -float((probs[p] * probs[p].log()).nan_to_num(0).sum()) for p in open_}
        shown = {p for p in open_ if entropy[p] <= params["threshold"]} | {min(open_, key=lambda p: (entropy[p], p))}
        for k in range(taken):
            if progress(k - 1) >= params["full_at"] and progress(k) < 1:
                own = [p for p in blocks[k] if p in entropy]
                if not shown & set(own):
                    shown.add(min(own, key=lambda p: (entropy[p], p)))
                break
        waited = [waited[k] + 1 if progress(k) == 1 else 0 for k in range(len(blocks))]
        for p in shown:
            canvas[p] = picks[p]
        age += 1
        found = [p for p in range(start, limit) if canvas[p] in ends]
        if found:
            canvas[found[0] :] = [canvas[found[0]]] * (limit - found[0])
        text = canvas[start:]
        known = text[: text.index(mask)] if mask in text else text
        if hit := [k for k, token in enumerate(known) if token in ends]:
            return known[: hit[0]], age
        if len(known) == limit - start:
            return known, age


def leading(flags: Any) -> int:
    count = 0
    for flag in flags:
        if not flag:
            return count
        count += 1
    return count
