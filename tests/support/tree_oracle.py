"""Naive references of the drafters that propose several continuations: one sequence, lists and loops. Each gives the number of tokens that
every forward makes final; what a draft row is answered is asked of the network in a forward of its own."""

from collections.abc import Callable, Sequence

import torch
from oracles import choose, hash_logits

from drawloom.actors.request import Sampling
from drawloom.models.hash_lm import HashLM

Say = Callable[[Sequence[int]], int]  # what follows these tokens


def sayer(model: HashLM, sampling: Sampling, prompt_len: int, seed: int) -> Say:
    known: dict[tuple[int, ...], int] = {}

    def say(tokens: Sequence[int]) -> int:
        key = tuple(tokens)
        if key not in known:
            logits = hash_logits(model, key, lambda i, j: j <= i)[-1]
            if model.info.mask_token_id is not None:
                logits[model.info.mask_token_id] = -torch.inf
            known[key] = choose(logits, sampling, key, prompt_len, seed, 0, len(key))
        return known[key]

    return say


def follow(say: Say, tokens: list[int], chains: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that become final: along the chain that agrees for longest, and one more."""
    out = [say(tokens)]
    while any(list(chain[: len(out)]) == out for chain in chains):
        out.append(say([*tokens, *out]))
    return out


def recall(pool: list[list[int]], last: int, branches: int, width: int) -> list[list[int]]:
    """Newest first: what followed the latest place of `last` in each run."""
    found = []
    for run in pool:
        if last in run[:-1]:
            at = len(run) - 2 - run[:-1][::-1].index(last)
            found.append(run[at + 1 :][:width])
    return found[:branches]


class Loop:
    """Calls `step`, which gives what one forward makes final, until the text ends. `run` gives the text, and how many tokens each forward
    added, an end token among them."""

    def run(self, model: HashLM, prompt: list[int], sampling: Sampling, seed: int) -> tuple[list[int], list[int]]:
        say = sayer(model, sampling, len(prompt), seed)
        tokens, counts, limit = list(prompt), [], len(prompt) + sampling.max_tokens
        ends = () if sampling.ignore_eos else model.info.eos_token_ids
        self.start(tokens)
        while True:
            out = self.step(say, tokens, limit - len(tokens) - 1)
            counts.append(0)
            for token in out:
                counts[-1] += 1
                if token in ends:
                    return tokens[len(prompt) :], counts
                tokens.append(token)
                if len(tokens) == limit:
                    return tokens[len(prompt) :], counts

    def start(self, tokens: list[int]) -> None: ...

    def step(self, say: Say, tokens: list[int], most: int) -> list[int]: ...


class JacobiBlocks(Loop):
    def __init__(self, block: int, blocks: int, spawn: float, pool: int, width: int) -> None:
        self.block, self.blocks, self.spawn, self.branches, self.width = block, blocks, spawn, pool, width

    def start(self, tokens: list[int]) -> None:
        self.guess = [tokens[-1]] * (self.block * self.blocks)
        self.open, self.done, self.pool = 1, 0, []

    def step(self, say: Say, tokens: list[int], most: int) -> list[int]:
        chain = self.guess[: min(self.open * self.block - self.done, most)]
        others = [branch[:most] for branch in recall(self.pool, tokens[-1], self.branches, self.width)]
        out = follow(say, tokens, [chain, *others])
        answers = [say([*tokens, *chain[:k]]) for k in range(len(chain) + 1)]
        tail = answers[len(out) :]
        self.guess = (tail + [tail[-1] if tail else out[-1]] * (self.block * self.blocks))[: self.block * self.blocks]
        if tail:
            self.pool = [[out[-1], *tail][: self.width + 1], *self.pool][: 2 * self.branches]
        self.done += len(out)
        while self.done >= self.block:
            self.done -= self.block
            self.open -= 1
        self.open = max(1, self.open)
        if self.done >= self.spawn * self.block and self.open < self.blocks:
            self.open += 1
        return out


class Lookahead(Loop):
    def __init__(self, window: int, ngram: int, guesses: int, pool: int) -> None:
        self.window, self.ngram, self.guesses, self.size = window, ngram, guesses, pool

    def start(self, tokens: list[int]) -> None:
        self.levels = [[tokens[-1 - (w + level) % len(tokens)] for w in range(self.window)] for level in range(self.ngram - 1)]
        self.pool: list[list[int]] = []

    def step(self, say: Say, tokens: list[int], most: int) -> list[int]:
        levels, top = self.levels, self.ngram - 2
        others = [branch[:most] for branch in recall(self.pool, tokens[-1], self.guesses, self.ngram - 1)]
        columns = [levels[0][1 : w + 1] + [levels[level][w] for level in range(1, top + 1)] for w in range(self.window)]
        out = follow(say, tokens, [*others, *(column[:most] for column in columns)])
        known = [len(column) <= most for column in columns]
        said = [say([*tokens, *column]) if fits else levels[top][w] for w, (column, fits) in enumerate(zip(columns, known, strict=True))]
        for w in range(self.window):
            if known[w]:
                self.pool = [[*(level[w] for level in levels), said[w]], *self.pool]
        self.pool = self.pool[: self.size]
        moved = [*levels[1:], said]
        self.levels = [[level[min(w + len(out) - 1, self.window - 1)] for w in range(self.window)] for level in moved]
        self.levels[0][0] = out[-1]
        return out
