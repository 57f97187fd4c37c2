"""The K/V of a full-attention canvas, kept by a naive reference."""

from dataclasses import dataclass

import torch
from oracles import GOLD

from drawloom.models.hash_lm import HashLM, mix


@dataclass
class Books:
    """K/V of HashLM at every position, as of the forward that computed it last."""

    model: HashLM
    pairs: torch.Tensor
    deep: torch.Tensor

    def forward(self, tokens: list[int], places: list[int]) -> torch.Tensor:
        """Recompute `places`; logits [len(tokens), V], right for those places."""
        position = torch.arange(len(tokens))
        self.pairs[places] = self.model.pair(position, torch.tensor(tokens))[places]
        self.deep[places] = mix(self.pairs.sum() + position * GOLD)[places]
        return self.model.logits(self.deep.sum().expand(len(tokens)), position)
