"""The Triton kernels of kernels/verify.py and kernels/verify_sampled.py: one program a sequence, whatever its draft looks like.

`walk`: which path of a tree the target's own draws follow. `rejection`: multi-step rejection down a tree, and `block`: block verification
of a chain; what is left of the target's law is computed a tile of the vocabulary at a time, and every pass over it that writes what is left
also sums it, so that a refusal costs one pass.
"""
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from drawloom.kernels.sizes import next_power
from drawloom.kernels.verify_sampled import Draft, Verdict


@triton.jit
def _walk_kernel(p_token, p_parent, p_valid, p_picked, p_path, num_rows, BK: tl.constexpr, ROUNDS: tl.constexpr):
    """The deepest row whose token, and that of each ancestor, is the target's draw behind its parent; each round doubles the distance."""
    i_seq = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BK)
    inside = o_k < num_rows
    o_row = i_seq * num_rows + o_k
    parent = tl.load(p_parent + o_row, mask=inside, other=0).to(tl.int32)
    token = tl.load(p_token + o_row, mask=inside, other=-1)
    valid = tl.load(p_valid + o_row, mask=inside, other=0) != 0
    wanted = tl.load(p_picked + i_seq * num_rows + parent, mask=inside, other=-2)
    good = (inside & valid & ((token == wanted) | (o_k == 0))).to(tl.int32)
    depth = ((parent != o_k) & inside).to(tl.int32)
    above = parent
    for _ in tl.static_range(ROUNDS):
        good = good & tl.gather(good, above, 0)
        depth = depth + tl.gather(depth, above, 0)
        above = tl.gather(above, above, 0)
    deep = tl.where(good != 0, depth, -1)
    most = tl.max(deep, 0)
    node = tl.min(tl.where(deep == most, o_k, 2147483647), 0)
    path = tl.zeros([BK], tl.int32)
    for _ in range(most + 1):
        path = tl.where(o_k == node, 1, path)
        node = tl.sum(tl.where(o_k == node, parent, 0), 0)
    tl.store(p_path + o_row, path.to(tl.int8), mask=inside)


@triton.jit
def _rejection_kernel(p_token, p_parent, p_valid, p_q, p_p, p_coin, p_path, p_left, num_rows, vocab, BV: tl.constexpr):
    """Down from the root, child by child. left / total is what is left of the target's law behind the row where the walk stands."""
    i_seq = tl.program_id(0).to(tl.int64)
    base = i_seq * num_rows
    p_left += i_seq * vocab
    for start in range(0, vocab, BV):
        o_v = start + tl.arange(0, BV)
        tl.store(p_left + o_v, tl.load(p_p + base * vocab + o_v, mask=o_v < vocab, other=0.0), mask=o_v < vocab)
    tl.debug_barrier()
    total = 1.0
    here = tl.full([], 0, tl.int64)
    tl.store(p_path + base, 1)
    for row in range(1, num_rows):
        parent, valid = tl.load(p_parent + base + row), tl.load(p_valid + base + row) != 0
        if valid & (parent == here):
            token = tl.load(p_token + base + row)
            q_row = (base + row) * vocab
            own = tl.load(p_left + token) / total / tl.load(p_q + q_row + token)
            if tl.load(p_coin + base + row) < own:
                tl.store(p_path + base + row, 1)
                here = tl.full([], 0, tl.int64) + row
                total = 1.0
                for start in range(0, vocab, BV):
                    o_v = start + tl.arange(0, BV)
                    tl.store(p_left + o_v, tl.load(p_p + q_row + o_v, mask=o_v < vocab, other=0.0), mask=o_v < vocab)
                tl.debug_barrier()
            else:
                tl.store(p_path + base + row, 0)
                rest = 0.0
                for start in range(0, vocab, BV):
                    o_v = start + tl.arange(0, BV)
                    inside = o_v < vocab
                    left = tl.load(p_left + o_v, mask=inside, other=0.0) / total - tl.load(p_q + q_row + o_v, mask=inside, other=0.0)
                    rest += tl.sum(tl.maximum(left, 0.0), 0)
                if rest > 0.0:  # else a test that could not fail did, by rounding: nothing changes
                    for start in range(0, vocab, BV):
                        o_v = start + tl.arange(0, BV)
                        inside = o_v < vocab
                        left = tl.load(p_left + o_v, mask=inside, other=0.0) / total
                        left = left - tl.load(p_q + q_row + o_v, mask=inside, other=0.0)
                        tl.store(p_left + o_v, tl.maximum(left, 0.0), mask=inside)
                    total = rest
                tl.debug_barrier()
        else:
            tl.store(p_path + base + row, 0)


