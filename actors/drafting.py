"""Drafts of networks: a smaller autoregressive one, or one that reads the target's features. Their K/V lies in the same pages as the
target's, in a store of its own, so that admission, preemption and page tables serve both; so do the features. What of a text a network
has not read yet it reads when it drafts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from drawloom.actors.dice import Dice, Needs, draw_of
from drawloom.actors.draft_rows import DraftRows, behind, unread
from drawloom.actors.group import Group
from drawloom.actors.sequence import Sequence as Text
from drawloom.decoders.drafting import Drafted, Drafting, Grown
from drawloom.decoders.draws import draw
from drawloom.decoders.prefixes import first_level, next_level, rows_of
from drawloom.decoders.step import Lines, take
from drawloom.kernels.noise import gumbel
from drawloom.kernels.pick import Draw, Picked, law, pick
from drawloom.models.drafters.contract import FeatureDrafter, ParallelDrafter, SerialDrafter
from drawloom.models.drafters.kinds import DECODERS
from drawloom.models.ragged import Model


def why_not_drafting(asked: Drafting, model: Model | FeatureDrafter) -> str:
    """Why a network cannot draft as it is asked to, or ""."""
    kind = model.kind if isinstance(model, FeatureDrafter) else "network"
    if kind != asked.kind:
        return f"drafter {asked.model!r} is one for the decoder {DECODERS[kind]!r}, not {DECODERS[asked.kind]!r}"
    if isinstance(model, ParallelDrafter) and asked.width > model.most:
        return f"width is {asked.width}; drafter {asked.model!r} says at most {model.most} tokens"
    if isinstance(model, ParallelDrafter) and model.corrected and asked.ranks:
        return f"nodes: drafter {asked.model!r} tells each token the ones before it, so that it drafts a chain; set nodes=0"
    return ""


@dataclass(frozen=True)
class _Who:
    """Who drafts now: M texts, and what was asked for them."""

    texts: list[Text]
    lines: Lines
    dice: Dice
    asked: Drafting
    needs: Needs
    forbidden: int | None


class DraftModels:
    """The networks that draft for an engine, by name. `target` is asked for features only by those that read them."""

    def __init__(self, models: Mapping[str, Model | FeatureDrafter], target: Any, page_tokens: int, device: torch.device) -> None:
        self.models, self.target, self.page_tokens, self.device = models, target, page_tokens, device

    def draft(self, group: Group, asked: Drafting) -> None:
        """Give the group's decoder `asked.width` drafted tokens for each of its lines, fewer where confidence or context end."""
        model = self.models[asked.model]
        on_features = isinstance(model, FeatureDrafter)
        context = model.max_context if isinstance(model, FeatureDrafter) else model.info.max_context
        # No token stands at or behind a text's limit, nor at or behind the end of the context.
        most = [min(one.limit, context) - len(one.tokens) for one in group.sequences]
        if on_features:  # nor is a draft possible before the target has read all but the last token: in a text's first step
            most = [room if 0 < one.filled == len(one.tokens) - 1 else 0 for room, one in zip(most, group.sequences, strict=True)]
        lines = [line for line, room in enumerate(most) if room > 0]
        drafted = _nothing(len(most), asked, self.target.info.vocab_size, self.device)
        if lines:
            index = torch.tensor(lines, device=self.device)
            forbidden = None if isinstance(model, FeatureDrafter) else model.info.mask_token_id
            texts = [group.sequences[line] for line in lines]
            who = _Who(texts, take(group.lines, index), take(group.dice, index), asked, group.needs, forbidden)
            own = self._by(model, who)
            own = replace(own, num=torch.minimum(own.num, torch.tensor(most, device=self.device)[index]))
            _put(drafted, index, own)
        group.receive(drafted)

    def _by(self, model: Model | FeatureDrafter, who: _Who) -> Drafted:
        if isinstance(model, ParallelDrafter):
            return self._at_once(model, who)
        if isinstance(model, SerialDrafter):
            return self._grown(model, who) if who.asked.ranks else self._serial(model, who)
        assert not isinstance(model, FeatureDrafter)
        return self._chain(model, who)

    def _chain(self, model: Model, who: _Who) -> Drafted:
        """Token by token, by a network that reads tokens."""
        known, rows = [min(one.draft_filled, one.filled) for one in who.texts], self._rows(who)
        said, step = [], unread(who.texts, known, self.device)
        for row in range(who.asked.width):
            said.append(_say(who, model.forward(rows.ragged(known, step))[:, None], row))
            known = [len(one.tokens) + row for one in who.texts]
            step = behind(said[-1].token, who.lines, row)
        for one, end in zip(who.texts, known, strict=True):
            one.draft_filled = end
        return _drafted(said)

    def _at_once(self, model: ParallelDrafter, who: _Who) -> Drafted:
        """All places by one forward of its layers, and then, if it corrects them, each told the ones before it."""
        rows = self._rows(who)
        begun = model.begin(self.target, rows, who.asked.width)
        rows.have_read()
        if not model.corrected:
            return _drafted([_say(who, model.logits(self.target, begun), 0)])
        said, token, state = [], rows.last, None
        for number in range(who.asked.width):
            place = model.place(self.target, begun, number, token, state)
            said.append(_say(who, place.logits[:, None], number, place.chance))
            token, state = said[-1].token[:, 0], place.state
        return _drafted(said)

    def _serial(self, model: SerialDrafter, who: _Who) -> Drafted:
        """Token by token, by a network that reads features, and its own output behind them."""
        rows = self._rows(who)
        hidden, logits = self._start(model, rows)
        said = []
        for row in range(who.asked.width):
            said.append(_say(who, logits[:, None], row))
            if row + 1 < who.asked.width:
                step = behind(said[-1].token, who.lines, row)
                step = replace(step, positions=step.positions - 1)  # the row of a token stands one place before it
                hidden, logits = model.forward(self.target, rows.ragged([one.filled + row for one in who.texts], step), hidden)
        return _drafted(said)

    def _grown(self, model: SerialDrafter, who: _Who) -> Drafted:
        """A tree: each level is `ranks` tokens behind each of the `ranks` likeliest prefixes of the level before."""
        rows = self._rows(who)
        hidden, logits = self._start(model, rows)
        said, beside = _say(who, logits[:, None], 0), hidden[:, None]
        assert said.top is not None
        assert said.score is not None
        grown = first_level(said.top[:, 0], said.score[:, 0])
        filled = [one.filled for one in who.texts]
        for level in range(1, who.asked.width):
            step, parent = rows_of(grown, who.lines.length - 1, who.asked.ranks)
            # A row enters beside its parent's output; all rows run again in every level, so that each sees its ancestors.
            above = beside.gather(1, parent[..., None].expand(-1, -1, beside.shape[2])).flatten(0, 1)
            hidden, logits = model.forward(self.target, rows.ragged(filled, step), above)
            beside = torch.cat([beside[:, :1], hidden.unflatten(0, (len(who.texts), -1))], 1)
            each = torch.arange(len(who.texts), device=hidden.device).repeat_interleave(who.asked.ranks)
            said = _say(replace(who, lines=take(who.lines, each), dice=take(who.dice, each)), logits[:, None], level)
            assert said.top is not None
            assert said.score is not None
            shape = (len(who.texts), who.asked.ranks, who.asked.ranks)
            grown = next_level(grown, said.top.view(shape), said.score.view(shape))
        whole = torch.full_like(who.lines.length, who.asked.width)
        return Drafted(whole[:, None].expand(-1, who.asked.width) * 0, whole, None, grown=grown)

    def _start(self, model: SerialDrafter, rows: DraftRows) -> tuple[Tensor, Tensor]:
        """Read what the target has seen since: hidden [M, H] and logits [M, V] behind each text's last final token."""
        ragged = rows.told(0, 0)
        hidden, logits = model.forward(self.target, ragged, model.enter(self.target.features(ragged.slots, model.taps)))
        rows.have_read()
        return hidden[ragged.logit_rows], logits

    def _rows(self, who: _Who) -> DraftRows:
        return DraftRows(who.texts, who.lines, self.page_tokens, self.device)


