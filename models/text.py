"""Text to token ids and back, as the pipeline's CPU stage and the engine's stop strings need it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Text(Protocol):
    """A tokenizer with its chat template. Picklable or rebuilt from settings; no weights."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a plain prompt, with the special tokens that the model expects at its start."""
        ...

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a chat through the model's template, ready for the answer.

        Raises RowError when the model has no template or a message is malformed.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        ...
