"""Which drafter a published config describes, and the decoder that it drafts for."""

from collections.abc import Mapping
from typing import Any

from drawloom.errors import SettingError

DECODERS = {"network": "draft-model", "block": "dflash", "eagle": "eagle", "heads": "medusa"}
# A format's loader, by the architecture or the container's type that its config names.
FORMATS = {
    "block": (
        "dflash", "dspark", "DFlashDraftModel", "DFlashSpeculator", "QwenDFlareDraftModel", "Qwen3DFlyModel", "DominoDraftModel",
        "DSparkDraftModel", "DSparkSpeculator", "Qwen3DSparkModel",
    ),
    "eagle-3": ("eagle3", "peagle", "LlamaForCausalLMEagle3", "Eagle3Speculator", "PEagleDraftModel", "PEagleSpeculator"),
    "eagle": ("EagleModel", "EAGLEModel", "EagleLlamaForCausalLM"),
    "mtp": ("mtp", "MTPDraftModel", "MTPSpeculator"),
}  # fmt: skip
KINDS = {"block": "block", "eagle-3": "eagle", "eagle": "eagle", "mtp": "eagle", "medusa": "heads", "hydra": "heads"}
SUPPORTED = "DFlash, DFlare, DFly, Domino, DSpark, EAGLE, P-EAGLE, multi-token prediction, Medusa and Hydra"
FOREIGN = ("DraftModel", "DFlareModel", "DFlyModel", "DSparkModel", "Eagle", "Speculator", "MTP")


def kind_of(config: Mapping[str, Any]) -> str | None:
    """What a config.json describes: "block", "eagle", "heads", or None when it is no drafter on features.

    Raises SettingError for a drafter that is not supported."""
    named = format_of(config)
    if named == "eagle-3" and _named(config) in ("peagle", "PEagleDraftModel", "PEagleSpeculator"):
        return "block"  # all places at once
    return None if named is None else KINDS[named]


def format_of(config: Mapping[str, Any]) -> str | None:
    """Whose file it is: a key of KINDS, or None. Raises SettingError for a drafter that is not supported."""
    named, own = _named(config), config.get("dflash_config") or {}
    if not isinstance(own, Mapping):
        raise SettingError(f"dflash_config is {own!r}; an object with target_layer_ids and mask_token_id is needed")
    for field, format_ in (("medusa_num_heads", "medusa"), ("hydra_num_heads", "hydra")):
        if field in config:
            return format_
    if config.get("model_type") == "eagle":
        return "eagle"
    if named == "LlamaForCausalLM" and "draft_vocab_size" in config:
        return "eagle-3"
    found = next((format_ for format_, names in FORMATS.items() if named in names), None)
    if odd := [field for field in ("causal", "use_swa") if found == "block" and own.get(field)]:
        raise SettingError(f"drafters with {odd[0]} in dflash_config are not supported; take one whose block sees itself and all before it")
    if found is None and ("speculators_model_type" in config or named.endswith(FOREIGN)):
        raise SettingError(f"drafters of type {named!r} are not supported; supported are {SUPPORTED}")
    return found


def _named(config: Mapping[str, Any]) -> str:
    return str(config.get("speculators_model_type") or (config.get("architectures") or [""])[0])
