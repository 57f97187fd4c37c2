"""Many steps into one Ragged batch, and what comes back into each group's shape. S sequences, K rows a line, R rows, L logit rows."""

from collections.abc import Sequence as Listlike
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from drawloom.decoders.step import Picks, Step
from drawloom.kernels.pick import Picked
from drawloom.models.ragged import Ragged


@dataclass(frozen=True)
class Part:
    """Sequences that ask for rows together: prompt tokens still to be filled in, then (when there is a step) their decoding rows."""

    fill: Listlike[Listlike[int]]  # per sequence, prefix tokens to process now, [] for none
    filled: Listlike[int]  # per sequence, tokens that its pages hold already, or the whole canvas
    pages: Listlike[Listlike[int]]
    block_tokens: int  # visibility among prefix tokens
    step: Step | None  # lines in the same order

    @property
    def num_sequences(self) -> int:
        return len(self.filled)


@dataclass(frozen=True)
class Packed:
    """The batch, and for each part the flat index line * K + k of its scored rows (in the order of logit_rows)."""

    ragged: Ragged
    scored: list[Tensor]
    exact: bool  # invalid rows were dropped


@dataclass
class _Rows:
    tokens: Tensor
    positions: Tensor
    see: Tensor
    place: Tensor  # index in the packed batch
    weight: Tensor | None = None
    slot: Tensor | None = None  # index in the sequence's slots; None: behind its prefix, in order


def pack(parts: Listlike[Part], page_tokens: int, *, exact: bool, device: torch.device) -> Packed:
    """One batch of all parts, sequence after sequence, each with its fill rows before its decoding rows. exact drops invalid rows."""
    counts = [_decode_counts(part, exact) for part in parts]
    fills = [np.array([len(fill) for fill in part.fill], dtype=np.int64) for part in parts]
    starts = np.concatenate([[0], np.cumsum(np.concatenate([f + c for f, c in zip(fills, counts, strict=True)]))]).astype(np.int64)
    rows, scored, logit_rows, bits, first = [], [], [], [], 0
    for part, fill in zip(parts, fills, strict=True):
        start = torch.from_numpy(starts[first : first + part.num_sequences]).to(device)
        first += part.num_sequences
        rows.extend(_fill_rows(part, start, device))
        if part.step is None:
            scored.append(torch.empty(0, dtype=torch.int64, device=device))
            continue
        behind = start + torch.from_numpy(fill).to(device)
        place, flat = _decode_rows(part.step, behind, torch.from_numpy(fill).to(device), rows, exact)
        scored.append(flat)
        logit_rows.append(place.flatten()[flat])
        if part.step.ancestors is not None:
            bits.append((place[part.step.valid], part.step.ancestors[part.step.valid]))
    ragged = _ragged(parts, rows, starts, page_tokens, device)
    ragged = replace(
        ragged,
        logit_rows=torch.cat(logit_rows) if logit_rows else torch.empty(0, dtype=torch.int64, device=device),
        ancestors=_ancestors(bits, starts, device) if bits else None,
    )
    return Packed(ragged, scored, exact)


def unpack(picked: Picked, span: slice, flat: Tensor, step: Step) -> Picks:
    """A group's picks [S, K] from its rows `span` of the batch; rows that were not scored get token -1 and the worst score."""
    shape = step.tokens.shape

    def spread(values: Tensor | None, fill: float) -> Tensor | None:
        if values is None:
            return None
        out = torch.full((shape.numel(),), fill, dtype=values.dtype, device=values.device)
        return out.index_copy_(0, flat, values[span]).view(shape)

    token, logprob = spread(picked.token, -1), spread(picked.logprob, -torch.inf)
    assert token is not None
    assert logprob is not None
    return Picks(token, logprob, spread(picked.margin, -torch.inf), spread(picked.entropy, torch.inf))


def _decode_counts(part: Part, exact: bool) -> np.ndarray:
    if part.step is None:
        return np.zeros(part.num_sequences, dtype=np.int64)
    if exact:
        return part.step.valid.sum(1).numpy()
    return np.full(part.num_sequences, part.step.tokens.shape[1], dtype=np.int64)


