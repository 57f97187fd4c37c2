"""Decoder layers of drafters that read tokens in order, and their keys and values in an engine's pages."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from drawloom.kernels.attention import Rows, Scoring, attend_padded
from drawloom.kernels.attention_native import attend_native, why_not_shape
from drawloom.kernels.kv import write_rows
from drawloom.kernels.native import why_not
from drawloom.models.drafters.block import turn
from drawloom.models.drafters.linear import exact
from drawloom.models.ragged import Ragged

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Angles = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """Grouped-query attention over an input of `width`, which may be wider than the output."""

    def __init__(self, config: Any, width: int) -> None:
        super().__init__()
        hidden, bias = config.hidden_size, bool(getattr(config, "attention_bias", False))
        size = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
        self.head_dim, self.scaling, self.num_key_heads = size, size**-0.5, config.num_key_value_heads
        self.q_proj: Any = nn.Linear(width, config.num_attention_heads * size, bias=bias)
        self.k_proj: Any = nn.Linear(width, config.num_key_value_heads * size, bias=bias)
        self.v_proj: Any = nn.Linear(width, config.num_key_value_heads * size, bias=bias)
        self.o_proj: Any = nn.Linear(config.num_attention_heads * size, hidden, bias=bias and config.model_type != "qwen2")
        norms = config.model_type == "qwen3"
        self.q_norm, self.k_norm = ((nn.RMSNorm(size, eps=config.rms_norm_eps) if norms else nn.Identity()) for _ in range(2))

    def forward(self, x: Tensor, angles: Angles, attend: Attend) -> Tensor:
        """x [..., width]; angles [..., D]; attend: query, key, value [..., heads, D] -> [..., heads, D]."""
        query, key, value = (one(x).unflatten(-1, (-1, self.head_dim)) for one in (self.q_proj, self.k_proj, self.v_proj))
        cosines, sines = (one[..., None, :] for one in angles)
        query, key = turn(self.q_norm(query), cosines, sines), turn(self.k_norm(key), cosines, sines)
        return self.o_proj(attend(query, key, value).flatten(-2))


class Gated(nn.Module):
    """down(act(gate x) * up x)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, bool(getattr(config, "mlp_bias", False))
        self.gate_proj, self.up_proj = nn.Linear(hidden, inner, bias=bias), nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)
        self.act: Any = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class PlainLayer(nn.Module):
    """A layer as in a target; the first one of EAGLE-1 and 2 has no norm before its attention."""

    def __init__(self, config: Any, *, enters_normed: bool = True) -> None:
        super().__init__()
        self.self_attn = Attention(config, config.hidden_size)
        norm = {"normalized_shape": config.hidden_size, "eps": config.rms_norm_eps}
        self.input_layernorm: nn.Module = nn.RMSNorm(**norm) if enters_normed else nn.Identity()
        self.post_attention_layernorm = nn.RMSNorm(**norm)
        self.mlp = Gated(config)

    def forward(self, x: Tensor, angles: Angles, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class WideLayer(nn.Module):
    """A layer over [embedding ; hidden] side by side, each behind its norm (EAGLE-3)."""

    def __init__(self, config: Any, *, norm_before_residual: bool) -> None:
        super().__init__()
        norm = {"normalized_shape": config.hidden_size, "eps": config.rms_norm_eps}
        self.norm_before_residual = norm_before_residual
        self.self_attn = Attention(config, 2 * config.hidden_size)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (nn.RMSNorm(**norm) for _ in range(3))
        self.mlp = Gated(config)

    def forward(self, embedded: Tensor, hidden: Tensor, angles: Angles, attend: Attend) -> Tensor:
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        x = residual + self.self_attn(torch.cat([self.input_layernorm(embedded), normed], -1), angles, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Caches:
    """Keys and values of a drafter's attention modules, in the places of the target's pages. Its linear modules are packed from now on."""

    def __init__(self, network: nn.Module, layers: Sequence[Any]) -> None:
        self._attentions: list[Attention] = [layer.self_attn for layer in layers]
        first = self._attentions[0].q_proj.weight
        self._dtype, self._device = first.dtype, first.device
        native = first.device.type == "cpu" and first.dtype == torch.float32
        native = native and not (why_not_shape(self._attentions[0].head_dim) or why_not())
        self._attend = attend_native if native else attend_padded
        pack_linears(network)

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        place = {"dtype": self._dtype, "device": self._device}
        shapes = [(num_pages * page_tokens, one.num_key_heads, one.head_dim) for one in self._attentions]
        self._keys, self._values = ([torch.zeros(*shape, **place) for shape in shapes] for _ in range(2))

    def page_bytes(self, page_tokens: int) -> int:
        return sum(2 * page_tokens * one.num_key_heads * one.head_dim * self._dtype.itemsize for one in self._attentions)

    def over(self, ragged: Ragged) -> list[Attend]:
        """For each layer its attention over the rows of a batch, which writes their keys and values first."""
        rows = Rows(
            ragged.positions, ragged.see, ragged.ancestors, ragged.row_starts, ragged.prefix_lens, ragged.pages,
            ragged.page_tokens, ragged.row_starts_host, ragged.prefix_lens_host, ragged.scratch,
        )  # fmt: skip

        def over(number: int) -> Attend:
            keys, values, scoring = self._keys[number], self._values[number], Scoring(self._attentions[number].scaling)

            def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                write_rows(key, value, keys, values, ragged.slots)
                return self._attend(query.contiguous(), keys, values, rows, scoring)

            return attend

        return [over(number) for number in range(len(self._attentions))]


def pack_linears(network: nn.Module) -> None:
    """Let every linear module run by the CPU kernel, where there is one, so that a row's result does not depend on its neighbours."""
    found = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children() if type(child) is nn.Linear]
    for parent, name, child in found:
        setattr(parent, name, exact(child))
