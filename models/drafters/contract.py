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
    # What it keeps for a token depends on so many tokens behind it, so that texts may share a page only when they agree on those, too.
    ahead: int = 0

    @abstractmethod
    def allocate(self, num_pages: int, page_tokens: int) -> None: ...

    @abstractmethod
    def page_bytes(self, page_tokens: int) -> int: ...


class Reading(Protocol):
    """The texts that draft now, as an engine's pages hold them."""

    @property
    def last(self) -> Tensor:
        """The last final token of each, which the target has not read, [M] int64."""
        ...

    def unread(self) -> tuple[Tensor, Tensor]:
        """Positions and slots [N] of the tokens that the target has read and the drafter has not."""
        ...

    def newest(self) -> Tensor:
        """Slots [M] of the last token that the target has read."""
        ...

    def block(self, rows: int, mask_token: int) -> Ragged:
        """The last final token and rows - 1 masks behind it, which all see one another."""
        ...

    def told(self, masks: int, mask_token: int) -> Ragged:
        """A row for every token that the drafter has not read, holding the token behind it, and `masks` masks behind the last one; causal.
        Logits of the last row of each text and of its masks are wanted."""
        ...


@dataclass(frozen=True)
class Begun:
    """A draft whose places are there, but for what their tokens tell one another."""

    hidden: Tensor  # [M, W, H]
    logits: Tensor | None  # [M, W, Vd], where the head has spoken already


@dataclass(frozen=True)
class Place:
    """One place of a draft."""

    logits: Tensor  # [M, V]
    chance: Tensor | None  # [M] that it is accepted, if all before it are; where the drafter knows
    state: Any


class ParallelDrafter(FeatureDrafter):
    """Runs its layers once for all tokens of a draft."""

    corrected: bool = False  # places are told the tokens before them, one after the other, by a smaller network

    @abstractmethod
    def begin(self, target: Target, reading: Reading, width: int) -> Begun: ...

    @abstractmethod
    def logits(self, target: Target, begun: Begun) -> Tensor:
        """Logits [M, W, V] of all places, none told the others."""

    def place(self, target: Target, begun: Begun, number: int, token: Tensor, state: Any) -> Place:
        """A place behind a token [M]; `state` is that of the place before it, None at the first."""
        return Place(self.logits(target, begun)[:, number], None, state)


class SerialDrafter(FeatureDrafter):
    """Says one token after the other, from its own output where the target has none yet."""

    @abstractmethod
    def enter(self, features: Tensor) -> Tensor:
        """The target's features [R, T * C] -> what a row begins with [R, H]; its own output needs nothing."""

    @abstractmethod
    def forward(self, target: Target, ragged: Ragged, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Rows with tokens [R] beside hidden [R, H] -> what the rows behind them begin with [R, H], and logits [L, V] of logit_rows."""
