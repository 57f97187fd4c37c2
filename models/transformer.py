"""A transformers network that runs ragged batches against pages that it owns."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from drawloom.kernels.attention import Attend, Rows, Scoring, attend_reference
from drawloom.kernels.kv import move_rows, write_rows
from drawloom.models.ragged import ModelInfo, Ragged

ATTENTION = "drawloom"


class Pages:
    """The caches of a network and the batch that is running now; every attention layer holds a reference to the same object."""

    def __init__(self, attend: Attend) -> None:
        self.attend = attend
        self.keys: list[Tensor] = []  # per layer [num_slots, G, D]
        self.values: list[Tensor] = []
        self.rows: Rows | None = None
        self.slots: Tensor | None = None  # [R] int64

    def enter(self, ragged: Ragged) -> None:
        self.slots = ragged.slots
        self.rows = Rows(
            ragged.positions, ragged.see, ragged.ancestors, ragged.row_starts, ragged.prefix_lens, ragged.pages,
            ragged.page_tokens, ragged.row_starts_host, ragged.prefix_lens_host, ragged.scratch,
        )  # fmt: skip


class TransformersModel:
    """A decoder-only transformers network behind the Model protocol. Not thread-safe.

    The network's own classes compute everything but attention; `attend` names the path that runs it.
    """

    def __init__(self, network: PreTrainedModel, info: ModelInfo, attend: Attend = attend_reference) -> None:
        self.info = info
        self.network = network.eval().requires_grad_(False)
        self.network.set_attn_implementation(ATTENTION)
        self._pages = Pages(attend)
        self._layers = attention_layers(network)
        for layer in self._layers:
            layer.drawloom = self._pages

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        """Make zeroed caches for num_pages pages of page_tokens tokens; once."""
        if self._pages.keys:
            raise ValueError("pages are already allocated")
        for layer in self._layers:
            shape = (num_pages * page_tokens, key_heads(layer), layer.head_dim)
            like = layer.k_proj.weight
            self._pages.keys.append(torch.zeros(shape, dtype=self.network.dtype, device=like.device))
            self._pages.values.append(torch.zeros(shape, dtype=self.network.dtype, device=like.device))

    def page_bytes(self, page_tokens: int) -> int:
        """Bytes of one page over all layers, keys and values."""
        heads = sum(key_heads(layer) * layer.head_dim for layer in self._layers)
        return 2 * page_tokens * heads * self.network.dtype.itemsize

    @torch.inference_mode()
    def forward(self, ragged: Ragged) -> Tensor:
        """Write every row's K/V into its slot; logits [L, V] float32 of ragged.logit_rows."""
        self._pages.enter(ragged)
        out = self.network(
            input_ids=ragged.tokens[None],
            position_ids=ragged.positions[None],
            use_cache=False,
            logits_to_keep=ragged.logit_rows,
        )
        return out.logits[0].float()

    @torch.inference_mode()
    def move_rows(self, source: Tensor, target: Tensor) -> None:
        """Copy K/V of slots source [M] to slots target [M] in every layer; overlapping sets are safe."""
        for cache in (*self._pages.keys, *self._pages.values):
            move_rows(cache, source, target)


def attention_layers(network: nn.Module) -> list[Any]:
    """The attention modules of a network in layer order."""
    layers = [module for module in network.modules() if hasattr(module, "layer_idx") and hasattr(module, "k_proj")]
    return sorted(layers, key=lambda module: module.layer_idx)


def key_heads(layer: Any) -> int:
    """Number of key/value heads of an attention module."""
    return layer.k_proj.out_features // layer.head_dim


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, scaling: float, **kwargs: Any
) -> tuple[Tensor, None]:
    """transformers' attention call: query [1, H, R, D], key and value [1, G, R, D] -> ([1, R, H, D], None)."""
    pages: Pages = module.drawloom
    assert pages.rows is not None, "attention outside of TransformersModel.forward"
    assert pages.slots is not None
    keys, values = pages.keys[module.layer_idx], pages.values[module.layer_idx]
    write_rows(key[0].transpose(0, 1), value[0].transpose(0, 1), keys, values, pages.slots)
    scoring = Scoring(scaling, kwargs.get("sliding_window"), kwargs.get("softcap"), kwargs.get("s_aux"))
    return pages.attend(query[0].transpose(0, 1).contiguous(), keys, values, pages.rows, scoring)[None], None


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, lambda *_args, **_kwargs: None)
