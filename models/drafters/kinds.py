"""Which drafter a published config describes, and the decoder that it drafts for."""

from collections.abc import Mapping
from typing import Any

from drawloom.errors import SettingError

DECODERS = {"network": "draft-model", "block": "dflash", "eagle": "eagle", "heads": "medusa"}


def kind_of(config: Mapping[str, Any]) -> str | None:
    """What a config.json describes: "block", "eagle", "heads", or None when it is no drafter on features.

    Raises SettingError for a drafter that is not supported."""
    named = str(config.get("speculators_model_type") or (config.get("architectures") or [""])[0])
    if "medusa_num_heads" in config:
        return "heads"
    if named in ("dflash", "DFlashDraftModel"):
        own = config.get("dflash_config") or {}
        if own.get("projector_type") or own.get("causal") or own.get("use_swa"):
            raise SettingError(
                "this DFlash variant (projector_type, causal or use_swa in dflash_config) is not supported; take a plain one"
            )
        return "block"
    if named in ("eagle3", "LlamaForCausalLMEagle3") or (named == "LlamaForCausalLM" and "draft_vocab_size" in config):
        return "eagle"
    if "speculators_model_type" in config or named.endswith(("DraftModel", "DFlareModel", "DFlyModel", "Eagle", "Speculator")):
        raise SettingError(f"drafters of type {named!r} are not supported; supported are DFlash, EAGLE-3 and Medusa")
    return None
