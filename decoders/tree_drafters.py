"""Drafters that propose several continuations: Jacobi blocks with recycled rejections, and lookahead."""

from dataclasses import dataclass

import torch
from torch import Tensor

from drawloom.decoders.drafters import Unaided
from drawloom.decoders.step import Lines
from drawloom.decoders.trees import Outcome, Tree


@dataclass(frozen=True)
class Pool:
    """The last token runs that were seen on the way, in a ring: P runs of T tokens."""

    tokens: Tensor  # [S, P, T] int64
    count: Tensor  # [S, P] int64, tokens of each run that count
    age: Tensor  # [S, P] int64, 0 for the newest; unused entries are the oldest


def empty_pool(lines: Lines, runs: int, length: int) -> Pool:
    age = torch.arange(runs, device=lines.length.device).expand(len(lines.length), -1)
    return Pool(lines.history.new_zeros(len(age), runs, length), age * 0, age)


def remember(pool: Pool, tokens: Tensor, count: Tensor) -> Pool:
    """The pool with runs tokens [S, n, T] of count [S, n] tokens each in place of the n oldest."""
    joined, counts = torch.cat([tokens, pool.tokens], 1), torch.cat([count, pool.count], 1)
    new = torch.arange(count.shape[1], device=count.device).expand_as(count)
    useful = torch.cat([torch.where(count > 1, new, new + joined.shape[1]), pool.age + count.shape[1]], 1)
    order = useful.sort(dim=1, stable=True).indices[:, : pool.age.shape[1]]
    kept = joined.gather(1, order[..., None].expand(-1, -1, joined.shape[2]))
    return Pool(kept, counts.gather(1, order), torch.arange(order.shape[1], device=order.device).expand_as(order))


def recall(pool: Pool, last: Tensor, branches: int, width: int) -> tuple[Tensor, Tensor]:
    """What followed the latest place of token last [S] in the newest `branches` runs that hold it: [S, branches, width], and how many
    tokens of each count [S, branches]."""
    place = torch.arange(pool.tokens.shape[2], device=last.device)
    hit = (pool.tokens == last[:, None, None]) & (place < pool.count[..., None] - 1)
    where = torch.where(hit, place, -1).amax(2)
    num = torch.where(where >= 0, pool.count - 1 - where, 0).clamp(max=width)
    order = (num == 0).int().sort(dim=1, stable=True).indices[:, :branches]
    index = (where.gather(1, order)[..., None] + 1 + torch.arange(width, device=last.device)).clamp(0, len(place) - 1)
    runs = pool.tokens.gather(1, order[..., None].expand(-1, -1, len(place)))
    return runs.gather(2, index), num.gather(1, order)


def _branch_rows(first: int, tokens: Tensor, num: Tensor) -> tuple[Tensor, ...]:
    """Chains [S, n, w] on the root, as rows from `first` on: tokens, parent, depth and valid, each [S, n * w]."""
    lines, branches, width = tokens.shape
    step = torch.arange(width, device=tokens.device).expand(branches, -1)
    row = first + torch.arange(branches * width, device=tokens.device).view(branches, width)
    parent = torch.where(step == 0, 0, row - 1)
    valid = step[None] < num[..., None]
    return tokens.flatten(1), parent.flatten().expand(lines, -1), (step + 1).flatten().expand(lines, -1), valid.flatten(1)


def _tree(*parts: tuple[Tensor, ...]) -> Tree:
    tokens, parent, depth, valid = (torch.cat(columns, 1) for columns in zip(*parts, strict=True))
    return Tree(tokens, parent, depth, valid)


def _root(lines: Lines) -> tuple[Tensor, ...]:
    last = lines.history.gather(1, (lines.length - 1)[:, None])
    return last, last * 0, last * 0, torch.ones_like(last, dtype=torch.bool)


@dataclass(frozen=True)
class Blocks:
    """Guesses behind the last final token, and how far its block is."""

    guess: Tensor  # [S, W] int64
    open: Tensor  # [S] int64, blocks that are drafted now
    done: Tensor  # [S] int64, tokens of the first of them that are final
    pool: Pool


