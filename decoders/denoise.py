"""The second loop: open a canvas of masked blocks, score every masked position, reveal the sure ones, commit settled blocks.

Multi-block decoding with a block buffer (MBD-LM): a running set of consecutive blocks is decoded in one forward. A finished block's
K/V is valid only when computed from its final tokens, so its rows ride along in the next step beside the blocks still open, and only
then join the prefix. A single block is a buffer in which the next block opens when the last is complete (open_at = 1).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drawloom.decoders.step import Commit, Lines, Picks, Plain, Step, gathered
from drawloom.kernels.reveal import reveal

DUMMY, ACTIVE, TO_CACHE = 0, 1, 2


@dataclass(frozen=True)
class Look:
    """What a selection may look at."""

    score: Tensor  # [S, N, B] float, higher is surer
    masked: Tensor  # [S, N, B] bool
    may_fall_back: Tensor  # [S, N] bool: a block with nothing sure may reveal its surest position
    age: Tensor  # [S, N] int64, forwards that the block has been open for


@dataclass(frozen=True)
class Change:
    """What a revision may look at, after the picks of a forward are known."""

    score: Tensor  # [S, N, B] float, of the picked tokens
    own: Tensor  # [S, N, B] bool, positions of open blocks that are not the prompt's
    filled: Tensor  # [S, N, B] bool, of those, the ones that held a token before this forward
    differs: Tensor  # [S, N, B] bool, of those, the picked token is another
    age: Tensor  # [S, N] int64, forwards that the block has been open for, this one among them


@dataclass(frozen=True)
class Revise:
    """Filled positions may change until their block settles. rewrite: Change -> [S, N, B], which take the picked token.
    settled: (Change, rewritten, post) -> [S, N], which complete blocks are final, where post [S, N] counts the forwards that a block has
    started without masks. `soft`: filled positions enter the next forward as a mix of token and mask, weighted by their score."""

    rewrite: Callable[[Change], Tensor]
    settled: Callable[[Change, Tensor, Tensor], Tensor]
    soft: bool = False


Select = Callable[[Look], Tensor]  # -> chosen [S, N, B]


@dataclass(frozen=True)
class Score:
    """of: picks -> [S, K] float, higher is surer."""

    of: Callable[[Picks], Tensor]
    needs_shape: bool = False  # wants margin and entropy computed
    needs_chance: bool = False  # wants chance drawn


@dataclass(frozen=True)
class Window:
    """The canvas: `buffer` slots for blocks of `block` tokens. One more block opens in a step when the last open one has at least
    `open_at` of its positions filled and `stable_at` of them unchanged by the last forward; a block may fall back to its surest position
    when the block before it has at least `semi_at`."""

    block: int
    buffer: int
    open_at: float
    semi_at: float
    stable_at: float = 0.0


@dataclass(frozen=True)
class Canvas:
    """The buffer of each line. Slots hold consecutive blocks, the first is block `first`; dummies stand at the end."""

    tokens: Tensor  # [S, N * B] int64, the mask token where nothing is revealed
    logprob: Tensor  # [S, N * B] float32, of revealed tokens at the step that wrote them last
    weight: Tensor  # [S, N * B] float32, how much of a soft input is the token; the rest is the mask
    status: Tensor  # [S, N] int64: DUMMY, ACTIVE, TO_CACHE
    age: Tensor  # [S, N] int64, forwards that the block has been ACTIVE for
    post: Tensor  # [S, N] int64, of those, the ones it started without masks
    stable: Tensor  # [S, N] float32, share of its tokens that the last forward left as they were
    ago: Tensor  # [S, N * B] int64, forwards since the token took its value
    edits: Tensor  # [S, N * B] int64, how often it had another one since it was revealed
    first: Tensor  # [S] int64, absolute number of the block in slot 0


class Denoise(Plain):
    """Denoise(canvas x score x select x revise) with an exact block cache. Without `revise` a token never changes once revealed, so the
    run of revealed positions behind the last final one is final at once; with it, tokens are final when their block has settled."""

    def __init__(self, window: Window, score: Score, select: Select, mask_token: int, revise: Revise | None = None) -> None:
        self.window, self.score, self.select, self.revise, self.mask_token = window, score, select, revise, mask_token
        self.block_tokens = window.block
        self.max_rows = self.max_commit = window.block * window.buffer
        self.needs_shape, self.needs_chance = score.needs_shape, score.needs_chance

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
        nothing, zeros = torch.zeros_like(tokens), torch.zeros_like(tokens, dtype=torch.float32)
        return Canvas(tokens, zeros, zeros + 1, status, status * 0, status * 0, (status * 0).float(), nothing, nothing, first)

    def plan(self, lines: Lines, state: Canvas, budget: Tensor) -> tuple[Canvas, Step]:
        """The window is the recipe's, never the budget's: a smaller one would change the text."""
        state = self._open(lines, state)
        position = self._positions(state.first)
        active = self._per_token(state.status == ACTIVE)
        scored = active & self._own(lines, state) if self.revise else active & (state.tokens == self.mask_token)
        see = (torch.arange(self.max_rows, device=active.device) // self.window.block + 1) * self.window.block
        weight = state.weight if self.revise and self.revise.soft else None
        valid = self._per_token(state.status != DUMMY)
        return state, Step(state.tokens, position, see.expand_as(position), valid, scored, weight=weight)

    def accept(self, lines: Lines, state: Canvas, step: Step, picks: Picks) -> tuple[Canvas, Commit]:
        active, masked = self._per_token(state.status == ACTIVE), state.tokens == self.mask_token
        score = self._blocks(self.score.of(picks))
        look = Look(score, self._blocks(masked & active), self._may_fall_back(state), state.age)
        chosen = self.select(look).flatten(1)
        rewritten, settled, post = self._revised(lines, state, picks, score, chosen)
        written = chosen | rewritten
        tokens, logprob = reveal(state.tokens, written, picks.token), torch.where(written, picks.logprob, state.logprob)
        weight = torch.where(written, score.flatten(1), state.weight) if self.revise and self.revise.soft else state.weight
        same = tokens == state.tokens
        stable = self._blocks(same).float().mean(-1)
        ago, edits = torch.where(same, state.ago + 1, 0), state.edits + (rewritten & ~same)
        done = (state.status == TO_CACHE).sum(1)
        age = state.age + (state.status == ACTIVE)
        written_on = Canvas(tokens, logprob, weight, state.status, age, post, stable, ago, edits, state.first)
        moved = self._settle(self._shift(written_on, done), _moved(settled, self._slots(done), False))
        index, count = self._final_run(lines, written_on, moved)
        keep = torch.arange(self.max_rows, device=done.device) < (done * self.window.block)[:, None]
        final = gathered(index, tokens, logprob, ago, edits)
        commit = Commit(final[0], final[1], count, keep, look.masked.flatten(1).sum(1), chosen.sum(1), final[2], final[3])
        return moved, commit

    def _revised(self, lines: Lines, state: Canvas, picks: Picks, score: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which filled positions [S, N * B] are rewritten, which blocks [S, N] have settled, and their forwards without masks [S, N]."""
        masked = state.tokens == self.mask_token
        complete = self._blocks(~masked | chosen).all(-1)
        if self.revise is None:
            return torch.zeros_like(masked), complete, state.post
        own = self._own(lines, state) & self._per_token(state.status == ACTIVE)
        filled = own & ~masked
        differs = filled & (picks.token != state.tokens)
        change = Change(score, self._blocks(own), self._blocks(filled), self._blocks(differs), state.age + 1)
        rewritten = self.revise.rewrite(change) & change.filled
        post = state.post + (~self._blocks(masked).any(-1) & (state.status == ACTIVE))
        return rewritten.flatten(1), complete & self.revise.settled(change, rewritten, post), post

    def _own(self, lines: Lines, state: Canvas) -> Tensor:
        """[S, N * B]: positions behind the prompt."""
        return self._positions(state.first) >= lines.prompt_len[:, None]

    def _positions(self, first: Tensor) -> Tensor:
        return first[:, None] * self.window.block + torch.arange(self.max_rows, device=first.device)

    def _blocks(self, flat: Tensor) -> Tensor:
        return flat.unflatten(1, (self.window.buffer, self.window.block))

    def _per_token(self, slots: Tensor) -> Tensor:
        return slots.repeat_interleave(self.window.block, 1)

    def _slots(self, done: Tensor) -> Tensor:
        return torch.arange(self.window.buffer, device=done.device) + done[:, None]

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
        far = (self._progress(state) >= self.window.open_at) & (state.stable >= self.window.stable_at)
        ready = (num_open == 0) | self._opens_behind(state, far).gather(1, last)[:, 0]
        ended = ((state.tokens[:, :, None] == lines.ends[:, None, :]).any(-1) & self._own(lines, state)).any(1)
        within = (state.first + num_open) * self.window.block < lines.limit
        opens = (ready & ~ended & within & (num_open < self.window.buffer))[:, None] & (self._slots(num_open * 0) == num_open[:, None])
        return replace(
            state,
            status=torch.where(opens, ACTIVE, state.status),
            age=state.age.masked_fill(opens, 0),
            post=state.post.masked_fill(opens, 0),
            stable=state.stable.masked_fill(opens, 0),
            weight=state.weight.masked_fill(self._per_token(opens), 1),
        )

    def _opens_behind(self, state: Canvas, far: Tensor) -> Tensor:
        """Where blocks are revised, a window of one waits until the block before has settled, however full it is."""
        return far & (state.status == TO_CACHE) if self.revise and self.window.open_at >= 1 else far

    def _final_run(self, lines: Lines, state: Canvas, moved: Canvas) -> tuple[Tensor, Tensor]:
        """Canvas index [S, N * B] of the tokens behind the last final one, and how many of them can change no more."""
        start = lines.length - state.first * self.window.block  # index of the first position that is not final yet
        index = start[:, None] + torch.arange(self.max_rows, device=start.device)
        end = torch.minimum(lines.limit - state.first * self.window.block, torch.full_like(start, self.max_rows))
        if self.revise:
            settled = (moved.first - state.first) + (moved.status == TO_CACHE).sum(1)
            end = torch.minimum(end, settled * self.window.block)
        inside = index < end[:, None]
        index = index.clamp(max=self.max_rows - 1)
        known = state.tokens.gather(1, index) != self.mask_token
        return index, (inside & known).long().cumprod(1).sum(1)

    def _shift(self, state: Canvas, done: Tensor) -> Canvas:
        """Drop the `done` [S] leading blocks, whose clean K/V this forward has written."""
        slot, token = self._slots(done), torch.arange(self.max_rows, device=done.device) + (done * self.window.block)[:, None]
        return Canvas(
            tokens=_moved(state.tokens, token, self.mask_token),
            logprob=_moved(state.logprob, token, 0),
            weight=_moved(state.weight, token, 1),
            status=_moved(state.status, slot, DUMMY),
            age=_moved(state.age, slot, 0),
            post=_moved(state.post, slot, 0),
            stable=_moved(state.stable, slot, 0),
            ago=_moved(state.ago, token, 0),
            edits=_moved(state.edits, token, 0),
            first=state.first + done,
        )

    def _settle(self, state: Canvas, settled: Tensor) -> Canvas:
        """Mark settled blocks TO_CACHE, as far as every block before them is. Their rows then enter as plain tokens."""
        status = torch.where(((state.status != DUMMY) & settled).long().cumprod(1).bool(), TO_CACHE, state.status)
        return replace(state, status=status, weight=state.weight.masked_fill(self._per_token(status == TO_CACHE), 1))


def _moved(values: Tensor, index: Tensor, fill: float) -> Tensor:
    """values gathered at index [S, n]; `fill` where the index is beyond the end."""
    return torch.where(index < values.shape[1], values.gather(1, index.clamp(max=values.shape[1] - 1)), fill)
