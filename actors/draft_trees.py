"""Drafts with several continuations, by networks: the likeliest ones, or independent draws."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from drawloom.actors.draft_rows import DraftRows
from drawloom.actors.draft_tokens import Who, say
from drawloom.decoders.drafting import Drafted, Grown
from drawloom.decoders.prefixes import first_level, gain_of, next_level, rows_of
from drawloom.decoders.step import take
from drawloom.models.drafters.contract import Begun, ParallelDrafter, SerialDrafter

Behind = Callable[[Grown, int], Tensor]  # logits [M, B, V] behind the last B candidates


def likeliest(who: Who, start: Tensor, behind: Behind) -> Drafted:
    """Level by level, `ranks` tokens behind each of the `ranks` likeliest prefixes of the level before; start [M, V] is behind the text.
    With a `gain`, a text's candidates end before the first level that adds less than that to what its best ones promise together."""
    ranks, nodes = who.asked.ranks, who.asked.most
    said = say(who, start[:, None], [0])
    assert said.top is not None
    assert said.score is not None
    grown = first_level(said.top[:, 0], said.score[:, 0])
    each = torch.arange(len(who.texts), device=start.device).repeat_interleave(ranks)
    wide = replace(who, lines=take(who.lines, each), dice=take(who.dice, each))
    shape, open_ = (len(who.texts), ranks, ranks), torch.ones_like(who.lines.length, dtype=torch.bool)
    for level in range(1, who.asked.width):
        said = say(wide, behind(grown, ranks).flatten(0, 1)[:, None], [level])
        assert said.top is not None
        assert said.score is not None
        before = grown
        grown = next_level(grown, said.top.view(shape), torch.where(open_[:, None, None], said.score.view(shape), -torch.inf))
        if who.asked.gain:
            open_ = open_ & (gain_of(before, grown, nodes) >= who.asked.gain)
            shut = torch.arange(grown.tokens.shape[1], device=open_.device) >= before.tokens.shape[1]
            grown = replace(grown, score=torch.where(shut & ~open_[:, None], -torch.inf, grown.score))
    whole = torch.full_like(who.lines.length, who.asked.width)
    return Drafted(whole[:, None].expand(-1, who.asked.nodes) * 0, whole, None, grown=grown)


def drawn(who: Who, start: Tensor, behind: Behind) -> Drafted:
    """A trunk, and independent paths behind it, every token drawn from its law; start [M, V] is behind the text."""
    none = who.lines.history[:, :0]
    grown, laws, logits = Grown(none, none, none, none.float(), none, none), [], start[:, None]
    for level, width in enumerate(who.asked.levels):
        first = grown.tokens.shape[1]
        number = first + torch.arange(width, device=start.device)
        said = say(who, logits.expand(-1, width, -1), [level] * width, numbers=number.tolist())
        laws.append(said.law)
        above = torch.arange(first - logits.shape[1], first, device=start.device) + 1 if level else number[:1] * 0
        parent, depth = above.expand(width).expand_as(said.token), torch.full_like(said.token, level + 1)
        fresh = (said.token, parent, depth, depth * 0.0, number.expand_as(said.token), parent)
        own = (grown.tokens, grown.parent, grown.depth, grown.score, grown.beam, grown.row_parent)
        grown = Grown(*(torch.cat(pair, 1) for pair in zip(own, fresh, strict=True)))
        if level + 1 < who.asked.width:
            logits = behind(grown, width)
    whole = torch.full_like(who.lines.length, who.asked.width)
    return Drafted(grown.tokens, whole, torch.cat(laws, 1) if who.asked.laws else None)


def by_tokens(model: Any, rows: DraftRows) -> Behind:
    """By a network that reads tokens, and has read the whole text. All rows run again in every level, so that each sees its ancestors."""

    def behind(grown: Grown, width: int) -> Tensor:
        step, _ = rows_of(grown, rows.lines.length, width)
        return model.forward(rows.ragged([len(one.tokens) for one in rows.texts], step)).unflatten(0, (len(rows.texts), width))

    return behind


def by_features(model: SerialDrafter, target: Any, rows: DraftRows, hidden: Tensor) -> Behind:
    """By a network that reads its own output; hidden [M, H] is that behind the text. A row enters beside its parent's."""
    beside = hidden[:, None]

    def behind(grown: Grown, width: int) -> Tensor:
        nonlocal beside
        step, parent = rows_of(grown, rows.lines.length - 1, width)
        above = beside.gather(1, parent[..., None].expand(-1, -1, beside.shape[2])).flatten(0, 1)
        out, logits = model.forward(target, rows.ragged([one.filled for one in rows.texts], step), above)
        beside = torch.cat([beside[:, :1], out.unflatten(0, (len(rows.texts), -1))], 1)
        return logits.unflatten(0, (len(rows.texts), width))

    return behind


def by_places(logits: Tensor) -> Behind:
    """By a network that has said all places, logits [M, W, V], and tells none the others."""

    def behind(grown: Grown, width: int) -> Tensor:
        level = int(grown.depth[0, -1])
        return logits[:, level, None].expand(-1, width, -1)

    return behind


def by_corrections(model: ParallelDrafter, target: Any, begun: Begun, last: Tensor) -> tuple[Tensor, Behind]:
    """By one that corrects each place by the tokens before it, whose texts end in tokens last [M]: logits behind the text, and the rest."""
    place = model.place(target, begun, 0, last, None)
    state, lines = place.state, 1

    def behind(grown: Grown, width: int) -> Tensor:
        nonlocal state, lines
        level = int(grown.depth[0, -1])
        wide = Begun(repeated(begun.hidden, width), repeated(begun.logits, width))
        found = model.place(target, wide, level, grown.tokens[:, -width:].flatten(), repeated(state, width // lines))
        state, lines = found.state, width
        return found.logits.unflatten(0, (-1, width))

    return place.logits, behind


def repeated(value: Any, times: int) -> Any:
    """Each line of a tensor [M, ...], or of the tensors in a list, so many times."""
    if isinstance(value, Sequence):
        return [repeated(one, times) for one in value]
    return None if value is None else value.repeat_interleave(times, 0)
