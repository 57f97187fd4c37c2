"""Attention of ragged rows over paged keys: reference and padded torch path; attention_native.py has the CPU kernel.

S sequences, R rows, H heads, G key heads, D head size.

Row r of sequence s sees the first prefix_lens[s] committed keys of s, and of the rows of its own step those with index j < see[r]
whose bit j is set in ancestors[r] (all of them where ancestors is None). Committed key i stands at position i; a row stands at
positions[r]. With a window w, keys at positions <= positions[r] - w are hidden. A row's own key is always visible.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """Where the rows of one batch stand and what they see. The keys of the rows themselves are already in the caches."""

    positions: Tensor  # [R] int64
    see: Tensor  # [R] int32, >= 1
    ancestors: Tensor | None  # [R, W] int64 bits; 64 * W covers the rows of the longest sequence
    row_starts: Tensor  # [S + 1] int32
    prefix_lens: Tensor  # [S] int32
    pages: Tensor  # [S, Pmax] int32
    page_tokens: int
    row_starts_host: Sequence[int]
    prefix_lens_host: Sequence[int]
    scratch: dict[str, Any]  # what a path derives once per batch, shared by all layers


class Scoring(NamedTuple):
    """How a layer turns dot products into weights: softmax of softcap * tanh(scale * q.k / softcap), with optional sinks."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None  # [H] float: one more logit per head that takes weight and gives no value


FULL = 1 << 30  # block size of full attention: one block that covers everything

Attend = Callable[[Tensor, Tensor, Tensor, Rows, Scoring], Tensor]


def attend_reference(query: Tensor, key_cache: Tensor, value_cache: Tensor, rows: Rows, scoring: Scoring) -> Tensor:
    """query [R, H, D], caches [num_slots, G, D] -> [R, H, D]. One sequence at a time, every weight written out in float32."""
    out = torch.empty_like(query)
    for sequence in range(len(rows.prefix_lens_host)):
        first, end = rows.row_starts_host[sequence], rows.row_starts_host[sequence + 1]
        slots = key_slots(rows, sequence)
        visible = visible_keys(rows, sequence, scoring.window)
        out[first:end] = _weigh(query[first:end], key_cache[slots], value_cache[slots], visible, scoring)
    return out


