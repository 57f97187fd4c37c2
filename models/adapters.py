"""Low-rank adapters (LoRA) in PEFT's file format, merged into their base when it is loaded: W + (alpha / r) B A."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from drawloom.errors import SettingError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."


def base_of(folder: Path) -> str | None:
    """The base that an adapter folder names, a relative path resolved against the folder; None when it is no adapter."""
    if not (folder / CONFIG).is_file():
        return None
    base = _read(folder).get("base_model_name_or_path")
    if not base:
        raise SettingError(f"adapter {folder}: {CONFIG} names no base (base_model_name_or_path); write a folder or a hub id there")
    return str((folder / base).resolve()) if (folder / base).is_dir() else base


def merge(network: nn.Module, folder: Path, dtype: torch.dtype) -> None:
    """Add an adapter to the weights it was trained for, rounded to `dtype` (the base's own), so that they pack like any checkpoint's.

    Raises SettingError for an adapter of another kind, or one whose tensors do not fit this network.
    """
    config = _read(folder)
    try:
        state = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise SettingError(f"adapter {folder}: {WEIGHTS} cannot be read: {error}; save it with safetensors") from None
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    names = sorted({name.rpartition(".lora_")[0] for name in state})
    modules = dict(network.named_modules())
    for name in names:
        a, b = (state.pop(f"{name}.lora_{side}.weight", None) for side in "AB")
        module: Any = modules.get(name.removeprefix(PREFIX))
        if a is None or b is None or module is None or module.weight.shape != (b.shape[0], a.shape[1]):
            raise SettingError(
                f"adapter {folder}: {name} does not fit this base; adapters hold lora_A and lora_B of the base's linear modules"
            )
        module.weight.data = _sum(module.weight.data, a, b, scale, dtype)
    if state:
        raise SettingError(f"adapter {folder}: unknown tensors, such as {sorted(state)[0]}; only plain LoRA is read")


def _sum(weight: Tensor, a: Tensor, b: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    return (weight.float() + scale * (b.float() @ a.float()).to(weight.device)).to(dtype).to(weight.dtype)


def _read(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = {"r": 8, "lora_alpha": 8} | json.loads((folder / CONFIG).read_text())  # PEFT's own defaults
    except ValueError as error:
        raise SettingError(f"adapter {folder}: {CONFIG} is not JSON: {error}") from None
    odd = [key for key in ("use_dora", "alpha_pattern", "rank_pattern", "modules_to_save", "lora_bias") if config.get(key)]
    if config.get("peft_type") != "LORA" or odd or config.get("bias", "none") != "none":
        what = odd[0] if odd else config.get("peft_type") if config.get("peft_type") != "LORA" else "bias"
        raise SettingError(f"adapter {folder}: {what} is not supported; merge it into its base with PEFT and load the result")
    return config
