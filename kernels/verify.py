"""How far a draft agrees with the target's own draws. S sequences, K rows a sequence (row 0 holds the last final token)."""

import torch
from torch import Tensor


def walk_chain(draft: Tensor, num_draft: Tensor, picked: Tensor) -> Tensor:
    """Length of the accepted run: draft [S, K-1], num_draft [S], picked [S, K] (the target's draw after each row) -> accepted [S] int64.

    Exact-match verification: with picks that do not depend on the draft, the emitted tokens picked[:, :accepted + 1] are the target's own
    whatever was drafted, and so is their law.
    """
    if draft.shape[1] == 0:
        return torch.zeros_like(num_draft)
    index = torch.arange(draft.shape[1], device=draft.device)
    agrees = (draft == picked[:, :-1]) & (index < num_draft[:, None])
    return agrees.long().cumprod(1).sum(1)
