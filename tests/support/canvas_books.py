"""The K/V of every position, kept by a naive reference: of HashLM, and of a real network in transformers' own attention."""

from inspect import signature, unwrap
from typing import Any

import torch
from oracles import GOLD
from torch import Tensor

from drawloom.kernels.attention import FULL
from drawloom.models.hash_lm import HashLM, mix


class Books:
    """K/V of HashLM at every position, as of the forward that computed it last; visibility by blocks."""

    def __init__(self, model: HashLM, block: int = FULL) -> None:
        self.model, self.block = model, block
        self.pairs, self.deep = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)

    def forward(self, tokens: list[int], places: list[int]) -> Tensor:
        """Recompute `places`; logits [len(tokens), V], right for those places."""
        more = torch.zeros(len(tokens) - len(self.pairs), dtype=torch.int64)
        self.pairs, self.deep = torch.cat([self.pairs, more]), torch.cat([self.deep, more])
        position = torch.arange(len(tokens))
        self.pairs[places] = self.model.pair(position, torch.tensor(tokens))[places]
        seen = (position[None, :] // self.block <= position[:, None] // self.block).long()
        self.deep[places] = mix((self.pairs * seen).sum(1) + position * GOLD)[places]
        return self.model.logits((self.deep * seen).sum(1), position)


class NetworkBooks:
    """The same of a network of transformers. It takes the place of a cache: a layer's K/V is written where it belongs and read whole."""

    def __init__(self, model: Any, block: int = FULL) -> None:
        self.network, self.vocab, self.block = model.network, model.info.vocab_size, block
        known = signature(unwrap(type(self.network).forward)).parameters
        self.name = "cache" if "cache" in known else "past_key_values"  # as older versions of transformers call it
        self.stores: dict[int, tuple[Tensor, Tensor]] = {}
        self.places, self.length = torch.zeros(0, dtype=torch.int64), 0

    @torch.no_grad()
    def forward(self, tokens: list[int], places: list[int]) -> Tensor:
        self.places, self.length = torch.tensor(places), len(tokens)
        position = torch.arange(len(tokens))
        seen = position[None, :] // self.block <= self.places[:, None] // self.block
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        ids, at = torch.tensor([tokens])[:, self.places], self.places[None]
        out = self.network(input_ids=ids, position_ids=at, attention_mask=mask, use_cache=True, **{self.name: self}).logits[0]
        return torch.full((len(tokens), self.vocab), torch.nan).index_copy(0, self.places, out)

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """key, value [1, heads, places, head size] -> what all positions hold now."""
        found = []
        for old, new in zip(self.stores.get(layer, (key[:, :, :0], value[:, :, :0])), (key, value), strict=True):
            empty = new.new_zeros(*new.shape[:2], self.length - old.shape[2], new.shape[3])
            found.append(torch.cat([old, empty], 2).index_copy(2, self.places, new))
        self.stores[layer] = (found[0], found[1])
        return self.stores[layer]

    def get_seq_length(self, *_: Any) -> int:
        return 0


def books_of(model: Any, block: int = FULL) -> Books | NetworkBooks:
    return Books(model, block) if isinstance(model, HashLM) else NetworkBooks(model, block)