def _fill_rows(part: Part, start: Tensor, device: torch.device) -> list[_Rows]:
    """Prefix rows: block-causal among themselves, at positions filled, filled + 1, ..."""
    out = []
    for line, fill in enumerate(part.fill):
        if not fill:
            continue
        row = torch.arange(len(fill), device=device)
        position = row + part.filled[line]
        end = (position // part.block_tokens + 1) * part.block_tokens - part.filled[line]
        out.append(_Rows(torch.tensor(fill, device=device), position, end.clamp(max=len(fill)), start[line] + row))
    return out


def _decode_rows(step: Step, behind: Tensor, fill: Tensor, rows: list[_Rows], exact: bool) -> tuple[Tensor, Tensor]:
    """Append the step's rows; returns place [S, K] and the flat index of scored rows (of all rows when shapes are fixed)."""
    place = behind[:, None] + torch.arange(step.tokens.shape[1], device=behind.device)
    see = step.see + fill[:, None]
    if exact:
        used = step.valid
        weight, slot = (None if values is None else values[used] for values in (step.weight, step.place))
        rows.append(_Rows(step.tokens[used], step.positions[used], see[used], place[used], weight, slot))
    else:
        weight, slot = (None if values is None else values.flatten() for values in (step.weight, step.place))
        rows.append(_Rows(step.tokens.flatten(), step.positions.flatten(), see.flatten(), place.flatten(), weight, slot))
    scored = step.scored.flatten()
    return place, scored.nonzero()[:, 0] if exact else torch.arange(len(scored), device=scored.device)


def _ragged(parts: Listlike[Part], rows: list[_Rows], starts: np.ndarray, page_tokens: int, device: torch.device) -> Ragged:
    place = torch.cat([one.place for one in rows])
    order = torch.empty_like(place)
    order[place] = torch.arange(len(place), device=device)
    tokens, positions, see = (torch.cat([getattr(one, name) for one in rows])[order] for name in ("tokens", "positions", "see"))
    lengths = [length for part in parts for length in part.filled]
    widest = int((np.array(lengths) + np.diff(starts)).max())
    table = table_of([pages for part in parts for pages in part.pages], -(-widest // page_tokens))
    prefix = torch.tensor(lengths, dtype=torch.int32, device=device)
    pages = torch.from_numpy(table).to(device)
    row_starts = torch.from_numpy(starts.astype(np.int32)).to(device)
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=device), row_starts.diff(), output_size=len(place))
    index = torch.arange(len(place), device=device) - row_starts[owner] + prefix[owner]
    if any(one.slot is not None for one in rows):
        slot = torch.cat([torch.full_like(one.place, -1) if one.slot is None else one.slot for one in rows])[order]
        index = torch.where(slot >= 0, slot, index)
    slots = pages[owner, index // page_tokens].long() * page_tokens + index % page_tokens
    return Ragged(
        tokens=tokens,
        positions=positions,
        see=see.int(),
        ancestors=None,
        row_starts=row_starts,
        prefix_lens=prefix,
        pages=pages,
        slots=slots,
        logit_rows=place,
        row_starts_host=starts.tolist(),
        prefix_lens_host=lengths,
        page_tokens=page_tokens,
        scratch={},
        weight=_weights(rows, order),
    )


def _weights(rows: list[_Rows], order: Tensor) -> Tensor | None:
    """[R], 1 for every plain row; None when all are."""
    if all(one.weight is None for one in rows):
        return None
    parts = [torch.ones_like(one.place, dtype=torch.float32) if one.weight is None else one.weight for one in rows]
    return torch.cat(parts)[order]


def table_of(pages: Listlike[Listlike[int]], least: int = 0) -> np.ndarray:
    table = np.zeros((len(pages), max(least, *map(len, pages))), dtype=np.int32)
    for line, own in zip(table, pages, strict=True):
        line[: len(own)] = own
    return table


def _ancestors(bits: list[tuple[Tensor, Tensor]], starts: np.ndarray, device: torch.device) -> Tensor:
    """[R, W] bits for all rows: those of tree drafts, and all ones for everybody else."""
    words = -(-int(np.diff(starts).max()) // 64)
    out = torch.full((int(starts[-1]), words), -1, dtype=torch.int64, device=device)
    for place, own in bits:
        out[place, : own.shape[1]] = own[:, :words]  # bits beyond belong to rows that were dropped
    return out


def row_slots(part: Part, step: Step, page_tokens: int) -> Tensor:
    """Slot [S, K] of row (line, k); for an invalid row some slot of the same sequence."""
    device = step.tokens.device
    table = torch.from_numpy(table_of(part.pages)).to(device).long()
    before = torch.tensor([done + len(fill) for done, fill in zip(part.filled, part.fill, strict=True)], device=device)
    index = before[:, None] + torch.arange(step.tokens.shape[1], device=device)
    return table.gather(1, (index // page_tokens).clamp(max=table.shape[1] - 1)) * page_tokens + index % page_tokens
