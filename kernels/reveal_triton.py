"""The Triton kernel of kernels/reveal.py: choose and write the revealed positions of every open block of a batch in one launch."""
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from drawloom.kernels.sizes import next_power


@triton.jit
def _reveal_kernel(p_score, p_masked, p_fall, p_canvas, p_token, p_chosen, p_rest, block, tau, BB: tl.constexpr):
    """One block: masked positions above tau, or the surest one, the leftmost among equals, where it may fall back."""
    i_block = tl.program_id(0).to(tl.int64)
    o_b = tl.arange(0, BB)
    inside, o_all = o_b < block, i_block * block + o_b
    score = tl.load(p_score + o_all, mask=inside, other=0.0)
    masked = tl.load(p_masked + o_all, mask=inside, other=0) != 0
    hit = masked & (score > tau)
    shown = tl.where(masked, score, float("-inf"))
    surest = tl.min(tl.where(inside & (shown == tl.max(shown, 0)), o_b, 2147483647), 0)
    lost = (tl.load(p_fall + i_block) != 0) & (tl.sum(hit.to(tl.int32), 0) == 0)
    chosen = hit | (lost & masked & (o_b == surest))
    tl.store(p_chosen + o_all, chosen.to(tl.int8), mask=inside)
    tl.store(p_canvas + o_all, tl.load(p_token + o_all, mask=inside & chosen, other=0), mask=inside & chosen)
    tl.store(p_rest + i_block, tl.sum((masked & ~chosen).to(tl.int64), 0))


def reveal_triton(score: Tensor, masked: Tensor, tau: float, may_fall_back: Tensor, canvas: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """score, masked, canvas, token [S, N, B], may_fall_back [S, N] -> what `above` chooses [S, N, B] bool, and how many positions of each
    block stay masked [S, N]. The canvas, which must be contiguous, is written in place."""
    blocks, chosen = may_fall_back.numel(), torch.empty(masked.shape, dtype=torch.int8, device=masked.device)
    left = torch.empty(may_fall_back.shape, dtype=torch.int64, device=masked.device)
    launch: Any = _reveal_kernel[(blocks,)]
    launch(
        score.contiguous(), masked.to(torch.int8), may_fall_back.to(torch.int8), canvas, token.contiguous(), chosen, left,
        masked.shape[-1], tau, BB=max(2, next_power(masked.shape[-1])), num_warps=1,
    )  # fmt: skip
    return chosen.bool(), left
