"""Noise of drafts, and what follows from it: a drafted token is a function of (seed, sample, where the step begins, which row)."""

from torch import Tensor

from drawloom.decoders.step import Lines
from drawloom.kernels.noise import DRAFT, gumbel


def draw(weights: Tensor, lines: Lines, row: int) -> Tensor:
    """A token [S] for each line from weights [S, V], which need not sum to 1. Steps of a text begin at different places, so no two draws
    share their noise, and none shares it with the target's own draws or with the tests of a verifier."""
    return (weights.log() + gumbel(lines.seed, lines.sample, lines.length, weights.shape[1], DRAFT, row)).argmax(1)
