"""Attention of ragged rows over paged keys: reference, padded torch path, chooser. S sequences, R rows, H heads, G key heads, D head size.

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
