"""Drafts of a smaller autoregressive network. Its K/V lies in the same pages as the target's, in a store of its own, so that admission,
preemption and page tables serve both; what of a text it has not read yet it reads when it drafts.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from drawloom.actors.dice import draw_of
from drawloom.actors.group import Group
from drawloom.actors.pack import Part, pack
from drawloom.actors.sequence import Sequence as Text
from drawloom.decoders.draws import draw
from drawloom.decoders.step import Drafted, Drafting, Lines, Step, take
from drawloom.kernels.pick import law, pick
from drawloom.models.ragged import Model


class DraftModels:
    """The networks that draft for an engine, by name."""

    def __init__(self, models: Mapping[str, Model], page_tokens: int, device: torch.device) -> None:
        self.models, self.page_tokens, self.device = models, page_tokens, device

    def draft(self, group: Group, asked: Drafting) -> None:
        """Give the group's decoder `asked.width` drafted tokens for each of its lines, fewer where confidence or context end."""
        model, length = self.models[asked.model], group.lines.length
        # No token stands at or behind a text's limit, nor at or behind the end of the context.
        most = [min(one.limit, model.info.max_context) - len(one.tokens) for one in group.sequences]
        lines = [line for line, room in enumerate(most) if room > 0]
        tokens, num = torch.zeros(len(length), asked.width, dtype=torch.int64, device=self.device), torch.zeros_like(length)
        q = torch.zeros(*tokens.shape, model.info.vocab_size, device=self.device) if asked.laws else None
        if lines:
            who = torch.tensor(lines, device=self.device)
            own, count, laws = self._chain(model, group, who, asked)
            tokens[who], num[who] = own, torch.minimum(count, torch.tensor(most, device=self.device)[who])
            if q is not None:
                q[who] = laws
        group.receive(Drafted(tokens, num, q))

    def _chain(self, model: Model, group: Group, who: Tensor, asked: Drafting) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [M, W] of lines `who` [M], how many come before the network is unsure [M], and their laws [M, W, V] ([M, 0] unless they
        are wanted)."""
        lines, dice = take(group.lines, who), take(group.dice, who)
        texts = [group.sequences[line] for line in who.tolist()]
        known = [min(one.draft_filled, one.filled) for one in texts]
        tokens, laws, sure = [], [], []
        step = _unread(texts, known, self.device)
        line = torch.arange(len(texts), device=self.device)
        for row in range(asked.width):
            logits = self._forward(model, texts, known, step)
            settings = draw_of(dice, lines, line, lines.length + row)
            picked = pick(logits, settings, forbidden=model.info.mask_token_id, narrowed=group.needs.narrowed)
            own = law(picked.choice, picked.draw) if asked.confidence or not asked.coupled else None
            tokens.append(picked.token if asked.coupled or own is None else draw(own, lines, row))
            laws.append(tokens[-1][:, None][:, :0] if own is None or not asked.laws else own)
            sure.append(torch.ones_like(line, dtype=torch.bool) if own is None else own.amax(1) >= asked.confidence)
            known = [len(one.tokens) + row for one in texts]
            step = _next(tokens[-1], lines, row)
        for one, end in zip(texts, known, strict=True):
            one.draft_filled = end
        return torch.stack(tokens, 1), torch.stack(sure, 1).long().cumprod(1).sum(1), torch.stack(laws, 1)

    def _forward(self, model: Model, texts: Sequence[Text], known: Sequence[int], step: Step) -> Tensor:
        """Logits [M, V] behind the last row of each text."""
        part = Part([[]] * len(texts), known, [one.pages for one in texts], 1, step)
        return model.forward(pack([part], self.page_tokens, exact=True, device=self.device).ragged)


def _unread(texts: Sequence[Text], known: Sequence[int], device: torch.device) -> Step:
    """Rows for every final token that the network has not read; the last one's logits are wanted."""
    rows = [one.tokens[start:] for one, start in zip(texts, known, strict=True)]
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    place = torch.arange(width, device=device).expand_as(tokens)
    count = torch.tensor([len(row) for row in rows], device=device)[:, None]
    positions = torch.tensor(known, device=device)[:, None] + place
    return Step(tokens, positions, place + 1, place < count, place == count - 1)


def _next(token: Tensor, lines: Lines, row: int) -> Step:
    """One row for each drafted token."""
    tokens, here = token[:, None], torch.ones_like(token[:, None], dtype=torch.bool)
    return Step(tokens, (lines.length + row)[:, None], here.long(), here, here)
