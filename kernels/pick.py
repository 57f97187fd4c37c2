"""From logits to one token a row, with the statistics that decoders and users ask for. L rows, V vocabulary.

Order: penalties and bias, temperature, top-k, top-p, min-p, Gumbel-max. Reported log-probabilities are the model's own (before all of
that), as the field's APIs do.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from drawloom.kernels.noise import gumbel, gumbel_at


@dataclass(frozen=True)
class Draw:
    """How each row draws; every tensor is [L]. Temperature 0 takes the argmax (the lowest id among equals)."""

    temperature: Tensor  # float32
    top_k: Tensor  # int64, 0 keeps all
    top_p: Tensor  # float32
    min_p: Tensor  # float32
    seed: Tensor  # int64, any 64 bits
    sample: Tensor  # int64
    position: Tensor  # int64, absolute position of the token being drawn


@dataclass(frozen=True)
class Penalty:
    """Penalties and bias of rows that have any. Counts are of tokens in each row's own context, draft prefix included."""

    rows: Tensor  # [M] int64, into L
    seen: Tensor  # [M, V] bool, in the prompt or the output
    count: Tensor  # [M, V] float32, in the output
    repetition: Tensor  # [M] float32
    frequency: Tensor  # [M] float32
    presence: Tensor  # [M] float32
    bias: Tensor  # [M, V] float32


@dataclass(frozen=True)
class Picked:
    """One token for each row, and its statistics under the model's own distribution (margin and entropy in the same)."""

    token: Tensor  # [L] int64
    logprob: Tensor  # [L] float32, natural log, of `token`
    margin: Tensor | None = None  # [L] best probability minus second best
    entropy: Tensor | None = None  # [L] nats


def penalise(logits: Tensor, penalty: Penalty) -> Tensor:
    """Logits [L, V] with repetition (Keskar et al. 2019), frequency and presence penalties and logit bias applied to penalty.rows."""
    part = logits[penalty.rows]
    scale = torch.where(penalty.seen, penalty.repetition[:, None], 1.0)
    part = torch.where(part > 0, part / scale, part * scale)
    part = part - penalty.frequency[:, None] * penalty.count - penalty.presence[:, None] * (penalty.count > 0) + penalty.bias
    return logits.index_copy(0, penalty.rows, part)


def narrow(logits: Tensor, draw: Draw) -> Tensor:
    """Set to -inf what top-k, then top-p, then min-p remove. `logits` [L, V] are already divided by temperature."""
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    ranked = logits.gather(-1, order)
    rank = torch.arange(logits.shape[-1], device=logits.device)[None]
    ranked = ranked.masked_fill((draw.top_k[:, None] > 0) & (rank >= draw.top_k[:, None]), -torch.inf)
    prob = ranked.softmax(-1)
    beyond = (prob.cumsum(-1) - prob >= draw.top_p[:, None]) & (draw.top_p[:, None] < 1)  # rounding must not cut the tail of top_p = 1
    removed = beyond | (prob < draw.min_p[:, None] * prob[:, :1])
    removed[:, 0] = False  # top_p = 0 within rounding still leaves one
    return torch.empty_like(logits).scatter_(-1, order, ranked.masked_fill(removed, -torch.inf))


def draw_tokens(logits: Tensor, draw: Draw, *, narrowed: bool) -> Tensor:
    """Gumbel-max tokens [L] of logits [L, V]: argmax(logits / temperature + noise). `narrowed`: some row uses top-k, top-p or min-p."""
    warm = draw.temperature > 0
    scaled = logits / torch.where(warm, draw.temperature, 1.0)[:, None]
    if narrowed:
        scaled = narrow(scaled, draw)
    noise = gumbel(draw.seed, draw.sample, draw.position, logits.shape[-1])
    return torch.where(warm[:, None], scaled + noise, logits).argmax(-1)


def pick(
    logits: Tensor,
    draw: Draw | None,
    *,
    penalty: Penalty | None = None,
    forbidden: int | None = None,
    narrowed: bool = False,
    want_shape: bool = False,
) -> Picked:
    """Pick a token for each row of logits [L, V] float32.

    draw None takes every argmax. `forbidden` is a token that is never picked and has no mass (the mask token of a diffusion model).
    `want_shape` also computes margin and entropy.
    """
    if forbidden is not None:
        logits = logits.index_fill(-1, torch.tensor([forbidden], device=logits.device), -torch.inf)
    choice = logits if penalty is None else penalise(logits, penalty)
    token = choice.argmax(-1) if draw is None else draw_tokens(choice, draw, narrowed=narrowed)
    total = logits.logsumexp(-1)
    logprob = logits.gather(-1, token[:, None])[:, 0] - total
    if not want_shape:
        return Picked(token, logprob)
    logp = logits - total[:, None]
    prob = logp.exp()
    best = prob.topk(2, -1).values
    entropy = -(prob * logp.masked_fill(prob == 0, 0.0)).sum(-1)
    return Picked(token, logprob, best[:, 0] - best[:, 1], entropy)


def top_logprobs(logits: Tensor, token: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k most probable tokens of each row and the rank of `token`: ids [L, k] int64, log-probabilities [L, k], rank [L] (1 is best)."""
    own = logits.gather(-1, token[:, None])
    values, ids = logits.topk(k, -1)
    rank = (logits > own).sum(-1) + 1
    return ids, values - logits.logsumexp(-1, keepdim=True), rank


__all__ = ["Draw", "Penalty", "Picked", "draw_tokens", "gumbel_at", "narrow", "penalise", "pick", "top_logprobs"]
