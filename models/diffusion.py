"""Diffusion checkpoints whose own classes are code that we never run: how each is read into a transformers class with the same layers.

A family says what its files do not: which class has its layers, whether its row i predicts position i + 1, what its rows see, and where
its mask token is written. The mask token is never guessed: it differs between families, and a wrong one gives fluent nonsense.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from drawloom.errors import SettingError
from drawloom.kernels.attention import FULL
from drawloom.models.checkpoint import Checkpoint

OWN = frozenset({"model_type", "architectures", "auto_map", "attn_implementation", "transformers_version"})  # words about their code

# config keys of LLaDA (an OLMo descendant) in the words of Llama
_LLADA = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "intermediate_size": "mlp_hidden_size",
    "vocab_size": "embedding_size",
    "max_position_embeddings": "max_sequence_length",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "rms_norm_eps",
    "tie_word_embeddings": "weight_tying",
    "attention_bias": "include_qkv_bias",
    "mlp_bias": "include_bias",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "pad_token_id",
}
_LLADA_KEYS = {
    r"^model\.transformer\.wte\.": "model.embed_tokens.",
    r"^model\.transformer\.ln_f\.": "model.norm.",
    r"^model\.transformer\.ff_out\.": "lm_head.",
    r"^model\.transformer\.blocks\.(\d+)\.q_proj\.": r"model.layers.\1.self_attn.q_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.k_proj\.": r"model.layers.\1.self_attn.k_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.v_proj\.": r"model.layers.\1.self_attn.v_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.attn_out\.": r"model.layers.\1.self_attn.o_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.ff_proj\.": r"model.layers.\1.mlp.gate_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.up_proj\.": r"model.layers.\1.mlp.up_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.ff_out\.": r"model.layers.\1.mlp.down_proj.",
    r"^model\.transformer\.blocks\.(\d+)\.attn_norm\.": r"model.layers.\1.input_layernorm.",
    r"^model\.transformer\.blocks\.(\d+)\.ff_norm\.": r"model.layers.\1.post_attention_layernorm.",
}


@dataclass(frozen=True)
class Family:
    """One row of the table. Sources: the checkpoints' config and modeling files, read and not run."""

    config: type[PretrainedConfig]
    network: type[Any]
    shifted: bool  # row i predicts position i + 1
    block_field: str  # config key of the block size; "" for full attention
    mask_token: str = ""  # the tokenizer's name for the mask, where the config has no mask_token_id
    words: Mapping[str, str] = field(default_factory=dict)  # config keys: ours -> theirs; none: the same words
    keys: Mapping[str, str] = field(default_factory=dict)  # weight names: pattern -> ours


FAMILIES = {
    "sdar": Family(Qwen3Config, Qwen3ForCausalLM, shifted=False, block_field="block_size"),
    "sdar_moe": Family(Qwen3MoeConfig, Qwen3MoeForCausalLM, shifted=False, block_field="block_size"),
    "Fast_dLLM_Qwen": Family(Qwen2Config, Qwen2ForCausalLM, shifted=True, block_field="bd_size", mask_token="|<MASK>|"),
    "Dream": Family(Qwen2Config, Qwen2ForCausalLM, shifted=True, block_field=""),
    "llada": Family(LlamaConfig, LlamaForCausalLM, shifted=False, block_field="", words=_LLADA, keys=_LLADA_KEYS),
}
WHY_NOT = {
    "llada2_moe": "its experts are chosen in groups by biased sigmoid scores, which no class of transformers does",
    "llada2_moe_veomni": "its experts are merged for training; and its routing is one that no class of transformers has",
    "lladamoe": "its layers are those of no class of transformers",
    "wedlm": "its causal rows stand in another order than their positions",
    "orthrus": "its diffusion heads are a second set of weights beside the causal ones",
    "diffusion_gemma": "it denoises from random tokens instead of masks",
}


def family_of(checkpoint: Checkpoint) -> Family | None:
    """The family of a checkpoint, None when it is none of these. Raises SettingError for one that is known and cannot run here."""
    name = str(checkpoint.config().get("model_type"))
    if name in WHY_NOT:
        raise SettingError(f"family {name!r} cannot run here: {WHY_NOT[name]}; diffusion families that can: {', '.join(sorted(FAMILIES))}")
    return FAMILIES.get(name)


def config_of(family: Family, checkpoint: Checkpoint) -> PretrainedConfig:
    """The transformers config of a checkpoint, with mask_token_id, block_size and shifted_logits set.

    Raises SettingError when the mask token or the block size is not written anywhere.
    """
    told = checkpoint.config()
    known = {ours: told[theirs] for ours, theirs in family.words.items() if told.get(theirs) is not None} if family.words else told
    made: Any = family.config(**{name: value for name, value in known.items() if name not in OWN})
    made.mask_token_id, made.block_size = _mask_of(family, checkpoint), _block_of(family, checkpoint)
    made.shifted_logits = family.shifted
    return made


def _mask_of(family: Family, checkpoint: Checkpoint) -> int:
    found = checkpoint.config().get("mask_token_id")
    if found is None and family.mask_token:
        found = checkpoint.added_tokens().get(family.mask_token)
    if not isinstance(found, int):
        also = f", and its tokenizer has no {family.mask_token!r}" if family.mask_token else ""
        raise SettingError(f"model {checkpoint.name!r}: its config has no mask_token_id{also}; add the id that it was trained with")
    return found


def _block_of(family: Family, checkpoint: Checkpoint) -> int:
    if not family.block_field:
        return FULL
    found = checkpoint.config().get(family.block_field)
    if not isinstance(found, int) or found < 1:
        raise SettingError(
            f"model {checkpoint.name!r}: its config has no {family.block_field} of 1 or more; add the block size it was trained with"
        )
    return found
