"""From logits to one token a row, with the statistics that decoders and users ask for. L rows, V vocabulary.

Order: penalties and bias, temperature, top-k, top-p, min-p, Gumbel-max. Reported log-probabilities are the model's own (before all of
that), as the field's APIs do.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drawloom.kernels import native, on_gpu
from drawloom.kernels.choose import choose
from drawloom.kernels.noise import gumbel


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

    def rows(self, span: slice) -> "Draw":
        return Draw(**{name: values[span] for name, values in vars(self).items()})


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
    choice: Tensor  # [L, V] what the token was drawn from: logits after penalties, bias and narrowing
    draw: Draw | None  # how it was drawn from them
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


def pick_reference(logits: Tensor, choice: Tensor, draw: Draw | None) -> tuple[Tensor, Tensor]:
    """Tokens [L] drawn from choice [L, V] and their log-probabilities [L] under logits [L, V].

    Gumbel-max: argmax(choice / temperature + noise), the lowest id among equals; draw None or temperature 0 takes argmax(choice).
    """
    if draw is None:
        token = choice.argmax(-1)
    else:
        warm = draw.temperature > 0
        scaled = choice / torch.where(warm, draw.temperature, 1.0)[:, None]
        noise = gumbel(draw.seed, draw.sample, draw.position, choice.shape[-1])
        token = torch.where(warm[:, None], scaled + noise, choice).argmax(-1)
    return token, logits.gather(-1, token[:, None])[:, 0] - logits.logsumexp(-1)


def pick_native(logits: Tensor, choice: Tensor, draw: Draw | None) -> tuple[Tensor, Tensor]:
    """pick_reference in one native call a batch, for contiguous float32 on CPU; noise is computed only where it could decide."""
    rows, vocab_size = logits.shape
    token, logprob = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
    logits, choice = logits.contiguous(), choice.contiguous()
    keys = (None,) * 4 if draw is None else (native.address(draw.temperature), *_integers(draw))
    native.library().drawloom_pick(
        native.address(logits), native.address(choice), rows, vocab_size, *keys, token.data_ptr(), logprob.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return token, logprob


def _integers(draw: Draw) -> tuple[int | None, ...]:
    return tuple(native.address(one, torch.int64) for one in (draw.seed, draw.sample, draw.position))


PATHS = {"native": pick_native, "triton": on_gpu.pick, "torch": pick_reference}


def pick(
    logits: Tensor,
    draw: Draw | None,
    *,
    penalty: Penalty | None = None,
    forbidden: int | None = None,
    narrowed: bool = False,
    want_shape: bool = False,
    impl: str = "auto",
) -> Picked:
    """Pick a token for each row of logits [L, V] float32.

    draw None takes every argmax. `forbidden` is a token that is never picked and has no mass (the mask token of a diffusion model).
    `narrowed`: some row uses top-k, top-p or min-p. `want_shape` also computes margin and entropy.
    """
    if forbidden is not None:
        logits = logits.index_fill(-1, torch.tensor([forbidden], device=logits.device), -torch.inf)
    choice = logits if penalty is None else penalise(logits, penalty)
    if draw is not None and narrowed:
        warm = draw.temperature > 0
        choice = narrow(choice / torch.where(warm, draw.temperature, 1.0)[:, None], draw)
        draw = replace(draw, temperature=warm.float())
    off_cpu = "the logits are on a GPU" if logits.is_cuda else native.why_not()
    refused = {"native": off_cpu, "triton": on_gpu.why_not(logits.device.type, asked=impl == "triton")}
    token, logprob = choose("pick", impl, PATHS, refused)[1](logits, choice, draw)
    if not want_shape:
        return Picked(token, logprob, choice, draw)
    logp = logits.log_softmax(-1)
    prob = logp.exp()
    best = prob.topk(2, -1).values
    entropy = -(prob * logp.masked_fill(prob == 0, 0.0)).sum(-1)
    return Picked(token, logprob, choice, draw, best[:, 0] - best[:, 1], entropy)


def law(choice: Tensor, draw: Draw | None) -> Tensor:
    """Probabilities [L, V] that a draw from choice [L, V] gives; at temperature 0 the argmax has all."""
    cold = torch.zeros_like(choice).scatter_(-1, choice.argmax(-1, keepdim=True), 1.0)
    if draw is None:
        return cold
    warm = draw.temperature > 0
    return torch.where(warm[:, None], (choice / torch.where(warm, draw.temperature, 1.0)[:, None]).softmax(-1), cold)


def top_logprobs(logits: Tensor, token: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k most probable tokens of each row and the rank of `token`: ids [L, k] int64, log-probabilities [L, k], rank [L] (1 is best)."""
    own = logits.gather(-1, token[:, None])
    values, ids = logits.topk(k, -1)
    rank = (logits > own).sum(-1) + 1
    return ids, values - logits.logsumexp(-1, keepdim=True), rank
