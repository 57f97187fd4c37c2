"""Which checkpoint, and how it is loaded."""

from typing import Literal

from drawloom.settings import Settings


class ModelSettings(Settings):
    """`name` is a folder, a hub id that is already in the local cache, a .gguf file, or one of the built-in words:
    `embedded` (SmolLM2-135M-Instruct from its PyPI package), `hash` (HashLM: a hash for a network) and `fake` (no network at all:
    deterministic pseudo-text, to rehearse a job's reading, writing and resuming)."""

    name: str = "embedded"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # auto: float32 on CPU, the checkpoint's on GPU
    device: Literal["auto", "cpu", "cuda"] = "auto"
    revision: str | None = None
    local_files_only: bool = True
    compile: bool = False  # torch.compile of the network; needs a C++ compiler on CPU
