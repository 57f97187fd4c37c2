"""The Triton kernels of kernels/kv.py: a row's keys turned by its rotary angles and written beside its values; rows moved."""
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from drawloom.kernels.sizes import next_power


@triton.jit
def _write_kernel(
    p_new_key, p_new_value, p_key, p_value, p_slot, p_cos, p_sin, num_heads, D: tl.constexpr, BH: tl.constexpr, ROTARY: tl.constexpr
):  # fmt: skip
    """One row. The halves of a key are turned against each other, as rotary position embedding does."""
    i_row = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slot + i_row)
    half = D // 2
    for start in range(0, num_heads, BH):
        o_h = start + tl.arange(0, BH)
        there = (o_h < num_heads)[:, None] & (tl.arange(0, triton.next_power_of_2(D)) < D)[None, :]
        o_d = tl.arange(0, triton.next_power_of_2(D))[None, :]
        o_from, o_to = (i_row * num_heads + o_h)[:, None] * D, (slot * num_heads + o_h)[:, None] * D
        key = tl.load(p_new_key + o_from + o_d, mask=there, other=0.0)
        if ROTARY:
            first = o_d < half
            other = tl.load(p_new_key + o_from + tl.where(first, o_d + half, o_d - half), mask=there, other=0.0).to(tl.float32)
            cosine = tl.load(p_cos + i_row * D + o_d, mask=o_d < D, other=0.0)
            sine = tl.load(p_sin + i_row * D + o_d, mask=o_d < D, other=0.0)
            key = key.to(tl.float32) * cosine + tl.where(first, -other, other) * sine
        tl.store(p_key + o_to + o_d, key.to(p_key.dtype.element_ty), mask=there)
        value = tl.load(p_new_value + o_from + o_d, mask=there, other=0.0)
        tl.store(p_value + o_to + o_d, value.to(p_value.dtype.element_ty), mask=there)


@triton.jit
def _move_kernel(p_cache, p_held, p_slot, width, BW: tl.constexpr, BACK: tl.constexpr):
    """A row of a cache into a buffer, or from there back into the cache: two launches, so that overlapping rows are safe."""
    i_row = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slot + i_row)
    for start in range(0, width, BW):
        o_w = start + tl.arange(0, BW)
        if BACK:
            tl.store(p_cache + slot * width + o_w, tl.load(p_held + i_row * width + o_w, mask=o_w < width), mask=o_w < width)
        else:
            tl.store(p_held + i_row * width + o_w, tl.load(p_cache + slot * width + o_w, mask=o_w < width), mask=o_w < width)


def write_rows_triton(
    keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor, angles: tuple[Tensor, Tensor] | None = None
) -> None:
    """As write_rows; with angles (cosines, sines) [R, D] float32 the keys are turned on the way."""
    rows, heads, size = keys.shape
    cosines, sines = (keys, keys) if angles is None else angles
    launch: Any = _write_kernel[(rows,)]
    launch(
        keys.contiguous(), values.contiguous(), key_cache, value_cache, slots, cosines, sines, heads,
        D=size, BH=min(16, next_power(heads)), ROTARY=angles is not None, num_warps=4,
    )  # fmt: skip


def move_rows_triton(cache: Tensor, source: Tensor, target: Tensor) -> None:
    """As move_rows."""
    width, count = cache[0].numel(), len(source)
    if not count:
        return
    held = cache.new_empty(count, width)
    launch: Any = _move_kernel[(count,)]
    block = min(1024, next_power(width))
    launch(cache, held, source, width, BW=block, BACK=False, num_warps=4)
    launch(cache, held, target, width, BW=block, BACK=True, num_warps=4)


def pages_copied(cache: Tensor, source: Tensor, target: Tensor, page_tokens: int) -> None:
    """Copy whole pages source [M] to pages target [M] (copy on write)."""
    place = torch.arange(page_tokens, device=cache.device)
    slots = ((one[:, None] * page_tokens + place).flatten() for one in (source, target))
    move_rows_triton(cache, *slots)
