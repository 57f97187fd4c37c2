"""The weights of a drafter's files: read as tensors, every one known and present, nothing guessed."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from drawloom.errors import SettingError

State = dict[str, Tensor]


def state_of(folder: Path, wanted: Callable[[str], bool] = bool) -> State:
    """The wanted tensors of a folder's weight files, without the prefixes that some publishers put before every name."""
    state: State = {}
    files = sorted(folder.glob("*.safetensors")) or sorted([*folder.glob("*.bin"), *folder.glob("*.pt")])
    if not files:
        raise SettingError(f"drafter {folder}: no weight file (.safetensors, .bin or .pt)")
    for file in files:
        try:
            state |= {plain(key): value for key, value in _read(file, lambda key: wanted(plain(key)))}
        except UnpicklingError:
            raise SettingError(f"drafter {folder}: {file.name} cannot be read: it holds more than tensors") from None
        except (OSError, SafetensorError, RuntimeError, ValueError) as error:
            raise SettingError(f"drafter {folder}: {file.name} cannot be read: {error}") from None
    return {key: value for key, value in state.items() if not key.endswith("rotary_emb.inv_freq")}


def plain(key: str) -> str:
    """A weight's name without what some publishers put before every name."""
    return key.removeprefix("module.").removeprefix("model.")


def _read(file: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Tensor]]:
    if file.suffix != ".safetensors":
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        yield from ((key, value) for key, value in state.items() if wanted(key))
        return
    with safe_open(file, "pt") as opened:
        yield from ((key, opened.get_tensor(key)) for key in opened.keys() if wanted(key))  # noqa: SIM118 (it is no mapping)


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


def renamed(state: Mapping[str, Tensor], names: Mapping[str, str], otherwise: str = "") -> State:
    """Weights whose names begin with a key of `names` get its value in that place, the first that fits; all others `otherwise` in front."""
    out: State = {}
    for key, value in state.items():
        found = next((prefix for prefix in names if key.startswith(prefix)), None)
        out[otherwise + key if found is None else names[found] + key.removeprefix(found)] = value
    return out


def same(what: str, name: str, own: int, targets: int) -> None:
    """Raise SettingError unless a drafter's number is the target's."""
    if own != targets:
        raise SettingError(f"drafter {name!r} has {what} {own}, the target {targets}; it was made for another model")


def place(network: nn.Module, beside: PreTrainedModel) -> None:
    """Bring a drafter to its target's device and dtype; rotary frequencies stay float32, where rounding would turn far tokens wrongly."""
    exact = [(module, module.inv_freq) for module in network.modules() if isinstance(getattr(module, "inv_freq", None), Tensor)]
    network.to(beside.device, beside.dtype)
    for module, frequencies in exact:
        module.inv_freq = frequencies.to(beside.device)
