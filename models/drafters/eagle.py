"""EAGLE-3 (arXiv 2503.01840): one decoder layer over [embedding of the next token ; fused features of this one], told token by token.

The row of position i holds token i + 1 and the target's features of token i, and says token i + 2; behind the last token that the target
has seen, the layer's own output takes the features' place. Its vocabulary may be a part of the target's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding

from drawloom.kernels.attention import Rows, Scoring, attend_padded
from drawloom.kernels.attention_native import attend_native, why_not_shape
from drawloom.kernels.kv import write_rows
from drawloom.kernels.native import why_not
from drawloom.models.drafters.block import turn
from drawloom.models.drafters.contract import SerialDrafter, Target
from drawloom.models.drafters.linear import exact
from drawloom.models.ragged import Ragged

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class EagleOptions:
    """What publishers do differently."""

    num_taps: int = 3
    norm_before_residual: bool = False  # the residual is the normed feature
    own_embeddings: bool = False


class EagleAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, size = config.hidden_size, _head_dim(config)
        self.head_dim, self.scaling = size, size**-0.5
        self.q_proj = nn.Linear(2 * hidden, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(2 * hidden, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(2 * hidden, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, hidden, bias=False)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], attend: Attention) -> Tensor:
        """x [..., 2 H]; angles [..., D]; attend: query, key, value [..., heads, D] -> [..., heads, D]."""
        query, key, value = (one(x).unflatten(-1, (-1, self.head_dim)) for one in (self.q_proj, self.k_proj, self.v_proj))
        cosines, sines = (one[..., None, :] for one in angles)
        return self.o_proj(attend(turn(query, cosines, sines), turn(key, cosines, sines), value).flatten(-2))


class EagleLayer(nn.Module):
    def __init__(self, config: LlamaConfig, options: EagleOptions) -> None:
        super().__init__()
        norm = {"normalized_shape": config.hidden_size, "eps": config.rms_norm_eps}
        self.options = options
        self.self_attn = EagleAttention(config)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (nn.RMSNorm(**norm) for _ in range(3))
        self.mlp = LlamaMLP(config)

    def forward(self, embedded: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor], attend: Attention) -> Tensor:
        normed = self.hidden_norm(hidden)
        residual = normed if self.options.norm_before_residual else hidden
        x = residual + self.self_attn(torch.cat([self.input_layernorm(embedded), normed], -1), angles, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class EagleNetwork(nn.Module):
    """The weights, under the names of published checkpoints: fc, midlayer.*, norm, lm_head, d2t, t2d."""

    d2t: Tensor  # [Vd] int64, token = draft token + d2t
    t2d: Tensor  # [V] bool, tokens that it can say

    def __init__(self, config: LlamaConfig, options: EagleOptions, target_width: int, draft_vocab: int) -> None:
        super().__init__()
        self.config, self.options = config, options
        self.fc = nn.Linear(options.num_taps * target_width, config.hidden_size, bias=False)
        self.midlayer = EagleLayer(config, options)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, draft_vocab, bias=False)
        if options.own_embeddings:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.register_buffer("d2t", torch.zeros(draft_vocab, dtype=torch.int64))
        self.register_buffer("t2d", torch.ones(config.vocab_size, dtype=torch.bool))

    def said(self, hidden: Tensor) -> Tensor:
        """Hidden [..., H] -> logits [..., V] of the target's tokens; those that the drafter cannot say have -inf."""
        own = self.lm_head(self.norm(hidden)).float()
        if own.shape[-1] == self.config.vocab_size:
            return own
        token = torch.arange(len(self.d2t), device=own.device) + self.d2t
        return own.new_full((*own.shape[:-1], self.config.vocab_size), -torch.inf).index_copy_(-1, token, own)


class EagleDrafter(SerialDrafter):
    """An EagleNetwork behind an engine's pages. Not thread-safe."""

    kind = "eagle"

    def __init__(self, network: EagleNetwork, name: str, taps: tuple[int, ...], most: int) -> None:
        config: Any = network.config
        self.name, self.taps, self.most, self.max_context = name, taps, most, config.max_position_embeddings
        self._network = network = network.eval().requires_grad_(False)
        layer, self._dtype, self._device = network.midlayer, network.fc.weight.dtype, network.fc.weight.device
        native = self._device.type == "cpu" and self._dtype == torch.float32 and not (why_not_shape(layer.self_attn.head_dim) or why_not())
        self._attend = attend_native if native else attend_padded
        for module, names in ((layer.self_attn, ("q_proj", "k_proj", "v_proj", "o_proj")), (network, ("fc", "lm_head"))):
            for one in names:
                setattr(module, one, exact(getattr(module, one)))
        for one in ("gate_proj", "up_proj", "down_proj"):
            setattr(layer.mlp, one, exact(getattr(layer.mlp, one)))
        self._shape = (config.num_key_value_heads, layer.self_attn.head_dim)

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        slots = num_pages * page_tokens
        self._keys, self._values = (torch.zeros(slots, *self._shape, dtype=self._dtype, device=self._device) for _ in range(2))

    def page_bytes(self, page_tokens: int) -> int:
        return 2 * page_tokens * self._shape[0] * self._shape[1] * self._dtype.itemsize

    def forward(self, target: Target, ragged: Ragged, features: Tensor) -> tuple[Tensor, Tensor]:
        network = self._network
        embedded = network.embed_tokens(ragged.tokens) if network.options.own_embeddings else target.embed(ragged.tokens)
        hidden = features if features.shape[1] == network.config.hidden_size else network.fc(features)
        cosines, sines = network.rotary_emb(embedded[None], ragged.positions[None])
        rows = Rows(
            ragged.positions, ragged.see, ragged.ancestors, ragged.row_starts, ragged.prefix_lens, ragged.pages,
            ragged.page_tokens, ragged.row_starts_host, ragged.prefix_lens_host, ragged.scratch,
        )  # fmt: skip

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            write_rows(key, value, self._keys, self._values, ragged.slots)
            return self._attend(query.contiguous(), self._keys, self._values, rows, Scoring(network.midlayer.self_attn.scaling))

        hidden = network.midlayer(embedded, hidden, (cosines[0], sines[0]), attend)
        return hidden, network.said(hidden[ragged.logit_rows])


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
