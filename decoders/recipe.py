"""What a row of decoders/recipes.py is."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from drawloom.decoders.step import Decoder

Value = float | int | str


CAUSAL, BLOCKS, FULL = "any causal", "block-causal diffusion", "full-attention diffusion"
SHIFTED_BLOCKS = "block-causal diffusion with shifted logits"


@dataclass(frozen=True)
class Recipe:
    """A named expression. `make` takes the parameters (for diffusion behind the mask token, for full attention also behind `shifted`)."""

    make: Callable[..., Decoder]
    about: str
    paper: str
    model: str = CAUSAL  # what attention the model was trained with
    lossless: bool = True  # the text equals plain autoregression with the same seed
    shifted: bool = False  # full attention: what to assume of a network that does not say

    @property
    def diffusion(self) -> bool:
        """Needs a model with a mask token."""
        return self.model != CAUSAL

    @property
    def params(self) -> dict[str, Value]:
        """Parameters and their defaults."""
        signature = inspect.signature(self.make).parameters.values()
        return {p.name: p.default for p in signature if p.default is not inspect.Parameter.empty}


def diffusion(make: Callable[..., Decoder], about: str, paper: str, model: str = BLOCKS, *, shifted: bool = False) -> Recipe:
    return Recipe(make, about, paper, model, lossless=False, shifted=shifted)
