"""A transformers network that runs ragged batches against pages that it owns."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from drawloom.errors import SettingError
from drawloom.kernels import on_gpu
from drawloom.kernels.attention import Attend, Rows, Scoring, attend_padded, attend_reference
from drawloom.kernels.attention_native import attend_native, why_not_shape
from drawloom.kernels.choose import choose
from drawloom.kernels.kv import move_rows, write_rows
from drawloom.kernels.native import why_not as why_not_native
from drawloom.models import native
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

    def enter(self, ragged: Ragged) -> Rows:
        self.slots = ragged.slots
        self.rows = Rows(
            ragged.positions, ragged.see, ragged.ancestors, ragged.row_starts, ragged.prefix_lens, ragged.pages,
            ragged.page_tokens, ragged.row_starts_host, ragged.prefix_lens_host, ragged.scratch,
        )  # fmt: skip
        return self.rows


LAYOUTS: dict[str, Attend | None] = {
    "native": None,
    "paged": attend_native,
    "triton": on_gpu.attend,
    "padded": attend_padded,
    "reference": attend_reference,
}


class TransformersModel:
    """A decoder-only transformers network behind the Model protocol. Not thread-safe.

    `layout` says how it runs (docs/performance.md has their speeds), best first:
      native     the layers in one call of a CPU kernel, weights packed without loss; for the families that kernel knows
      paged      the network's own classes, linear modules packed without loss, attention by a CPU kernel straight from the pages
      triton     the network's own classes, attention by a GPU kernel straight from the pages
      padded     the network's own classes, attention by torch over gathered keys
      reference  the network's own classes, attention one sequence at a time, in plain torch
    """

    def __init__(self, network: PreTrainedModel, info: ModelInfo, layout: str = "auto") -> None:
        self.info = info
        self.network = network.eval().requires_grad_(False)
        self.network.set_attn_implementation(ATTENTION)
        self._layers = attention_layers(network)
        self._shapes = [(key_heads(layer), layer.head_dim) for layer in self._layers]
        self._dtype, self._device = network.dtype, network.device
        self._refused = {"native": native.why_not(network), "paged": why_not_paged(network, self._shapes)}
        self._refused["triton"] = on_gpu.why_not(network.device.type, asked=layout == "triton")
        self.layout, attend = choose("layout", layout, LAYOUTS, self._refused)
        self._pages = Pages(attend or attend_native)
        for layer in self._layers:
            layer.drawloom = self._pages
        self._embed: Any = network.get_input_embeddings()
        self._native = native.NativeForward(network) if self.layout == "native" else None
        self._taps: tuple[int, ...] = ()
        self._features: dict[int, Tensor] = {}  # per tap [num_slots, C]
        self._packed = self._native.matrices if self._native else native.pack_linears(network) if self.layout == "paged" else []

    def describe(self) -> str:
        """One line for reports: the layout, and why each faster one was not taken."""
        own = native.formats_of(self._packed) if self._packed else str(self._dtype).removeprefix("torch.")
        better = list(LAYOUTS)[: list(LAYOUTS).index(self.layout)]
        return f"{self.layout} layout, {own}" + "".join(f"; not {name}: {self._refused.get(name) or 'not asked for'}" for name in better)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in the format in which a forward reads them."""
        packed = sum(matrix.num_bytes for matrix in self._packed)
        if self._native:
            return packed
        apart: Any = self.network.get_input_embeddings().weight if self._packed else None  # of which a forward reads a few rows
        held = {id(weight): weight.numel() * weight.element_size() for weight in self.network.parameters() if weight is not apart}
        return packed + sum(held.values())

    def tap(self, layers: Sequence[int]) -> None:
        """Keep the output of these layers, counted from 0, for every token in the pages; one more than the last layer means the output
        behind the last norm. Before `allocate`. Raises SettingError when there is no such layer."""
        last = len(self._layers)
        if wrong := [layer for layer in layers if not 0 <= layer <= last]:
            raise SettingError(f"layer {wrong[0]} of {self.info.name} is wanted, which has {last}; this drafter is for another model")
        self._taps = tuple(sorted({*self._taps, *layers}))
        if self._native is None:
            body: Any = self.network.base_model
            for layer in set(layers):
                module = body.norm if layer == last else body.layers[layer]
                module.register_forward_hook(lambda _module, _inputs, output, layer=layer: self._keep(layer, output))

    def features(self, slots: Tensor, layers: Sequence[int]) -> Tensor:
        """What tapped layers gave for the tokens in `slots` [N], side by side: [N, len(layers) * C]."""
        return torch.cat([self._features[layer][slots] for layer in layers], 1)

    def _keep(self, layer: int, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        assert self._pages.slots is not None
        self._features[layer][self._pages.slots] = hidden.view(-1, hidden.shape[-1])

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., C] of tokens [...]."""
        return self._embed(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [L, V] float32 of hidden states [L, C] behind the last norm."""
        if self._native:
            return self._native.head(hidden)
        head: Any = self.network.get_output_embeddings()
        return head(hidden).float()

    @property
    def caches(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, [num_slots, G, D]."""
        return list(zip(self._pages.keys, self._pages.values, strict=True))

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        """Make zeroed caches for num_pages pages of page_tokens tokens; once."""
        if self._pages.keys:
            raise ValueError("pages are already allocated")
        for heads, size in self._shapes:
            for caches in (self._pages.keys, self._pages.values):
                caches.append(torch.zeros(num_pages * page_tokens, heads, size, dtype=self._dtype, device=self._device))
        for tap in self._taps:
            self._features[tap] = torch.zeros(num_pages * page_tokens, self.hidden_size, dtype=self._dtype, device=self._device)
        if self._native:
            self._native.bind(self._pages.keys, self._pages.values, self._taps)

    def page_bytes(self, page_tokens: int) -> int:
        """Bytes of one page over all layers: keys, values and what is tapped."""
        numbers = 2 * sum(heads * size for heads, size in self._shapes) + len(self._taps) * self.hidden_size
        return page_tokens * numbers * self._dtype.itemsize

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def hidden_size(self) -> int:
        return int(self.network.config.hidden_size)

    @torch.inference_mode()
    def forward(self, ragged: Ragged) -> Tensor:
        """Write every row's K/V into its slot; logits [L, V] float32 of ragged.logit_rows."""
        rows = self._pages.enter(ragged)
        hidden = self._embed(ragged.tokens) if ragged.weight is None else self._mixed(ragged.tokens, ragged.weight)
        if self._native:
            return self._native.forward(hidden, rows, ragged.slots, ragged.logit_rows, self._keep)
        out = self.network(
            inputs_embeds=hidden[None],
            position_ids=ragged.positions[None],
            use_cache=False,
            logits_to_keep=ragged.logit_rows,
        )
        return out.logits[0].float()

    def _mixed(self, tokens: Tensor, weight: Tensor) -> Tensor:
        """Soft inputs [R, C]: w E[token] + (1 - w) E[mask], as long as w |E[token]| + (1 - w) |E[mask]|. DMax, arXiv 2604.08302."""
        assert self.info.mask_token_id is not None, "soft inputs need a mask token"
        token, mask = self._embed(tokens), self._embed(torch.full_like(tokens[:1], self.info.mask_token_id))
        share = weight[:, None].to(token.dtype)
        both = share * token + (1 - share) * mask
        length = share * token.norm(dim=-1, keepdim=True) + (1 - share) * mask.norm(dim=-1, keepdim=True)
        scaled = both * (length / both.norm(dim=-1, keepdim=True).clamp(min=1e-12))
        return torch.where(share == 1, token, scaled)

    @torch.inference_mode()
    def move_rows(self, source: Tensor, target: Tensor) -> None:
        """Copy K/V and features of slots source [M] to slots target [M] in every layer; overlapping sets are safe."""
        for cache in (*self._pages.keys, *self._pages.values, *self._features.values()):
            move_rows(cache, source, target)


def attention_layers(network: nn.Module) -> list[Any]:
    """The attention modules of a network in layer order."""
    layers = [module for module in network.modules() if hasattr(module, "layer_idx") and hasattr(module, "k_proj")]
    return sorted(layers, key=lambda module: module.layer_idx)


def key_heads(layer: Any) -> int:
    """Number of key/value heads of an attention module."""
    return layer.k_proj.out_features // layer.head_dim


def why_not_paged(network: PreTrainedModel, shapes: list[tuple[int, int]]) -> str:
    """Why the CPU attention kernel cannot run this network, or ""."""
    if network.device.type != "cpu" or network.dtype != torch.float32:
        return f"the kernel runs in float32 on CPU, not in {str(network.dtype).removeprefix('torch.')} on {network.device.type}"
    return next((reason for _heads, size in shapes if (reason := why_not_shape(size))), "") or why_not_native()


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
