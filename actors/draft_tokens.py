"""The tokens of drafts: drawn from a network's logits as the target's are from its own, with the target's noise or with the draft's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drawloom.actors.dice import Dice, Needs, draw_of
from drawloom.actors.sequence import Sequence as Text
from drawloom.decoders.drafting import Drafted, Drafting, Grown
from drawloom.decoders.draws import draw
from drawloom.decoders.step import Lines
from drawloom.kernels.noise import gumbel
from drawloom.kernels.pick import Draw, Picked, law, pick


@dataclass(frozen=True)
class Who:
    """Who drafts now: M texts, and what was asked for them."""

    texts: list[Text]
    lines: Lines
    dice: Dice
    asked: Drafting
    needs: Needs
    forbidden: int | None


@dataclass(frozen=True)
class Said:
    """Places of a draft."""

    token: Tensor  # [M, W] int64
    sure: Tensor  # [M, W] bool
    law: Tensor | None = None  # [M, W, V]
    top: Tensor | None = None  # [M, W, ranks]
    score: Tensor | None = None


def say(who: Who, logits: Tensor, places: Sequence[int], chance: Tensor | None = None, numbers: Sequence[int] | None = None) -> Said:
    """The tokens of a draft at `places` behind the text, from logits [M, W, V]; chance [M] of one place, if the network says how sure it
    is. numbers: of the drafted rows, by which their noise is told apart; those of the places when there is one row for each."""
    asked, shape = who.asked, logits.shape[:2]
    line = torch.arange(shape[0], device=logits.device).repeat_interleave(shape[1])
    place = torch.tensor(places, device=logits.device).repeat(shape[0])
    settings = draw_of(who.dice, who.lines, line, who.lines.length[line] + place)
    picked = pick(logits.flatten(0, 1), settings, forbidden=who.forbidden, narrowed=who.needs.narrowed)
    own = law(picked.choice, picked.draw).unflatten(0, shape) if asked.confidence or not asked.coupled else None
    likeliest = chance[:, None] if chance is not None else None if own is None else own.amax(2)
    sure = torch.ones(shape, dtype=torch.bool, device=line.device) if likeliest is None else likeliest >= asked.confidence
    if asked.ranks:
        score, top = (one.unflatten(0, shape) for one in _likeliest(picked, settings, asked, who.needs))
        return Said(top[..., 0], sure, None, top, score)
    token = picked.token.unflatten(0, shape)
    if own is not None and not asked.coupled:
        token = torch.stack([draw(own[:, row], who.lines, number) for row, number in enumerate(numbers or places)], 1)
    return Said(token, sure, own if asked.laws else None)


def _likeliest(picked: Picked, settings: Draw, asked: Drafting, needs: Needs) -> tuple[Tensor, Tensor]:
    """Logarithms of the chances of the likeliest tokens [L, ranks], and the tokens; behind the target's noise if it is shared."""
    choice = picked.choice
    if picked.draw is not None:
        warm = picked.draw.temperature > 0
        choice = choice / torch.where(warm, picked.draw.temperature, 1.0)[:, None]
        if asked.coupled and needs.warm:
            noise = gumbel(settings.seed, settings.sample, settings.position, choice.shape[1])
            choice = torch.where(warm[:, None], choice + noise, choice)
    score, top = choice.log_softmax(1).topk(min(asked.ranks, choice.shape[1]), 1)
    missing = asked.ranks - top.shape[1]  # a vocabulary smaller than that
    return torch.nn.functional.pad(score, (0, missing), value=-torch.inf), torch.nn.functional.pad(top, (0, missing))


def drafted(said: Sequence[Said]) -> Drafted:
    """Places side by side; a draft ends before the first one that its network is not sure of."""

    def side_by_side(name: str) -> Tensor | None:
        values = [getattr(one, name) for one in said]
        return None if values[0] is None else torch.cat(values, 1)

    tokens, sure = (torch.cat([getattr(one, name) for one in said], 1) for name in ("token", "sure"))
    return Drafted(tokens, sure.long().cumprod(1).sum(1), side_by_side("law"), side_by_side("top"), side_by_side("score"))


def nothing(lines: int, asked: Drafting, vocab_size: int, device: torch.device) -> Drafted:
    """No draft, in the shapes of one."""
    none = torch.zeros(lines, asked.nodes, dtype=torch.int64, device=device)
    q = torch.zeros(*none.shape, vocab_size, device=device) if asked.laws else None
    if not asked.ranks:
        return Drafted(none, none[:, 0].clone(), q)
    if asked.kind == "eagle":
        return Drafted(none, none[:, 0].clone(), q, grown=Grown.empty(lines, asked.ranks, asked.width, device))
    top = none[..., None].repeat(1, 1, asked.ranks)
    return Drafted(none, none[:, 0].clone(), q, top, top.float())


def put(whole: Any, index: Tensor, own: Any) -> None:
    """Lines of a struct at index [M]."""
    for name, value in vars(own).items():
        if isinstance(value, Tensor):
            getattr(whole, name)[index] = value
        elif value is not None:
            put(getattr(whole, name), index, value)
