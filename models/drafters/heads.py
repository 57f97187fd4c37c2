"""Heads on the target's last hidden state, the first of which says the token after the next one: Medusa (arXiv 2401.10774), whose heads do
not know one another, and Hydra (arXiv 2402.05109), whose heads are told the tokens before them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from drawloom.models.drafters.contract import Begun, ParallelDrafter, Place, Reading, Target
from drawloom.models.drafters.layers import Caches, PlainLayer, pack_linears


class ResBlock(nn.Module):
    """x + SiLU(W x + b), where x may be wider than what comes out: then it is brought to that width by a map of its own."""

    def __init__(self, hidden: int, wide: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(wide * hidden, hidden)
        self.res_connection: nn.Module = nn.Linear(wide * hidden, hidden) if wide > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.res_connection(x) + nn.functional.silu(self.linear(x))


class HeadsNetwork(nn.Module):
    """Medusa's weights, under the names of published checkpoints: head i is i.0 .. i.(n-1), blocks, then i.n, a map to the vocabulary."""

    def __init__(self, num_heads: int, num_layers: int, hidden: int, vocab_size: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(*(ResBlock(hidden) for _ in range(num_layers)), nn.Linear(hidden, vocab_size, bias=False))
            for _ in range(num_heads)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [..., C] behind the last norm -> logits [..., heads, V]: head i says the token i + 2 places on."""
        return torch.stack([head(hidden) for head in self.heads], -2)


class HeadsDrafter(ParallelDrafter):
    """Medusa's heads behind an engine's pages."""

    kind = "heads"

    def __init__(self, network: HeadsNetwork, name: str, last_tap: int, max_context: int) -> None:
        self.name, self.taps, self.most, self.max_context = name, (last_tap,), len(network.heads), max_context
        self._network = network.eval().requires_grad_(False)
        pack_linears(network)

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        """Heads keep nothing."""

    def page_bytes(self, page_tokens: int) -> int:
        return 0

    def begin(self, target: Target, reading: Reading, width: int) -> Begun:
        said = self._network(target.features(reading.newest(), self.taps))[:, :width]
        return Begun(said, said.float())

    def logits(self, target: Target, begun: Begun) -> Tensor:
        assert begun.logits is not None
        return begun.logits


@dataclass(frozen=True)
class HydraOptions:
    num_heads: int = 4
    num_layers: int = 1  # blocks of a head
    grounded: bool = True  # heads are told the tokens before them
    prefix: bool = False  # a layer over the target's hidden states comes before the heads (Hydra++)
    own_embeddings: bool = False


class HydraNetwork(nn.Module):
    """Hydra's weights, under the names of published checkpoints; the prefix layer is of the target's kind, `config`."""

    def __init__(self, config: Any, options: HydraOptions) -> None:
        super().__init__()
        hidden, heads = config.hidden_size, range(options.num_heads)
        self.config, self.options = config, options
        self.hydra_mlp: Any = nn.ModuleList(
            nn.Sequential(*(ResBlock(hidden, head + 2 if options.grounded and not block else 1) for block in range(options.num_layers)))
            for head in heads
        )
        self.hydra_lm_head: Any = nn.ModuleList(nn.Linear(hidden, config.vocab_size) for _ in heads)
        if options.prefix:
            self.layer = PlainLayer(config)
            self.norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
            self.rotary_emb = LlamaRotaryEmbedding(config)

    def said(self, head: int, seen: Sequence[Tensor]) -> Tensor:
        """Logits [..., V] of a head from what stands before it and, if it is grounded, embeddings of the tokens since, [..., C] each."""
        told = torch.cat(list(seen[: head + 2]), -1) if self.options.grounded else seen[0]
        return self.hydra_lm_head[head](self.hydra_mlp[head](told))


class HydraDrafter(ParallelDrafter):
    """Hydra's heads behind an engine's pages. Not thread-safe."""

    kind = "heads"

    def __init__(self, network: HydraNetwork, name: str, tap: int, max_context: int) -> None:
        self.name, self.taps, self.most, self.max_context = name, (tap,), network.options.num_heads, max_context
        self._network, self.corrected = network.eval().requires_grad_(False), network.options.grounded
        self._caches = Caches(network, [network.layer]) if network.options.prefix else None
        pack_linears(network)

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        if self._caches is not None:
            self._caches.allocate(num_pages, page_tokens)

    def page_bytes(self, page_tokens: int) -> int:
        return 0 if self._caches is None else self._caches.page_bytes(page_tokens)

    def begin(self, target: Target, reading: Reading, width: int) -> Begun:
        if self._caches is None:
            hidden = target.features(reading.newest(), self.taps)
        else:
            ragged, network = reading.told(0, 0), self._network
            told = target.features(ragged.slots, self.taps)
            cosines, sines = network.rotary_emb(told[None], ragged.positions[None])
            hidden = network.norm(network.layer(told, (cosines[0], sines[0]), self._caches.over(ragged)[0]))[ragged.logit_rows]
        return Begun(hidden[:, None].expand(-1, width, -1), None)

    def logits(self, target: Target, begun: Begun) -> Tensor:
        return torch.stack([self._network.said(head, [begun.hidden[:, 0]]) for head in range(begun.hidden.shape[1])], 1).float()

    def place(self, target: Target, begun: Begun, number: int, token: Tensor, state: Any) -> Place:
        seen = [*(state or [begun.hidden[:, 0]]), target.embed(token)]
        return Place(self._network.said(number, seen).float(), None, seen)
