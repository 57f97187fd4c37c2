"""The Triton kernel of kernels/attention.py: every key is read once for all rows of its sequence, and once for all sequences that share it.

The keys that a tile of rows sees are cut into parts, each of which one program reads; a second pass adds the parts of a row up (flash
decoding, Dao et al. 2023). A part may be a prefix that several sequences share (Hydragen, arXiv 2402.05099). Rows times the heads of a key
head are the rows of one matrix product, so that drafts and blocks read their prefix once.
"""
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from drawloom.kernels.attention import Rows, Scoring
from drawloom.kernels.sizes import next_power

FIXED_PART = 2048  # keys of a part when no row may depend on the batch around it
LEAST_PART = 256
MOST_PARTS = 64


@triton.jit
def _attend_kernel(
    p_query, p_key, p_value, p_out, p_partial, p_stat,
    p_item, p_row, p_pages, p_position, p_see, p_ancestor, p_start, p_prefix, p_sink,
    scale, softcap, window, num_words, page_stride, num_parts, num_heads, num_key_heads,
    D: tl.constexpr, BD: tl.constexpr, GROUP: tl.constexpr, BG: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
    TREE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, SINK: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One part of the keys of up to BR rows, for one key head. item: first row id, rows, sequence, first key, last key, own rows too, part,
    and 1 if these rows have no other part."""
    i_item, i_key = tl.program_id(0), tl.program_id(1)
    p_item += i_item * 8
    first, count, sequence = tl.load(p_item), tl.load(p_item + 1), tl.load(p_item + 2).to(tl.int64)
    begin, end, own, part, parts = (
        tl.load(p_item + 3), tl.load(p_item + 4), tl.load(p_item + 5), tl.load(p_item + 6), tl.load(p_item + 7),
    )  # fmt: skip
    o_m = tl.arange(0, BR * BG)
    o_d = tl.arange(0, BD)
    there = (o_m // BG < count) & (o_m % BG < GROUP)
    row = tl.load(p_row + first + o_m // BG, mask=there, other=0).to(tl.int64)
    head = i_key * GROUP + o_m % BG
    o_q = (row * num_heads + head)[:, None] * D + o_d[None, :]
    b_query = tl.load(p_query + o_q, mask=there[:, None] & (o_d < D)[None, :], other=0.0)  # [M, BD]
    if UPCAST:
        b_query = b_query.to(tl.float32)
    position, see = tl.load(p_position + row, mask=there, other=0), tl.load(p_see + row, mask=there, other=0)
    prefix = tl.load(p_prefix + sequence)
    base = tl.load(p_start + sequence).to(tl.int64)
    p_pages += sequence * page_stride
    b_max = tl.full([BR * BG], float("-inf"), tl.float32)
    b_sum = tl.zeros([BR * BG], tl.float32)
    b_out = tl.zeros([BR * BG, BD], tl.float32)
    if WINDOW:  # nothing before the window of the earliest row is seen
        earliest = tl.min(tl.where(there, position, 2147483647)).to(tl.int32)
        begin = tl.maximum(begin, (earliest - window + 1) // BN * BN)
        begin = tl.minimum(begin, end)
    last = end
    if own != 0:
        last = prefix + tl.max(see)
    # Keys [begin, end) are committed, keys [prefix, last) rows of this step; a part with both reads them one behind the other.
    reach = end - begin + tl.where(own != 0, last - prefix, 0)
    for start in range(0, reach, BN):
        o_n = start + tl.arange(0, BN)
        inside = o_n < reach
        behind = o_n >= end - begin  # a row of this step
        key = tl.where(behind, o_n - (end - begin) + prefix, o_n + begin)
        page = tl.load(p_pages + key // PAGE, mask=inside, other=0).to(tl.int64)
        slot = page * PAGE + key % PAGE
        o_k = (slot * num_key_heads + i_key)[:, None] * D + o_d[None, :]
        full = inside[:, None] & (o_d < D)[None, :]
        b_key = tl.load(p_key + o_k, mask=full, other=0.0)
        b_value = tl.load(p_value + o_k, mask=full, other=0.0)
        if UPCAST:
            b_key, b_value = b_key.to(tl.float32), b_value.to(tl.float32)
        else:
            b_key, b_value = b_key.to(b_query.dtype), b_value.to(b_query.dtype)
        score = tl.dot(b_query, tl.trans(b_key), input_precision="ieee") * scale  # [M, BN]
        if CAP:
            ratio = score / softcap
            score = softcap * (1.0 - 2.0 / (tl.exp(2.0 * ratio) + 1.0))
        seen = there[:, None] & inside[None, :]
        index = tl.where(behind, key - prefix, 0)
        among = index[None, :] < see[:, None]
        if TREE:
            o_w = row[:, None] * num_words + (index // 64)[None, :]
            word = tl.load(p_ancestor + o_w, mask=seen & behind[None, :], other=0)
            among = among & (((word >> (index % 64).to(tl.int64)[None, :]) & 1) == 1)
        seen = seen & (among | ~behind[None, :])
        if WINDOW:
            stands = tl.load(p_position + base + index, mask=inside & behind, other=0)
            stands = tl.where(behind, stands, key.to(tl.int64))
            seen = seen & (stands[None, :] > (position - window)[:, None])
        score = tl.where(seen, score, float("-inf"))
        fresh = tl.maximum(b_max, tl.max(score, 1))
        calm = tl.where(fresh == float("-inf"), 0.0, fresh)
        weight = tl.exp(score - calm[:, None])
        shrink = tl.exp(b_max - calm)
        b_sum = b_sum * shrink + tl.sum(weight, 1)
        b_out = b_out * shrink[:, None] + tl.dot(weight.to(b_value.dtype), b_value, input_precision="ieee")
        b_max = fresh
    if parts == 1:
        if SINK:
            sink = tl.load(p_sink + head, mask=there, other=0.0).to(tl.float32)
            top = tl.maximum(b_max, sink)
            b_out = b_out * tl.exp(b_max - top)[:, None]
            b_sum = b_sum * tl.exp(b_max - top) + tl.exp(sink - top)
        b_out = b_out / tl.where(b_sum > 0, b_sum, 1.0)[:, None]
        tl.store(p_out + o_q, b_out.to(p_out.dtype.element_ty), mask=there[:, None] & (o_d < D)[None, :])
    else:
        o_p = (row * num_heads + head) * num_parts + part
        tl.store(p_partial + o_p[:, None] * D + o_d[None, :], b_out, mask=there[:, None] & (o_d < D)[None, :])
        tl.store(p_stat + o_p * 2, b_max, mask=there)
        tl.store(p_stat + o_p * 2 + 1, b_sum, mask=there)


@triton.jit
def _add_kernel(
    p_partial, p_stat, p_out, p_parts, p_sink, num_parts, num_heads,
    D: tl.constexpr, BD: tl.constexpr, BP: tl.constexpr, SINK: tl.constexpr,
):  # fmt: skip
    """The parts of one row and head added up, in the order of their numbers."""
    i_row, i_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    parts = tl.load(p_parts + i_row)
    if parts > 1:
        o_d, o_p = tl.arange(0, BD), tl.arange(0, BP)
        base = (i_row * num_heads + i_head) * num_parts
        b_max = tl.load(p_stat + (base + o_p) * 2, mask=o_p < parts, other=float("-inf"))
        b_sum = tl.load(p_stat + (base + o_p) * 2 + 1, mask=o_p < parts, other=0.0)
        top = tl.max(b_max, 0)
        if SINK:
            sink = tl.load(p_sink + i_head).to(tl.float32)
            top = tl.maximum(top, sink)
        share = tl.where(b_max == float("-inf"), 0.0, tl.exp(b_max - top))
        total = tl.sum(b_sum * share, 0)
        if SINK:
            total += tl.exp(sink - top)
        there = (o_p < parts)[:, None] & (o_d < D)[None, :]
        b_out = tl.load(p_partial + (base + o_p)[:, None] * D + o_d[None, :], mask=there, other=0.0)
        b_out = tl.sum(b_out * share[:, None], 0) / tl.where(total > 0, total, 1.0)
        tl.store(p_out + (i_row * num_heads + i_head) * D + o_d, b_out.to(p_out.dtype.element_ty), mask=o_d < D)


@dataclass(frozen=True)
class Work:
    """Which program reads what."""

    items: Tensor  # [I, 8] int32, as _attend_kernel reads them
    rows: Tensor  # [N] int32, row ids that items point into
    parts: Tensor  # [R] int32, parts of each row
    most: int  # of them


def attend_triton(query: Tensor, key_cache: Tensor, value_cache: Tensor, rows: Rows, scoring: Scoring, *, part: int = FIXED_PART) -> Tensor:
    """As attend_reference: query [R, H, D], caches [num_slots, G, D] -> [R, H, D]. `part`: keys of a part; with one value for all batches a
    row's result does not depend on the rows around it."""
    num_rows, num_heads, size = query.shape
    num_key_heads = key_cache.shape[1]
    group = num_heads // num_key_heads
    wide = next_power(group)
    block = next_power(size)
    tile = tile_of(wide, block, max(np.diff(rows.row_starts_host), default=1), invariant=part == FIXED_PART)
    work = _work(rows, tile, part)
    query, out = query.contiguous(), torch.empty_like(query)
    shape = (num_rows, num_heads, work.most) if work.most > 1 else (1, 1, 1)
    partial, stat = query.new_empty(*shape, size, dtype=torch.float32), query.new_empty(*shape, 2, dtype=torch.float32)
    sinks, ancestors = scoring.sinks, rows.ancestors
    launch: Any = _attend_kernel[(len(work.items), num_key_heads)]
    launch(
        query, key_cache, value_cache, out, partial, stat,
        work.items, work.rows, rows.pages, rows.positions, rows.see, rows.see if ancestors is None else ancestors, rows.row_starts,
        rows.prefix_lens, query if sinks is None else sinks,
        scoring.scale, scoring.softcap or 1.0, scoring.window or 0, 1 if ancestors is None else ancestors.shape[1], rows.pages.stride(0),
        work.most, num_heads, num_key_heads,
        D=size, BD=block, GROUP=group, BG=wide, BR=tile, BN=keys_of(block, query.dtype.itemsize), PAGE=rows.page_tokens,
        TREE=ancestors is not None, WINDOW=scoring.window is not None, CAP=scoring.softcap is not None, SINK=sinks is not None,
        UPCAST=interpreted() and query.dtype == torch.bfloat16, num_warps=warps_of(tile * wide, block), num_stages=2,
    )  # fmt: skip
    if work.most > 1:
        add: Any = _add_kernel[(num_rows, num_heads)]
        add(
            partial, stat, out, work.parts, query if sinks is None else sinks, work.most, num_heads,
            D=size, BD=block, BP=next_power(work.most), SINK=sinks is not None, num_warps=4,
        )  # fmt: skip
    return out


def tile_of(wide: int, block: int, longest: int, *, invariant: bool) -> int:
    """Rows of a tile: at least 16 rows of a matrix product, at most what fits in registers; as many as there are, if that may matter."""
    least, most = max(1, 16 // wide), max(1, (128 if block <= 128 else 64) // wide)
    return most if invariant else int(min(most, max(least, next_power(int(longest)))))


def keys_of(block: int, itemsize: int) -> int:
    """Keys of one step of a program: what fits beside the queries in shared memory."""
    return max(16, min(64, 8192 // block // max(1, itemsize // 2)))


def warps_of(queries: int, block: int) -> int:
    """Warps of a program: what it adds up lies in their registers."""
    return 8 if queries * block > 64 * 64 else 4


def _work(rows: Rows, tile: int, part: int) -> Work:
    """The work of a batch, derived once and kept in rows.scratch."""
    name = f"triton work {tile} {part}"
    if name not in rows.scratch:
        items, ids, parts = plan(rows.row_starts_host, rows.prefix_lens_host, tile, part, rows.scratch.get("shared", ()))
        place = rows.positions.device
        sent = (torch.from_numpy(one).to(place, non_blocking=True) for one in (items, ids, parts))
        rows.scratch[name] = Work(*sent, most=int(parts.max(initial=1)))
    return rows.scratch[name]


def plan(
    starts: Sequence[int], prefixes: Sequence[int], tile: int, part: int, shared: Sequence[tuple[Sequence[int], int]] = ()
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Items [I, 8], row ids [N] and parts of each row [R], all int32. shared: groups of sequences and how many of their first keys are the
    same pages, which are then read once for all rows of the group."""
    common = np.zeros(len(prefixes), dtype=np.int64)
    for sequences, keys in shared:
        common[list(sequences)] = keys
    items: list[list[int]] = []
    ids: list[np.ndarray] = []
    parts, held = np.zeros(starts[-1], dtype=np.int32), 0

    def add(rows: np.ndarray, sequence: int, spans: list[tuple[int, int]], own: int) -> None:
        nonlocal held
        for first in range(0, len(rows), tile):
            here = rows[first : first + tile]
            for number, (begin, end) in enumerate(spans):
                last = own if number == len(spans) - 1 else 0
                items.append([held, len(here), sequence, begin, end, last, int(parts[here[0]]) + number, 0])
            ids.append(here)
            held += len(here)
        parts[rows] += len(spans)

    for sequences, keys in shared:
        rows = np.concatenate([np.arange(starts[one], starts[one + 1]) for one in sequences])
        add(rows, sequences[0], spans_of(0, keys, part), 0)
    for sequence, prefix in enumerate(prefixes):
        if starts[sequence] < starts[sequence + 1]:
            add(np.arange(starts[sequence], starts[sequence + 1]), sequence, spans_of(int(common[sequence]), prefix, part), 1)
    row_ids = np.concatenate(ids).astype(np.int32) if ids else np.zeros(0, np.int32)
    table = np.array(items, dtype=np.int32).reshape(-1, 8)
    table[:, 7] = parts[row_ids[table[:, 0]]]
    return table, row_ids, parts


def spans_of(begin: int, end: int, part: int) -> list[tuple[int, int]]:
    """Keys begin .. end - 1 in parts that end at multiples of `part`, the last of which takes up to half a part more; at least one."""
    cuts = list(range(begin - begin % part + part, end - part // 2, part))
    return list(zip([begin, *cuts], [*cuts, end], strict=True))


def part_for(rows: Rows, num_key_heads: int, tile: int, programs: int) -> int:
    """Keys of a part such that about `programs` programs run: long prefixes are split when there are too few sequences to keep a GPU
    busy. A power of two, so that a batch that grows by a key is not cut anew."""
    lengths, starts = np.asarray(rows.prefix_lens_host), np.asarray(rows.row_starts_host)
    tiles = -(-np.diff(starts) // tile)
    total = int((lengths * tiles).sum()) * num_key_heads
    wanted = max(1, total // max(1, programs))
    longest = int(lengths.max(initial=1))
    return min(max(LEAST_PART, next_power(wanted), next_power(-(-longest // MOST_PARTS))), 1 << 30)


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, which cannot compute in bfloat16."""
    knobs: Any = triton.knobs
    return bool(knobs.runtime.interpret)


def why_not(query: Any) -> str:
    """Why this kernel cannot run here, or ""."""
    if interpreted():
        return ""
    return "" if query.is_cuda else "there is no GPU"
