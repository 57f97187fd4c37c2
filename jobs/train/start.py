"""Where a training run begins: a checkpoint that this project's masks can train."""

from typing import Any

import torch
from transformers import PreTrainedModel

from drawloom.errors import SettingError
from drawloom.jobs.train.lora import adapt
from drawloom.jobs.train.settings import TrainSettings
from drawloom.models.checkpoint import locate
from drawloom.models.load import load_network
from drawloom.models.settings import ModelSettings
from drawloom.models.tokenizer import tokenizer_of


def start(settings: TrainSettings) -> tuple[PreTrainedModel, Any]:
    """Network in float32 and tokenizer of settings.base. Raises SettingError when it cannot be trained here."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    checkpoint = locate(ModelSettings(name=settings.base))
    network = load_network(checkpoint, torch.float32, "cpu")
    config: Any = network.config
    if set(getattr(config, "layer_types", None) or ()) - {"full_attention"} or getattr(config, "final_logit_softcapping", None):
        raise SettingError(f"base {settings.base!r}: sliding windows and soft-capped logits cannot be trained here; take another base")
    if settings.lora_rank:
        adapt(network, settings.lora_rank)
    network.set_attn_implementation("flex_attention" if settings.device == "cuda" else "sdpa")
    return network, tokenizer_of(checkpoint)


def mask_token_of(tokenizer: Any, base: str) -> int:
    """The token that stands for what is hidden."""
    if tokenizer.mask_token_id is None:
        raise SettingError(f"base {base!r}: its tokenizer has no mask token; add one (`mask_token`), and a row for it in the embeddings")
    return int(tokenizer.mask_token_id)


def mark_diffusion(config: Any, mask_token: int, block: int) -> None:
    """Write into a config that its network is a masked block-diffusion model whose masks predict themselves, whatever its base was;
    models/load.py reads it back."""
    config.mask_token_id, config.block_size, config.shifted_logits, config.use_cache = mask_token, block, False, False