@triton.jit
def _block_kernel(p_token, p_valid, p_q, p_p, p_coin, p_path, p_left, num_rows, vocab, BV: tl.constexpr):
    """A chain: the longest prefix whose coin lies below h_i = S_i / (S_i + 1 - w_i), S_i the sum of (w_i p - q)+; w at its end."""
    i_seq = tl.program_id(0).to(tl.int64)
    base = i_seq * num_rows
    weight, taken, mass = 1.0, tl.full([], 0, tl.int64), 1.0
    for row in range(1, num_rows):
        if tl.load(p_valid + base + row) != 0:
            token, q_row = tl.load(p_token + base + row), (base + row) * vocab
            weight = tl.minimum(weight * tl.load(p_p + (base + row - 1) * vocab + token) / tl.load(p_q + q_row + token), 1.0)
            chance = weight
            next_valid = 0
            if row + 1 < num_rows:
                next_valid = tl.load(p_valid + base + row + 1).to(tl.int32)
            if next_valid != 0:
                rest = 0.0
                for start in range(0, vocab, BV):
                    o_v = start + tl.arange(0, BV)
                    p = tl.load(p_p + q_row + o_v, mask=o_v < vocab, other=0.0)
                    rest += tl.sum(tl.maximum(weight * p - tl.load(p_q + q_row + vocab + o_v, mask=o_v < vocab, other=0.0), 0.0), 0)
                chance = tl.where(rest + 1.0 - weight > 0.0, rest / (rest + 1.0 - weight), 1.0)
            if tl.load(p_coin + base + row) < chance:
                taken, mass = tl.full([], 0, tl.int64) + row, weight
    behind = 0
    if taken + 1 < num_rows:
        behind = tl.load(p_valid + base + taken + 1).to(tl.int32)
    for row in range(num_rows):
        tl.store(p_path + base + row, (row <= taken).to(tl.int8))
    for start in range(0, vocab, BV):
        o_v = start + tl.arange(0, BV)
        inside = o_v < vocab
        left = tl.load(p_p + (base + taken) * vocab + o_v, mask=inside, other=0.0)
        if behind != 0:
            left = tl.maximum(mass * left - tl.load(p_q + (base + taken + 1) * vocab + o_v, mask=inside, other=0.0), 0.0)
        tl.store(p_left + i_seq * vocab + o_v, left, mask=inside)


def walk_tree_triton(token: Tensor, parent: Tensor, valid: Tensor, picked: Tensor) -> Tensor:
    """As walk_tree, from parents alone: [S, K] each -> the accepted path [S, K] bool."""
    lines, rows = token.shape
    path, block = torch.empty(lines, rows, dtype=torch.int8, device=token.device), next_power(rows)
    launch: Any = _walk_kernel[(lines,)]
    launch(
        token.contiguous(), parent.contiguous(), valid.to(torch.int8), picked.contiguous(), path, rows,
        BK=max(2, block), ROUNDS=max(1, (rows - 1).bit_length()), num_warps=1 if block <= 64 else 4,
    )  # fmt: skip
    return path.bool()


def specinfer_triton(draft: Draft, p: Tensor, coin: Tensor) -> Verdict:
    """As verify_sampled.specinfer."""
    lines, rows, vocab = p.shape
    path, left = torch.empty(lines, rows, dtype=torch.int8, device=p.device), p.new_empty(lines, vocab)
    launch: Any = _rejection_kernel[(lines,)]
    launch(
        draft.tokens.contiguous(), draft.parent.contiguous(), draft.valid.to(torch.int8), draft.q.contiguous(), p.contiguous(),
        coin.contiguous(), path, left, rows, vocab, BV=tile(vocab), num_warps=8,
    )  # fmt: skip
    return path.bool(), left


def block_triton(draft: Draft, p: Tensor, coin: Tensor) -> Verdict:
    """As verify_sampled.traversal, of chains: row k stands behind row k - 1."""
    lines, rows, vocab = p.shape
    path, left = torch.empty(lines, rows, dtype=torch.int8, device=p.device), p.new_empty(lines, vocab)
    launch: Any = _block_kernel[(lines,)]
    launch(
        draft.tokens.contiguous(), draft.valid.to(torch.int8), draft.q.contiguous(), p.contiguous(), coin.contiguous(), path, left, rows,
        vocab, BV=tile(vocab), num_warps=8,
    )  # fmt: skip
    return path.bool(), left


def tile(vocab: int) -> int:
    return min(4096, max(16, next_power(vocab)))
