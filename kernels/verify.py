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


def reach(parent: Tensor) -> Tensor:
    """[S, K, K] bool: row k's ancestors and itself, from parent [S, K] int64 (a root is its own parent)."""
    rows = parent.shape[1]
    seen = torch.eye(rows, dtype=torch.bool, device=parent.device).expand(len(parent), -1, -1)
    for _ in range(rows.bit_length()):  # each round doubles the distance
        seen = seen | seen.gather(1, parent[:, :, None].expand_as(seen))
        parent = parent.gather(1, parent)
    return seen


def walk_tree(token: Tensor, parent: Tensor, seen: Tensor, valid: Tensor, picked: Tensor) -> Tensor:
    """The accepted path [S, K] bool, row 0 included: the deepest row whose token, and that of each ancestor, is the target's draw picked
    [S, K] after its parent; the first among equals. seen is reach(parent). A chain gives walk_chain."""
    row = torch.arange(token.shape[1], device=token.device)
    agrees = valid & ((token == picked.gather(1, parent)) | (row == 0))
    good = agrees & ~(seen & ~agrees[:, None, :]).any(2)
    best = torch.where(good, seen.sum(2), 0).argmax(1)
    return seen.gather(1, best[:, None, None].expand(-1, 1, token.shape[1]))[:, 0]
