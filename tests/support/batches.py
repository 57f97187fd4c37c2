"""Batches of ragged rows in pages, for the tests of attention."""

import math
import random
from dataclasses import dataclass

import torch

from drawloom.kernels.attention import Rows, Scoring


@dataclass(frozen=True)
class Case:
    """A batch whose caches hold NaN wherever no row may look."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    rows: Rows

    def attend(self, path, scoring: Scoring) -> torch.Tensor:
        return path(self.query, self.keys, self.values, self.rows._replace(scratch={}), scoring)


def make_case(seed: int, heads=(6, 2), size=24, page_tokens=5, tree=False, num_sequences=None) -> Case:
    """Random prefixes (some empty), row counts, positions, visibility and page order; every row sees itself."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    num = num_sequences or draw.randint(1, 5)
    prefixes = [draw.choice([0, 1, page_tokens, draw.randint(2, 33)]) for _ in range(num)]
    counts = [draw.choice([1, 1, 3, draw.randint(2, 11)]) for _ in range(num)]
    widths = [-(-(prefix + count) // page_tokens) for prefix, count in zip(prefixes, counts, strict=True)]
    free = list(range(sum(widths) + 3))
    draw.shuffle(free)
    pages = [[free.pop() for _ in range(width)] for width in widths]
    kinds = [draw.choice(["causal", "block", "full"]) for _ in range(num)]
    see = [_see(kind, row, count) for kind, count in zip(kinds, counts, strict=True) for row in range(count)]
    positions = [prefix + draw.randint(0, row) for prefix, count in zip(prefixes, counts, strict=True) for row in range(count)]
    bits = [draw.getrandbits(63) | 1 << row for count in counts for row in range(count)]
    keys, values = (torch.full(((sum(widths) + 3) * page_tokens, heads[1], size), math.nan) for _ in range(2))
    for own, prefix, count in zip(pages, prefixes, counts, strict=True):
        for index in range(prefix + count):
            slot = own[index // page_tokens] * page_tokens + index % page_tokens
            keys[slot], values[slot] = torch.randn(2, heads[1], size, generator=generator)
    starts = [sum(counts[:index]) for index in range(num + 1)]
    rows = Rows(
        positions=torch.tensor(positions),
        see=torch.tensor(see, dtype=torch.int32),
        ancestors=torch.tensor(bits)[:, None] if tree else None,
        row_starts=torch.tensor(starts, dtype=torch.int32),
        prefix_lens=torch.tensor(prefixes, dtype=torch.int32),
        pages=torch.tensor([[*own, *[0] * (max(widths) - len(own))] for own in pages], dtype=torch.int32),
        page_tokens=page_tokens,
        row_starts_host=starts,
        prefix_lens_host=prefixes,
        scratch={},
    )
    return Case(torch.randn(starts[-1], heads[0], size, generator=generator), keys, values, rows)


def _see(kind: str, row: int, count: int) -> int:
    return {"causal": row + 1, "block": min(count, (row // 4 + 1) * 4), "full": count}[kind]


SCORINGS = {
    "plain": Scoring(0.3),
    "window": Scoring(0.3, window=6),
    "softcap": Scoring(0.8, softcap=1.5),
    "sinks": Scoring(0.3, sinks=torch.linspace(-2, 3, 6)),
    "all": Scoring(0.6, window=9, softcap=2.0, sinks=torch.linspace(-2, 3, 6)),
}
