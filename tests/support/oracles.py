"""Naive references: one sequence, no cache, no batch, plain Python loops. They share only the hash with the code under test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drawloom.actors.request import Sampling
from drawloom.kernels.noise import gumbel
from drawloom.models.hash_lm import HashLM, mix

GOLD = -7046029254386353131


def hash_logits(
    model: HashLM, tokens: Sequence[int], sees: Callable[[Tensor, Tensor], Tensor], weight: Sequence[float] | None = None
) -> Tensor:
    """Logits [T, V] of every position when query i [T, 1] sees key j [1, T] iff sees(i, j), from nothing. weight: soft inputs.
    A real network (tiny.Plain) answers for itself."""
    if not isinstance(model, HashLM):
        return model.logits_from(tokens, sees, weight)
    position = torch.arange(len(tokens))
    visible = sees(position[:, None], position[None, :])
    pairs = model.pair(position, torch.tensor(tokens), None if weight is None else torch.tensor(weight))
    deep = mix((pairs * visible).sum(1) + position * GOLD)
    return model.logits((deep * visible).sum(1), position)


def choose(logits: Tensor, sampling: Sampling, context: Sequence[int], prompt_len: int, seed: int, sample: int, position: int) -> int:
    """One token by the documented order: penalties, bias, temperature, top-k, top-p, min-p, Gumbel-max."""
    x = logits.clone()
    for token in set(context):
        x[token] = x[token] / sampling.repetition_penalty if x[token] > 0 else x[token] * sampling.repetition_penalty
    output = list(context[prompt_len:])
    for token in set(output):
        x[token] -= sampling.frequency_penalty * output.count(token) + sampling.presence_penalty
    for token, bias in sampling.logit_bias.items():
        x[token] += bias
    if sampling.temperature == 0:
        return int(x.argmax())
    x = x / torch.tensor(sampling.temperature)
    noise = gumbel(torch.tensor([seed]), torch.tensor([sample]), torch.tensor([position]), len(x))[0]
    if not sampling.top_k and sampling.top_p == 1 and sampling.min_p == 0:
        return int((x + noise).argmax())
    order = sorted(range(len(x)), key=lambda token: (-float(x[token]), token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    probs = torch.softmax(x[order], 0)
    kept, mass = [], 0.0
    for token, prob in zip(order, probs.tolist(), strict=True):
        if kept and ((sampling.top_p < 1 and mass >= sampling.top_p) or prob < sampling.min_p * float(probs[0])):
            break
        kept.append(token)
        mass += prob
    return max(kept, key=lambda token: (float(x[token] + noise[token]), -token))


def autoregressive(model: HashLM, prompt: Sequence[int], sampling: Sampling, seed: int, sample: int = 0) -> tuple[list[int], str]:
    """Token by token. Stop strings are not handled here."""
    tokens = list(prompt)
    ends = () if sampling.ignore_eos else model.info.eos_token_ids
    while len(tokens) < len(prompt) + sampling.max_tokens:
        logits = hash_logits(model, tokens, lambda i, j: j <= i)[-1]
        logits[model.info.mask_token_id] = -torch.inf
        token = choose(logits, sampling, tokens, len(prompt), seed, sample, len(tokens))
        if token in (*ends, *sampling.stop_token_ids):
            return tokens[len(prompt) :], "stop"
        tokens.append(token)
    return tokens[len(prompt) :], "length"


@dataclass
class MultiBlock:
    """The cache-free oracle of multi-block decoding, block by block and position by position.

    Blocks before floor(P / B) are cached from the start; a prompt's remainder stands at the head of the first open block. Each step opens
    at most one block, runs one forward over everything visible, and every open block reveals what is above tau, or its surest position
    when the block before it is semi-complete.
    """

    model: HashLM
    block: int
    buffer: int
    open_at: float
    semi_at: float
    tau: float

    def run(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> tuple[list[int], list[dict[int, list[int]]]]:
        """Generated tokens (cut at end and max_tokens) and, per step, the offsets revealed in each block."""
        mask, size = self.model.info.mask_token_id, self.block
        assert mask is not None
        limit = len(prompt) + sampling.max_tokens
        canvas = dict(enumerate(prompt))
        low = len(prompt) // size  # first block that is not cached
        status = {low: "active"} if len(prompt) % size else {}
        trace: list[dict[int, list[int]]] = []
        ends = () if sampling.ignore_eos else self.model.info.eos_token_ids
        while True:
            self._open(status, canvas, low, limit, ends, len(prompt))
            top = max(status)
            text = [canvas.get(position, mask) for position in range((top + 1) * size)]
            logits = hash_logits(self.model, text, lambda i, j: j // size <= i // size)
            logits[:, mask] = -torch.inf
            before = {k: self._progress(canvas, k) for k in range(top + 1)}
            step: dict[int, list[int]] = {}
            for k in sorted(k for k in status if status[k] == "active"):
                masked = [p for p in range(k * size, (k + 1) * size) if p not in canvas]
                picks = {p: choose(logits[p], sampling, [], 0, seed, 0, p) for p in masked}
                sure = {p: float(logits[p].softmax(0)[picks[p]]) for p in masked}
                hits = [p for p in masked if sure[p] > self.tau]
                if not hits and masked and (k == low or before[k - 1] >= self.semi_at):
                    hits = [max(masked, key=lambda p: (sure[p], -p))]
                step[k] = [p - k * size for p in hits]
                step.setdefault(k, [])
                for p in hits:
                    canvas[p] = picks[p]
            trace.append({k: v for k, v in step.items() if v})
            for k in sorted(status):
                if status[k] == "to_cache":
                    del status[k]
                    low = k + 1
                elif self._progress(canvas, k) == 1 and (k == low or status.get(k - 1) == "to_cache"):
                    status[k] = "to_cache"
            out = self._finished(canvas, len(prompt), limit, ends)
            if out is not None:
                return out, trace

    def _open(self, status: dict[int, str], canvas: dict[int, int], low: int, limit: int, ends: Sequence[int], prompt_len: int) -> None:
        last = max(status, default=None)
        new = low if last is None else last + 1
        ready = last is None or self._progress(canvas, last) >= self.open_at
        ended = any(token in ends for position, token in canvas.items() if position >= prompt_len)
        if ready and not ended and new - low < self.buffer and new * self.block < limit:
            status[new] = "active"

    def _progress(self, canvas: dict[int, int], k: int) -> float:
        return sum(p in canvas for p in range(k * self.block, (k + 1) * self.block)) / self.block

    def _finished(self, canvas: dict[int, int], prompt_len: int, limit: int, ends: Sequence[int]) -> list[int] | None:
        """The text, once everything before its end is revealed."""
        out = []
        for position in range(prompt_len, limit):
            if position not in canvas:
                return None
            if canvas[position] in ends:
                return out
            out.append(canvas[position])
        return out
