"""Published drafter checkpoints -> drafters: which format a folder has, and who reads it. Files of code are never read."""

import json
from collections.abc import Callable
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from drawloom.errors import SettingError
from drawloom.models.checkpoint import Checkpoint
from drawloom.models.drafters.contract import TRIAL, FeatureDrafter, Trial
from drawloom.models.drafters.kinds import format_of
from drawloom.models.drafters.load_block import load_block
from drawloom.models.drafters.load_eagle import load_eagle, load_first_eagle, load_mtp, mtp_weight
from drawloom.models.drafters.load_heads import load_hydra, load_medusa
from drawloom.models.drafters.weights import state_of
from drawloom.models.transformer import TransformersModel

LOADERS: dict[str, Callable[..., FeatureDrafter]] = {
    "block": load_block,
    "eagle-3": load_eagle,
    "eagle": load_first_eagle,
    "mtp": load_mtp,
    "medusa": load_medusa,
    "hydra": load_hydra,
}


def load_drafter(checkpoint: Checkpoint, target: TransformersModel) -> FeatureDrafter | None:
    """The drafter in a checkpoint, ready for this target; None when it is a model of its own. Raises SettingError when it cannot be read,
    has other weights than it should, or was made for another target."""
    config = checkpoint.config()
    named, wanted = format_of(config), _all
    if named is None and config.get("num_nextn_predict_layers"):  # a model that brings a drafter for itself
        layers = int(config["num_hidden_layers"])
        named, wanted = "mtp", lambda key: mtp_weight(layers, key)
    if named is None and config.get("num_hidden_layers") == 1 and "fc.weight" in (state := state_of(checkpoint.folder)):
        named = "eagle"  # versions 1 and 2 say in their config that they are models
    if named is None:
        return None
    state = state_of(checkpoint.folder, wanted)
    try:
        drafter = LOADERS[named](checkpoint.name, config, state, target)
    except KeyError as error:
        raise SettingError(f"drafter {checkpoint.name!r}: its config.json lacks {error}") from None
    except (AttributeError, TypeError, ValueError, RuntimeError, ArithmeticError, StrictDataclassError) as error:
        said = " ".join(str(error).split())
        raise SettingError(f"drafter {checkpoint.name!r}: a value in its config.json makes no network: {said}") from None
    if drafter.most < 1:
        raise SettingError(f"drafter {checkpoint.name!r} says {drafter.most} tokens at most; a block of 2 or more is needed")
    target.tap(drafter.taps)
    drafter.trial = _trial(checkpoint)
    return drafter


def _trial(checkpoint: Checkpoint) -> Trial | None:
    """What the drafter's files promise."""
    if not (told := checkpoint.folder / TRIAL).is_file():
        return None
    try:
        found = json.loads(told.read_text())
        return Trial(tuple(map(str, found["prompts"])), float(found["accepted"]))
    except (ValueError, TypeError, KeyError) as error:
        said = f"{TRIAL} cannot be read ({error}); it holds prompts and accepted, or is left out"
        raise SettingError(f"drafter {checkpoint.name!r}: {said}") from None


def _all(_key: str) -> Any:
    return True
