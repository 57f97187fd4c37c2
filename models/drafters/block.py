"""A block drafter on target features: DFlash (arXiv 2602.06036) and its descendants DFlare, DFly, Domino and DSpark.

Layers of the target are fused (fusion.py) into vectors for each final token, from which the layers of the drafter make keys and values; a
block of [last token, mask, mask, ...] sees all of them and the whole block, and each mask says its token, corrected by the tokens before
it in some descendants (corrections.py). Embeddings and head are the target's, unless it can say a part of the vocabulary only.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from drawloom.kernels.kv import write_rows
from drawloom.models.drafters.contract import Begun, ParallelDrafter, Place, Reading, Target
from drawloom.models.drafters.corrections import Confidence, Gru, Hidden, Markov
from drawloom.models.drafters.fusion import FUSIONS
from drawloom.models.drafters.linear import exact
from drawloom.models.drafters.vocabulary import spread
from drawloom.models.native import Angles
from drawloom.models.ragged import ModelInfo
from drawloom.models.transformer import TransformersModel


@dataclass(frozen=True)
class BlockOptions:
    """What the descendants do differently."""

    fusion: str = "joined"  # a key of FUSIONS
    own_sides: bool = False  # keys and values of the target's tokens have their own matrices (DFlare)
    from_anchor: bool = False  # the row of the last final token says the first drafted one, so that no row says nothing (DSpark, Domino)
    confidence_reads_token: bool = False
    said: int = 0  # tokens that its own head says; 0: the target's head


class BlockNetwork(nn.Module):
    """The weights: fusion, body (layers and norm), correction, confidence, and a head where it has its own."""

    d2t: Tensor  # [Vd] int64, token = own token + d2t

    def __init__(
        self,
        config: Qwen3Config,
        target_width: int,
        num_taps: int,
        options: BlockOptions | None = None,
        correction: Markov | Gru | Hidden | None = None,
        confidence: Confidence | None = None,
    ) -> None:
        super().__init__()
        self.config, self.options = config, options or BlockOptions()
        made = FUSIONS[self.options.fusion]
        self.fusion: Any = made(target_width, num_taps, config.hidden_size, config.num_hidden_layers, config.rms_norm_eps)
        self.body: Any = Qwen3ForCausalLM(config).model
        self.body.embed_tokens = nn.Identity()  # the target's; what enters is embedded already
        if self.options.own_sides:
            for layer in self.body.layers:
                own = layer.self_attn
                own.k_proj_target = nn.Linear(target_width, own.k_proj.out_features, bias=False)
                own.v_proj_target = nn.Linear(target_width, own.v_proj.out_features, bias=False)
        self.correction, self.confidence = correction, confidence
        if self.options.said:
            self.lm_head: Any = nn.Linear(config.hidden_size, self.options.said, bias=False)
            self.register_buffer("d2t", torch.zeros(self.options.said, dtype=torch.int64))

    def forward(self, features: Tensor, embedded: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Training: features [B, L, T * C] of clean tokens and embedded rows [B, N, H] -> hidden [B, N, H]. positions [B, L + N] are of
        both; mask [B, 1, N, L + N] says which of both each row sees."""
        x = embedded
        angles = self.body.rotary_emb(x, positions)
        for layer, context in zip(self.body.layers, self.fusion(features), strict=True):
            inner: Any = layer
            x = x + self._attend(inner.self_attn, context, inner.input_layernorm(x), angles, mask)
            x = x + inner.mlp(inner.post_attention_layernorm(x))
        return self.body.norm(x)

    def _attend(self, own: Any, context: Tensor, x: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        rows = x.shape[1]
        key, value = (torch.cat([there(context), here(x)], 1) for there, here in zip(sides_of(own), (own.k_proj, own.v_proj), strict=True))
        query = own.q_norm(own.q_proj(x).unflatten(-1, (-1, own.head_dim))).transpose(1, 2)
        key = own.k_norm(key.unflatten(-1, (-1, own.head_dim))).transpose(1, 2)
        value = value.unflatten(-1, (-1, own.head_dim)).transpose(1, 2)
        cosines, sines = (one[:, None] for one in angles)
        query, key = turn(query, cosines[..., -rows:, :], sines[..., -rows:, :]), turn(key, cosines, sines)
        out = nn.functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True, scale=own.scaling)
        return own.o_proj(out.transpose(1, 2).flatten(2))


