"""Low-rank adapters (LoRA, arXiv 2106.09685) by PEFT: train few weights, ship few bytes. models/adapters.py reads them back."""

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model
from safetensors.torch import save_file

PREFIX = "base_model.model."  # as PEFT names tensors in its files


def adapt(network: Any, rank: int) -> None:
    """Freeze the network and put adapters of `rank` on every linear module of its layers."""
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"), network)


def save_adapter(network: Any, rank: int, base: str, folder: Path) -> None:
    """Write the adapter in PEFT's format, bfloat16. `base` is what the adapter belongs to."""
    state = {PREFIX + name: weight.to(torch.bfloat16).contiguous() for name, weight in get_peft_model_state_dict(network).items()}
    save_file(state, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "base_model_name_or_path": base, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))
