"""How sure a position is of its token: Picks -> [S, K] float, higher is surer. All but the last use the model's own distribution
(temperature 1, no filters), so that top_k = 1 or a low temperature does not make every position certain. Below them the rules that
select and revise."""

import torch
from torch import Tensor

from drawloom.decoders.denoise import Change, Look, Revise, Score, Select
from drawloom.decoders.step import Picks
from drawloom.errors import SettingError
from drawloom.kernels.reveal import above, bounded, falling, leftmost, run_above, surest


def max_probability(picks: Picks) -> Tensor:
    """Probability of the picked token (the largest one when greedy). LLaDA, SDAR, MBD-LM."""
    return picks.logprob.exp()


def margin(picks: Picks) -> Tensor:
    """Best probability minus second best. Dream's topk_margin; Kim et al. 2025."""
    assert picks.margin is not None
    return picks.margin


def neg_entropy(picks: Picks) -> Tensor:
    """Minus the entropy in nats. Dream's entropy; d3LLM."""
    assert picks.entropy is not None
    return -picks.entropy


def random_order(picks: Picks) -> Tensor:
    """A number in [0, 1) drawn for the position, whatever its token. LLaDA's random remasking; Dream's origin."""
    assert picks.chance is not None
    return picks.chance


SCORES = {
    "max_probability": Score(max_probability),
    "margin": Score(margin, needs_shape=True),
    "neg_entropy": Score(neg_entropy, needs_shape=True),
    "random": Score(random_order, needs_chance=True),
}


def threshold(tau: float) -> Select:
    """Reveal every masked position whose score is above tau; fallback: the surest, where the canvas allows it. LLaDA2.0, MBD."""
    return lambda look: above(look.score, look.masked, tau, look.may_fall_back)


def top_n(count: int) -> Select:
    """Reveal the `count` surest masked positions of every open block; needs no fallback."""
    return lambda look: surest(look.score, look.masked, count)


def static(block: int, steps: int) -> Select:
    """Reveal the surest positions, their number spread evenly over `steps` forwards of a block. SDAR low_confidence_static."""
    return lambda look: surest(look.score, look.masked, _share(look, block, steps))


def sequential(block: int, steps: int) -> Select:
    """Reveal from left to right, as many positions a forward as `static`. SDAR sequential."""
    return lambda look: leftmost(look.masked, _share(look, block, steps))


def dynamic(tau: float, block: int, steps: int) -> Select:
    """Reveal what is above tau if that is at least the share of `static`; fallback: that share. SDAR low_confidence_dynamic."""

    def select(look: Look) -> Tensor:
        least = _share(look, block, steps)
        hit = look.masked & (look.score > tau)
        return torch.where(hit.sum(-1, keepdim=True) >= least, hit, surest(look.score, look.masked, least))

    return select


def entropy_bound(bound: float) -> Select:
    """Reveal from the lowest entropy up while the entropies add up to less than `bound` nats; fallback: the surest one. The score must be
    neg_entropy, which is the entropy of the whole distribution. SDAR entropy_bounded as JetEngine has it; EB-Sampler, arXiv 2505.24857."""
    return lambda look: bounded(-look.score, look.masked, bound)


def contiguous(tau: float) -> Select:
    """Reveal the masked positions before the first one whose score is below tau; fallback: the leftmost. DMax, arXiv 2604.08302."""
    return lambda look: run_above(look.score, look.masked, tau, look.may_fall_back)


def at_least(tau: float) -> Select:
    """Reveal every masked position whose score is at least tau, and the surest one whatever its score. Fast-dLLM, arXiv 2505.22618."""
    return lambda look: surest(look.score, look.masked, 1) | (look.masked & (look.score >= tau))


def factor(amount: float) -> Select:
    """Reveal the n surest positions for the largest n such that the k-th of them has a score of at least 1 - amount / (k + 1), k = 2..n;
    always the surest. Fast-dLLM's factor rule, arXiv 2505.22618."""
    return lambda look: falling(look.score, look.masked, amount)


def decaying(steps: int, eps: float) -> Select:
    """Reveal the share 1 - s / t of what is masked, surest first, with t falling from 1 to eps in `steps` forwards; the last reveals all
    that is left. Dream (arXiv 2508.15487); at least one position a forward."""

    def select(look: Look) -> Tensor:
        t = 1 - look.age * (1 - eps) / steps
        share = (1 - eps) / steps / t
        left = look.masked.sum(-1)
        count = torch.where(look.age >= steps - 1, left, (left * share + 1e-6).floor().long().clamp(min=1))
        return surest(look.score, look.masked, count[..., None])

    return select


def by_chance(steps: int, eps: float) -> Select:
    """Reveal each masked position with probability 1 - s / t, with t falling from 1 to eps in `steps` forwards; the last reveals all that
    is left. The score must be random_order: a position is revealed in the first forward whose s is not above its number. Dream's origin."""

    def select(look: Look) -> Tensor:
        s = 1 - (look.age + 1) * (1 - eps) / steps
        return look.masked & ((look.score >= s[..., None]) | (look.age >= steps - 1)[..., None])

    return select


def above_or_best(tau: float) -> Select:
    """Reveal every masked position whose score is above tau, and the surest one whatever its score. Fast-dLLM v2, arXiv 2509.26328."""
    return lambda look: surest(look.score, look.masked, 1) | (look.masked & (look.score > tau))


def edits(tau: float, post_steps: int) -> Revise:
    """A filled position takes another token whose score is above tau; a block settles in a forward that it started without masks and that
    edited nothing, or after `post_steps` such forwards. LLaDA2.1 (T2T beside M2T)."""
    if post_steps < 0:
        raise SettingError(f"post_steps is {post_steps}, at least 0 is needed")

    def rewrite(change: Change) -> Tensor:
        return change.differs & (change.score > tau)

    def settled(change: Change, rewritten: Tensor, post: Tensor) -> Tensor:
        return (~rewritten.any(-1) & (post >= 1)) | (post >= post_steps)

    return Revise(rewrite, settled)


def repredict(sure: float, steps: int, soft: bool) -> Revise:
    """Every filled position takes its newest pick; a full block settles when all are at least `sure` of it, when no token changed, or when
    it has been open for `steps` forwards.
    With `soft` a filled position is fed back as score * token + (1 - score) * mask. DMax, arXiv 2604.08302."""

    def settled(change: Change, rewritten: Tensor, post: Tensor) -> Tensor:
        all_sure = ((change.score >= sure) | ~change.own).all(-1)
        return all_sure | (~change.differs.any(-1) & (post >= 1)) | (change.age >= steps)

    return Revise(lambda change: change.filled, settled, soft)


def _share(look: Look, block: int, steps: int) -> Tensor:
    """[S, N, 1]: how many of `block` positions belong to this forward when they are spread evenly over `steps`, the first ones larger."""
    return (block // steps + (look.age < block % steps).long())[..., None]
