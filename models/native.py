"""The native CPU forward of a transformers network: same weights, same numbers, its layers in one call (kernels/layers.py)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drawloom.kernels import native
from drawloom.kernels.attention import Rows, Scoring
from drawloom.kernels.attention_native import why_not_shape
from drawloom.kernels.layers import Layer, Stack, run_layers, stack_of
from drawloom.kernels.matmul import Packed, linear, pack

SHAPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


class NativeForward:
    """Packed weights of a network whose family has the common shape. The network's own copies of the layers' matrices are dropped."""

    def __init__(self, network: PreTrainedModel) -> None:
        inner: Any = network.model
        self._angles = Angles(inner.rotary_emb)
        self._layers = [_layer(layer) for layer in inner.layers]
        self._norm_out = inner.norm.weight.detach()
        self._eps = inner.norm.variance_epsilon
        head: Any = network.get_output_embeddings()
        self._head = pack(head.weight, head.bias) if isinstance(head, nn.Linear) else None
        self._stacks: list[Stack] = []  # one behind the other, cut where layers are tapped

    def bind(self, keys: list[Tensor], values: list[Tensor], taps: Sequence[int] = ()) -> None:
        """Use these caches, one per layer. taps, ascending: layers whose output is wanted; one more than the last means behind the norm."""
        last = len(self._layers)
        starts = [0, *(tap + 1 for tap in taps if tap + 1 < last)]
        for start, end in zip(starts, [*starts[1:], last], strict=True):
            norm = self._norm_out if end == last and last - 1 not in taps else None
            self._stacks.append(stack_of(self._layers[start:end], keys[start:end], values[start:end], norm, self._eps))
        self._taps = taps

    def forward(self, hidden: Tensor, rows: Rows, slots: Tensor, logit_rows: Tensor, tapped: Callable[[int, Tensor], None]) -> Tensor:
        """Embeddings [R, C], which are overwritten -> logits [L, V] float32 of logit_rows; `tapped` gets each tap and its output."""
        assert self._stacks, "pages are not allocated"
        angles, last, end = self._angles.at(rows.positions), len(self._layers), 0
        for stack in self._stacks:
            end += len(stack.layers)
            hidden = run_layers(hidden, stack, rows, slots, angles)
            if end - 1 in self._taps:
                tapped(end - 1, hidden)
        if last - 1 in self._taps:
            hidden = torch.nn.functional.rms_norm(hidden, hidden.shape[-1:], self._norm_out, self._eps)
        if last in self._taps:
            tapped(last, hidden)
        return hidden[logit_rows] if self._head is None else linear(hidden[logit_rows], self._head)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [L, V] of hidden states [L, C] behind the last norm."""
        assert self._head is not None
        return linear(hidden, self._head)

    @property
    def matrices(self) -> list[Packed]:
        """All packed weights."""
        head = [] if self._head is None else [self._head]
        return [*head, *(matrix for layer in self._layers for matrix in (layer.qkv, layer.out, layer.gate, layer.up, layer.down))]


class Angles:
    """Rotary cosines and sines of a network's own module, for all positions up to the last one that was asked for."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._cosines = self._sines = torch.empty(0, 0)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Both [R, D] float32 of positions [R], on the CPU."""
        if (most := int(positions.max()) + 1) > len(self._cosines):
            every = torch.arange(max(most, 2 * len(self._cosines), 256))
            cosines, sines = self._module(torch.empty(1, 1), every[None])
            self._cosines, self._sines = cosines[0].contiguous(), sines[0].contiguous()
        return self._cosines[positions], self._sines[positions]


class PackedLinear(nn.Module):
    """A linear module of a network, its float32 weight packed without loss."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = pack(linear.weight, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., out_features]"""
        return linear(x.reshape(-1, self.in_features), self.packed).view(*x.shape[:-1], self.out_features)


def pack_linears(network: nn.Module) -> list[Packed]:
    """Replace every plain linear module of a network; its own copy of the weight goes, unless an embedding shares it."""
    found = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children() if type(child) is nn.Linear]
    for parent, name, child in found:
        setattr(parent, name, PackedLinear(child))
    return [module.packed for module in network.modules() if isinstance(module, PackedLinear)]


def formats_of(matrices: list[Packed]) -> str:
    """Formats of packed weights and their size, for reports."""
    formats = "+".join(sorted({matrix.format for matrix in matrices}))
    return f"{formats} weights, {sum(matrix.num_bytes for matrix in matrices) / 1e6:.0f} MB"


def why_not(network: PreTrainedModel) -> str:
    """Why this network cannot run natively, or ""."""
    config: Any = network.config
    if config.model_type not in SHAPES:
        return f"family {config.model_type} has its own layer shape"
    if network.device.type != "cpu" or network.dtype != torch.float32:
        return f"it runs in float32 on CPU, not in {str(network.dtype).removeprefix('torch.')} on {network.device.type}"
    layer: Any = network.model.layers[0]
    if config.hidden_act not in ("silu", "swish") or layer.mlp.gate_proj.bias is not None:
        return "its gated part has a bias or another activation than silu"
    if config.hidden_size % 8:
        return f"hidden size {config.hidden_size} is not a multiple of 8"
    if 2 * network.model.rotary_emb.inv_freq.numel() != layer.self_attn.head_dim:
        return "its rotary angles turn only a part of each head"
    return why_not_shape(layer.self_attn.head_dim) or native.why_not()


def _layer(layer: Any) -> Layer:
    own, mlp = layer.self_attn, layer.mlp
    packed = Layer(
        qkv=_joined(own.q_proj, own.k_proj, own.v_proj),
        out=_joined(own.o_proj),
        gate=_joined(mlp.gate_proj),
        up=_joined(mlp.up_proj),
        down=_joined(mlp.down_proj),
        norm_in=layer.input_layernorm.weight.detach(),
        norm_mid=layer.post_attention_layernorm.weight.detach(),
        norm_q=own.q_norm.weight.detach() if hasattr(own, "q_norm") else None,
        norm_k=own.k_norm.weight.detach() if hasattr(own, "k_norm") else None,
        num_heads=own.q_proj.out_features // own.head_dim,
        scoring=Scoring(own.scaling, _window(own)),
    )
    for module in (own.q_proj, own.k_proj, own.v_proj, own.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj):
        module.weight = nn.Parameter(torch.empty(0), requires_grad=False)
    return packed


def _joined(*modules: nn.Linear) -> Packed:
    """The matrices of several modules over the same input as one."""
    bias = None if modules[0].bias is None else torch.cat([module.bias for module in modules])
    return pack(torch.cat([module.weight for module in modules]), bias)


def _window(attention: Any) -> int | None:
    """The sliding window of a layer: the config's in Mistral, else its own; Llama has none, whatever its config says."""
    if attention.config.model_type == "mistral":
        return attention.config.sliding_window
    return getattr(attention, "sliding_window", None)
