"""The loop of self-speculative block diffusion (S2D2, arXiv 2603.25702): a forward over a block drafts, and where that pays the same
network verifies, as if its blocks had one token: row by row, each seeing clean tokens before it alone.

A drafting forward asks every masked position. A policy then decides: reveal what is sure, as block diffusion does, or verify the first run
of masked positions. A verifying forward holds the block up to that run, then one mask row for each position of it. As everywhere, a draft
is accepted as long as it is what the target draws itself, so the same request gives the same text at any temperature.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drawloom.decoders.denoise import Look, Select
from drawloom.decoders.step import Commit, Lines, Picks, Plain, Step, gathered
from drawloom.decoders.trees import bits_of
from drawloom.kernels.reveal import reveal
from drawloom.kernels.verify import walk_chain

BUCKETS = (1.0, 2.0, 4.0)  # edges of the expected lengths that a bandit tells apart
ARMS = 2  # reveal, verify


@dataclass(frozen=True)
class Route:
    """What a policy may look at, [S] each."""

    run: Tensor  # int64, masked positions in the first run
    expected: Tensor  # float, tokens that a verification should accept
    sure: Tensor  # int64, positions that block diffusion would reveal
    on: Tensor  # bool, verified the last time
    tried: Tensor  # [S, buckets, arms] float, times that an arm was taken
    gained: Tensor  # [S, buckets, arms] float, tokens a forward, summed


Policy = Callable[[Route], Tensor]  # -> [S] bool: verify
Estimate = Callable[[Picks], Tensor]  # -> [S, K] chance that the position's draft is accepted


@dataclass(frozen=True)
class Drafted:
    """The current block of each line, the one before it while its K/V is missing, and what the policy remembers."""

    tokens: Tensor  # [S, B] int64, the mask token where nothing is revealed
    logprob: Tensor  # [S, B] float32
    ago: Tensor  # [S, B] int64, forwards since the token took its value
    before: Tensor  # [S, B] int64, tokens of the block before
    pending: Tensor  # [S] bool: that block's K/V is to be written
    first: Tensor  # [S] int64, absolute number of the current block
    age: Tensor  # [S] int64, forwards that it has been open for
    verify: Tensor  # [S] bool: the next forward verifies
    draft: Tensor  # [S, B] int64, what it verifies, at the positions of the first run
    bucket: Tensor  # [S] int64, where the expected length of that draft lies
    on: Tensor  # [S] bool
    tried: Tensor  # [S, buckets, arms] float32
    gained: Tensor  # [S, buckets, arms] float32


class SelfVerify(Plain):
    """SelfVerify(block x select x estimate x policy)."""

    drafts_trees = True
    needs_shape = True

    def __init__(self, block: int, select: Select, estimate: Estimate, policy: Policy, mask_token: int) -> None:
        self.block, self.select, self.estimate, self.policy, self.mask_token = block, select, estimate, policy, mask_token
        self.block_tokens = self.max_commit = block
        self.max_rows = 2 * block

    def committed(self, length: int) -> int:
        return length // self.block * self.block

    def begin(self, lines: Lines) -> Drafted:
        first = lines.length // self.block
        position = self._positions(first)
        known = lines.history.gather(1, position.clamp(max=lines.history.shape[1] - 1))
        tokens = torch.where(position < lines.length[:, None], known, self.mask_token)
        nothing, never, zero = torch.zeros_like(tokens), torch.zeros_like(first, dtype=torch.bool), torch.zeros_like(first)
        tried = torch.zeros(len(first), len(BUCKETS) + 1, ARMS, device=first.device)
        return Drafted(
            tokens, nothing.float(), nothing, nothing, never, first, zero, never, nothing, zero, never, tried, torch.zeros_like(tried)
        )

    def plan(self, lines: Lines, state: Drafted, budget: Tensor) -> tuple[Drafted, Step]:
        """Drafting: the block before, if pending, then the block. Verifying: the block up to the end of the run, then the run's masks."""
        row, start, run = torch.arange(self.max_rows, device=state.first.device), *self._run(state)
        shift = (state.pending & ~state.verify).long()[:, None] * self.block
        end = (start + run - 1)[:, None]  # rows of tokens in a verifying step
        verify = state.verify[:, None]
        asks = verify & (row >= end)
        inside = torch.where(verify, torch.where(asks, row - end + start[:, None], row), row - shift)
        valid = torch.where(verify, row < end + run[:, None], row < shift + self.block)
        inside = torch.where(valid, inside, 0)
        held = torch.where(verify, self._shown(state), state.tokens).gather(1, inside.clamp(min=0))
        held = torch.where(asks, self.mask_token, held)
        tokens = torch.where(inside < 0, state.before.gather(1, (inside + self.block).clamp(0, self.block - 1)), held)
        see = torch.where(verify, row + 1, torch.where(row < shift, self.block, shift + self.block))
        seen = self._seen(row, end, asks, inside)
        masked = state.tokens == self.mask_token
        scored = valid & torch.where(verify, asks, (inside >= 0) & masked.gather(1, inside.clamp(min=0)))
        positions = (state.first * self.block)[:, None] + inside
        return state, Step(tokens, positions, see, valid, scored, bits_of(seen))

    def accept(self, lines: Lines, state: Drafted, step: Step, picks: Picks) -> tuple[Drafted, Commit]:
        drafted, verified = self._accept_draft(lines, state, step, picks), self._accept_run(state, step, picks)
        verify = state.verify[:, None]
        chosen = torch.where(verify, verified[0], drafted[0])
        token, logprob = torch.where(verify, verified[1], drafted[1]), torch.where(verify, verified[2], drafted[2])
        tokens = reveal(state.tokens, chosen, token)
        after = replace(
            drafted[3],
            tokens=tokens,
            logprob=torch.where(chosen, logprob, state.logprob),
            ago=torch.where(chosen, 0, state.ago + 1),
            age=state.age + 1,
            pending=state.pending & state.verify,
            verify=drafted[3].verify & ~state.verify,
        )
        after = self._learned(state, after, chosen.sum(1))
        index, count = self._final_run(lines, after)
        final = gathered(index, tokens, after.logprob, after.ago)
        keep = step.valid & (torch.arange(self.max_rows, device=index.device) < self.block) & (state.pending & ~state.verify)[:, None]
        asked = step.scored.sum(1)
        return self._next(lines, after), Commit(final[0], final[1], count, keep, asked, chosen.sum(1), ago=final[2])

    def _accept_draft(self, lines: Lines, state: Drafted, step: Step, picks: Picks) -> tuple[Tensor, Tensor, Tensor, Drafted]:
        """Positions [S, B] that a drafting forward reveals, with token and logprob, and the state with its decision."""
        shift = state.pending.long()[:, None] * self.block
        index = (shift + torch.arange(self.block, device=shift.device)).clamp(max=self.max_rows - 1)
        token, logprob, hope = gathered(index, picks.token, picks.logprob, self.estimate(picks))
        masked = (state.tokens == self.mask_token) & ~state.verify[:, None]
        sure = torch.where(masked, logprob.exp(), -torch.inf)
        look = Look(sure[:, None], masked[:, None], torch.ones_like(masked[:, :1]), state.age[:, None])
        chosen = self.select(look)[:, 0] & masked
        start, run = self._run(state)
        inside = torch.arange(self.block, device=start.device)
        own = (inside >= start[:, None]) & (inside < (start + run)[:, None])
        chain = torch.where(own, hope, torch.where(inside < start[:, None], 1.0, 0.0)).cumprod(1)
        expected = torch.where(own, chain, 0.0).sum(1)
        verify = self.policy(Route(run, expected, chosen.sum(1), state.on, state.tried, state.gained))
        bucket = torch.bucketize(expected, torch.tensor(BUCKETS, device=expected.device))
        after = replace(
            state,
            verify=verify,
            on=torch.where(state.verify, state.on, verify),
            draft=torch.where(state.verify[:, None], state.draft, torch.where(own, token, self.mask_token)),
            bucket=torch.where(state.verify, state.bucket, bucket),
        )
        return chosen & ~verify[:, None], token, logprob, after

    def _accept_run(self, state: Drafted, step: Step, picks: Picks) -> tuple[Tensor, Tensor, Tensor]:
        """Positions [S, B] that a verifying forward reveals: the accepted part of the run and the target's own next token."""
        start, run = self._run(state)
        inside = torch.arange(self.block, device=start.device)
        index = (start + run - 1)[:, None] + inside  # row of the run's position `inside`
        index = index.clamp(max=self.max_rows - 1)
        said, logprob = picks.token.gather(1, index), picks.logprob.gather(1, index)
        draft = state.draft.gather(1, (start[:, None] + inside).clamp(max=self.block - 1))
        accepted = walk_chain(draft, run, torch.nn.functional.pad(said, (0, 1)))
        count = torch.minimum(accepted + 1, run)
        back = (inside - start[:, None]).clamp(min=0)
        chosen = (inside >= start[:, None]) & (inside < (start + count)[:, None])
        return chosen, said.gather(1, back), logprob.gather(1, back)

    def _learned(self, state: Drafted, after: Drafted, revealed: Tensor) -> Drafted:
        """What a bandit is told: tokens for each forward that its choice took."""
        arm = state.verify.long()
        done = ~after.verify  # a decision to verify is told when it has been carried out
        gain = revealed / (1.0 + arm) * done
        at = torch.nn.functional.one_hot(after.bucket * ARMS + arm, (len(BUCKETS) + 1) * ARMS).view_as(state.tried)
        return replace(after, tried=state.tried + at * done[:, None, None], gained=state.gained + at * gain[:, None, None])

    def _next(self, lines: Lines, state: Drafted) -> Drafted:
        """Go on to the next block where the current one is full."""
        full = (state.tokens != self.mask_token).all(1)
        wide = full[:, None]
        return replace(
            state,
            tokens=torch.where(wide, self.mask_token, state.tokens),
            before=torch.where(wide, state.tokens, state.before),
            ago=state.ago.masked_fill(wide, 0),
            pending=state.pending | full,
            first=state.first + full,
            age=state.age.masked_fill(full, 0),
        )

    def _final_run(self, lines: Lines, state: Drafted) -> tuple[Tensor, Tensor]:
        """Index [S, B] into the block of what stands behind the last final token, and how much of it is revealed without a gap."""
        start = state.first * self.block
        index = (lines.length - start)[:, None] + torch.arange(self.block, device=start.device)
        inside = (index < self.block) & (index + start[:, None] < lines.limit[:, None])
        index = index.clamp(max=self.block - 1)
        return index, (inside & (state.tokens.gather(1, index) != self.mask_token)).long().cumprod(1).sum(1)

    def _seen(self, row: Tensor, end: Tensor, asks: Tensor, inside: Tensor) -> Tensor:
        """[S, K, K]: a mask row of a verifying step sees the tokens before its position, and itself; all others what `see` says."""
        before = (row[None, None, :] < end[:, :, None]) & (row[None, None, :] < inside[:, :, None])
        own = row[:, None] == row[None, :]
        return torch.where(asks[:, :, None], before | own, True)

    def _shown(self, state: Drafted) -> Tensor:
        """[S, B]: the block with its draft filled in."""
        return torch.where(state.tokens == self.mask_token, state.draft, state.tokens)

    def _run(self, state: Drafted) -> tuple[Tensor, Tensor]:
        """[S], [S]: where the first run of masks begins, and its length, at least 1."""
        masked = state.tokens == self.mask_token
        start = masked.int().argmax(1)
        inside = torch.arange(self.block, device=start.device)
        run = (masked | (inside < start[:, None])).long().cumprod(1).sum(1) - start
        return start, run.clamp(min=1)

    def _positions(self, first: Tensor) -> Tensor:
        return first[:, None] * self.block + torch.arange(self.block, device=first.device)


