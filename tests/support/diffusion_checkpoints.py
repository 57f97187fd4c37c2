"""Random checkpoints of diffusion families, as their own code writes them."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": False, "eos_token_id": 3,
}  # fmt: skip
LLADA = {
    "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4,
    "mlp_hidden_size": 48, "vocab_size": 60, "embedding_size": 64, "max_sequence_length": 128, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
    "include_bias": False, "include_qkv_bias": False, "weight_tying": False, "mask_token_id": 62, "eos_token_id": 3, "pad_token_id": 3,
    "auto_map": {"AutoModelForCausalLM": "modeling_llada.LLaDAModelLM"}, "block_type": "llama", "activation_type": "silu",
}  # fmt: skip


def written(folder: Path, family: str, sharp: float = 0.2, **more: Any) -> torch.nn.Module:
    """Write a random checkpoint as the family's own code does; returns the same weights in a class of transformers."""
    torch.manual_seed(0)
    if family == "llada":
        network: Any = LlamaForCausalLM(
            LlamaConfig(**{**SHAPE, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_parameters": rope(500000.0)})
        )
        config = {**LLADA, **more}
        weights = {as_llada(name): weight for name, weight in network.state_dict().items()}
    elif family == "sdar":
        network = Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8, rope_parameters=rope(1e6)))
        config = {**SHAPE, "head_dim": 8, "rope_theta": 1e6, "block_size": 4, "mask_token_id": 62, "fuse_cross_entropy": True, **more}
        weights = network.state_dict()
    else:
        network = Qwen2ForCausalLM(Qwen2Config(**SHAPE, rope_parameters=rope(1e6)))
        own = {"bd_size": 4} if family == "Fast_dLLM_Qwen" else {"mask_token_id": 62}
        config = {**SHAPE, "rope_theta": 1e6, **own, **more}
        weights = network.state_dict()
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(0, sharp)
    config |= {"model_type": family, "auto_map": {"AutoModel": "modeling.Anything"}, "torch_dtype": "float32"}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"61": {"content": "|<MASK>|"}}}))
    save_file({name: weight.clone().contiguous() for name, weight in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    return network.eval()


def rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def as_llada(name: str) -> str:
    own = {"self_attn.o_proj": "attn_out", "mlp.gate_proj": "ff_proj", "mlp.up_proj": "up_proj", "mlp.down_proj": "ff_out"}
    own |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ff_norm"}
    own |= {f"self_attn.{one}_proj": f"{one}_proj" for one in "qkv"}
    top = {"model.embed_tokens.weight": "wte", "model.norm.weight": "ln_f", "lm_head.weight": "ff_out"}
    if name in top:
        return f"model.transformer.{top[name]}.weight"
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    assert found is not None
    return f"model.transformer.blocks.{found[1]}.{own[found[2]]}.{found[3]}"
