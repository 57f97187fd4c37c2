"""Fast-dLLM v2 written plainly, with books of every position's K/V."""

from typing import Any

import torch
from canvas_books import books_of
from oracles import choose

from drawloom.actors.request import Sampling


def naive(model: Any, prompt: list[int], sampling: Sampling, seed: int, params: dict[str, Any]) -> tuple[list[int], int]:
    """Text and number of decoding forwards."""
    mask, size, sub, tau = model.info.mask_token_id, params["block"], params["sub"], params["threshold"]
    limit, ends = len(prompt) + sampling.max_tokens, () if sampling.ignore_eos else model.info.eos_token_ids
    books, first, forwards = books_of(model, size), (len(prompt) - 1) // size * size, 0
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
