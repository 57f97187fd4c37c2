"""Rows of networks that draft: what of a text they have not read yet, and what they draft behind it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from drawloom.actors.pack import Part, pack, table_of
from drawloom.actors.sequence import Sequence as Text
from drawloom.decoders.step import Lines, Step
from drawloom.models.ragged import Ragged


class DraftRows:
    """M texts that a network drafts for now, and their rows in the pages (models/drafters/contract.py, Reading)."""

    def __init__(self, texts: Sequence[Text], lines: Lines, page_tokens: int, device: torch.device) -> None:
        self.texts, self.lines, self.page_tokens, self.device = texts, lines, page_tokens, device
        self._last: Tensor | None = None

    @property
    def last(self) -> Tensor:
        if self._last is None:
            self._last = self.lines.history.gather(1, (self.lines.length - 1)[:, None])[:, 0]
        return self._last

    def unread(self) -> tuple[Tensor, Tensor]:
        places = [np.arange(min(one.draft_filled, one.filled), one.filled) for one in self.texts]
        return self._sent(places), self._sent([self._slots(one, place) for one, place in zip(self.texts, places, strict=True)])

    def newest(self) -> Tensor:
        return self._sent([self._slots(one, np.array([one.filled - 1])) for one in self.texts])

    def block(self, rows: int, mask_token: int) -> Ragged:
        """Of texts that the target has read but for the last token; everything but that token is known on the host."""
        tokens = torch.full((len(self.texts), rows), mask_token, dtype=torch.int64, device=self.device)
        tokens[:, 0] = self.last
        filled = [one.filled for one in self.texts]
        place = np.array(filled)[:, None] + np.arange(rows)
        pages = table_of([one.pages for one in self.texts])
        slots = (
            pages[np.arange(len(place))[:, None], place // self.page_tokens].astype(np.int64) * self.page_tokens + place % self.page_tokens
        )
        starts = np.arange(0, place.size + 1, rows)
        return Ragged(
            tokens=tokens.flatten(),
            positions=self._sent([place.flatten()]),
            see=torch.full((place.size,), rows, dtype=torch.int32, device=self.device),
            ancestors=None,
            row_starts=self._sent([starts.astype(np.int32)]),
            prefix_lens=self._sent([np.array(filled, dtype=np.int32)]),
            pages=torch.from_numpy(pages).to(self.device),
            slots=self._sent([slots.flatten()]),
            logit_rows=torch.arange(place.size, device=self.device),
            row_starts_host=starts.tolist(),
            prefix_lens_host=filled,
            page_tokens=self.page_tokens,
            scratch={},
        )

    def told(self, masks: int, mask_token: int) -> Ragged:
        known = [min(one.draft_filled, one.filled - 1) for one in self.texts]
        step = unread(self.texts, [start + 1 for start in known], self.device, masks, mask_token)
        return self.ragged(known, replace(step, positions=step.positions - 1))

    def have_read(self) -> None:
        """The network has read what the target has."""
        for one in self.texts:
            one.draft_filled = one.filled

    def ragged(self, known: Sequence[int], step: Step) -> Ragged:
        """A step behind the first `known` tokens of each text's pages."""
        part = Part([[]] * len(self.texts), known, [one.pages for one in self.texts], 1, step)
        return pack([part], self.page_tokens, exact=True, device=self.device).ragged

    def _slots(self, text: Text, place: np.ndarray) -> np.ndarray:
        return np.asarray(text.pages, dtype=np.int64)[place // self.page_tokens] * self.page_tokens + place % self.page_tokens

    def _sent(self, numbers: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(numbers)).to(self.device)


def unread(texts: Sequence[Text], known: Sequence[int], device: torch.device, masks: int = 0, mask_token: int = 0) -> Step:
    """Rows for every final token behind the first `known` of each text, and masks behind them; the logits of the last one and of the masks
    are wanted."""
    rows = [[*one.tokens[start:], *[mask_token] * masks] for one, start in zip(texts, known, strict=True)]
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    place = torch.arange(width, device=device).expand_as(tokens)
    count = torch.tensor([len(row) for row in rows], device=device)[:, None]
    positions = torch.tensor(known, device=device)[:, None] + place
    return Step(tokens, positions, place + 1, place < count, (place >= count - 1 - masks) & (place < count))


def behind(token: Tensor, lines: Lines, row: int) -> Step:
    """One row for each drafted token."""
    here = torch.ones_like(token, dtype=torch.bool)
    return Step(token, (lines.length + row)[:, None], here.long(), here, here)
