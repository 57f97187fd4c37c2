"""Linear maps whose result for a row does not depend on the rows beside it, where a kernel has that."""

from typing import Any

import torch
from torch import nn

from drawloom.kernels.native import why_not
from drawloom.models.native import PackedLinear


def exact(linear: nn.Linear) -> Any:
    """The same map by the CPU kernel, weights packed without loss; as it is on a GPU or in another dtype."""
    if linear.weight.device.type != "cpu" or linear.weight.dtype != torch.float32 or why_not():
        return linear
    return PackedLinear(linear)
