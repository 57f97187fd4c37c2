"""A small random network of the zoo's shape on disk, and what a plain forward of it says."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from drawloom.actors.engine import Engine
from drawloom.actors.settings import EngineSettings
from drawloom.models.checkpoint import locate
from drawloom.models.load import load_model, load_network
from drawloom.models.settings import ModelSettings

VOCAB, MASK, END = 96, 95, 94


def written(folder: Path, block: int = 0, *, tied: bool = True, seed: int = 0, sharp: float = 0.35, layers: int = 2) -> str:
    """A Qwen3 network; block > 0 makes it a block-diffusion model. `sharp` weights give distributions with sure tokens."""
    torch.manual_seed(seed)
    config: Any = Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, max_position_embeddings=512, tie_word_embeddings=tied, eos_token_id=END, pad_token_id=END, bos_token_id=None,
    )  # fmt: skip
    if block:
        config.mask_token_id, config.block_size = MASK, block
    network: Any = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 1.0 if "embed" in name or "lm_head" in name else sharp)
    network.save_pretrained(folder)
    return str(folder)


def engine_of(folder: str, **settings: Any) -> Engine:
    """An engine on it; its tokenizer is never used."""
    return Engine(load_model(ModelSettings(name=folder)), Nothing(), EngineSettings(**{"num_pages": 400, "page_tokens": 4, **settings}))


class Nothing:
    """Text of a model without a tokenizer."""

    vocab_size, eos_token_ids = VOCAB, (END,)

    def encode(self, prompt: str) -> list[int]:
        raise AssertionError(prompt)

    def render(self, messages: object) -> list[int]:
        raise AssertionError(messages)

    def decode(self, token_ids: object) -> str:
        return ""


def plain(folder: str) -> Any:
    """The same weights with transformers' own eager attention."""
    network = load_network(locate(ModelSettings(name=folder)), torch.float32, "cpu")  # an adapter is merged into its base
    network.set_attn_implementation("eager")
    return network.eval()


class Plain:
    """The network behind the naive references: every forward from nothing, in transformers' own attention."""

    def __init__(self, folder: str) -> None:
        self.info, self.network = load_model(ModelSettings(name=folder)).info, plain(folder)

    @torch.no_grad()
    def logits_from(self, tokens: Sequence[int], sees: Callable[[Tensor, Tensor], Tensor], weight: Sequence[float] | None) -> Tensor:
        position = torch.arange(len(tokens))
        seen = sees(position[:, None], position[None, :])
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        embed = self.network.get_input_embeddings()
        ids = torch.tensor(list(tokens))
        own = embed(ids)
        if weight is not None:  # a soft input: a mix of both embeddings, as long as their lengths mixed
            share, other = torch.tensor(list(weight))[:, None], embed(torch.full_like(ids, self.info.mask_token_id or 0))
            mixed = share * own + (1 - share) * other
            length = share * own.norm(dim=1, keepdim=True) + (1 - share) * other.norm(dim=1, keepdim=True)
            own = torch.where(share == 1, own, mixed * length / mixed.norm(dim=1, keepdim=True))
        return self.network(inputs_embeds=own[None], attention_mask=mask, use_cache=False).logits[0]


@torch.no_grad()
def logits_of(network: Any, tokens: list[int], block: int) -> torch.Tensor:
    """[T, V] when row i sees key j of its own block and of those before it, from nothing."""
    position = torch.arange(len(tokens))
    seen = position[None, :] // block <= position[:, None] // block
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    return network(input_ids=torch.tensor([tokens]), attention_mask=mask, use_cache=False).logits[0]
