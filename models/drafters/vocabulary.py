"""Drafters that can say a part of the target's vocabulary only."""

import torch
from torch import Tensor

from drawloom.errors import SettingError


def spread(own: Tensor, d2t: Tensor, vocab_size: int) -> Tensor:
    """Logits [..., Vd] of a drafter's own tokens -> [..., V] of the target's, -inf where it cannot say one; token = own + d2t[own]."""
    if own.shape[-1] == vocab_size:
        return own
    token = torch.arange(len(d2t), device=own.device) + d2t
    return own.new_full((*own.shape[:-1], vocab_size), -torch.inf).index_copy_(-1, token, own)


def offsets(name: str, d2t: Tensor, t2d: Tensor | None, vocab_size: int) -> Tensor:
    """d2t as offsets: token = draft token + offset. Some files hold the tokens themselves. Raises SettingError when it is neither."""
    index = torch.arange(len(d2t))
    for offset in (d2t, d2t - index):
        token = index + offset
        if (
            bool(((token >= 0) & (token < vocab_size)).all())
            and len(token.unique()) == len(token)
            and (t2d is None or bool(t2d[token].all()))
        ):
            return offset
    raise SettingError(f"drafter {name!r}: d2t and t2d do not agree on which tokens it can say")
