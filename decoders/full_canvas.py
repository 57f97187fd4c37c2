"""The loop of full-attention diffusion (LLaDA, Dream): the whole canvas, prompt and max_tokens masks, is visible from the first forward on.

Blocks are filled from left to right; `cache` says which positions a forward recomputes, the others keep the K/V of an earlier one:
  none    all of them, exact
  prefix  from the current block on; all when a block begins (Fast-dLLM, arXiv 2505.22618)
  dual    the current block alone; all when a block begins (Fast-dLLM)
With `prefix` and `dual` the K/V of other positions is stale by design: the text is another one, the same in any company.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drawloom.decoders.denoise import Look, Score, Select
from drawloom.decoders.step import Commit, Lines, Picks, Step
from drawloom.kernels.reveal import reveal

FULL = 1 << 30  # block_tokens of full attention: one block that covers everything
CACHES = ("none", "prefix", "dual")


@dataclass(frozen=True)
class Field:
    """Canvases [S, C] of the lines; C is the widest one, positions at or beyond a line's limit are never used."""

    tokens: Tensor  # [S, C] int64
    logprob: Tensor  # [S, C] float32
    ago: Tensor  # [S, C] int64, forwards since the token took its value
    block: Tensor  # [S] int64, the current block, counted from the prompt's end
    age: Tensor  # [S] int64, forwards that it has been open for


class FullCanvas:
    """FullCanvas(block x score x select x cache). shifted: row i predicts position i + 1 (Dream), else i (LLaDA)."""

    lossless = False
    keeps_leading = True
    drafts_trees = False
    in_place = True
    block_tokens = FULL
    max_rows = max_commit = 1  # beyond the canvas, which is reserved whole

    def __init__(self, block: int, score: Score, select: Select, mask_token: int, cache: str = "none", *, shifted: bool = False) -> None:
        self.block, self.score, self.select, self.mask_token = block, score, select, mask_token
        self.cache, self.shifted = cache, shifted
        self.needs_shape = score.needs_shape

    def committed(self, length: int) -> int:
        return 0

    def begin(self, lines: Lines) -> Field:
        place = torch.arange(lines.history.shape[1], device=lines.length.device)
        tokens = torch.where(place < lines.length[:, None], lines.history, self.mask_token)
        zero = torch.zeros_like(lines.length)
        return Field(tokens, torch.zeros_like(tokens, dtype=torch.float32), torch.zeros_like(tokens), zero, zero)

    def plan(self, lines: Lines, state: Field, budget: Tensor) -> tuple[Field, Step]:
        """The rows that the cache policy recomputes. The budget has no say: other rows would give another text."""
        state = self._wide(lines, state)
        first, end = self._bounds(lines, state)
        begins = state.age == 0
        start = torch.zeros_like(first) if self.cache == "none" else torch.where(begins, 0, (first - int(self.shifted)).clamp(min=0))
        stop = torch.where(begins, lines.limit, end) if self.cache == "dual" else lines.limit
        place = start[:, None] + torch.arange(state.tokens.shape[1], device=start.device)
        valid = place < stop[:, None]
        place = torch.where(valid, place, start[:, None])
        masked = self._masked(lines, state)
        asked = torch.nn.functional.pad(masked[:, 1:], (0, 1)) if self.shifted else masked
        step = Step(state.tokens.gather(1, place), place, torch.zeros_like(place), valid, valid & asked.gather(1, place), place=place)
        return state, step

    def accept(self, lines: Lines, state: Field, step: Step, picks: Picks) -> tuple[Field, Commit]:
        assert step.place is not None
        masked = self._masked(lines, state)
        target = (step.place + int(self.shifted)).clamp(max=state.tokens.shape[1] - 1)
        token, logprob, score = (self._spread(step, target, values) for values in (picks.token, picks.logprob, self.score.of(picks)))
        sure = torch.where(masked, score, -torch.inf)
        look = Look(sure[:, None], masked[:, None], torch.ones_like(masked[:, :1]), state.age[:, None])
        chosen = self.select(look)[:, 0] & masked
        tokens = reveal(state.tokens, chosen, token)
        after = Field(
            tokens, torch.where(chosen, logprob, state.logprob), torch.where(chosen, 0, state.ago + 1), state.block, state.age + 1
        )
        index, count = self._final_run(lines, tokens)
        final = [values.gather(1, index) for values in (tokens, after.logprob, after.ago)]
        keep = torch.zeros_like(step.valid)
        commit = Commit(final[0], final[1], count, keep, masked.sum(1), chosen.sum(1), final[2])
        return self._next_block(lines, after), commit

    def _bounds(self, lines: Lines, state: Field) -> tuple[Tensor, Tensor]:
        first = lines.prompt_len + state.block * self.block
        return first, torch.minimum(first + self.block, lines.limit)

    def _masked(self, lines: Lines, state: Field) -> Tensor:
        """[S, C]: masked positions of the current block."""
        first, end = self._bounds(lines, state)
        place = torch.arange(state.tokens.shape[1], device=first.device)
        return (state.tokens == self.mask_token) & (place >= first[:, None]) & (place < end[:, None])

    def _spread(self, step: Step, target: Tensor, values: Tensor) -> Tensor:
        """Values of scored rows at the positions that they predict; elsewhere something that is never used."""
        spare = target.new_full((), target.shape[1])
        index = torch.where(step.scored, target, spare)
        return values.new_zeros(len(values), values.shape[1] + 1).scatter(1, index, values)[:, :-1]

    def _final_run(self, lines: Lines, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Canvas index [S, C] of the tokens behind the last final one, and how many are revealed without a gap."""
        index = lines.length[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        inside = index < lines.limit[:, None]
        index = index.clamp(max=tokens.shape[1] - 1)
        return index, (inside & (tokens.gather(1, index) != self.mask_token)).long().cumprod(1).sum(1)

    def _next_block(self, lines: Lines, state: Field) -> Field:
        """Go on to the next block when the current one is full."""
        full = ~self._masked(lines, state).any(1)
        return replace(state, block=state.block + full, age=state.age.masked_fill(full, 0))

    def _wide(self, lines: Lines, state: Field) -> Field:
        """The state as wide as the lines, which may have grown by joining others."""
        more = lines.history.shape[1] - state.tokens.shape[1]
        if more <= 0:
            return state
        pad = torch.nn.functional.pad
        tokens = pad(state.tokens, (0, more), value=self.mask_token)
        return replace(state, tokens=tokens, logprob=pad(state.logprob, (0, more)), ago=pad(state.ago, (0, more)))