class BlockDrafter(ParallelDrafter):
    """A BlockNetwork behind an engine's pages. Not thread-safe."""

    kind = "block"

    def __init__(self, network: BlockNetwork, target: Target, name: str, taps: tuple[int, ...], block: int, mask_token: int) -> None:
        config: Any = network.config
        self._network = network = network.eval().requires_grad_(False)
        options = network.options
        self.name, self.taps, self.mask_token = name, taps, mask_token
        self.most, self._skip = (block, 0) if options.from_anchor else (block - 1, 1)
        self.max_context, self._vocab_size = config.max_position_embeddings, config.vocab_size
        self.corrected = network.correction is not None or network.confidence is not None
        network.fusion.pack()
        if network.correction is not None:
            network.correction.pack()
        if options.said:
            network.lm_head = exact(network.lm_head)
        self._angles: Any = network.body.rotary_emb
        if network.fusion.hidden_norm.weight.device.type == "cpu":
            self._angles = Angles(network.body.rotary_emb)
        sides = [(*sides_of(layer.self_attn), layer.self_attn.k_norm) for layer in map(_any, network.body.layers)]
        self._sides: list[tuple[Any, Any, Any]] = [(exact(key), exact(value), norm) for key, value, norm in sides]  # before the body packs
        self._body = TransformersModel(_headless(network, target), _info(name, config))
        self._head_dim = config.head_dim

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        self._body.allocate(num_pages, page_tokens)

    def page_bytes(self, page_tokens: int) -> int:
        return self._body.page_bytes(page_tokens)

    def begin(self, target: Target, reading: Reading, width: int) -> Begun:
        positions, slots = reading.unread()
        if len(slots):
            self._read(target.features(slots, self.taps), positions, slots)
        ragged = reading.block(width + self._skip, self.mask_token)
        hidden = self._body.forward(ragged).unflatten(0, (len(reading.last), -1))[:, self._skip :]
        if isinstance(self._network.correction, Hidden):
            return Begun(hidden, None)
        return Begun(hidden, self._said(target, hidden.flatten(0, 1).contiguous()).unflatten(0, hidden.shape[:2]))

    def logits(self, target: Target, begun: Begun) -> Tensor:
        assert begun.logits is not None
        return self._spread(begun.logits)

    def place(self, target: Target, begun: Begun, number: int, token: Tensor, state: Any) -> Place:
        correction, hidden = self._network.correction, begun.hidden[:, number]
        if isinstance(correction, Hidden):
            hidden = correction(hidden, target.embed(token))
            own = self._said(target, hidden.contiguous())
        else:
            assert begun.logits is not None
            own = begun.logits[:, number]
        if isinstance(correction, Markov | Gru):
            state = correction.begin(len(token), hidden) if state is None else state
            more, state = correction(number, hidden, token, target.embed(token), state)
            own = own if more is None else own + more.float()
        confidence, chance = self._network.confidence, None
        if confidence is not None:
            reads = self._network.options.confidence_reads_token and isinstance(correction, Markov)
            chance = confidence(hidden, correction.markov_w1(token) if reads and isinstance(correction, Markov) else None)
        return Place(self._spread(own), chance, state)

    def _said(self, target: Target, hidden: Tensor) -> Tensor:
        """Logits [N, Vd] of hidden [N, H]."""
        return self._network.lm_head(hidden).float() if self._network.options.said else target.head(hidden)

    def _spread(self, own: Tensor) -> Tensor:
        return spread(own, self._network.d2t, self._vocab_size) if self._network.options.said else own

    def _read(self, features: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Keep keys and values of tokens that the target has read: features [N, T * C], positions [N], slots [N]."""
        contexts = self._network.fusion(features)
        cosines, sines = (one[:, None] for one in self._turns(contexts[0], positions))
        for (key, value, norm), context, (keys, values) in zip(self._sides, contexts, self._body.caches, strict=True):
            own = nn.functional.rms_norm(
                key(context).unflatten(-1, (-1, self._head_dim)), (self._head_dim,), norm.weight, norm.variance_epsilon
            )
            write_rows(turn(own, cosines, sines), value(context).unflatten(-1, (-1, self._head_dim)), keys, values, slots)

    def _turns(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N, D] of positions [N]."""
        if isinstance(self._angles, Angles):
            return self._angles.at(positions)
        cosines, sines = self._angles(like[None], positions[None])
        return cosines[0], sines[0]


def sides_of(attention: Any) -> tuple[Any, Any]:
    """What makes keys and values of the target's tokens."""
    if hasattr(attention, "k_proj_target"):
        return attention.k_proj_target, attention.v_proj_target
    return attention.k_proj, attention.v_proj


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
