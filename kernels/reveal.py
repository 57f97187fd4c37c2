"""Which masked positions of the open blocks become tokens. S sequences, N blocks of B positions; scores: higher is surer."""

import torch
from torch import Tensor


def best_of_each(score: Tensor, masked: Tensor) -> Tensor:
    """The surest masked position of every block (the leftmost among equals). [S, N, B] float, bool -> [S, N, B] bool."""
    shown = score.masked_fill(~masked, -torch.inf)
    best = torch.nn.functional.one_hot(shown.argmax(-1), score.shape[-1]).bool()
    return best & masked


def above(score: Tensor, masked: Tensor, tau: float, may_fall_back: Tensor) -> Tensor:
    """Masked positions whose score is strictly above tau; a block with none takes its surest one where may_fall_back [S, N] allows it."""
    hit = masked & (score > tau)
    lost = may_fall_back & ~hit.any(-1)
    return hit | (best_of_each(score, masked) & lost[..., None])


def surest(score: Tensor, masked: Tensor, count: Tensor | int) -> Tensor:
    """The `count` surest masked positions of every block (all of them when fewer are masked)."""
    shown = score.masked_fill(~masked, -torch.inf)
    rank = shown.sort(dim=-1, descending=True, stable=True).indices.argsort(-1)
    return masked & (rank < count)


def reveal(canvas: Tensor, chosen: Tensor, token: Tensor) -> Tensor:
    """Canvas [S, N, B] with `token` written where `chosen`."""
    return torch.where(chosen, token, canvas)
