"""From settings to a network that runs: files, dtype, device, and a proof for families that no test covers."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from drawloom.errors import SettingError
from drawloom.models.adapters import merge
from drawloom.models.checkpoint import Checkpoint, locate
from drawloom.models.diffusion import config_of, family_of
from drawloom.models.drafters.kinds import DECODERS, kind_of
from drawloom.models.families import TESTED, check_family
from drawloom.models.prove import prove
from drawloom.models.quiet import quiet
from drawloom.models.ragged import ModelInfo
from drawloom.models.settings import ModelSettings
from drawloom.models.transformer import TransformersModel


def load_model(settings: ModelSettings) -> TransformersModel:
    """Load the checkpoint that `settings` names. Raises SettingError when it cannot be found, read, or expressed here."""
    if settings.compile:
        raise SettingError("compile=true: no layout is compiled by torch yet (on CPU the native one is C code); set compile=false")
    checkpoint, device = locate(settings), device_of(settings)
    network = load_network(checkpoint, dtype_of(settings, device), device)
    info = info_of(checkpoint, network)
    if network.config.model_type not in TESTED:
        prove(network, info)
    return TransformersModel(network, info)


def device_of(settings: ModelSettings) -> str:
    """cpu or cuda; auto takes a GPU when there is one."""
    has_gpu = torch.cuda.is_available()
    if settings.device == "cuda" and not has_gpu:
        raise SettingError("device cuda: this process sees no CUDA device; set device=cpu, or give the replica a GPU")
    return ("cuda" if has_gpu else "cpu") if settings.device == "auto" else settings.device


def dtype_of(settings: ModelSettings, device: str) -> torch.dtype | str:
    """auto is float32 on CPU (exact, and as fast as bfloat16 there) and the checkpoint's own on a GPU."""
    if settings.dtype == "auto":
        return torch.float32 if device == "cpu" else "auto"
    return getattr(torch, settings.dtype)


def load_network(checkpoint: Checkpoint, dtype: torch.dtype | str, device: str) -> PreTrainedModel:
    """The transformers network with every weight read from the checkpoint, none invented."""
    if kind := kind_of(checkpoint.config()):
        raise SettingError(
            f"model {checkpoint.name!r} is a drafter for another model, not a model; run that one with decoder {DECODERS[kind]!r} and "
            f"its parameter draft={checkpoint.name!r}"
        )
    if checkpoint.base is not None:
        return _adapted(checkpoint, checkpoint.base, dtype, device)
    place: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, **_gguf(checkpoint)}
    network_class: Any = AutoModelForCausalLM
    try:
        if family := family_of(checkpoint):
            network_class, config = family.network, config_of(family, checkpoint)
            place |= {"config": config, "key_mapping": dict(family.keys)}
        else:
            check_family(AutoConfig.from_pretrained(checkpoint.folder, **place))
        with quiet():
            loaded: Any = network_class.from_pretrained(
                checkpoint.folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **place
            )
    except (OSError, ValueError) as error:
        raise SettingError(f"model {checkpoint.name!r} cannot be loaded from {checkpoint.folder}: {error}") from None
    network, report = loaded
    for fault in ("missing_keys", "mismatched_keys"):
        if names := sorted(map(str, report[fault])):
            what = f"{len(names)} {fault.replace('_', ' ')}, such as {names[:3]}"
            raise SettingError(f"model {checkpoint.name!r}: {what}; the weight files are not complete")
    return network.to(device)


def _adapted(checkpoint: Checkpoint, base: Checkpoint, dtype: torch.dtype | str, device: str) -> PreTrainedModel:
    """The base with an adapter merged into it, rounded as the base was saved; described by the adapter's own config, if it has one."""
    network = load_network(base, dtype, device)
    told = base.config()
    merge(network, checkpoint.folder, getattr(torch, told.get("dtype") or told.get("torch_dtype") or "float32"))
    if (checkpoint.folder / "config.json").is_file():
        for name in ("mask_token_id", "block_size", "shifted_logits"):
            setattr(network.config, name, checkpoint.config().get(name))
    return network


def info_of(checkpoint: Checkpoint, network: PreTrainedModel) -> ModelInfo:
    """What an engine must know of a loaded network."""
    config = network.config
    eos, mask, shifted = config.eos_token_id, getattr(config, "mask_token_id", None), getattr(config, "shifted_logits", None)
    return ModelInfo(
        name=checkpoint.name,
        vocab_size=config.vocab_size,
        max_context=config.max_position_embeddings,
        eos_token_ids=checkpoint.eos_token_ids(eos[0] if isinstance(eos, list) else eos),
        mask_token_id=mask,
        block_tokens=1 if mask is None else _block_of(checkpoint, config),
        shifted=mask is None if shifted is None else shifted,
        fingerprint=checkpoint.fingerprint(),
    )


def _block_of(checkpoint: Checkpoint, config: Any) -> int:
    """Block size of a masked diffusion model; it is trained in and never guessed."""
    block = getattr(config, "block_size", None)
    if not isinstance(block, int) or block < 1:
        raise SettingError(
            f"model {checkpoint.name!r}: its config has mask_token_id but no block_size of 1 or more; add the one it was trained with"
        )
    return block


def _gguf(checkpoint: Checkpoint) -> dict[str, str]:
    return {} if checkpoint.gguf is None else {"gguf_file": checkpoint.gguf}
