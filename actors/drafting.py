"""Drafts of networks: a smaller autoregressive one, or one that reads the target's features. Their K/V lies in the same pages as the
target's, in a store of its own, so that admission, preemption and page tables serve both; so do the features. What of a text a network
has not read yet it reads when it drafts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from drawloom.actors.draft_rows import DraftRows, behind, unread
from drawloom.actors.draft_tokens import Who, drafted, nothing, put, say
from drawloom.actors.draft_trees import by_corrections, by_features, by_places, by_tokens, drawn, likeliest
from drawloom.actors.group import Group
from drawloom.decoders.drafting import Drafted, Drafting
from drawloom.decoders.step import take
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
        forbidden = None if isinstance(model, FeatureDrafter) else model.info.mask_token_id
        if len(lines) == len(most):
            who = Who(group.sequences, group.lines, group.dice, asked, group.needs, forbidden)
            group.receive(_up_to(self._by(model, who), torch.tensor(most, device=self.device)))
            return
        whole = nothing(len(most), asked, self.target.info.vocab_size, self.device)
        if lines:
            index = torch.tensor(lines, device=self.device)
            texts = [group.sequences[line] for line in lines]
            who = Who(texts, take(group.lines, index), take(group.dice, index), asked, group.needs, forbidden)
            put(whole, index, _up_to(self._by(model, who), torch.tensor(most, device=self.device)[index]))
        group.receive(whole)

    def _by(self, model: Model | FeatureDrafter, who: Who) -> Drafted:
        if isinstance(model, ParallelDrafter):
            return self._at_once(model, who)
        if isinstance(model, SerialDrafter):
            return self._serial(model, who)
        assert not isinstance(model, FeatureDrafter)
        return self._alone(model, who)

    def _alone(self, model: Model, who: Who) -> Drafted:
        """By a network that reads tokens."""
        known, rows = [min(one.draft_filled, one.filled) for one in who.texts], self._rows(who)
        said, step = [], unread(who.texts, known, self.device)
        if who.asked.paths > 1:
            start = model.forward(rows.ragged(known, step))
            for one in who.texts:
                one.draft_filled = len(one.tokens)
            return drawn(who, start, by_tokens(model, rows))
        for row in range(who.asked.width):
            said.append(say(who, model.forward(rows.ragged(known, step))[:, None], [row]))
            known = [len(one.tokens) + row for one in who.texts]
            step = behind(said[-1].token, who.lines, row)
        for one, end in zip(who.texts, known, strict=True):
            one.draft_filled = end
        return drafted(said)

    def _at_once(self, model: ParallelDrafter, who: Who) -> Drafted:
        """All places by one forward of its layers, and then, if it corrects them, each told the ones before it."""
        rows = self._rows(who)
        begun = model.begin(self.target, rows, who.asked.width)
        rows.have_read()
        if who.asked.paths > 1:
            if model.corrected:
                return drawn(who, *by_corrections(model, self.target, begun, rows.last))
            logits = model.logits(self.target, begun)
            return drawn(who, logits[:, 0], by_places(logits))
        if not model.corrected:
            return drafted([say(who, model.logits(self.target, begun), range(who.asked.width))])
        said, token, state = [], rows.last, None
        for number in range(who.asked.width):
            place = model.place(self.target, begun, number, token, state)
            said.append(say(who, place.logits[:, None], [number], place.chance))
            token, state = said[-1].token[:, 0], place.state
        return drafted(said)

    def _serial(self, model: SerialDrafter, who: Who) -> Drafted:
        """Token by token, by a network that reads features, and its own output behind them."""
        rows = self._rows(who)
        hidden, logits = self._start(model, rows)
        if who.asked.ranks:
            return likeliest(who, logits, by_features(model, self.target, rows, hidden))
        if who.asked.paths > 1:
            return drawn(who, logits, by_features(model, self.target, rows, hidden))
        said = []
        for row in range(who.asked.width):
            said.append(say(who, logits[:, None], [row]))
            if row + 1 < who.asked.width:
                step = behind(said[-1].token, who.lines, row)
                step = replace(step, positions=step.positions - 1)  # the row of a token stands one place before it
                hidden, logits = model.forward(self.target, rows.ragged([one.filled + row for one in who.texts], step), hidden)
        return drafted(said)

    def _start(self, model: SerialDrafter, rows: DraftRows) -> tuple[Tensor, Tensor]:
        """Read what the target has seen since: hidden [M, H] and logits [M, V] behind each text's last final token."""
        ragged = rows.told(0, 0)
        hidden, logits = model.forward(self.target, ragged, model.enter(self.target.features(ragged.slots, model.taps)))
        rows.have_read()
        return hidden[ragged.logit_rows], logits

    def _rows(self, who: Who) -> DraftRows:
        return DraftRows(who.texts, who.lines, self.page_tokens, self.device)


def _up_to(drafted: Drafted, most: Tensor) -> Drafted:
    """A draft with at most most [S] levels."""
    return replace(drafted, num=torch.minimum(drafted.num, most))
