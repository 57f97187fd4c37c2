"""Where a checkpoint lies on this machine, and what its files say without loading weights."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from drawloom.errors import SettingError
from drawloom.models.adapters import base_of
from drawloom.models.embedded import embedded_folder
from drawloom.models.settings import ModelSettings
from drawloom.settings import nearest

FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.gguf")
ZOO = Path(__file__).parent / "zoo"
PICKLED = ("*.pt", "*.bin")  # drafters come in these, too; only tensors are read from them
CODE_FREE = (".json", ".safetensors", ".model", ".txt", ".jinja", ".gguf", ".pt", ".bin")


@dataclass(frozen=True)
class Checkpoint:
    """A folder of files, or one .gguf file in a folder. An adapter has a base, which says what its own folder does not."""

    name: str
    folder: Path
    gguf: str | None = None
    base: "Checkpoint | None" = None

    def files(self) -> list[Path]:
        """Every file that decides what the model says, sorted by name."""
        if self.gguf is not None:
            return [self.folder / self.gguf]
        return sorted(path for path in self.folder.iterdir() if path.suffix in CODE_FREE and path.is_file())

    def place_of(self, name: str) -> Path:
        """The folder that holds file `name`: its own, or the base's when this is an adapter without it."""
        here = self.base is None or (self.folder / name).is_file()
        return self.folder if here or self.base is None else self.base.place_of(name)

    def config(self) -> dict[str, Any]:
        """config.json, {} in a .gguf file."""
        return {} if self.gguf is not None else _read_json(self.place_of("config.json") / "config.json")

    def added_tokens(self) -> dict[str, int]:
        """Names and ids of the tokens that were added to the tokenizer's vocabulary."""
        folder = self.place_of("tokenizer_config.json")
        told = _read_json(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
        return {str(one.get("content")): int(number) for number, one in told.items()} | _read_json(folder / "added_tokens.json")

    def fingerprint(self) -> str:
        """16 hex digits over names and contents of weights, config and tokenizer."""
        total = hashlib.sha256()
        for path in self.files():
            total.update(f"{path.name} {_content_hash(path)}\n".encode())
        if self.base is not None:
            total.update(f"base {self.base.fingerprint()}\n".encode())
        return total.hexdigest()[:16]

    def eos_token_ids(self, of_tokenizer: int | None) -> tuple[int, ...]:
        """Ids that end a text: those of the generation config and config, else the tokenizer's."""
        for name in ("generation_config.json", "config.json"):
            found = _read_json(self.place_of(name) / name).get("eos_token_id") if self.gguf is None else None
            if found is not None:
                return tuple(found) if isinstance(found, list) else (int(found),)
        return () if of_tokenizer is None else (int(of_tokenizer),)


def locate(settings: ModelSettings, also: tuple[str, ...] = ()) -> Checkpoint:
    """Find the files that `settings.name` means; `also`: patterns of further files to download. Raises SettingError saying what is missing
    and how to get it."""
    name = settings.name
    if name == "embedded":
        return Checkpoint(name, embedded_folder())
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise SettingError(f"model {name!r}: there is no such .gguf file")
        return Checkpoint(path.name, path.parent, path.name)
    if name in zoo():
        path = ZOO / name
    folder = path if path.is_dir() else _from_hub(settings, also)
    base = base_of(folder)
    if base is None and not (folder / "config.json").is_file():
        raise SettingError(f"model {name!r}: {folder} has no config.json; point at a folder that save_pretrained wrote, or at a .gguf file")
    based = locate(settings.model_copy(update={"name": base, "revision": None})) if base else None
    return Checkpoint(path.name if path.is_dir() else name, folder, base=based)


def zoo() -> list[str]:
    """The small models that come with this package."""
    return sorted(path.parent.name for path in ZOO.glob("*/config.json"))


def _from_hub(settings: ModelSettings, also: tuple[str, ...]) -> Path:
    try:
        return Path(
            snapshot_download(
                settings.name, revision=settings.revision, local_files_only=settings.local_files_only, allow_patterns=[*FILES, *also]
            )
        )
    except HFValidationError:
        raise SettingError(f"model {settings.name!r} is neither a folder, nor a .gguf file, nor a hub id (owner/name)") from None
    except LocalEntryNotFoundError:
        raise SettingError(
            f"model {settings.name!r} is neither a folder nor in the local hub cache; give a folder, download it first, or set "
            f"local_files_only=false; {nearest(settings.name, ['embedded', 'hash', 'fake', *zoo()])}"
        ) from None
    except HfHubHTTPError as error:
        raise SettingError(f"model {settings.name!r} cannot be downloaded: {error}") from None


def _content_hash(path: Path) -> str:
    """sha256 of a file; a link into a hub cache already carries it as the name of its target."""
    target = path.resolve()
    if target.parent.name == "blobs" and len(target.name) == 64:
        return target.name
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    """{} when there is no such file. Raises SettingError when it holds anything but a JSON object."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise SettingError(f"{path} is not JSON: {error}; the files of this model are not complete") from None
    if not isinstance(found, dict):
        raise SettingError(f"{path} holds no JSON object; the files of this model are not complete")
    return found
