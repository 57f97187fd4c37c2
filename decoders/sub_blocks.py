"""The loop of block diffusion with shifted logits and sub-blocks (Fast-dLLM v2, arXiv 2509.26328): row i predicts position i + 1.

A full block is run once more to write its clean K/V; that forward also predicts the first token of the next block. A block is filled
sub-block after sub-block, from left to right. With `cached`, a forward recomputes the sub-block alone once its first token is there, and
the rest of the block keeps the K/V of an earlier forward, stale by design: the text is another one, the same in any company.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from drawloom.decoders.canvas import spread
from drawloom.decoders.denoise import Look, Score, Select
from drawloom.decoders.step import Commit, Lines, Picks, Plain, Step, gathered
from drawloom.kernels.reveal import reveal


@dataclass(frozen=True)
class OpenBlock:
    """The current block of each line."""

    tokens: Tensor  # [S, B] int64, the mask token where nothing is revealed
    logprob: Tensor  # [S, B] float32
    ago: Tensor  # [S, B] int64, forwards since the token took its value
    first: Tensor  # [S] int64, absolute number of the block
    age: Tensor  # [S] int64, forwards that it has been open for


class SubBlocks(Plain):
    """SubBlocks(block x sub-block x score x select x cached)."""

    shifted = True
    in_place = True

    def __init__(self, block: int, sub: int, score: Score, select: Select, mask_token: int, *, cached: bool) -> None:
        self.block, self.sub, self.score, self.select, self.mask_token, self.cached = block, sub, score, select, mask_token, cached
        self.block_tokens = self.max_rows = self.max_commit = block
        self.needs_shape, self.needs_chance = score.needs_shape, score.needs_chance

    def committed(self, length: int) -> int:
        """Without the last prompt token's block: its last row predicts the first new token."""
        return (length - 1) // self.block * self.block

    def held(self, filled: int, limit: int) -> int:
        return filled + self.block

    def begin(self, lines: Lines) -> OpenBlock:
        first = (lines.length - 1) // self.block
        position = self._positions(first)
        known = lines.history.gather(1, position.clamp(max=lines.history.shape[1] - 1))
        tokens = torch.where(position < lines.length[:, None], known, self.mask_token)
        return OpenBlock(tokens, torch.zeros_like(tokens, dtype=torch.float32), torch.zeros_like(tokens), first, first * 0)

    def plan(self, lines: Lines, state: OpenBlock, budget: Tensor) -> tuple[OpenBlock, Step]:
        """The whole block, or its current sub-block. The budget has no say: other rows would give another text."""
        inside = torch.arange(self.block, device=state.first.device)
        start = self._sub_start(state)
        alone = self.cached & (state.age > 0) & (state.tokens.gather(1, start[:, None])[:, 0] != self.mask_token) & ~self._full(state)
        valid = ~alone[:, None] | (inside < self.sub)
        from_ = torch.where(alone, start, 0)[:, None]
        index = from_ + torch.where(valid, inside, 0)  # rows that are not valid repeat the first one
        asked = torch.nn.functional.pad(self._open(state)[:, 1:], (0, 1)) | (self._full(state)[:, None] & (inside == self.block - 1))
        place = self._positions(state.first).gather(1, index)
        step = Step(state.tokens.gather(1, index), place, index * 0, valid, valid & asked.gather(1, index), place=place)
        return state, step

    def accept(self, lines: Lines, state: OpenBlock, step: Step, picks: Picks) -> tuple[OpenBlock, Commit]:
        assert step.place is not None
        full, open_ = self._full(state), self._open(state)
        target = step.place + 1 - (state.first * self.block)[:, None]  # 1 .. block
        token, logprob, score = spread(step, target, self.block + 1, picks.token, picks.logprob, self.score.of(picks))
        sure = torch.where(open_, score[:, :-1], -torch.inf)
        look = Look(sure[:, None], open_[:, None], torch.ones_like(full)[:, None], state.age[:, None])
        chosen = self.select(look)[:, 0] & open_
        tokens = reveal(state.tokens, chosen, token[:, :-1])
        shown = OpenBlock(
            tokens, torch.where(chosen, logprob[:, :-1], state.logprob), torch.where(chosen, 0, state.ago + 1), state.first, state.age + 1
        )
        index, count = self._final_run(lines, shown, full)
        all_tokens, all_logprob = torch.cat([tokens, token[:, -1:]], 1), torch.cat([shown.logprob, logprob[:, -1:]], 1)
        final = gathered(index, all_tokens, all_logprob, torch.nn.functional.pad(shown.ago, (0, 1)))
        commit = Commit(final[0], final[1], count, full[:, None] & step.valid, look.masked.flatten(1).sum(1), chosen.sum(1), ago=final[2])
        return self._next(shown, full, token[:, -1], logprob[:, -1]), commit

    def _next(self, state: OpenBlock, full: Tensor, token: Tensor, logprob: Tensor) -> OpenBlock:
        """Where a block was full, the next one, which begins with `token`."""
        head = torch.arange(self.block, device=full.device) == 0
        fresh = torch.where(head, token[:, None], self.mask_token)
        return OpenBlock(
            torch.where(full[:, None], fresh, state.tokens),
            torch.where(full[:, None], logprob[:, None] * head, state.logprob),
            state.ago.masked_fill(full[:, None], 0),
            state.first + full,
            state.age.masked_fill(full, 0),
        )

    def _final_run(self, lines: Lines, state: OpenBlock, full: Tensor) -> tuple[Tensor, Tensor]:
        """Index [S, B] into the block and the token behind it, of what stands behind the last final token; and how much of it is known."""
        start = lines.length - state.first * self.block
        index = start[:, None] + torch.arange(self.block, device=start.device)
        known = torch.cat([state.tokens != self.mask_token, full[:, None]], 1)
        inside = (index <= self.block) & (index + (state.first * self.block)[:, None] < lines.limit[:, None])
        index = index.clamp(max=self.block)
        return index, (inside & known.gather(1, index)).long().cumprod(1).sum(1)

    def _positions(self, first: Tensor) -> Tensor:
        return first[:, None] * self.block + torch.arange(self.block, device=first.device)

    def _full(self, state: OpenBlock) -> Tensor:
        return (state.tokens != self.mask_token).all(1)

    def _sub_start(self, state: OpenBlock) -> Tensor:
        """[S]: where the first sub-block with a mask begins."""
        return (state.tokens == self.mask_token).int().argmax(1) // self.sub * self.sub

    def _open(self, state: OpenBlock) -> Tensor:
        """[S, B]: masked positions of the current sub-block."""
        inside, start = torch.arange(self.block, device=state.first.device), self._sub_start(state)[:, None]
        return (state.tokens == self.mask_token) & (inside >= start) & (inside < start + self.sub)
