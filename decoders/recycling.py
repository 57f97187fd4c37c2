"""Token Recycling (Luo et al., arXiv 2408.08696): what the target found likely after a token, wherever it last stood, is drafted after that
token again, as a tree of fixed shape."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from drawloom.decoders.drafters import Unaided
from drawloom.decoders.step import Lines, Memory
from drawloom.decoders.trees import Outcome, Tree
from drawloom.decoders.verifiers import CHOSEN

RANKS = (0.45, 0.13, 0.07, 0.045, 0.03, 0.025, 0.02, 0.015)  # how often the k-th likeliest token is right, about; shapes the tree alone


@dataclass(frozen=True)
class Nothing:
    """State of a drafter whose lines remember nothing of their own; [S, 0]."""

    lines: Tensor


class Successors(Memory):
    """The likeliest tokens after each token, [V, len(RANKS)] int32, -1 where nothing is known yet."""

    def __init__(self, vocab_size: int) -> None:
        self.table = torch.full((vocab_size, len(RANKS)), -1, dtype=torch.int32)

    def feed(self, texts: Sequence[Sequence[int]]) -> None:
        """Of a finished text only one successor of each token is known."""
        for text in texts:
            tokens = torch.as_tensor(np.asarray(text, dtype=np.int64))
            self.table[tokens[:-1], 0] = tokens[1:].int()


class recycling(Unaided):
    """A tree of `nodes` drafted tokens, at most `depth` deep."""

    law, paths, remembers, needs_top = CHOSEN, False, "successors", len(RANKS)

    def __init__(self, nodes: int, depth: int) -> None:
        self.parents, self.ranks, self.depths = shape_of(nodes, depth)
        self.rows, self.depth = nodes + 1, max(self.depths)
        self.levels = [[row for row in range(1, self.rows) if self.depths[row] == level] for level in range(1, self.depth + 1)]

    def remember(self, vocab_size: int) -> Memory:
        return Successors(vocab_size)

    def begin(self, lines: Lines) -> Nothing:
        return Nothing(lines.history[:, :0])

    def propose(self, lines: Lines, state: Nothing) -> Tree:
        memory, device = lines.memory, lines.history.device
        assert isinstance(memory, Successors)
        memory.table = memory.table.to(device)
        parent, rank, depth = torch.tensor([self.parents, self.ranks, self.depths], device=device)
        tokens = lines.history.gather(1, (lines.length - 1)[:, None]).expand(-1, self.rows).clone()
        for rows in self.levels:
            above = tokens[:, parent[rows]]
            tokens[:, rows] = torch.where(above >= 0, memory.table[above.clamp(min=0), rank[rows]].long(), -1)
        return Tree(tokens.clamp(min=0), parent.expand_as(tokens), depth.expand_as(tokens), tokens >= 0)

    def learn(self, lines: Lines, state: Nothing, outcome: Outcome) -> Nothing:
        """Every row that was verified, accepted or not, says what is likely after its token."""
        assert isinstance(lines.memory, Successors)
        assert outcome.top is not None
        known = outcome.top.shape[2]  # a vocabulary can be smaller than the number of ranks
        lines.memory.table[outcome.tokens[outcome.valid], :known] = outcome.top[outcome.valid].int()
        return state


@lru_cache(maxsize=64)
def shape_of(nodes: int, depth: int) -> tuple[list[int], list[int], list[int]]:
    """Parent, rank and depth of each row, the root first: the `nodes` likeliest prefixes when ranks are right as RANKS says."""
    parents, ranks, depths = [0], [0], [0]
    worth = [1.0]
    queue = [(-RANKS[0], 0, 0)]  # chance, parent, rank
    while len(parents) <= nodes:
        chance, parent, rank = heapq.heappop(queue)
        row = len(parents)
        for values, value in ((parents, parent), (ranks, rank), (depths, depths[parent] + 1)):
            values.append(value)
        worth.append(-chance)
        if rank + 1 < len(RANKS):
            heapq.heappush(queue, (-worth[parent] * RANKS[rank + 1], parent, rank + 1))
        if depths[row] < depth:
            heapq.heappush(queue, (chance * RANKS[0], row, 0))
    return parents, ranks, depths