def key_slots(rows: Rows, sequence: int) -> Tensor:
    """Slots [prefix + n] int64 of a sequence's committed keys and then of its n rows."""
    num_rows = rows.row_starts_host[sequence + 1] - rows.row_starts_host[sequence]
    index = torch.arange(rows.prefix_lens_host[sequence] + num_rows, device=rows.pages.device)
    return rows.pages[sequence, index // rows.page_tokens].long() * rows.page_tokens + index % rows.page_tokens


def visible_keys(rows: Rows, sequence: int, window: int | None) -> Tensor:
    """[n, prefix + n] bool: which keys each of the sequence's n rows may see."""
    first, end = rows.row_starts_host[sequence], rows.row_starts_host[sequence + 1]
    prefix, positions = rows.prefix_lens_host[sequence], rows.positions[first:end]
    row = torch.arange(end - first, device=positions.device)
    among = row[None, :] < rows.see[first:end, None]
    if rows.ancestors is not None:
        among &= (rows.ancestors[first:end][:, row // 64] >> (row % 64)) & 1 == 1
    visible = torch.cat([torch.ones(end - first, prefix, dtype=torch.bool, device=positions.device), among], 1)
    if window is not None:
        stands = torch.cat([torch.arange(prefix, device=positions.device), positions])
        visible &= stands[None, :] > positions[:, None] - window
    return visible


def _weigh(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scoring: Scoring) -> Tensor:
    """query [n, H, D], keys and values [k, G, D], visible [n, k] -> [n, H, D]."""
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.float().repeat_interleave(group, 1), values.float().repeat_interleave(group, 1)
    score = torch.einsum("nhd,khd->hnk", query.float(), keys) * scoring.scale
    if scoring.softcap is not None:
        score = torch.tanh(score / scoring.softcap) * scoring.softcap
    score = score.masked_fill(~visible, float("-inf"))
    if scoring.sinks is not None:
        sinks = scoring.sinks.float()[:, None, None].expand(-1, score.shape[1], 1)
        score = torch.cat([score, sinks], 2)
    weights = torch.softmax(score, 2)[:, :, : keys.shape[0]]
    return torch.einsum("hnk,khd->nhd", weights, values).to(query.dtype)


class Group(NamedTuple):
    """Sequences with the same number n of rows, keys padded to the longest of them: N sequences, k keys."""

    rows: Tensor  # [N * n] int64
    slots: Tensor  # [N, k] int64; padding repeats a slot that holds finite numbers
    visible: Tensor  # [N, 1, n, k] bool


def attend_padded(query: Tensor, key_cache: Tensor, value_cache: Tensor, rows: Rows, scoring: Scoring) -> Tensor:
    """As attend_reference: keys are gathered from the pages, one batched call for all sequences with the same number of rows."""
    out = torch.empty_like(query)
    for group in _groups(rows, scoring.window):
        num, _one, length, width = group.visible.shape
        keys = key_cache[group.slots.flatten()].unflatten(0, (num, width)).transpose(1, 2)
        values = value_cache[group.slots.flatten()].unflatten(0, (num, width)).transpose(1, 2)
        asked = query[group.rows].unflatten(0, (num, length)).transpose(1, 2)
        out[group.rows] = _mix(asked, keys, values, group.visible, scoring).transpose(1, 2).flatten(0, 1)
    return out


def _groups(rows: Rows, window: int | None) -> list[Group]:
    """Groups of a batch under a window, derived once and kept in rows.scratch."""
    name = f"padded groups {window}"
    if name not in rows.scratch:
        by_length: dict[int, list[int]] = {}
        for sequence, (first, end) in enumerate(zip(rows.row_starts_host, rows.row_starts_host[1:], strict=False)):
            by_length.setdefault(end - first, []).append(sequence)
        rows.scratch[name] = [_group(rows, sequences, window) for sequences in by_length.values()]
    return rows.scratch[name]


def _group(rows: Rows, sequences: list[int], window: int | None) -> Group:
    slots = [key_slots(rows, sequence) for sequence in sequences]
    visible = [visible_keys(rows, sequence, window) for sequence in sequences]
    width = max(map(len, slots))
    own = [torch.arange(rows.row_starts_host[sequence], rows.row_starts_host[sequence + 1]) for sequence in sequences]
    return Group(
        torch.cat(own).to(rows.pages.device),
        torch.stack([torch.cat([slot, slot[:1].expand(width - len(slot))]) for slot in slots]),
        torch.stack([torch.nn.functional.pad(seen, (0, width - seen.shape[1])) for seen in visible])[:, None],
    )


def _mix(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scoring: Scoring) -> Tensor:
    """query [N, H, n, D], keys and values [N, G, k, D], visible [N, 1, n, k] -> [N, H, n, D]."""
    if scoring.softcap is None and scoring.sinks is None:
        return torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=visible, scale=scoring.scale, enable_gqa=query.shape[1] != keys.shape[1]
        )
    grouped = query.unflatten(1, (keys.shape[1], -1)).float()  # [N, G, H / G, n, D]
    score = grouped @ keys[:, :, None].float().transpose(-1, -2) * scoring.scale
    if scoring.softcap is not None:
        score = torch.tanh(score / scoring.softcap) * scoring.softcap
    score = score.masked_fill(~visible[:, :, None], float("-inf"))
    if scoring.sinks is not None:
        sinks = scoring.sinks.float().unflatten(0, (keys.shape[1], -1))[None, :, :, None, None].expand(*score.shape[:-1], 1)
        score = torch.cat([score, sinks], -1)
    weights = torch.softmax(score, -1)[..., : keys.shape[2]]
    return (weights @ values[:, :, None].float()).flatten(1, 2).to(query.dtype)
