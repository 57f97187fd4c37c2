"""d3LLM's decoding (arXiv 2601.07568): several blocks of a full-attention canvas at once, by entropy, with a delayed cache.

Blocks are counted from the prompt's end. In each forward
  1. one more block is taken in when the last one has at least `open_at` of its positions filled;
  2. of the blocks taken in, every masked position whose entropy is at most `bound` is revealed, and the one of lowest entropy in any case;
  3. of the first block that has masks and whose predecessor has at least `full_at` filled, at least one position is revealed;
  4. what stands behind the first end token becomes that end token.
A block that is full waits for `delay` forwards; then its K/V, and that of all before it, is kept. While one waits, and in every
`refresh`-th forward, the whole canvas is recomputed, else only what is behind the kept ones. What is kept is stale by design.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drawloom.decoders.canvas import WholeCanvas, final_run, open_canvas, predictor, rows_of, spread, widened
from drawloom.decoders.step import Commit, Lines, Picks, Step, gathered
from drawloom.kernels.reveal import best_of_each, reveal


@dataclass(frozen=True)
class Rules:
    """The numbers of the rules above; delay None keeps nothing."""

    block: int
    bound: float  # nats
    open_at: float
    full_at: float
    delay: int | None
    refresh: int


@dataclass(frozen=True)
class Ground:
    """Canvases [S, C] and their blocks [S, N]."""

    tokens: Tensor  # [S, C] int64
    logprob: Tensor  # [S, C] float32
    ago: Tensor  # [S, C] int64, forwards since the token took its value
    taken: Tensor  # [S] int64, blocks taken in
    waited: Tensor  # [S, C] int64, forwards that the block of each position has begun full
    age: Tensor  # [S] int64, forwards


class Frontier(WholeCanvas):
    """Frontier(rules). shifted: row i predicts position i + 1 (Dream), else i (LLaDA)."""

    needs_shape = True

    def __init__(self, rules: Rules, mask_token: int, *, shifted: bool = False) -> None:
        self.rules, self.mask_token, self.shifted = rules, mask_token, shifted

    def begin(self, lines: Lines) -> Ground:
        tokens, zero = open_canvas(lines, self.mask_token), torch.zeros_like(lines.length)
        nothing = torch.zeros_like(tokens)
        return Ground(tokens, nothing.float(), nothing, zero, nothing, zero)

    def plan(self, lines: Lines, state: Ground, budget: Tensor) -> tuple[Ground, Step]:
        """The rows that the cache recomputes. The budget has no say: other rows would give another text."""
        state = widened(state, lines, self.mask_token)
        progress = self._progress(lines, state)
        last = (state.taken - 1).clamp(min=0)[:, None]
        more = lines.prompt_len + state.taken * self.rules.block < lines.limit
        ready = (state.taken == 0) | (progress.gather(1, last)[:, 0] >= self.rules.open_at)
        state = replace(state, taken=state.taken + (ready & more))
        kept, full = self._kept(lines, state, progress), self._end_of(lines, progress >= 1)
        everything = (full > kept) | (state.age % self.rules.refresh == 0)
        start = torch.where(everything, 0, (kept - int(self.shifted)).clamp(min=0))
        return state, rows_of(state.tokens, start, lines.limit, predictor(self._masked(lines, state), self.shifted))

    def accept(self, lines: Lines, state: Ground, step: Step, picks: Picks) -> tuple[Ground, Commit]:
        assert step.place is not None
        assert picks.entropy is not None
        masked, target, width = self._masked(lines, state), step.place + int(self.shifted), state.tokens.shape[1]
        token, logprob, entropy = spread(step, target, width, picks.token, picks.logprob, picks.entropy)
        sure = torch.where(masked, -entropy, -torch.inf)
        chosen = masked & (best_of_each(sure, masked) | (entropy <= self.rules.bound))
        progress = self._progress(lines, state)
        chosen = chosen | self._forced(lines, state, progress, sure, chosen)
        tokens = self._ended(lines, reveal(state.tokens, chosen, token))
        full = self._of_position(lines, progress >= 1, width)
        after = replace(
            state,
            tokens=tokens,
            logprob=torch.where(chosen, logprob, state.logprob),
            ago=torch.where(tokens == state.tokens, state.ago + 1, 0),
            waited=torch.where(full, state.waited + 1, 0),
            age=state.age + 1,
        )
        index, count = final_run(lines, tokens, self.mask_token)
        final = gathered(index, tokens, after.logprob, after.ago)
        return after, Commit(final[0], final[1], count, step.valid & False, masked.sum(1), chosen.sum(1), ago=final[2])

    def _kept(self, lines: Lines, state: Ground, progress: Tensor) -> Tensor:
        """[S]: positions before it keep their K/V."""
        if self.rules.delay is None:
            return torch.full_like(state.age, -1)  # never: something always waits
        start = lines.prompt_len[:, None] + torch.arange(progress.shape[1], device=state.age.device) * self.rules.block
        waited = state.waited.gather(1, start.clamp(max=state.tokens.shape[1] - 1))
        rested = (progress >= 1) & (waited >= self.rules.delay)
        return torch.where(state.age >= self.rules.delay, self._end_of(lines, rested), 0)

    def _end_of(self, lines: Lines, of: Tensor) -> Tensor:
        """[S]: where the leading run of blocks of [S, N] ends."""
        return torch.minimum(lines.prompt_len + of.long().cumprod(1).sum(1) * self.rules.block, lines.limit)

    def _forced(self, lines: Lines, state: Ground, progress: Tensor, sure: Tensor, chosen: Tensor) -> Tensor:
        """[S, C]: the surest position of the first block that must go on, when nothing of it was chosen."""
        before = torch.nn.functional.pad(progress[:, :-1], (1, 0), value=1.0)
        number = torch.arange(progress.shape[1], device=progress.device)
        must = (before >= self.rules.full_at) & (progress < 1) & (number < state.taken[:, None])
        which = torch.where(must.any(1), must.int().argmax(1), -1)
        own = self._masked(lines, state) & (self._number(lines, state.tokens.shape[1]) == which[:, None])
        return best_of_each(sure, own) & ~(own & chosen).any(1, keepdim=True)

    def _ended(self, lines: Lines, tokens: Tensor) -> Tensor:
        """Tokens with everything behind the first end token turned into that end token."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        own = (place >= lines.prompt_len[:, None]) & (place < lines.limit[:, None])
        is_end = own & (tokens[:, :, None] == lines.ends[:, None, :]).any(2)
        first = torch.where(is_end.any(1), is_end.int().argmax(1), tokens.shape[1] - 1)[:, None]
        return torch.where(own & (place > first), tokens.gather(1, first), tokens)

    def _number(self, lines: Lines, width: int) -> Tensor:
        """[S, C]: block of each position, negative in the prompt."""
        place = torch.arange(width, device=lines.length.device)
        return torch.div(place - lines.prompt_len[:, None], self.rules.block, rounding_mode="floor")

    def _of_position(self, lines: Lines, values: Tensor, width: int) -> Tensor:
        """Values of blocks [S, N] at each position [S, C] behind the prompt."""
        return values.gather(1, self._number(lines, width).clamp(0, values.shape[1] - 1))

    def _progress(self, lines: Lines, state: Ground) -> Tensor:
        """[S, N]: filled share of each block, of its positions within the limit; 1 for blocks beyond it."""
        room = -(-state.tokens.shape[1] // self.rules.block)
        number, inside = self._number(lines, state.tokens.shape[1]), self._within(lines, state)
        filled = (inside & (state.tokens != self.mask_token)).float()
        index = torch.where(inside, number, room).clamp(0, room)
        empty = torch.zeros(len(filled), room + 1, device=filled.device)
        have, all_ = empty.scatter_add(1, index, filled), empty.scatter_add(1, index, inside.float())
        return torch.where(all_ > 0, have / all_.clamp(min=1), 1.0)[:, :-1]

    def _within(self, lines: Lines, state: Ground) -> Tensor:
        place = torch.arange(state.tokens.shape[1], device=lines.length.device)
        return (place >= lines.prompt_len[:, None]) & (place < lines.limit[:, None])

    def _masked(self, lines: Lines, state: Ground) -> Tensor:
        """[S, C]: masked positions of the blocks taken in."""
        taken = self._number(lines, state.tokens.shape[1]) < state.taken[:, None]
        return (state.tokens == self.mask_token) & self._within(lines, state) & taken
