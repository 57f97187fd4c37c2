"""Whether the Triton kernels can run here, and the way to those that have a reference; triton is imported when one is asked for."""

import sys
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from drawloom.kernels.attention import Rows, Scoring


def why_not(device: str, *, asked: bool = False) -> str:
    """Why Triton's kernels cannot run on a device of this type, or "". asked: by name, so that the interpreter would do."""
    triton: Any = sys.modules.get("triton")
    interpreted = asked and triton is not None and triton.knobs.runtime.interpret
    if device != "cuda" and not interpreted:
        return f"Triton's kernels run on a GPU, not on {device}"
    return "" if find_spec("triton") else "triton is not installed; pip install 'drawloom[gpu]'"


def attend(query: Tensor, key_cache: Tensor, value_cache: Tensor, rows: Rows, scoring: Scoring) -> Tensor:
    """As attend_reference."""
    from drawloom.kernels.attention_triton import attend_triton

    return attend_triton(query, key_cache, value_cache, rows, scoring)


def pick(logits: Tensor, choice: Tensor, draw: Any) -> tuple[Tensor, Tensor]:
    """As pick_reference."""
    from drawloom.kernels.pick_triton import pick_triton

    return pick_triton(logits, choice, draw)