@dataclass(frozen=True)
class _Said:
    """Places of a draft."""

    token: Tensor  # [M, W] int64
    sure: Tensor  # [M, W] bool
    law: Tensor | None = None  # [M, W, V]
    top: Tensor | None = None  # [M, W, ranks]
    score: Tensor | None = None


def _say(who: _Who, logits: Tensor, first: int, chance: Tensor | None = None) -> _Said:
    """The tokens at places first.. of each draft, from logits [M, W, V]; chance [M] of one place, if the network says how sure it is."""
    asked, shape = who.asked, logits.shape[:2]
    line = torch.arange(shape[0], device=logits.device).repeat_interleave(shape[1])
    place = first + torch.arange(shape[1], device=logits.device).repeat(shape[0])
    settings = draw_of(who.dice, who.lines, line, who.lines.length[line] + place)
    picked = pick(logits.flatten(0, 1), settings, forbidden=who.forbidden, narrowed=who.needs.narrowed)
    own = law(picked.choice, picked.draw).unflatten(0, shape) if asked.confidence or not asked.coupled else None
    likeliest = chance[:, None] if chance is not None else None if own is None else own.amax(2)
    sure = torch.ones(shape, dtype=torch.bool, device=line.device) if likeliest is None else likeliest >= asked.confidence
    if asked.ranks:
        score, top = (one.unflatten(0, shape) for one in _likeliest(picked, settings, asked, who.needs))
        return _Said(top[..., 0], sure, None, top, score)
    token = picked.token.unflatten(0, shape)
    if own is not None and not asked.coupled:
        token = torch.stack([draw(own[:, row], who.lines, first + row) for row in range(shape[1])], 1)
    return _Said(token, sure, own if asked.laws else None)


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


def _drafted(said: Sequence[_Said]) -> Drafted:
    """Places side by side; a draft ends before the first one that its network is not sure of."""

    def side_by_side(name: str) -> Tensor | None:
        values = [getattr(one, name) for one in said]
        return None if values[0] is None else torch.cat(values, 1)

    tokens, sure = (torch.cat([getattr(one, name) for one in said], 1) for name in ("token", "sure"))
    return Drafted(tokens, sure.long().cumprod(1).sum(1), side_by_side("law"), side_by_side("top"), side_by_side("score"))


def _nothing(lines: int, asked: Drafting, vocab_size: int, device: torch.device) -> Drafted:
    """No draft, in the shapes of one."""
    none = torch.zeros(lines, asked.width, dtype=torch.int64, device=device)
    q = torch.zeros(*none.shape, vocab_size, device=device) if asked.laws else None
    if not asked.ranks:
        return Drafted(none, none[:, 0].clone(), q)
    if asked.kind == "eagle":
        return Drafted(none, none[:, 0].clone(), q, grown=Grown.empty(lines, asked.ranks, asked.width, device))
    top = none[..., None].repeat(1, 1, asked.ranks)
    return Drafted(none, none[:, 0].clone(), q, top, top.float())


def _put(whole: Any, index: Tensor, own: Any) -> None:
    """Lines of a struct at index [M]."""
    for name, value in vars(own).items():
        if isinstance(value, Tensor):
            getattr(whole, name)[index] = value
        elif value is not None:
            _put(getattr(whole, name), index, value)