class jacobi_blocks(Unaided):
    """Jacobi Forcing's multi-block decoding with rejection recycling (arXiv 2512.14681). A draft ends with its block; once `spawn` of a
    block is final one more block is drafted behind it, up to `blocks`. Guesses are the target's last answers; what it said behind a
    rejected token is remembered, and followed again, in up to `pool` branches of `width` tokens, when its first token comes up."""

    law, paths = "one_hot", False

    def __init__(self, block: int, blocks: int, spawn: float, pool: int, width: int) -> None:
        self.block, self.blocks, self.spawn, self.pool, self.width = block, blocks, spawn, pool, width
        self.trunk = block * blocks
        self.rows, self.depth = 1 + self.trunk + pool * width, max(self.trunk, width if pool else 0)

    def begin(self, lines: Lines) -> Blocks:
        last = lines.history.gather(1, (lines.length - 1)[:, None])
        zero = torch.zeros_like(lines.length)
        return Blocks(last.expand(-1, self.trunk).contiguous(), zero + 1, zero, empty_pool(lines, 2 * self.pool, self.width + 1))

    def propose(self, lines: Lines, state: Blocks) -> Tree:
        chain = _branch_rows(1, state.guess[:, None], (state.open * self.block - state.done)[:, None])
        last = lines.history.gather(1, (lines.length - 1)[:, None])[:, 0]
        recalled = recall(state.pool, last, self.pool, self.width)
        return _tree(_root(lines), chain, _branch_rows(1 + self.trunk, *recalled))

    def learn(self, lines: Lines, state: Blocks, outcome: Outcome) -> Blocks:
        answers, place = outcome.picked[:, : self.trunk + 1], torch.arange(self.trunk, device=outcome.last.device)
        used = outcome.valid[:, : self.trunk + 1].sum(1)  # rows of the chain, the root among them: the last answer that counts
        index = torch.minimum(outcome.emitted[:, None] + place, used[:, None] - 1)
        guess = answers.gather(1, index)
        guess = torch.where(outcome.emitted[:, None] >= used[:, None], outcome.last[:, None], guess)
        tail = torch.cat([outcome.last[:, None], guess[:, : self.width]], 1)
        tail = torch.nn.functional.pad(tail, (0, self.width + 1 - tail.shape[1]))
        rejected = (used - outcome.emitted).clamp(0, min(self.width, self.trunk))
        pool = remember(state.pool, tail[:, None], (rejected + 1)[:, None])
        done = state.done + outcome.emitted
        left = done // self.block
        done, still = done % self.block, (state.open - left).clamp(min=1)
        spawns = (done >= self.spawn * self.block) & (still < self.blocks)
        return Blocks(guess, still + spawns, done, pool)


@dataclass(frozen=True)
class Levels:
    """The window: token [l, w] is a guess for position length - 1 + w + l, made from the one above it; [0, 0] is the last final token."""

    tokens: Tensor  # [S, N - 1, W] int64
    pool: Pool


class lookahead(Unaided):
    """Lookahead decoding (Fu et al., arXiv 2402.02057): Jacobi iterations over a window of `window` positions and `ngram` - 1 levels run
    beside the verification of up to `guesses` n-grams that such iterations gave before and that begin with the last final token."""

    law, paths = "one_hot", False

    def __init__(self, window: int, ngram: int, guesses: int, pool: int) -> None:
        self.window, self.ngram, self.guesses, self.pool = window, ngram, min(guesses, pool), pool
        self.rows = (window + self.guesses) * (ngram - 1)
        self.depth = max(window + ngram - 3, ngram - 1)

    def begin(self, lines: Lines) -> Levels:
        """The window starts with words of the prompt."""
        level = torch.arange(self.ngram - 1, device=lines.length.device)[:, None]
        back = (level + torch.arange(self.window, device=level.device)).flatten() % lines.length[:, None]
        tokens = lines.history.gather(1, lines.length[:, None] - 1 - back).unflatten(1, (self.ngram - 1, self.window))
        return Levels(tokens, empty_pool(lines, self.pool, self.ngram))

    def propose(self, lines: Lines, state: Levels) -> Tree:
        column = torch.arange(self.window, device=lines.length.device)
        level = torch.arange(self.ngram - 1, device=column.device)[:, None]
        row = level * self.window + column
        parent = torch.where(level == 0, (column - 1).clamp(min=0), row - self.window)
        tokens = state.tokens.flatten(1)
        depth, every = (level + column).flatten().expand_as(tokens), torch.ones_like(tokens, dtype=torch.bool)
        window = (tokens, parent.flatten().expand_as(tokens), depth, every)
        recalled = recall(state.pool, tokens[:, 0], self.guesses, self.ngram - 1)
        return _tree(window, _branch_rows(row.numel(), *recalled))

    def learn(self, lines: Lines, state: Levels, outcome: Outcome) -> Levels:
        size = self.window * (self.ngram - 1)
        said, known = outcome.picked[:, size - self.window : size], outcome.valid[:, size - self.window : size]  # after the last level
        seen = torch.cat([state.tokens, said[:, None]], 1)
        grams = seen.transpose(1, 2)
        pool = remember(state.pool, grams.flip(1), torch.where(known, self.ngram, 0).flip(1))
        column = torch.arange(self.window, device=said.device) + (outcome.emitted - 1)[:, None]
        index = column.clamp(max=self.window - 1)[:, None].expand(-1, self.ngram - 1, -1)
        tokens = seen[:, 1:].gather(2, index)
        tokens[:, 0, 0] = outcome.last
        return Levels(tokens, pool)
