"""Checkpoints of heads: Medusa (FasterDecoding) and Hydra (zankner), in .pt or .safetensors."""

from collections.abc import Mapping
from typing import Any

from drawloom.errors import SettingError
from drawloom.models.drafters.heads import HeadsDrafter, HeadsNetwork, HydraDrafter, HydraNetwork, HydraOptions
from drawloom.models.drafters.weights import State, fill, place, renamed
from drawloom.models.transformer import TransformersModel

ARCHES = ("mlp", "prefix-mlp")


def load_medusa(name: str, told: Mapping[str, Any], state: State, target: TransformersModel) -> HeadsDrafter:
    layers = int(told.get("medusa_num_layers", 1))
    heads = 1 + max((int(key.split(".")[0]) for key in state if key.split(".")[0].isdigit()), default=-1)
    if heads < 1:
        raise SettingError(f"drafter {name!r}: its weights have no heads (0.0.linear.weight, ...)")
    network = HeadsNetwork(heads, layers, target.hidden_size, target.info.vocab_size)
    fill(network, name, {f"heads.{key}": value for key, value in state.items()})
    place(network, target.network)
    return HeadsDrafter(network, name, target.num_layers, target.info.max_context)


def load_hydra(name: str, told: Mapping[str, Any], state: State, target: TransformersModel) -> HydraDrafter:
    arch = str(told.get("hydra_head_arch", "mlp"))
    if arch not in ARCHES:
        raise SettingError(f"drafter {name!r}: hydra_head_arch {arch!r} is not supported; supported are {', '.join(ARCHES)}")
    options = HydraOptions(
        num_heads=int(told["hydra_num_heads"]),
        num_layers=int(told.get("hydra_num_layers", 1)),
        grounded=bool(told.get("grounded_heads", True)),
        prefix=arch == "prefix-mlp",
    )
    config: Any = target.network.config
    network = HydraNetwork(config, options)
    state = {key.removeprefix("hydra_head."): value for key, value in state.items()}
    names = {"prefix_embeding_layer.layers.0.": "layer.", "prefix_embeding_layer.norm.": "norm."}
    state = renamed({key: value for key, value in state.items() if "embed_tokens" not in key}, names)
    if options.prefix:  # where every module stands behind a dropout
        for head in range(options.num_heads):
            blocks = {f"hydra_mlp.{head}.{2 * block + 1}.": f"hydra_mlp.{head}.{block}." for block in range(options.num_layers)}
            state = renamed(state, {**blocks, f"hydra_lm_head.{head}.1.": f"hydra_lm_head.{head}."})
    fill(network, name, state)
    place(network, target.network)
    offset = int(told.get("hidden_state_offset") or 0)  # layers before the last one; 0: behind the last norm
    tap = target.num_layers - (offset + 1 if offset else 0)
    return HydraDrafter(network, name, tap, target.info.max_context)
