"""Which networks can run behind our attention, and which are refused by name.

A tested family is taken as it is; any other decoder-only family is first asked for features that its attention function
could not express, and then (models/load.py) proved on a few tokens against its own attention.
"""

from typing import Any

from transformers import PretrainedConfig

from drawloom.errors import SettingError

TESTED = frozenset({"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "olmo2", "gpt_oss"})
LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
WHY_NOT = {
    "bloom": "its attention adds a bias by distance (ALiBi)",
    "mpt": "its attention adds a bias by distance (ALiBi)",
    "deepseek_v2": "its keys and values are latent vectors of different sizes",
    "deepseek_v3": "its keys and values are latent vectors of different sizes",
    "kimi_k2": "its keys and values are latent vectors of different sizes",
    "mamba": "it keeps a recurrent state instead of keys and values",
    "mamba2": "it keeps a recurrent state instead of keys and values",
    "rwkv": "it keeps a recurrent state instead of keys and values",
    "recurrent_gemma": "it keeps a recurrent state beside keys and values",
    "jamba": "it keeps a recurrent state beside keys and values",
    "qwen3_next": "it keeps a recurrent state beside keys and values",
    "llama4_text": "its attention is cut into chunks and rescales queries by position",
    "gemma3": "it is a vision-language model; save its language model (gemma3_text) alone",
    "gemma3n_text": "its layers share keys and values of other layers",
}


def check_family(config: PretrainedConfig) -> None:
    """Raise SettingError naming the family and the reason when its attention cannot be expressed by Ragged rows."""
    family = str(config.model_type)
    reason = WHY_NOT.get(family) or _obstacle(config)
    if reason:
        raise SettingError(f"family {family!r} cannot run here: {reason}; families that are tested: {', '.join(sorted(TESTED))}")


def _obstacle(config: PretrainedConfig) -> str:
    """The first feature in a config that our attention does not have, or nothing."""
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder"
    if strange := sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES):
        return f"it has layers of type {', '.join(strange)}"
    if getattr(config, "use_bidirectional_attention", False):
        return "its attention looks both ways"
    if getattr(config, "kv_lora_rank", None):
        return "its keys and values are latent vectors"
    if rope := sorted(_rope_types(config) & {"dynamic", "longrope"}):
        return f"its rotary angles ({', '.join(rope)}) depend on the longest text in the batch, so a text would depend on its neighbours"
    return ""


def _rope_types(config: PretrainedConfig) -> set[str]:
    found: Any = getattr(config, "rope_parameters", None) or {}
    settings = [found, *(value for value in found.values() if isinstance(value, dict))]
    return {str(setting["rope_type"]) for setting in settings if setting.get("rope_type")}
