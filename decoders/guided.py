"""Classifier-free guidance (LLaDA, arXiv 2502.09992): a full-attention canvas stands twice in each forward, once with the prompt masked.

Nothing is kept between forwards. Rows 0..n-1 of a line are its canvas of n positions, rows n..2n-1 the same without the prompt; each half
sees itself alone. The engine combines the logits of row p and row n + p before it picks.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from drawloom.decoders.canvas import widened
from drawloom.decoders.full_canvas import Field, FullCanvas
from drawloom.decoders.step import Commit, Lines, Picks, Step
from drawloom.decoders.trees import bits_of


class Guided(FullCanvas):
    """FullCanvas without a cache, under guidance > 0."""

    drafts_trees = True

    def __init__(self, inner: FullCanvas, guidance: float) -> None:
        super().__init__(inner.block, inner.score, inner.select, inner.mask_token, shifted=inner.shifted)
        self.guidance = guidance

    def held(self, filled: int, limit: int) -> int:
        return 0

    def room(self, filled: int, limit: int) -> int:
        return 2 * limit

    def plan(self, lines: Lines, state: Field, budget: Tensor) -> tuple[Field, Step]:
        state = widened(state, lines, self.mask_token)
        size, half = lines.limit[:, None], state.tokens.shape[1]
        row = torch.arange(2 * half, device=size.device)
        valid, bare = row < 2 * size, (row >= size) & (row < 2 * size)
        position = torch.where(valid, row - size * bare, 0)
        tokens = state.tokens.gather(1, position)
        tokens = torch.where(bare & (position < lines.prompt_len[:, None]), self.mask_token, tokens)
        masked = self._masked(lines, state)
        asked = torch.nn.functional.pad(masked[:, 1:], (0, 1)) if self.shifted else masked
        scored = valid & asked.gather(1, position)
        see = torch.where(bare, 2 * size, size)
        seen = bare[:, :, None] == bare[:, None, :]
        place = torch.where(valid, row, 0)
        against = torch.where(valid & ~bare, row + size, row)
        step = Step(tokens, position, see, valid, scored, bits_of(seen), place=place, against=against)
        return state, step

    def accept(self, lines: Lines, state: Field, step: Step, picks: Picks) -> tuple[Field, Commit]:
        """The half with the prompt decides."""
        half = state.tokens.shape[1]
        row = torch.arange(half, device=lines.limit.device)
        own = row < lines.limit[:, None]

        def first(values: Any) -> Any:
            return None if values is None else values[:, :half]

        whole = replace(
            step, tokens=first(step.tokens), positions=first(step.positions), see=first(step.see), valid=first(step.valid) & own
        )
        whole = replace(whole, scored=first(step.scored) & own, ancestors=None, place=first(step.positions), against=None)
        said = Picks(*map(first, vars(picks).values()))
        state, commit = super().accept(lines, state, whole, said)
        return state, replace(commit, keep=torch.zeros_like(step.valid))
