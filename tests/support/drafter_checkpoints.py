"""Random drafters for the networks of tiny.py, in the formats that publishers use, and what each would draft, from nothing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tiny
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

from drawloom.actors.build import load_draft
from drawloom.actors.engine import Engine
from drawloom.actors.settings import EngineSettings
from drawloom.decoders.drafting import Drafting
from drawloom.models.drafters.block import BlockNetwork
from drawloom.models.drafters.eagle import EagleNetwork, EagleOptions
from drawloom.models.drafters.heads import HeadsNetwork
from drawloom.models.load import load_model
from drawloom.models.settings import ModelSettings

SHAPE: dict[str, Any] = {
    "vocab_size": tiny.VOCAB, "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 512,
}  # fmt: skip
TAPS = {"block": (0, 1), "eagle": (0, 1, 0), "heads": (2,)}
BLOCK, HEADS, WIDTH = 6, 5, 4
RECIPES = {"block": "dflash", "eagle": "eagle", "heads": "medusa"}


def network_of(kind: str, seed: int = 0, **options: Any) -> Any:
    """Random weights of a kind."""
    torch.manual_seed(100 + seed)
    if kind == "block":
        network: Any = BlockNetwork(Qwen3Config(**SHAPE, num_hidden_layers=2, tie_word_embeddings=False), 32, 2)
    elif kind == "eagle":
        network = EagleNetwork(LlamaConfig(**SHAPE, num_hidden_layers=1), EagleOptions(**options), 32, tiny.VOCAB)
    else:
        network = HeadsNetwork(HEADS, 1, 32, tiny.VOCAB)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.35)
    return network.eval()


def config_of(kind: str, network: Any) -> dict[str, Any]:
    if kind == "block":
        own = {"mask_token_id": tiny.MASK, "target_layer_ids": list(TAPS["block"])}
        return {**network.config.to_dict(), "architectures": ["DFlashDraftModel"], "block_size": BLOCK, "dflash_config": own}
    if kind == "eagle":
        own = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(TAPS["eagle"])}
        named = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(network.d2t), "eagle_config": own}
        return {**network.config.to_dict(), **named, "norm_before_residual": network.options.norm_before_residual}
    return {"medusa_num_heads": HEADS, "medusa_num_layers": 1}


def state_of(kind: str, network: Any) -> dict[str, Tensor]:
    """Weights under published names."""
    prefixes = {"block": ("fusion.", "body."), "eagle": (), "heads": ("heads.",)}[kind]
    state = {}
    for key, value in network.state_dict().items():
        for prefix in prefixes:
            key = key.removeprefix(prefix)
        state[key] = value.clone().contiguous()
    return state


def written(kind: str, folder: Path, config: dict[str, Any] | None = None, state: dict[str, Tensor] | None = None, seed: int = 0) -> str:
    network = network_of(kind, seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or config_of(kind, network)))
    save_file(state or state_of(kind, network), folder / "model.safetensors")
    return str(folder)


def engine_of(target: str, drafter: str, kind: str, **settings: Any) -> Engine:
    model = load_model(ModelSettings(name=target))
    asked = Drafting(drafter, WIDTH, 0.0, coupled=True, laws=False, kind=kind)
    draft = load_draft(asked, ModelSettings(name=target), model)
    return Engine(model, tiny.Nothing(), EngineSettings(**{"num_pages": 400, "page_tokens": 4, **settings}), drafts={drafter: draft})


class Naive:
    """What a drafter says of a text at temperature 0: the target and the drafter from nothing, in plain torch."""

    def __init__(self, kind: str, target: Any, network: Any) -> None:
        self.kind, self.target, self.network = kind, target, network

    @torch.no_grad()
    def draft(self, text: Sequence[int], width: int) -> list[int]:
        """The `width` tokens behind a text, whose last token the target has not read."""
        return self.logits(text, width).argmax(-1).tolist()

    @torch.no_grad()
    def logits(self, text: Sequence[int], width: int) -> Tensor:
        out = self.target(torch.tensor([list(text[:-1])]), output_hidden_states=True, use_cache=False)
        states = out.hidden_states  # embeddings, then each layer; the last one is behind the norm
        if self.kind == "heads":
            return self.network(states[-1][0, -1])[:width]
        taps = torch.cat([self._layer(tap, text[:-1]) for tap in TAPS[self.kind]], -1)
        return self._block(taps, text, width) if self.kind == "block" else self._eagle(taps, text, width)

    def _layer(self, tap: int, tokens: Sequence[int]) -> Tensor:
        """[1, N, C]: what a layer puts out."""
        found: list[Any] = []
        hook = self.target.model.layers[tap].register_forward_hook(lambda _m, _i, out: found.append(out))
        self.target(torch.tensor([list(tokens)]), use_cache=False)
        hook.remove()
        return found[0][0] if isinstance(found[0], tuple) else found[0]

    def _block(self, features: Tensor, text: Sequence[int], width: int) -> Tensor:
        rows, before = width + 1, len(text) - 1
        embedded = self.target.get_input_embeddings()(torch.tensor([[text[-1], *[tiny.MASK] * width]]))
        positions = torch.arange(before + rows)[None]
        mask = torch.ones(1, 1, rows, before + rows, dtype=torch.bool)
        hidden = self.network(features, embedded, positions, mask)
        return self.target.get_output_embeddings()(hidden[0, 1:])

    def _eagle(self, features: Tensor, text: Sequence[int], width: int) -> Tensor:
        embed, hidden, said = self.target.get_input_embeddings(), self.network.fc(features), []
        tokens = list(text[1:])
        for _ in range(width):
            out = self._pass(embed(torch.tensor([tokens])), hidden)
            said.append(self.network.said(out[:, -1])[0])
            tokens.append(int(said[-1].argmax()))
            hidden = torch.cat([hidden, out[:, -1:]], 1)
        return torch.stack(said)

    def _pass(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        cosines, sines = self.network.rotary_emb(embedded, torch.arange(embedded.shape[1])[None])

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = (one.transpose(1, 2) for one in (query, key, value))
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2)

        return self.network.midlayer(embedded, hidden, (cosines, sines), attend)
