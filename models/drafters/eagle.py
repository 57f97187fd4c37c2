"""EAGLE: layers over [embedding of the next token ; what the target says of this one], told token by token.

The row of position i holds token i + 1 and the target's features of token i, and says token i + 2; behind the last token that the target
has seen, the network's own output takes the features' place. EAGLE-3 (arXiv 2503.01840) fuses several of the target's layers and has its
own head, which may say a part of the vocabulary only; 3.1 norms more; EAGLE-1 and 2 (arXiv 2401.15077, 2406.16858) read what stands before
the target's head, and use that head. P-EAGLE says all places at once: masks, and a vector it has learnt in place of features.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from drawloom.models.drafters.contract import Begun, ParallelDrafter, Reading, SerialDrafter, Target
from drawloom.models.drafters.layers import Angles, Attend, Caches, PlainLayer, WideLayer
from drawloom.models.drafters.vocabulary import spread
from drawloom.models.ragged import Ragged


@dataclass(frozen=True)
class EagleOptions:
    """What publishers do differently."""

    num_taps: int = 3
    norm_before_residual: bool = False  # the residual is the normed feature
    own_embeddings: bool = False
    norm_before_fc: bool = False  # one norm over all features side by side
    fc_norm: bool = False  # one norm for each tapped layer (3.1)
    norm_output: bool = False  # what takes the features' place is normed (3.1)
    depth: int = 1  # layers; P-EAGLE has several
    parallel: bool = False  # P-EAGLE


class EagleNetwork(nn.Module):
    """The weights, under the names of published checkpoints: fc, midlayer.*, norm, lm_head, d2t, t2d; P-EAGLE's other layers are more.*"""

    d2t: Tensor  # [Vd] int64, token = draft token + d2t
    t2d: Tensor  # [V] bool, tokens that it can say

    def __init__(self, config: LlamaConfig, options: EagleOptions, target_width: int, draft_vocab: int) -> None:
        super().__init__()
        self.config, self.options = config, options
        width, eps = options.num_taps * target_width, config.rms_norm_eps
        if options.norm_before_fc:
            self.input_norm = nn.RMSNorm(width, eps=eps)
        if options.fc_norm:
            self.fc_norm = nn.ModuleList(nn.RMSNorm(target_width, eps=eps) for _ in range(options.num_taps))
        self.fc: Any = nn.Linear(width, config.hidden_size, bias=False)
        self.midlayer = WideLayer(config, norm_before_residual=options.norm_before_residual)
        self.more = nn.ModuleList(PlainLayer(config) for _ in range(options.depth - 1))
        self.norm = nn.RMSNorm(config.hidden_size, eps=eps)
        self.lm_head: Any = nn.Linear(config.hidden_size, draft_vocab, bias=False)
        if options.own_embeddings:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if options.parallel:
            self.mask_hidden = nn.Parameter(torch.zeros(1, 1, width))
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.register_buffer("d2t", torch.zeros(draft_vocab, dtype=torch.int64))
        self.register_buffer("t2d", torch.ones(config.vocab_size, dtype=torch.bool))

    @property
    def layers(self) -> list[Any]:
        return [self.midlayer, *self.more]

    def enter(self, features: Tensor) -> Tensor:
        """The target's features [..., T * C] -> what a row begins with [..., H]."""
        if self.options.norm_before_fc:
            features = self.input_norm(features)
        if self.options.fc_norm:
            parts = features.chunk(self.options.num_taps, -1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(features)

    def forward(self, embedded: Tensor, hidden: Tensor, angles: Angles, attends: list[Attend]) -> tuple[Tensor, Tensor]:
        """Embedded and hidden [..., H]; an attention for each layer -> what the next row begins with, and what the head reads."""
        hidden = self.midlayer(embedded, hidden, angles, attends[0])
        for layer, attend in zip(self.more, attends[1:], strict=True):
            hidden = layer(hidden, angles, attend)
        normed = self.norm(hidden)
        return normed if self.options.norm_output else hidden, normed

    def said(self, normed: Tensor) -> Tensor:
        """Normed hidden [..., H] -> logits [..., V] of the target's tokens; those that the drafter cannot say have -inf."""
        return spread(self.lm_head(normed).float(), self.d2t, self.config.vocab_size)


class FirstEagleNetwork(nn.Module):
    """EAGLE-1 and 2: fc [embedding ; feature], then layers of the target's kind, the first of which has no norm before its attention."""

    def __init__(self, config: LlamaConfig, *, bias: bool, own_embeddings: bool) -> None:
        super().__init__()
        self.config, self.options = config, EagleOptions(1, own_embeddings=own_embeddings, depth=config.num_hidden_layers)
        self.fc: Any = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layers: Any = nn.ModuleList(PlainLayer(config, enters_normed=number > 0) for number in range(config.num_hidden_layers))
        if own_embeddings:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary_emb = LlamaRotaryEmbedding(config)

    def enter(self, features: Tensor) -> Tensor:
        return features

    def forward(self, embedded: Tensor, hidden: Tensor, angles: Angles, attends: list[Attend]) -> tuple[Tensor, Tensor]:
        """As EagleNetwork's; what the head reads is what the next row begins with."""
        hidden = self.fc(torch.cat([embedded, hidden], -1))
        for layer, attend in zip(self.layers, attends, strict=True):
            hidden = layer(hidden, angles, attend)
        return hidden, hidden


class EagleDrafter(SerialDrafter):
    """A network of this file, or an MTP module, behind an engine's pages. Not thread-safe."""

    kind, ahead = "eagle", 1

    def __init__(self, network: Any, name: str, taps: tuple[int, ...], most: int) -> None:
        self.name, self.taps, self.most, self.max_context = name, taps, most, network.config.max_position_embeddings
        self._network = network = network.eval().requires_grad_(False)
        self._caches = Caches(network, network.layers)

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        self._caches.allocate(num_pages, page_tokens)

    def page_bytes(self, page_tokens: int) -> int:
        return self._caches.page_bytes(page_tokens)

    def enter(self, features: Tensor) -> Tensor:
        return self._network.enter(features)

    def forward(self, target: Target, ragged: Ragged, hidden: Tensor) -> tuple[Tensor, Tensor]:
        carried, normed = run(self._network, self._caches, target, ragged, hidden)
        own = normed[ragged.logit_rows]
        return carried, self._network.said(own) if hasattr(self._network, "said") else target.head(own.contiguous())


class ParallelEagleDrafter(ParallelDrafter):
    """P-EAGLE: an EagleNetwork whose masks say the further places in the same forward. Not thread-safe."""

    kind, ahead = "block", 1

    def __init__(self, network: EagleNetwork, name: str, taps: tuple[int, ...], most: int, mask_token: int) -> None:
        config: Any = network.config
        self.name, self.taps, self.most, self.max_context = name, taps, most, config.max_position_embeddings
        self._network, self._mask_token = network.eval().requires_grad_(False), mask_token
        self._caches = Caches(network, network.layers)

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        self._caches.allocate(num_pages, page_tokens)

    def page_bytes(self, page_tokens: int) -> int:
        return self._caches.page_bytes(page_tokens)

    def begin(self, target: Target, reading: Reading, width: int) -> Begun:
        ragged = reading.told(width - 1, self._mask_token)
        told = target.features(ragged.slots, self.taps)
        masks = ragged.logit_rows.unflatten(0, (len(reading.last), width))[:, 1:].flatten()
        told = told.index_copy(0, masks, self._network.mask_hidden[0].to(told.dtype).expand(len(masks), -1))
        _, normed = run(self._network, self._caches, target, ragged, self._network.enter(told))
        return Begun(normed[ragged.logit_rows].unflatten(0, (-1, width)), None)

    def logits(self, target: Target, begun: Begun) -> Tensor:
        return self._network.said(begun.hidden)


def run(network: Any, caches: Caches, target: Target, ragged: Ragged, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of a batch that begin with hidden [R, H] -> what the rows behind them begin with, and what the head reads, [R, H]."""
    embedded = network.embed_tokens(ragged.tokens) if network.options.own_embeddings else target.embed(ragged.tokens)
    cosines, sines = network.rotary_emb(embedded[None], ragged.positions[None])
    return network(embedded, hidden, (cosines[0], sines[0]), caches.over(ragged))
