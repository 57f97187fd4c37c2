"""Published drafter checkpoints -> drafters: which format a folder has, its settings, its weights under one name each, nothing guessed.

Formats: DFlash (z-lab, SpecForge, AngelSpec's flat fields), EAGLE-3 (SafeAILab, SpecForge, AngelSlim, NVIDIA, vLLM), Medusa, and the
`speculators` container around the first two. Every weight must be known and present; files of code are never read.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config

from drawloom.errors import SettingError
from drawloom.models.checkpoint import Checkpoint
from drawloom.models.drafters.block import BlockDrafter, BlockNetwork
from drawloom.models.drafters.contract import TRIAL, FeatureDrafter, Trial
from drawloom.models.drafters.eagle import EagleDrafter, EagleNetwork, EagleOptions
from drawloom.models.drafters.heads import HeadsDrafter, HeadsNetwork
from drawloom.models.drafters.kinds import kind_of
from drawloom.models.transformer import TransformersModel

BORROWED = {"block": ("embed_tokens.weight", "lm_head.weight"), "eagle": (), "heads": ()}  # copies of the target's, in some files
EAGLE_TOKENS = 5  # of a draft, where the checkpoint does not say


def load_drafter(checkpoint: Checkpoint, target: TransformersModel) -> FeatureDrafter | None:
    """The drafter in a checkpoint, ready for this target; None when it is a model of its own. Raises SettingError when it cannot be read,
    has other weights than it should, or was made for another target."""
    config = checkpoint.config()
    kind = kind_of(config)
    if kind is None:
        return None
    state = state_of(checkpoint.folder)
    try:
        drafter = {"block": _block, "eagle": _eagle, "heads": _heads}[kind](checkpoint.name, config, state, target)
    except KeyError as error:
        raise SettingError(f"drafter {checkpoint.name!r}: its config.json lacks {error}") from None
    target.tap(drafter.taps)
    if (told := checkpoint.folder / TRIAL).is_file():
        found = json.loads(told.read_text())
        drafter.trial = Trial(tuple(found["prompts"]), float(found["accepted"]))
    return drafter


def _block(name: str, told: Mapping[str, Any], state: dict[str, Tensor], target: TransformersModel) -> BlockDrafter:
    own = told.get("dflash_config") or told
    taps = tuple(own["target_layer_ids"])
    config = Qwen3Config(**(told.get("transformer_layer_config") or dict(told)))
    _same("hidden_size", name, config.hidden_size, target.hidden_size)
    _same("vocab_size", name, config.vocab_size, target.info.vocab_size)
    network = BlockNetwork(config, target.hidden_size, len(taps))
    fill(network, name, {published_block(key): value for key, value in state.items() if key not in BORROWED["block"]})
    network.to(target.network.device, target.network.dtype)
    return BlockDrafter(network, target, name, taps, int(told["block_size"]), int(own["mask_token_id"]))


def published_block(key: str) -> str:
    """Our name of a published weight."""
    return f"fusion.{key}" if key.startswith(("fc.", "hidden_norm.")) else f"body.{key}"


def _eagle(name: str, told: Mapping[str, Any], state: dict[str, Tensor], target: TransformersModel) -> EagleDrafter:
    inner = told.get("transformer_layer_config") or told
    config = LlamaConfig(**{**inner, "vocab_size": told.get("vocab_size") or target.info.vocab_size})
    _same("vocab_size", name, config.vocab_size, target.info.vocab_size)
    listed = told.get("eagle_aux_hidden_state_layer_ids") or (told.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    layers = target.num_layers
    taps = tuple(listed or (2, layers // 2, layers - 3))
    if extra := [field for field in ("norm_before_fc", "fc_norm", "norm_output") if told.get(field)]:
        raise SettingError(f"drafter {name!r}: {extra[0]} (EAGLE 3.1) is not supported; take an EAGLE-3 checkpoint without it")
    options = EagleOptions(len(taps), bool(told.get("norm_before_residual")), "embed_tokens.weight" in state)
    if not options.own_embeddings:
        _same("hidden_size", name, config.hidden_size, target.hidden_size)
    network = EagleNetwork(config, options, target.hidden_size, int(told.get("draft_vocab_size") or config.vocab_size))
    renamed = {key.replace("layers.0.", "midlayer.", 1) if key.startswith("layers.0.") else key: value for key, value in state.items()}
    if network.lm_head.out_features == config.vocab_size:  # a whole vocabulary needs no map
        renamed = {"d2t": network.d2t, "t2d": network.t2d} | renamed
    if "d2t" in renamed:
        renamed["d2t"] = _offsets(name, renamed["d2t"].long(), renamed.get("t2d"), config.vocab_size)
    fill(network, name, renamed)
    network.to(target.network.device, target.network.dtype)
    network.rotary_emb.float()
    return EagleDrafter(network, name, taps, int(told.get("speculative_tokens") or EAGLE_TOKENS))


def _offsets(name: str, d2t: Tensor, t2d: Tensor | None, vocab_size: int) -> Tensor:
    """d2t as offsets: token = draft token + offset. Some files hold the tokens themselves."""
    index = torch.arange(len(d2t))
    for offset in (d2t, d2t - index):
        token = index + offset
        if (
            bool(((token >= 0) & (token < vocab_size)).all())
            and len(token.unique()) == len(token)
            and (t2d is None or bool(t2d[token].all()))
        ):
            return offset
    raise SettingError(f"drafter {name!r}: d2t and t2d do not agree on which tokens it can say")


def _heads(name: str, told: Mapping[str, Any], state: dict[str, Tensor], target: TransformersModel) -> HeadsDrafter:
    layers = int(told.get("medusa_num_layers", 1))
    heads = 1 + max((int(key.split(".")[0]) for key in state if key.split(".")[0].isdigit()), default=-1)
    if heads < 1:
        raise SettingError(f"drafter {name!r}: its weights have no heads (0.0.linear.weight, ...)")
    network = HeadsNetwork(heads, layers, target.hidden_size, target.info.vocab_size)
    fill(network, name, {f"heads.{key}": value for key, value in state.items()})
    network.to(target.network.device, target.network.dtype)
    return HeadsDrafter(network, name, target.num_layers, target.info.max_context)


def state_of(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's weight files, without the prefixes that some publishers put before every name."""
    state: dict[str, Tensor] = {}
    files = sorted(folder.glob("*.safetensors")) or sorted([*folder.glob("*.bin"), *folder.glob("*.pt")])
    if not files:
        raise SettingError(f"drafter {folder}: no weight file (.safetensors, .bin or .pt)")
    for file in files:
        try:
            state |= load_file(file) if file.suffix == ".safetensors" else torch.load(file, map_location="cpu", weights_only=True)
        except UnpicklingError:
            raise SettingError(f"drafter {folder}: {file.name} cannot be read: it holds more than tensors") from None
        except (OSError, SafetensorError, RuntimeError, ValueError) as error:
            raise SettingError(f"drafter {folder}: {file.name} cannot be read: {error}") from None
    plain = {key.removeprefix("module.").removeprefix("model."): value for key, value in state.items()}
    return {key: value for key, value in plain.items() if not key.endswith("rotary_emb.inv_freq")}


def fill(network: nn.Module, name: str, state: Mapping[str, Tensor]) -> None:
    """Give a network exactly the weights it has. Raises SettingError naming what is missing, unknown or of another shape."""
    own = network.state_dict()
    wrong = {
        "missing": sorted(own.keys() - state.keys()),
        "unknown": sorted(state.keys() - own.keys()),
        "of another shape": sorted(key for key in own.keys() & state.keys() if own[key].shape != state[key].shape),
    }
    for fault, keys in wrong.items():
        if keys:
            raise SettingError(
                f"drafter {name!r}: {len(keys)} weights are {fault}, such as {keys[:3]}; it is not of the format its config says"
            )
    network.load_state_dict(dict(state))


def _same(what: str, name: str, own: int, targets: int) -> None:
    if own != targets:
        raise SettingError(f"drafter {name!r} has {what} {own}, the target {targets}; it was made for another model")
