"""What a decoder asks of a network that drafts, and what it gets. S lines, W places of a draft, N drafted tokens, V
vocabulary."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Drafting:
    """What a decoder asks of a network that drafts."""

    model: str  # its name
    width: int  # tokens
    confidence: float  # a draft ends before the first place whose likeliest token has less than this
    coupled: bool  # draws share the target's noise
    laws: bool  # what each token was drawn from is wanted
    kind: str = "network"  # a causal network of its own; "block", "eagle" or "heads": on the target's features
    ranks: int = 0  # how many of the likeliest tokens of each place are wanted
    most: int = 0  # with ranks: nodes of the tree that is made of them
    gain: float = 0.0  # with ranks: what a level must add to the tokens that the best `most` candidates promise, or it is the last
    paths: int = 1  # independent continuations that are drawn behind a trunk of so many tokens
    trunk: int = 0

    @property
    def levels(self) -> tuple[int, ...]:
        """Drafted rows of each depth."""
        return (1,) * self.trunk + (self.paths,) * (self.width - self.trunk)

    @property
    def nodes(self) -> int:
        """Drafted rows."""
        return sum(self.levels)

    @property
    def rows(self) -> int:
        """Slots behind the target's prefix that the network's own rows take."""
        own = self.ranks * (self.width - 1) if self.ranks else self.nodes - self.levels[-1]
        return {"network": own + 1, "block": self.width + 1, "eagle": own}.get(self.kind, 0)


@dataclass(frozen=True)
class Drafted:
    """What it gave."""

    tokens: Tensor  # [S, N] int64, level by level; a chain has one in each
    num: Tensor  # [S] int64, how many levels count
    q: Tensor | None  # [S, N, V] what each was drawn from, when it was wanted
    # [S, W, ranks] the likeliest tokens of each place and the logarithms of their chances, best first, when they were wanted. With shared
    # noise the chances are those that the drafter sees behind the noise.
    top: Tensor | None = None
    score: Tensor | None = None
    grown: "Grown | None" = None  # in place of all that: a tree's candidates


@dataclass(frozen=True)
class Grown:
    """Candidates for a tree, all [S, N], a parent before its children, scores falling from parent to child; and those of them that grew
    or would grow on, [S, B]."""

    tokens: Tensor  # int64
    parent: Tensor  # int64, 0: the root, i + 1: candidate i
    depth: Tensor  # int64, 1 behind the root
    score: Tensor  # float32, sums of logarithms
    beam: Tensor  # [S, B] int64, which candidates
    row_parent: Tensor  # [S, B] int64, 0: the root, i + 1: beam i

    @classmethod
    def empty(cls, lines: int, ranks: int, width: int, device: torch.device) -> "Grown":
        """None, in the shapes of a draft `width` deep."""
        none = torch.zeros(lines, ranks + (width - 1) * ranks * ranks, dtype=torch.int64, device=device)
        beams = none[:, :1].repeat(1, ranks * width)
        return cls(none, none.clone(), none + 1, none - torch.inf, beams, beams.clone())
