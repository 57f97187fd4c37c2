"""A drafter of sampled drafts: a table of probabilities by the token before. Its shapes are those that verifiers differ on."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drawloom.decoders.drafters import Unaided
from drawloom.decoders.draws import draw
from drawloom.decoders.step import Lines
from drawloom.decoders.trees import Outcome, Tree
from drawloom.decoders.verifiers import DISTINCT, SAMPLED


@dataclass(frozen=True)
class Nothing:
    lines: Tensor


def table(vocab: int, seed: int, sharp: float = 1.5) -> Tensor:
    """[V, V] probabilities of the next token."""
    return (torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(seed)) * sharp).softmax(1)


class bigram(Unaided):
    """parents: the parent row of each row, the root (row 0) its own. distinct: siblings are drawn without replacement."""

    def __init__(self, law: Tensor, parents: list[int], *, distinct: bool = False, paths: bool = False) -> None:
        self.table, self.parents, self.law, self.paths = law, parents, DISTINCT if distinct else SAMPLED, paths
        self.depths = [0]
        for parent in parents[1:]:
            self.depths.append(self.depths[parent] + 1)
        self.rows, self.depth = len(parents), max(self.depths)

    def begin(self, lines: Lines) -> Nothing:
        return Nothing(lines.history[:, :0])

    def propose(self, lines: Lines, state: Nothing) -> Tree:
        tokens = [lines.history.gather(1, (lines.length - 1)[:, None])[:, 0]]
        laws = [torch.zeros(len(lines.length), self.table.shape[0])]
        for row, parent in enumerate(self.parents[1:], 1):
            q = self.table[tokens[parent]]
            for other in range(1, row) if self.law == DISTINCT else ():
                if self.parents[other] == parent:
                    q = q.scatter(1, tokens[other][:, None], 0.0)
            q = q / q.sum(1, keepdim=True)
            tokens.append(draw(q, lines, row))
            laws.append(q)
        parent, depth = (torch.tensor(values).expand(len(lines.length), -1) for values in (self.parents, self.depths))
        return Tree(torch.stack(tokens, 1), parent, depth, torch.ones_like(parent, dtype=torch.bool), torch.stack(laws, 1))

    def learn(self, lines: Lines, state: Nothing, outcome: Outcome) -> Any:
        return state


CHAIN, BINARY, PATHS = [0, 0, 1, 2], [0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 2, 0, 4, 5, 0, 7, 8]
