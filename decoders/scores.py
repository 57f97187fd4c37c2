"""How sure a position is of its token: Picks -> [S, K] float, higher is surer. All three use the model's own distribution (temperature 1,
no filters), so that top_k = 1 or a low temperature does not make every position certain."""

from torch import Tensor

from drawloom.decoders.denoise import Score, Select
from drawloom.decoders.step import Picks
from drawloom.kernels.reveal import above, surest


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


SCORES = {
    "max_probability": Score(max_probability),
    "margin": Score(margin, needs_shape=True),
    "neg_entropy": Score(neg_entropy, needs_shape=True),
}


def threshold(tau: float) -> Select:
    """Reveal every masked position whose score is above tau (strict); fallback: the surest one, where the canvas allows it."""

    def select(score: Tensor, masked: Tensor, may_fall_back: Tensor) -> Tensor:
        return above(score, masked, tau, may_fall_back)

    return select


def top_n(count: int) -> Select:
    """Reveal the `count` surest masked positions of every open block; needs no fallback."""

    def select(score: Tensor, masked: Tensor, may_fall_back: Tensor) -> Tensor:
        return surest(score, masked, count)

    return select
