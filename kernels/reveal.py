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
    """The `count` (a number, or [S, N, 1]) surest masked positions of every block (all of them when fewer are masked)."""
    return masked & (_rank(score, masked) < count)


def leftmost(masked: Tensor, count: Tensor | int) -> Tensor:
    """The `count` first masked positions of every block."""
    return masked & (masked.long().cumsum(-1) <= count)


def run_above(score: Tensor, masked: Tensor, tau: float, may_fall_back: Tensor) -> Tensor:
    """Masked positions before the first masked one whose score is below tau; with none the leftmost, where may_fall_back [S, N] lets it."""
    run = masked & ~(masked & (score < tau)).long().cumsum(-1).bool()
    lost = may_fall_back & ~run.any(-1)
    return run | (leftmost(masked, 1) & lost[..., None])


def bounded(entropy: Tensor, masked: Tensor, bound: float) -> Tensor:
    """Masked positions from the lowest entropy up while their entropies add up to less than `bound` nats, at least one.
    EB-Sampler (arXiv 2505.24857) as JetEngine runs it for SDAR."""
    shown = entropy.masked_fill(~masked, torch.inf)
    total = shown.sort(dim=-1, stable=True).values.cumsum(-1)
    count = (total < bound).sum(-1, keepdim=True).clamp(min=1)
    return masked & (_rank(-entropy, masked) < count)


def falling(score: Tensor, masked: Tensor, amount: float) -> Tensor:
    """The surest masked positions, as long as the k-th (from 2 on) has a score of at least 1 - amount / (k + 1); always the surest."""
    shown = score.masked_fill(~masked, -torch.inf).sort(dim=-1, descending=True, stable=True).values
    place = torch.arange(1, score.shape[-1] + 1, device=score.device)
    good = (shown >= 1 - amount / (place + 1)) | (place == 1)
    return masked & (_rank(score, masked) < good.long().cumprod(-1).sum(-1, keepdim=True))


def _rank(score: Tensor, masked: Tensor) -> Tensor:
    """Place of every position among the masked ones of its block, the surest first, the leftmost first among equals."""
    return score.masked_fill(~masked, -torch.inf).sort(dim=-1, descending=True, stable=True).indices.argsort(-1)


def reveal(canvas: Tensor, chosen: Tensor, token: Tensor) -> Tensor:
    """Canvas [S, N, B] with `token` written where `chosen`."""
    return torch.where(chosen, token, canvas)
