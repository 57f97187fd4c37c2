"""One packed batch of rows, and what a network must offer to run it. S sequences, R rows, L logit rows, P pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """The rows of one forward, sequence after sequence, and which keys each may see.

    Row r of sequence s sees the first `prefix_lens[s]` committed keys of s, and of its own step's rows those with index
    j < see[r] (j counts from the sequence's first row) whose bit j is set in `ancestors[r]` when that is given.
    Committed key i of s stands at absolute position i and in slot pages[s, i // page_tokens] * page_tokens + i % page_tokens;
    row j of s is written to the slot of committed index prefix_lens[s] + j, whatever its position.
    Layers with a sliding window w further hide keys at positions <= position(row) - w.
    The *_host fields repeat device tensors as Python ints, so that no layer has to ask the device.
    """

    tokens: Tensor  # [R] int64
    positions: Tensor  # [R] int64, absolute
    see: Tensor  # [R] int32, >= 1: every row sees at least itself
    ancestors: Tensor | None  # [R, ceil(K / 64)] int64 bits, or None when no sequence drafts a tree
    row_starts: Tensor  # [S + 1] int32
    prefix_lens: Tensor  # [S] int32
    pages: Tensor  # [S, Pmax] int32, unused entries 0
    slots: Tensor  # [R] int64, where each row's K/V goes
    logit_rows: Tensor  # [L] int64, rows whose logits are wanted
    row_starts_host: Sequence[int]
    prefix_lens_host: Sequence[int]
    page_tokens: int
    # Values that a network derives once per batch and its layers share (padded indices, masks); filled by the network alone.
    scratch: dict[str, Any]
    # Soft inputs: row r enters as weight[r] of its token's embedding and 1 - weight[r] of the mask token's. None: all rows are plain.
    weight: Tensor | None = None  # [R] float32

    @property
    def num_rows(self) -> int:
        return self.row_starts_host[-1]

    @property
    def num_sequences(self) -> int:
        return len(self.prefix_lens_host)


@dataclass(frozen=True)
class ModelInfo:
    """What an engine must know of a network."""

    name: str
    vocab_size: int  # width of the logits
    max_context: int  # positions
    eos_token_ids: tuple[int, ...]
    mask_token_id: int | None  # diffusion checkpoints only
    block_tokens: int  # visibility of committed text: 1 is causal, n is block-causal with blocks of n tokens, FULL is full attention
    shifted: bool  # True: row i-1 predicts position i (autoregressive); False: row i predicts position i
    fingerprint: str  # changes when weights, config or tokenizer change


class Model(Protocol):
    """A network that runs a Ragged batch against pages that it owns."""

    info: ModelInfo

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        """Make room for num_pages pages; may be called once."""
        ...

    def page_bytes(self, page_tokens: int) -> int:
        """Memory of one page over all layers, for sizing the pool."""
        ...

    def forward(self, ragged: Ragged) -> Tensor:
        """Write every row's K/V into its slot and return logits [L, V] float32 of `logit_rows`."""
        ...

    def move_rows(self, source: Tensor, target: Tensor) -> None:
        """Copy K/V from slots source [M] int64 to slots target [M] int64 in every layer (compaction of accepted rows)."""
        ...
