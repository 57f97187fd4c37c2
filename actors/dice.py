"""How the sequences of a group draw, as a struct of tensors, and the per-row arguments of `pick` made from it."""

from collections.abc import Sequence as Listlike
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drawloom.actors.sequence import Sequence
from drawloom.decoders.step import Lines, Step
from drawloom.kernels.pick import Draw, Penalty


@dataclass(frozen=True)
class Dice:
    """Sampling settings, one line per sequence [S]; bias is padded to [S, E] with token -1."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    bias: Tensor
    bias_token: Tensor = field(metadata={"fill": -1})


def dice_of(sequences: Listlike[Sequence]) -> Dice:
    """Dice of new sequences."""
    settings = [sequence.request.sampling for sequence in sequences]
    reals = {
        name: torch.tensor([getattr(one, name) for one in settings], dtype=torch.float32) for name in ("temperature", "top_p", "min_p")
    }
    width = max(1, *(len(one.logit_bias) for one in settings))
    pads = [width - len(one.logit_bias) for one in settings]
    return Dice(
        **reals,
        top_k=torch.tensor([one.top_k for one in settings]),
        repetition=torch.tensor([one.repetition_penalty for one in settings]),
        frequency=torch.tensor([one.frequency_penalty for one in settings]),
        presence=torch.tensor([one.presence_penalty for one in settings]),
        bias_token=torch.tensor([[*one.logit_bias, *[-1] * pad] for one, pad in zip(settings, pads, strict=True)], dtype=torch.int64),
        bias=torch.tensor([[*one.logit_bias.values(), *[0.0] * pad] for one, pad in zip(settings, pads, strict=True)]),
    )


@dataclass(frozen=True)
class Needs:
    """What a set of sequences asks of `pick`, known on the host."""

    warm: bool = False
    narrowed: bool = False
    adjusted: bool = False
    alternatives: int = -1  # most wanted alternatives a token; -1: no logprobs wanted
    trace: bool = False  # when each token was revealed

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(
            self.warm or other.warm,
            self.narrowed or other.narrowed,
            self.adjusted or other.adjusted,
            max(self.alternatives, other.alternatives),
            self.trace or other.trace,
        )


def needs_of(sequence: Sequence) -> Needs:
    s = sequence.request.sampling
    warm = s.temperature > 0
    return Needs(
        warm=warm,
        narrowed=warm and (s.top_k > 0 or s.top_p < 1 or s.min_p > 0),
        adjusted=s.repetition_penalty != 1 or s.frequency_penalty != 0 or s.presence_penalty != 0 or bool(s.logit_bias),
        alternatives=-1 if s.logprobs is None else s.logprobs,
        trace=sequence.request.trace,
    )


def draw_of(dice: Dice, lines: Lines, line: Tensor, position: Tensor) -> Draw:
    """Draw of rows [L] that belong to `line` [L] and predict absolute `position` [L]."""
    own = {name: getattr(dice, name)[line] for name in ("temperature", "top_k", "top_p", "min_p")}
    return Draw(**own, seed=lines.seed[line], sample=lines.sample[line], position=position)


def penalty_of(dice: Dice, lines: Lines, step: Step, flat: Tensor, vocab_size: int) -> Penalty:
    """Penalties of the rows `flat` [L] = line * K + k. Their context is the history and what they see of the step
    (mask tokens are counted too, which changes nothing: they are never picked)."""
    line, k = flat // step.tokens.shape[1], flat % step.tokens.shape[1]
    plain = (dice.repetition == 1) & (dice.frequency == 0) & (dice.presence == 0) & (dice.bias_token < 0).all(1)
    rows = (~plain[line]).nonzero()[:, 0]
    line, k = line[rows], k[rows]
    place = torch.arange(lines.history.shape[1], device=line.device)
    final = place < lines.length[line, None]
    fresh = (place >= lines.prompt_len[line, None]) & final
    count = _tally(lines.history[line], fresh, vocab_size) + _tally(step.tokens[line], _context(step, lines, line, k), vocab_size)
    seen = (count + _tally(lines.history[line], final, vocab_size)) > 0
    bias = torch.zeros_like(count).scatter_add_(1, dice.bias_token[line].clamp(min=0), dice.bias[line])
    return Penalty(rows, seen, count, dice.repetition[line], dice.frequency[line], dice.presence[line], bias)


def _context(step: Step, lines: Lines, line: Tensor, k: Tensor) -> Tensor:
    """[M, K] bool: rows of the step that row k of `line` sees and that stand beyond the final tokens."""
    row = torch.arange(step.tokens.shape[1], device=k.device)
    visible = (row < step.see[line, k][:, None]) & step.valid[line]
    if step.ancestors is not None:
        word = step.ancestors[line, k].gather(1, (row // 64).expand(len(k), -1))
        visible = visible & ((word >> (row % 64)) & 1).bool()
    return visible & (step.positions[line] >= lines.length[line, None])


def _tally(tokens: Tensor, counted: Tensor, vocab_size: int) -> Tensor:
    return torch.zeros(len(tokens), vocab_size, device=tokens.device).scatter_add_(1, tokens, counted.float())