def by_entropy(sharpness: float) -> Estimate:
    """exp(-sharpness * entropy in nats); S2D2 writes sharpness as T / log of the vocabulary."""
    return lambda picks: _of(picks.entropy).mul(-sharpness).exp()


def by_margin(least: float) -> Estimate:
    """1 where the best probability exceeds the second by more than `least`, else 0."""
    return lambda picks: (_of(picks.margin) > least).float()


def _of(values: Tensor | None) -> Tensor:
    assert values is not None
    return values


def score_of(route: Route, cost: float, dynamic: bool) -> Tensor:
    """[S]: what a verification should bring: the expected tokens less `cost`, which dynamic counts once for each sure position."""
    return route.expected - (cost * route.sure if dynamic else cost)


def long_run(least: int) -> Policy:
    """Verify a run of at least `least` positions."""
    return lambda route: route.run >= least


def above_score(least: float, cost: float, dynamic: bool) -> Policy:
    """Verify when the score is at least `least`."""
    return lambda route: score_of(route, cost, dynamic) >= least


def between_scores(on: float, off: float, cost: float, dynamic: bool) -> Policy:
    """Begin to verify when the score reaches `on`, go on until it falls below `off`."""

    def policy(route: Route) -> Tensor:
        score = score_of(route, cost, dynamic)
        return (score >= on) | (route.on & (score >= off))

    return policy


def bandit(wide: float) -> Policy:
    """UCB1 over both arms, for each bucket of expected lengths: the mean tokens a forward, and `wide` * sqrt(2 ln n / n_arm)."""

    def policy(route: Route) -> Tensor:
        bucket = torch.bucketize(route.expected, torch.tensor(BUCKETS, device=route.expected.device))[:, None, None].expand(-1, 1, ARMS)
        tried, gained = route.tried.gather(1, bucket)[:, 0], route.gained.gather(1, bucket)[:, 0]
        bound = gained / tried.clamp(min=1) + wide * (2 * tried.sum(1, keepdim=True).clamp(min=1).log() / tried.clamp(min=1)).sqrt()
        return torch.where(tried > 0, bound, torch.inf).flip(1).argmax(1) == 0  # untried arms first, verifying before revealing

    return policy
