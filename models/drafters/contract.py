"""What an engine must know of a network that drafts from a target's features. N tokens, M texts, C target width, T tapped layers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from drawloom.models.ragged import Ragged


class Target(Protocol):
    """What a drafter borrows from its target."""

    def tap(self, layers: Any) -> None: ...

    def features(self, slots: Tensor, layers: Any) -> Tensor: ...

    def embed(self, tokens: Tensor) -> Tensor: ...

    def head(self, hidden: Tensor) -> Tensor: ...


TRIAL = "probe.json"  # beside a drafter's weights


@dataclass(frozen=True)
class Trial:
    """What a drafter was worth when it was made."""

    prompts: tuple[str, ...]
    accepted: float  # share of drafted tokens (of chains), at temperature 0


class FeatureDrafter(ABC):
    """Its K/V lies in a store of its own, in the places of the target's pages; what it needs of the target lies there, too."""

    kind: str  # "block", "eagle" or "heads": the recipes that it fits
    name: str
    taps: tuple[int, ...]  # layers of the target, as TransformersModel.tap counts them
    most: int  # tokens of a draft
    max_context: int  # positions
    trial: Trial | None = None  # where its files tell

    @abstractmethod
    def allocate(self, num_pages: int, page_tokens: int) -> None: ...

    @abstractmethod
    def page_bytes(self, page_tokens: int) -> int: ...


class ParallelDrafter(FeatureDrafter):
    """Says all tokens of a draft at once."""

    mask_token: int = 0  # stands in the rows of what is not known yet

    @abstractmethod
    def absorb(self, features: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Read final tokens: features [N, T * C], positions [N], slots [N]."""

    @abstractmethod
    def rows(self, width: int) -> int:
        """Rows of its own that a draft of `width` tokens takes; 0: it runs none."""

    @abstractmethod
    def logits(self, target: Target, ragged: Ragged | None, last: Tensor, width: int) -> Tensor:
        """Logits [M, width, V] of the tokens behind the last final one; `ragged` holds its rows, `last` [M, T * C] the features of the
        last token that has any."""


class SerialDrafter(FeatureDrafter):
    """Says one token after the other, from its own output where the target has none yet. What it keeps for a token depends on the next
    one, too, so that texts may share a page only when they agree on the token behind it."""

    @abstractmethod
    def forward(self, target: Target, ragged: Ragged, features: Tensor) -> tuple[Tensor, Tensor]:
        """Rows with tokens [R] beside features [R, T * C], or [R, C] of its own -> hidden [R, C] and logits [L, V] of ragged.logit_rows."""
