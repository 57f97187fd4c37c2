"""A block drafter on target features: DFlash (arXiv 2602.06036).

Layers of the target are fused into one vector per final token, from which every layer of the drafter makes keys and values; a block of
[last token, mask, mask, ...] sees all of them and the whole block, and each mask says its token. Embeddings and head are the target's.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from drawloom.kernels.kv import write_rows
from drawloom.models.drafters.contract import ParallelDrafter, Target
from drawloom.models.drafters.linear import exact
from drawloom.models.ragged import ModelInfo, Ragged
from drawloom.models.transformer import TransformersModel


class Fusion(nn.Module):
    """Target features [..., T * C] -> one vector [..., H] a token: a linear map, then an RMS norm."""

    def __init__(self, width: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.fc = nn.Linear(width, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, eps=eps)

    def forward(self, features: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(features))


class BlockNetwork(nn.Module):
    """The weights, under the names of published checkpoints: fc, hidden_norm, layers.N.*, norm."""

    def __init__(self, config: Qwen3Config, target_width: int, num_taps: int) -> None:
        super().__init__()
        self.config = config
        self.fusion = Fusion(num_taps * target_width, config.hidden_size, config.rms_norm_eps)
        self.body: Any = Qwen3ForCausalLM(config).model
        self.body.embed_tokens = nn.Identity()  # the target's; what enters is embedded already

    def forward(self, features: Tensor, embedded: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Training: features [B, L, T * C] of clean tokens and embedded rows [B, N, H] -> hidden [B, N, H]. positions [B, L + N] are of
        both; mask [B, 1, N, L + N] says which of both each row sees."""
        context, x = self.fusion(features), embedded
        angles = self.body.rotary_emb(x, positions)
        for layer in self.body.layers:
            inner: Any = layer
            x = x + self._attend(inner.self_attn, context, inner.input_layernorm(x), angles, mask)
            x = x + inner.mlp(inner.post_attention_layernorm(x))
        return self.body.norm(x)

    def _attend(self, own: Any, context: Tensor, x: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        both, rows = torch.cat([context, x], 1), x.shape[1]
        query = own.q_norm(own.q_proj(x).unflatten(-1, (-1, own.head_dim))).transpose(1, 2)
        key = own.k_norm(own.k_proj(both).unflatten(-1, (-1, own.head_dim))).transpose(1, 2)
        value = own.v_proj(both).unflatten(-1, (-1, own.head_dim)).transpose(1, 2)
        cosines, sines = (one[:, None] for one in angles)
        query, key = turn(query, cosines[..., -rows:, :], sines[..., -rows:, :]), turn(key, cosines, sines)
        out = nn.functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True, scale=own.scaling)
        return own.o_proj(out.transpose(1, 2).flatten(2))


class BlockDrafter(ParallelDrafter):
    """A BlockNetwork behind an engine's pages. Not thread-safe."""

    kind = "block"

    def __init__(self, network: BlockNetwork, target: Target, name: str, taps: tuple[int, ...], block: int, mask_token: int) -> None:
        config: Any = network.config
        network = network.eval().requires_grad_(False)
        self.name, self.taps, self.mask_token, self.most = name, taps, mask_token, block - 1
        self.max_context = config.max_position_embeddings
        self._fusion = network.fusion
        self._fusion.fc = exact(network.fusion.fc)
        self._angles = network.body.rotary_emb
        self._sides: list[tuple[Any, Any, Any]] = [  # before the body packs its own
            (exact(layer.self_attn.k_proj), exact(layer.self_attn.v_proj), layer.self_attn.k_norm)
            for layer in map(_any, network.body.layers)
        ]
        self._body = TransformersModel(_headless(network, target), _info(name, config))
        self._head_dim = config.head_dim

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        self._body.allocate(num_pages, page_tokens)

    def page_bytes(self, page_tokens: int) -> int:
        return self._body.page_bytes(page_tokens)

    def absorb(self, features: Tensor, positions: Tensor, slots: Tensor) -> None:
        context = self._fusion(features)
        cosines, sines = (one[0][:, None] for one in self._angles(context[None], positions[None]))
        for (key, value, norm), (keys, values) in zip(self._sides, self._body.caches, strict=True):
            own = norm(key(context).unflatten(-1, (-1, self._head_dim)))
            write_rows(turn(own, cosines, sines), value(context).unflatten(-1, (-1, self._head_dim)), keys, values, slots)

    def rows(self, width: int) -> int:
        return width + 1

    def logits(self, target: Target, ragged: Ragged | None, last: Tensor, width: int) -> Tensor:
        assert ragged is not None
        hidden = self._body.forward(ragged).unflatten(0, (len(last), width + 1))
        return target.head(hidden[:, 1:].flatten(0, 1).contiguous()).unflatten(0, (len(last), width))


def turn(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary position embedding of x [..., D] by angles that broadcast to it."""
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines


def _headless(network: BlockNetwork, target: Target) -> Qwen3ForCausalLM:
    """The drafter's layers as a network that embeds as the target does and gives hidden states in place of logits."""
    with torch.device("meta"):
        whole = Qwen3ForCausalLM(network.config)
    whole.model = network.body
    whole.model.embed_tokens = _any(target).network.get_input_embeddings()
    whole.lm_head = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    return whole


def _info(name: str, config: Any) -> ModelInfo:
    return ModelInfo(name, config.vocab_size, config.max_position_embeddings, (), None, 1, shifted=True, fingerprint="")


def _any(value: Any) -> Any:
    return value
