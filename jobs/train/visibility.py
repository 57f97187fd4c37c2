"""Who may see whom while training: one rule, as a dense mask on a CPU and as FlexAttention's block mask on a GPU.

A packed row holds a clean view of several documents and, behind it, any number of noisy views of parts of them: [clean ; noisy ; ...].
A clean token sees clean tokens of its document that do not come after it; a noisy token sees its own group up to its own block, and clean
tokens before its group. Nothing clean ever sees noise. BD3-LM (arXiv 2503.09573) with groups of one block; MBD-LM's MultiTF with more.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

CLEAN = -1


@dataclass(frozen=True)
class View:
    """Attributes of N tokens in B rows, all [B, N] int64. `order` is what may not be seen ahead of: the block's number, or the position."""

    document: Tensor  # number of its document in the row; padding has -1
    order: Tensor
    group: Tensor  # CLEAN, or a number that no other group of the row has
    start: Tensor  # noisy tokens: the `order` at which their group begins

    def __len__(self) -> int:
        return self.document.shape[1]

    def to(self, device: torch.device) -> "View":
        return View(self.document.to(device), self.order.to(device), self.group.to(device), self.start.to(device))


def join(*views: View) -> View:
    """One view behind another."""
    return View(*(torch.cat([getattr(view, name) for view in views], 1) for name in ("document", "order", "group", "start")))


def clean(document: Tensor, order: Tensor) -> View:
    return View(document, order, torch.full_like(order, CLEAN), torch.zeros_like(order))


def allowed(q: tuple[Tensor, ...], k: tuple[Tensor, ...]) -> Tensor:
    """The rule, on any shapes that broadcast; q and k are (document, order, group, start, index)."""
    (q_document, q_order, q_group, q_start, q_index), (k_document, k_order, k_group, _, k_index) = q, k
    from_clean = (k_group == CLEAN) & torch.where(q_group == CLEAN, k_order <= q_order, k_order < q_start)
    from_own = (k_group == q_group) & (q_group != CLEAN) & (k_order <= q_order)
    return ((q_document == k_document) & (from_clean | from_own) & (q_document >= 0)) | (q_index == k_index)


def dense_mask(view: View) -> Tensor:
    """[B, 1, N, N] bool. Padding sees itself alone, so that no row of a softmax is empty."""
    index = torch.arange(len(view), device=view.document.device).expand_as(view.document)
    parts = (view.document, view.order, view.group, view.start, index)
    return allowed(tuple(part[:, None, :, None] for part in parts), tuple(part[:, None, None, :] for part in parts))


def flex_mask(view: View) -> Any:
    """The same as a BlockMask, which skips whole tiles that nobody sees."""
    return create_block_mask(mask_mod_of(view), len(view.document), None, len(view), len(view), device=str(view.document.device))


def mask_mod_of(view: View) -> Any:
    """The rule as FlexAttention asks for it, one pair of tokens at a time."""
    parts = (view.document, view.order, view.group, view.start)

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return allowed((*(part[b, q] for part in parts), q), (*(part[b, k] for part in parts), k))

    return mask_mod


def mask_for(view: View) -> Any:
    """What transformers takes as attention_mask: dense on CPU, FlexAttention's on a GPU."""
    return flex_mask(view) if view.document.is_cuda else dense_mask(view)
