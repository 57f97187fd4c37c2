"""Linear layers whose float32 weights are kept in the narrowest format that gives back every bit: reference, native kernel.

Decoding a token reads every weight once, so a forward of few rows takes the time of that reading. A checkpoint that was saved in
bfloat16, Q8_0 or Q4_1 holds 16, 9 or 6 bits of information per weight, and the products stay those of its float32 values.
The native kernel sums every output in one chain over its inputs, so a row's result does not depend on the rows beside it.
"""

from ctypes import byref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drawloom.kernels.native import CMatrix, address, library

FORMATS = {"q4": 3, "q8": 2, "bfloat16": 1, "float32": 0}  # narrowest first; numbers as in native_matmul.h


@dataclass(frozen=True)
class Packed:
    """A weight [outputs, inputs] in panels; `matrix` points into `panels` and `bias`."""

    format: str
    panels: Tensor  # uint8
    bias: Tensor | None  # [outputs] float32
    matrix: Any  # CMatrix

    @property
    def num_bytes(self) -> int:
        return self.panels.numel()


def pack(weight: Tensor, bias: Tensor | None = None) -> Packed:
    """weight [outputs, inputs] float32 -> the narrowest format of FORMATS that reproduces it bit for bit."""
    native, weight = library(), weight.detach().contiguous()
    bias = None if bias is None else bias.detach().float().contiguous()
    outputs, inputs = weight.shape
    for name, number in FORMATS.items():
        if name in ("q4", "q8") and inputs % 32:
            continue
        panels = torch.empty(native.drawloom_packed_bytes(outputs, inputs, number), dtype=torch.uint8)
        if native.drawloom_pack(address(weight), outputs, inputs, number, panels.data_ptr(), torch.get_num_threads()):
            return Packed(name, panels, bias, CMatrix(outputs, inputs, number, panels.data_ptr(), address(bias)))
    raise AssertionError("float32 holds every float32")


def unpack(packed: Packed) -> Tensor:
    """[outputs, inputs] float32: the weight that was packed."""
    weight = torch.empty(packed.matrix.outputs, packed.matrix.inputs)
    library().drawloom_unpack(byref(packed.matrix), weight.data_ptr())
    return weight


def linear_reference(x: Tensor, packed: Packed) -> Tensor:
    """x [R, inputs] float32 -> [R, outputs]."""
    return torch.nn.functional.linear(x, unpack(packed), packed.bias)


def linear(x: Tensor, packed: Packed) -> Tensor:
    """x [R, inputs] float32 -> [R, outputs], by the native kernel."""
    out = torch.empty(x.shape[0], packed.matrix.outputs)
    library().drawloom_linear(byref(packed.matrix), address(x), x.shape[0], out.data_ptr(), torch.get_num_threads())
    return out
