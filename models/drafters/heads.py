"""Medusa (arXiv 2401.10774): heads on the target's last hidden state, the first of which says the token after the next one."""

import torch
from torch import Tensor, nn

from drawloom.models.drafters.contract import ParallelDrafter, Target
from drawloom.models.drafters.linear import exact
from drawloom.models.ragged import Ragged


class ResBlock(nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


class HeadsNetwork(nn.Module):
    """The weights, under the names of published checkpoints: head i is i.0 .. i.(n-1), blocks, then i.n, a linear map to the vocabulary."""

    def __init__(self, num_heads: int, num_layers: int, hidden: int, vocab_size: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(*(ResBlock(hidden) for _ in range(num_layers)), nn.Linear(hidden, vocab_size, bias=False))
            for _ in range(num_heads)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [..., C] behind the last norm -> logits [..., heads, V]: head i says the token i + 2 places on."""
        return torch.stack([head(hidden) for head in self.heads], -2)


class HeadsDrafter(ParallelDrafter):
    """Medusa's heads behind an engine's pages."""

    kind = "heads"

    def __init__(self, network: HeadsNetwork, name: str, last_tap: int, max_context: int) -> None:
        self.name, self.taps, self.most, self.max_context = name, (last_tap,), len(network.heads), max_context
        self._network = network.eval().requires_grad_(False)
        for module in list(network.modules()):
            for child, linear in list(module.named_children()):
                if type(linear) is nn.Linear:
                    setattr(module, child, exact(linear))

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        """Heads keep nothing."""

    def page_bytes(self, page_tokens: int) -> int:
        return 0

    def absorb(self, features: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Heads read the last token alone."""

    def rows(self, width: int) -> int:
        return 0

    def logits(self, target: Target, ragged: Ragged | None, last: Tensor, width: int) -> Tensor:
        return self._network(last)[:, :width].float()
