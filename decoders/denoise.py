"""The second loop: open a canvas of masked blocks, score every masked position, reveal the sure ones, commit finished blocks.

Multi-block decoding with a block buffer (MBD-LM): a running set of consecutive blocks is decoded in one forward. A finished block's
K/V is valid only when computed from its final tokens, so its rows ride along in the next step beside the blocks still open, and only
then join the prefix. A single block is a buffer in which the next block opens when the last is complete (open_at = 1).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from drawloom.decoders.step import Commit, Lines, Picks, Step
from drawloom.kernels.reveal import reveal

DUMMY, ACTIVE, TO_CACHE = 0, 1, 2

Select = Callable[[Tensor, Tensor, Tensor], Tensor]  # score, masked [S, N, B], may_fall_back [S, N] -> chosen [S, N, B]


@dataclass(frozen=True)
class Score:
    """of: picks -> [S, K] float, higher is surer."""

    of: Callable[[Picks], Tensor]
    needs_shape: bool = False  # wants margin and entropy computed


@dataclass(frozen=True)
class Window:
    """The canvas: `buffer` slots for blocks of `block` tokens. One more block opens in a step when the last open one has at least
    `open_at` of its positions filled; a block may fall back to its surest position when the block before it has at least `semi_at`."""

    block: int
    buffer: int
    open_at: float
    semi_at: float


@dataclass(frozen=True)
class Canvas:
    """The buffer of each line. Slots hold consecutive blocks, the first is block `first`; dummies stand at the end."""

    tokens: Tensor  # [S, N * B] int64, the mask token where nothing is revealed
    logprob: Tensor  # [S, N * B] float32, of revealed tokens at the step that revealed them
    status: Tensor  # [S, N] int64: DUMMY, ACTIVE, TO_CACHE
    first: Tensor  # [S] int64, absolute number of the block in slot 0


class Denoise:
    """Denoise(canvas x score x select) with an exact block cache. Tokens never change once revealed, so the run of revealed positions
    behind the last final one is final at once."""

    lossless = False
    shifted = False
    keeps_leading = True
    drafts_trees = False

    def __init__(self, window: Window, score: Score, select: Select, mask_token: int) -> None:
        self.window, self.score, self.select, self.mask_token = window, score, select, mask_token
        self.block_tokens = window.block
        self.max_rows = self.max_commit = window.block * window.buffer
        self.needs_shape = score.needs_shape

    def committed(self, length: int) -> int:
        return length // self.window.block * self.window.block

    def begin(self, lines: Lines) -> Canvas:
        """A prompt's remainder stands at the head of the first block, which is then open from the start."""
        first = lines.length // self.window.block
        position = self._positions(first)
        known = position < lines.length[:, None]
        tokens = torch.where(known, lines.history.gather(1, position.clamp(max=lines.history.shape[1] - 1)), self.mask_token)
        status = torch.zeros(len(first), self.window.buffer, dtype=torch.int64, device=first.device)
        status[:, 0] = torch.where(known[:, 0], ACTIVE, DUMMY)
        return Canvas(tokens, torch.zeros_like(tokens, dtype=torch.float32), status, first)

    def plan(self, lines: Lines, state: Canvas, budget: Tensor) -> tuple[Canvas, Step]:
        """The window is the recipe's, never the budget's: a smaller one would change the text."""
        state = self._open(lines, state)
        position = self._positions(state.first)
        valid = self._per_token(state.status != DUMMY)
        masked = (state.tokens == self.mask_token) & self._per_token(state.status == ACTIVE)
        see = (torch.arange(self.max_rows, device=valid.device) // self.window.block + 1) * self.window.block
        return state, Step(state.tokens, position, see.expand_as(position), valid, masked)

    def accept(self, lines: Lines, state: Canvas, step: Step, picks: Picks) -> tuple[Canvas, Commit]:
        filled = state.tokens != self.mask_token
        masked = self._blocks(~filled & self._per_token(state.status == ACTIVE))
        chosen = self.select(self._blocks(self.score.of(picks)), masked, self._may_fall_back(state)).flatten(1)
        tokens = reveal(state.tokens, chosen, picks.token)
        logprob = torch.where(chosen, picks.logprob, state.logprob)
        count, final, final_logprob = self._final_run(lines, state, tokens, logprob)
        done = (state.status == TO_CACHE).sum(1)
        keep = torch.arange(self.max_rows, device=done.device) < (done * self.window.block)[:, None]
        commit = Commit(final, final_logprob, count, keep, masked.flatten(1).sum(1), chosen.sum(1))
        return self._shift(Canvas(tokens, logprob, state.status, state.first), done), commit

    def _positions(self, first: Tensor) -> Tensor:
        return first[:, None] * self.window.block + torch.arange(self.max_rows, device=first.device)

    def _blocks(self, flat: Tensor) -> Tensor:
        return flat.unflatten(1, (self.window.buffer, self.window.block))

    def _per_token(self, slots: Tensor) -> Tensor:
        return slots.repeat_interleave(self.window.block, 1)

    def _progress(self, state: Canvas) -> Tensor:
        """Share of filled positions per slot [S, N] float."""
        return self._blocks(state.tokens != self.mask_token).float().mean(-1)

    def _may_fall_back(self, state: Canvas) -> Tensor:
        """[S, N]: the block before is cached (slot 0) or semi-complete."""
        return torch.nn.functional.pad(self._progress(state)[:, :-1] >= self.window.semi_at, (1, 0), value=True)

    def _open(self, lines: Lines, state: Canvas) -> Canvas:
        """Turn at most one dummy slot ACTIVE: none is open, or the last open block has progressed far enough; not after an end token
        and not beyond the limit."""
        num_open = (state.status != DUMMY).sum(1)
        last = (num_open - 1).clamp(min=0)[:, None]
        ready = (num_open == 0) | (self._progress(state).gather(1, last)[:, 0] >= self.window.open_at)
        fresh = self._positions(state.first) >= lines.prompt_len[:, None]
        ended = ((state.tokens[:, :, None] == lines.ends[:, None, :]).any(-1) & fresh).any(1)
        within = (state.first + num_open) * self.window.block < lines.limit
        opens = ready & ~ended & within & (num_open < self.window.buffer)
        slot = torch.arange(self.window.buffer, device=opens.device)
        status = torch.where(opens[:, None] & (slot == num_open[:, None]), ACTIVE, state.status)
        return Canvas(state.tokens, state.logprob, status, state.first)

    def _final_run(self, lines: Lines, state: Canvas, tokens: Tensor, logprob: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How many tokens behind the last final one are revealed without a gap, and those tokens moved to the front."""
        start = lines.length - state.first * self.window.block  # index of the first position that is not final yet
        index = start[:, None] + torch.arange(self.max_rows, device=start.device)
        inside = index < torch.minimum(lines.limit - state.first * self.window.block, torch.full_like(start, self.max_rows))[:, None]
        index = index.clamp(max=self.max_rows - 1)
        run = tokens.gather(1, index)
        count = (inside & (run != self.mask_token)).long().cumprod(1).sum(1)
        return count, run, logprob.gather(1, index)

    def _shift(self, state: Canvas, done: Tensor) -> Canvas:
        """Drop the `done` [S] leading blocks, whose clean K/V this forward has written, then mark completed blocks TO_CACHE."""
        slot = torch.arange(self.window.buffer, device=done.device) + done[:, None]
        token = torch.arange(self.max_rows, device=done.device) + (done * self.window.block)[:, None]
        status = _moved(state.status, slot, DUMMY)
        tokens = _moved(state.tokens, token, self.mask_token)
        complete = (status != DUMMY) & (self._blocks(tokens) != self.mask_token).all(-1)
        status = torch.where(complete.long().cumprod(1).bool(), TO_CACHE, status)
        return Canvas(tokens, _moved(state.logprob, token, 0), status, state.first + done)


def _moved(values: Tensor, index: Tensor, fill: int) -> Tensor:
    """values gathered at index [S, n]; `fill` where the index is beyond the end."""
    return torch.where(index < values.shape[1], values.gather(1, index.clamp(max=values.shape[1] - 1)), fill)
