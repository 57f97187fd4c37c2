"""The native CPU path of kernels/attention.py: one row and key head at a time, straight from the pages, nothing gathered or padded."""

from ctypes import byref

import torch
from torch import Tensor

from drawloom.kernels.attention import Rows, Scoring
from drawloom.kernels.native import CBatch, CHeads, address, library


def attend_native(query: Tensor, key_cache: Tensor, value_cache: Tensor, rows: Rows, scoring: Scoring) -> Tensor:
    """query [R, H, D] float32, caches [num_slots, G, D] float32 -> [R, H, D]; see attend_reference. D is a multiple of 8."""
    query = query.contiguous()
    out = torch.empty_like(query)
    heads = heads_of(query.shape[1], key_cache, scoring)
    failed = library().drawloom_attend(
        byref(heads), byref(batch_of(rows, None)), address(query), address(key_cache), address(value_cache), address(out),
        torch.get_num_threads(),
    )  # fmt: skip
    if failed:
        raise MemoryError(f"no memory for the attention scores of {len(query)} rows; lower the rows of a step or the context")
    return out


def why_not_shape(head_dim: int) -> str:
    """Why heads of this size cannot run here, or ""."""
    return "" if head_dim % 8 == 0 else f"head size {head_dim} is not a multiple of 8"


def heads_of(num_heads: int, key_cache: Tensor, scoring: Scoring) -> CHeads:
    """The kernel's view of a layer's heads; the sinks stay the caller's."""
    _slots, key_heads, head_dim = key_cache.shape
    return CHeads(num_heads, key_heads, head_dim, scoring.window or 0, scoring.scale, scoring.softcap or 0.0, address(scoring.sinks))


def batch_of(rows: Rows, slots: Tensor | None) -> CBatch:
    """The kernel's view of a batch, kept in rows.scratch for the layers that follow."""
    name = "native" if slots is None else "native with slots"
    if name in rows.scratch:
        return rows.scratch[name][0]
    counts = [end - start for start, end in zip(rows.row_starts_host, rows.row_starts_host[1:], strict=False)]
    owner = torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32), torch.tensor(counts))
    batch = CBatch(
        len(owner), len(counts), rows.page_tokens, rows.pages.shape[1], 0 if rows.ancestors is None else rows.ancestors.shape[1],
        address(rows.positions, torch.int64), address(slots, torch.int64), address(rows.see, torch.int32),
        address(rows.ancestors, torch.int64), address(rows.row_starts, torch.int32), address(rows.prefix_lens, torch.int32),
        address(rows.pages, torch.int32), address(owner, torch.int32),
    )  # fmt: skip
    rows.scratch[name] = (batch, owner)
    return batch
