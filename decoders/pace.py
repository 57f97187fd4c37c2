"""How much a text drafts: as much as its own drafts were worth lately. And which rows a batch should verify when it may not verify all.

`paced` follows an exponential moving average of a text's accepted tokens (SGLang's adaptive steps keep one for a batch). It looks at what
became final before and at nothing that is drafted now, so no verifier loses its guarantee, and the text alone decides.

`share_out` is what a balancer over the batch needs of decoders: for each candidate row the chance that its path is accepted so far
(its *survival*). Under verifiers that test a draft against its law a survival must not depend on the token that it is about, only on what
was known before that token was drawn (arXiv 2607.05147, appendix A; the rule of non-anticipation).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from drawloom.decoders.drafters import Drafter
from drawloom.decoders.drafting import Drafted
from drawloom.decoders.step import Lines, Memory

SPARE = 1  # tokens beyond what is usually accepted, so that an average can rise


@dataclass(frozen=True)
class Pace:
    """A drafter's state, and how many of its tokens a forward accepted lately."""

    inner: Any
    average: Tensor  # [S] float32


class paced:
    """A drafter that drafts ceil(average) + 1 tokens at most; `weight` is that of the newest forward in the average."""

    def __init__(self, drafter: Drafter, weight: float) -> None:
        self.drafter, self.weight = drafter, weight
        self.law, self.remembers, self.drafting = drafter.law, drafter.remembers, drafter.drafting

    def remember(self, vocab_size: int) -> Memory | None:
        return self.drafter.remember(vocab_size)

    def begin(self, lines: Lines) -> Pace:
        """Hopeful: the first drafts are as long as they may be."""
        return Pace(self.drafter.begin(lines), torch.full_like(lines.length, torch.iinfo(torch.int32).max, dtype=torch.float32))

    def receive(self, state: Pace, drafted: Drafted) -> Pace:
        return replace(state, inner=self.drafter.receive(state.inner, drafted))

    def propose(self, lines: Lines, state: Pace, width: int) -> tuple[Tensor, Tensor]:
        tokens, num = self.drafter.propose(lines, state.inner, width)
        return tokens, torch.minimum(num, state.average.clamp(max=width).ceil().long() + SPARE)

    def learn(self, lines: Lines, state: Pace, picked: Tensor, emitted: Tensor, num: Tensor) -> Pace:
        accepted = (emitted - 1).float()
        first = state.average > picked.shape[1]
        average = torch.where(first, accepted, (1 - self.weight) * state.average + self.weight * accepted)
        average = torch.where(num > 0, average, state.average)  # a forward without a draft says nothing of drafts
        return Pace(self.drafter.learn(lines, state.inner, picked, emitted, num), average)


def share_out(survival: Tensor, rows: int) -> Tensor:
    """How many drafted rows each of S texts gets of `rows` in all, from survivals [S, K] that never rise along a text: the `rows` likeliest
    ones, which for every text are its first. Rows without a chance get nothing."""
    flat = survival.flatten()
    order = flat.sort(descending=True, stable=True).indices[:rows]
    chosen = torch.zeros_like(flat, dtype=torch.bool).index_fill_(0, order, value=True) & (flat > 0)
    return chosen.view_as(survival).sum(1)


def best_total(survival: Tensor, cost: Tensor) -> int:
    """The number of drafted rows n with the most tokens for its cost: (S + the n largest survivals) / cost[n]; cost [N + 1] is that of a
    forward with the S rows that are always there and n drafted ones (D-Cut, and DSpark's scheduler with stale survivals)."""
    gain = torch.cat([survival.new_zeros(1), survival.flatten().sort(descending=True).values.cumsum(0)])[: len(cost)]
    return int(((len(survival) + gain) / cost[: len(gain)]).argmax())
