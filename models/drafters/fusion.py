"""What a block drafter's layers read of a token: one vector for all of them, or one each. T tapped layers, C target width, D own layers."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from drawloom.models.drafters.linear import exact


class Joined(nn.Module):
    """RMSNorm(W [h_1 ; ... ; h_T]) for every layer (DFlash)."""

    def __init__(self, width: int, num_taps: int, hidden: int, depth: int, eps: float) -> None:
        super().__init__()
        self.depth = depth
        self.fc = nn.Linear(num_taps * width, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, eps=eps)

    def forward(self, features: Tensor) -> Sequence[Tensor]:
        """Features [..., T * C] -> D tensors [..., H]."""
        return [self.hidden_norm(self.fc(features))] * self.depth

    def pack(self) -> None:
        self.fc = exact(self.fc)


class Mixed(nn.Module):
    """RMSNorm(sum of softmax(w_d)_t h_t) for layer d (DFlare)."""

    def __init__(self, width: int, num_taps: int, hidden: int, depth: int, eps: float) -> None:
        super().__init__()
        self.layer_fusion_weights = nn.Parameter(torch.zeros(depth, num_taps))
        self.hidden_norm = nn.RMSNorm(width, eps=eps)

    def forward(self, features: Tensor) -> Sequence[Tensor]:
        """Features [..., T * C] -> D tensors [..., C]."""
        return [self.hidden_norm(one) for one in mixed(features, self.layer_fusion_weights)]

    def pack(self) -> None:
        """It has no matrix."""


class JoinedAndMixed(nn.Module):
    """RMSNorm(W [h_1 ; ... ; h_T] + sum of softmax(w_d)_t h_t) for layer d (DFly, arXiv 2607.25852)."""

    def __init__(self, width: int, num_taps: int, hidden: int, depth: int, eps: float) -> None:
        super().__init__()
        self.fc = nn.Linear(num_taps * width, hidden, bias=False)
        self.layer_fusion_weights = nn.Parameter(torch.zeros(depth, num_taps))
        self.hidden_norm = nn.RMSNorm(hidden, eps=eps)

    def forward(self, features: Tensor) -> Sequence[Tensor]:
        """Features [..., T * C] -> D tensors [..., H]; C is H."""
        joined = self.fc(features)
        return [self.hidden_norm(joined + one) for one in mixed(features, self.layer_fusion_weights)]

    def pack(self) -> None:
        self.fc = exact(self.fc)


def mixed(features: Tensor, weights: Tensor) -> list[Tensor]:
    """sum over t of softmax(weights[d])[t] h_t for each d: features [..., T * C] -> D tensors [..., C]."""
    apart = features.unflatten(-1, (weights.shape[1], -1))
    return [(apart * share.to(apart.dtype)[:, None]).sum(-2) for share in weights.softmax(-1)]


FUSIONS: dict[str, type[Joined | Mixed | JoinedAndMixed]] = {"joined": Joined, "mixed": Mixed, "joined and mixed": JoinedAndMixed}
