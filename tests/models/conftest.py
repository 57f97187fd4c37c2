"""A small driver that feeds networks with ragged batches built by hand, pages in random order."""

import random
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor

from drawloom.models.ragged import Model, Ragged


class Driver:
    """Sequences with a committed length and pages each; `step` runs new rows of several of them in one forward."""

    def __init__(self, model: Model, num_pages: int, page_tokens: int, seed: int | None = 0) -> None:
        self.model, self.page_tokens = model, page_tokens
        self.free = list(range(num_pages))
        if seed is not None:
            random.Random(seed).shuffle(self.free)
        self.pages: dict[int, list[int]] = {}
        self.committed: dict[int, int] = {}
        model.allocate(num_pages, page_tokens)

    def step(self, batch: Mapping[int, Sequence[int]], rows: str = "all", **visible: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        """Run and commit rows {sequence: tokens}; logits of "all" rows or the "last" of each. visible may hold `see` and `ancestors`."""
        ragged = self.ragged(batch, rows, **visible)
        logits = self.model.forward(ragged)
        counts = [len(tokens) if rows == "all" else 1 for tokens in batch.values()]
        for sequence, tokens in batch.items():
            self.committed[sequence] += len(tokens)
        return dict(zip(batch, logits.split(counts), strict=True))

    def ragged(self, batch: Mapping[int, Sequence[int]], rows: str = "all", **visible: Mapping[int, Sequence[int]]) -> Ragged:
        starts, positions, see, slots, wanted = [0], [], [], [], []
        for sequence, tokens in batch.items():
            prefix = self.committed.setdefault(sequence, 0)
            self._grow(sequence, prefix + len(tokens))
            positions += range(prefix, prefix + len(tokens))
            see += visible.get("see", {}).get(sequence, range(1, len(tokens) + 1))
            slots += [self.slot(sequence, prefix + row) for row in range(len(tokens))]
            starts.append(starts[-1] + len(tokens))
            wanted += range(starts[-2], starts[-1]) if rows == "all" else [starts[-1] - 1]
        pages = [self.pages[sequence] for sequence in batch]
        widest = max(map(len, pages))
        prefixes = [self.committed[sequence] for sequence in batch]
        bits = [bit for sequence in batch for bit in visible.get("ancestors", {}).get(sequence, [-1] * len(batch[sequence]))]
        return Ragged(
            tokens=torch.tensor([token for tokens in batch.values() for token in tokens]),
            positions=torch.tensor(positions),
            see=torch.tensor(see, dtype=torch.int32),
            ancestors=torch.tensor(bits)[:, None] if "ancestors" in visible else None,
            row_starts=torch.tensor(starts, dtype=torch.int32),
            prefix_lens=torch.tensor(prefixes, dtype=torch.int32),
            pages=torch.tensor([[*own, *[0] * (widest - len(own))] for own in pages], dtype=torch.int32),
            slots=torch.tensor(slots),
            logit_rows=torch.tensor(wanted),
            row_starts_host=starts,
            prefix_lens_host=prefixes,
            page_tokens=self.page_tokens,
            scratch={},
        )

    def slot(self, sequence: int, index: int) -> int:
        return self.pages[sequence][index // self.page_tokens] * self.page_tokens + index % self.page_tokens

    def _grow(self, sequence: int, length: int) -> None:
        own = self.pages.setdefault(sequence, [])
        while len(own) * self.page_tokens < length:
            own.append(self.free.pop(0))


@pytest.fixture(scope="session")
def drive() -> Callable[..., Driver]:
    return Driver
