"""The naive reference of S2D2: one sequence, no cache."""

import math
from typing import Any

import torch
from oracles import choose, hash_logits

from drawloom.actors.request import Sampling
from drawloom.models.hash_lm import HashLM


class Naive:
    """One sequence, no cache."""

    def __init__(self, model: HashLM, name: str, params: dict[str, Any]) -> None:
        self.model, self.name, self.params = model, name, params
        self.mask, self.size = model.info.mask_token_id, params["block"]
        self.on = False
        self.arms: dict[int, list[list[float]]] = {}

    def run(self, prompt: list[int], sampling: Sampling, seed: int) -> tuple[list[int], list[int]]:
        """The text, and how many positions each forward revealed."""
        size, limit, mask = self.size, len(prompt) + sampling.max_tokens, self.mask
        ends = () if sampling.ignore_eos else self.model.info.eos_token_ids
        first = len(prompt) // size * size
        canvas, counts = [*prompt, *[mask] * (first + size - len(prompt))], []

        def pick(tokens: list[int], position: int, causal_from: int) -> tuple[int, torch.Tensor]:
            """Of the row at `position`; rows from causal_from on are blocks of one."""
            logits = hash_logits(
                self.model,
                tokens,
                lambda i, j: torch.where(i >= causal_from, j <= i, j // size <= i // size) if causal_from >= 0 else j // size <= i // size,
            )[position]
            logits[mask] = -torch.inf
            return choose(logits, sampling, [], 0, seed, 0, position), logits

        while True:
            masked = [p for p in range(first, first + size) if canvas[p] == mask]
            span = [p for p in masked if p - masked[0] == masked.index(p)]
            said = {p: pick(canvas, p, -1) for p in masked}
            sure = {p: float(logits.softmax(0)[token]) for p, (token, logits) in said.items()}
            shown = [p for p in masked if sure[p] > self.params["threshold"]] or [max(masked, key=lambda p: (sure[p], -p))]
            expected = self.expected([said[p][1] for p in span])
            verify = self.decide(len(span), expected, len(shown))
            if not verify:
                for p in shown:
                    canvas[p] = said[p][0]
                counts.append(len(shown))
                self.told(expected, 0, len(shown))
            else:
                counts.append(0)
                done = 0
                for k, p in enumerate(span):
                    left = [*canvas[: span[0]], *(said[q][0] for q in span[:k]), mask]
                    token, _ = pick(left, p, first)
                    canvas[p] = token
                    done += 1
                    if token != said[p][0]:
                        break
                counts.append(done)
                self.told(expected, 1, done)
            out = self.text(canvas, prompt, limit, ends)
            if out is not None:
                return out, counts
            if mask not in canvas[first:]:
                first += size
                canvas += [mask] * size

    def text(self, canvas: list[int], prompt: list[int], limit: int, ends: Any) -> list[int] | None:
        out = []
        for token in canvas[len(prompt) : limit]:
            if token == self.mask:
                return None
            if token in ends:
                return out
            out.append(token)
        return out if len(prompt) + len(out) == limit else None

    def expected(self, rows: list[torch.Tensor]) -> float:
        total, chain = 0.0, 1.0
        for logits in rows:
            probs = logits.softmax(0)
            if self.params.get("estimate", "entropy") == "entropy":
                chain *= math.exp(-self.params.get("sharpness", 0.1) * -float((probs * probs.log()).nan_to_num(0).sum()))
            else:
                best = probs.topk(2).values
                chain *= float(best[0] - best[1] > 0.05)
            total += chain
        return total

    def decide(self, run_length: int, expected: float, sure: int) -> bool:
        params = self.params
        if self.name == "s2d2-span":
            return run_length >= params["least"]
        if self.name == "s2d2-bandit":
            arms = self.arms.setdefault(self.bucket(expected), [[], []])
            if not arms[1] or not arms[0]:
                return not arms[1]
            total = len(arms[0]) + len(arms[1])
            bounds = [sum(arm) / len(arm) + params["wide"] * math.sqrt(2 * math.log(total) / len(arm)) for arm in arms]
            return bounds[1] >= bounds[0]
        score = expected - params["cost"] * (sure if params["cost_of"] == "dynamic" else 1)
        if self.name == "s2d2":
            return score >= params["on"]
        self.on = score >= params["on"] or (self.on and score >= params["off"])
        return self.on

    def bucket(self, expected: float) -> int:
        return sum(expected > edge for edge in (1.0, 2.0, 4.0))

    def told(self, expected: float, arm: int, count: int) -> None:
        if self.name == "s2d2-bandit":
            self.arms.setdefault(self.bucket(expected), [[], []])[arm].append(count / (1 + arm))
