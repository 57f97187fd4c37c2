"""The first loop: draft, verify in one forward, keep what agrees. Autoregression is the empty draft.

The target draws for itself after each row; other verifiers than that work on trees (trees.py), a chain being one.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from drawloom.decoders.drafters import Drafter
from drawloom.decoders.drafting import Drafted
from drawloom.decoders.step import Commit, Lines, Memory, Picks, Plain, Step, up_to_end
from drawloom.kernels.verify import walk_chain


@dataclass(frozen=True)
class DraftState:
    """Drafter's state, and the draft that the current step carries."""

    drafter: Any
    draft: Tensor  # [S, K-1] int64
    num_draft: Tensor  # [S] int64


class DraftVerify(Plain):
    """DraftVerify(drafter x shape): chain of up to `width` drafted tokens behind the last final token.

    Row 0 carries the last final token, whose K/V is not in the prefix yet; rows 1.. carry the draft.
    """

    shifted = True
    block_tokens = 1

    lossless = True

    def __init__(self, drafter: Drafter, width: int) -> None:
        self.drafter, self.width = drafter, width
        self.max_rows = self.max_commit = width + 1
        self.remembers, self.drafting = drafter.remembers, drafter.drafting

    def receive(self, state: DraftState, drafted: Drafted) -> DraftState:
        return replace(state, drafter=self.drafter.receive(state.drafter, drafted))

    def remember(self, vocab_size: int) -> Memory | None:
        return self.drafter.remember(vocab_size)

    def committed(self, length: int) -> int:
        return length - 1

    def begin(self, lines: Lines) -> DraftState:
        empty = lines.history.new_zeros(lines.history.shape[0], self.width)
        return DraftState(self.drafter.begin(lines), empty, torch.zeros_like(lines.length))

    def plan(self, lines: Lines, state: DraftState, budget: Tensor) -> tuple[DraftState, Step]:
        draft, num = self.drafter.propose(lines, state.drafter, self.width)
        wanted = torch.minimum(budget, lines.limit - lines.length) - 1
        num = torch.minimum(num, wanted.clamp(min=0))
        last = lines.history.gather(1, (lines.length - 1)[:, None])
        row = torch.arange(self.max_rows, device=draft.device).expand(draft.shape[0], -1)
        valid = row <= num[:, None]
        step = Step(torch.cat([last, draft], 1), lines.length[:, None] - 1 + row, row + 1, valid, valid)
        return DraftState(state.drafter, draft, num), step

    def accept(self, lines: Lines, state: DraftState, step: Step, picks: Picks) -> tuple[DraftState, Commit]:
        accepted = walk_chain(state.draft, state.num_draft, picks.token)
        emitted = accepted + 1
        row = torch.arange(self.max_rows, device=accepted.device)
        of_text = torch.minimum(accepted, up_to_end(lines, picks.token, emitted))
        commit = Commit(picks.token, picks.logprob, emitted, row < emitted[:, None], state.num_draft, of_text)
        answers = torch.where(step.scored, picks.token, step.tokens)
        learned = self.drafter.learn(lines, state.drafter, answers, emitted, state.num_draft)
        return DraftState(learned, state.draft, state.num_draft), commit
