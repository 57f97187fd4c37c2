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

from drawloom.decoders.canvas import WholeCanvas, final_run, open_canvas, predictor, rows_of, spread, widened
from drawloom.decoders.denoise import Look, Score, Select
from drawloom.decoders.step import Commit, Lines, Picks, Step, gathered
from drawloom.kernels.reveal import reveal

CACHES = ("none", "prefix", "dual")


@dataclass(frozen=True)
class Field:
    """Canvases [S, C] of the lines; C is the widest one, positions at or beyond a line's limit are never used."""

    tokens: Tensor  # [S, C] int64
    logprob: Tensor  # [S, C] float32
    ago: Tensor  # [S, C] int64, forwards since the token took its value
    block: Tensor  # [S] int64, the current block, counted from the prompt's end
    age: Tensor  # [S] int64, forwards that it has been open for


class FullCanvas(WholeCanvas):
    """FullCanvas(block x score x select x cache). shifted: row i predicts position i + 1 (Dream), else i (LLaDA)."""

    def __init__(self, block: int, score: Score, select: Select, mask_token: int, cache: str = "none", *, shifted: bool = False) -> None:
        self.block, self.score, self.select, self.mask_token = block, score, select, mask_token
        self.cache, self.shifted = cache, shifted
        self.needs_shape, self.needs_chance = score.needs_shape, score.needs_chance

    def begin(self, lines: Lines) -> Field:
        tokens = open_canvas(lines, self.mask_token)
        zero = torch.zeros_like(lines.length)
        return Field(tokens, torch.zeros_like(tokens, dtype=torch.float32), torch.zeros_like(tokens), zero, zero)

    def plan(self, lines: Lines, state: Field, budget: Tensor) -> tuple[Field, Step]:
        """The rows that the cache policy recomputes. The budget has no say: other rows would give another text."""
        state = widened(state, lines, self.mask_token)
        first, end = self._bounds(lines, state)
        begins = state.age == 0
        start = torch.zeros_like(first) if self.cache == "none" else torch.where(begins, 0, (first - int(self.shifted)).clamp(min=0))
        stop = torch.where(begins, lines.limit, end) if self.cache == "dual" else lines.limit
        return state, rows_of(state.tokens, start, stop, predictor(self._masked(lines, state), self.shifted))

    def accept(self, lines: Lines, state: Field, step: Step, picks: Picks) -> tuple[Field, Commit]:
        assert step.place is not None
        masked = self._masked(lines, state)
        target, width = step.place + int(self.shifted), state.tokens.shape[1]
        token, logprob, score = spread(step, target, width, picks.token, picks.logprob, self.score.of(picks))
        sure = torch.where(masked, score, -torch.inf)
        look = Look(sure[:, None], masked[:, None], torch.ones_like(masked[:, :1]), state.age[:, None])
        chosen = self.select(look)[:, 0] & masked
        tokens = reveal(state.tokens, chosen, token)
        after = Field(
            tokens, torch.where(chosen, logprob, state.logprob), torch.where(chosen, 0, state.ago + 1), state.block, state.age + 1
        )
        index, count = final_run(lines, tokens, self.mask_token)
        final = gathered(index, tokens, after.logprob, after.ago)
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

    def _next_block(self, lines: Lines, state: Field) -> Field:
        """Go on to the next block when the current one is full."""
        full = ~self._masked(lines, state).any(1)
        return replace(state, block=state.block + full, age=state.age.masked_fill(full, 0))
