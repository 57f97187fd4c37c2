"""From the logits of a mixed batch to every group's commit, and the one copy that brings them to the host."""

from collections.abc import Iterator
from collections.abc import Sequence as Listlike
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from drawloom.actors.dice import Needs, draw_of, penalty_of
from drawloom.actors.group import Group
from drawloom.actors.pack import Packed, Part, row_slots, unpack
from drawloom.actors.planner import Plan
from drawloom.decoders.step import Commit, Law, Picks, Step
from drawloom.kernels.noise import uniform_at
from drawloom.kernels.pick import Draw, Penalty, Picked, law, pick, top_logprobs
from drawloom.models.ragged import Model


@dataclass(frozen=True)
class Deed:
    """What a group's accept decided, on the host. Arrays have one line per sequence of the group."""

    count: np.ndarray  # [S] tokens that became final
    kept: np.ndarray  # [S] rows that joined the prefix
    drafted: np.ndarray  # [S]
    accepted: np.ndarray  # [S]
    tokens: np.ndarray  # [S, M]
    logprob: np.ndarray  # [S, M] float64
    rows: np.ndarray  # [S] rows that the step used
    alternatives: tuple[np.ndarray, np.ndarray] | None  # [L, 3 + k] line, position, rank, ids; [L, k] log-probabilities
    trace: tuple[np.ndarray, np.ndarray] | None  # [S, M] ago and edits, as in Commit


@dataclass(frozen=True)
class _Scored:
    """A group's share of the batch's logit rows."""

    group: Group
    part: Part
    flat: Tensor  # [L] line * K + k
    span: slice

    @property
    def line(self) -> Tensor:
        assert self.part.step is not None
        return self.flat // self.part.step.tokens.shape[1]

    @property
    def position(self) -> Tensor:
        """[L] absolute position that each row predicts."""
        assert self.part.step is not None
        return self.part.step.positions.flatten()[self.flat] + int(self.group.decoder.shifted)


def harvest(plan: Plan, packed: Packed, logits: Tensor, model: Model) -> list[Deed | None]:
    """Pick once for the whole batch, let every group accept, move kept K/V together, copy all results to the host at once."""
    shares = _shares(plan, packed)
    logits = _guided(shares, logits)
    picked = _pick(shares, logits, model.info.mask_token_id)
    tensors: list[Tensor] = []
    for share in shares:
        step = share.part.step
        assert step is not None
        commit = share.group.accept(step, _picks(share, picked, logits, model.info.mask_token_id))
        if not share.group.decoder.keeps_leading:
            _compact(share.part, commit, model, packed.ragged.page_tokens)
        rows = step.valid.sum(1) if packed.exact else torch.full_like(commit.count, step.tokens.shape[1])
        tensors.append(torch.stack([commit.count, commit.keep.sum(1), commit.drafted, commit.accepted, rows]))
        tensors.extend((commit.tokens, commit.logprob))
        if share.group.needs.alternatives >= 0:
            said = _said(share, commit, logits[share.span], picked.token[share.span])
            tensors.extend(_alternatives(*said, max(1, share.group.needs.alternatives), model.info.mask_token_id))
        if share.group.needs.trace:
            never = torch.zeros_like(commit.tokens)
            tensors.extend(never if values is None else values for values in (commit.ago, commit.edits))
    arrays = iter(to_host(tensors))
    deeds = {share.group: _deed(arrays, share.group) for share in shares}
    return [None if group is None else deeds[group] for group in plan.groups]


def to_host(tensors: Listlike[Tensor]) -> list[np.ndarray]:
    """All tensors as NumPy arrays through one device-to-host copy (floats travel as the bits of float64)."""
    if not tensors:
        return []
    flat = torch.cat([(one.double().view(torch.int64) if one.is_floating_point() else one).flatten() for one in tensors]).cpu()
    pieces = np.split(flat.numpy(), np.cumsum([one.numel() for one in tensors])[:-1])
    return [
        (piece.view(np.float64) if one.is_floating_point() else piece).reshape(one.shape)
        for piece, one in zip(pieces, tensors, strict=True)
    ]


def _shares(plan: Plan, packed: Packed) -> list[_Scored]:
    shares, start = [], 0
    for part, group, flat in zip(plan.parts, plan.groups, packed.scored, strict=True):
        if group is not None:
            shares.append(_Scored(group, part, flat, slice(start, start + len(flat))))
            start += len(flat)
    return shares


def _pick(shares: list[_Scored], logits: Tensor, mask_token: int | None) -> Picked:
    needs = reduce(Needs.__or__, (share.group.needs for share in shares), Needs())
    draws = [draw_of(share.group.dice, share.group.lines, share.line, share.position) for share in shares] if needs.warm else []
    penalties = [_penalty(share, logits.shape[1]) for share in shares if share.group.needs.adjusted]
    return pick(
        logits,
        Draw(**_cat(draws)) if draws else None,
        penalty=Penalty(**_cat(penalties)) if penalties else None,
        forbidden=mask_token,
        narrowed=needs.narrowed,
        want_shape=any(share.group.decoder.needs_shape for share in shares),
    )


def _picks(share: _Scored, picked: Picked, logits: Tensor, mask_token: int | None) -> Picks:
    group, step = share.group, share.part.step
    assert step is not None
    picks = unpack(picked, share.span, share.flat, step)
    if group.decoder.needs_chance:
        position, seed, sample = step.positions + int(group.decoder.shifted), group.lines.seed[:, None], group.lines.sample[:, None]
        chance = uniform_at(seed.expand_as(position), sample.expand_as(position), position).float()
        picks = replace(picks, chance=chance)
    if group.decoder.needs_law:
        prob = law(picked.choice[share.span], None if picked.draw is None else picked.draw.rows(share.span))
        logprob = _unmasked(logits[share.span], mask_token).log_softmax(-1)
        picks = replace(picks, law=Law(_spread(prob, share.flat, step), _spread(logprob, share.flat, step)))
    if group.decoder.needs_top:
        top = _unmasked(logits[share.span], mask_token).topk(min(group.decoder.needs_top, logits.shape[1]), -1).indices
        picks = replace(picks, top=_spread(top, share.flat, step))
    return picks


def _spread(values: Tensor, flat: Tensor, step: Step) -> Tensor:
    """values [L, V] of rows `flat` -> [S, K, V]."""
    out = values.new_zeros(step.tokens.numel(), values.shape[1])
    return out.index_copy_(0, flat, values).unflatten(0, step.tokens.shape)


def _guided(shares: list[_Scored], logits: Tensor) -> Tensor:
    """Logits [L, V] under classifier-free guidance: u + (s + 1) (l - u), u those of the row without the prompt. LLaDA, arXiv 2502.09992."""
    for share in shares:
        step = share.part.step
        if share.group.decoder.guidance and step is not None and step.against is not None:
            where = torch.zeros(step.tokens.numel(), dtype=torch.int64, device=logits.device)
            where[share.flat] = torch.arange(len(share.flat), device=logits.device)
            line = share.flat // step.tokens.shape[1] * step.tokens.shape[1]
            own = logits[share.span]
            other = own[where[line + step.against.flatten()[share.flat]]]
            guided = torch.where(own == other, own, other + (share.group.decoder.guidance + 1) * (own - other))
            logits = torch.cat([logits[: share.span.start], guided, logits[share.span.stop :]])
    return logits


def _penalty(share: _Scored, vocab_size: int) -> Penalty:
    assert share.part.step is not None
    own = penalty_of(share.group.dice, share.group.lines, share.part.step, share.flat, vocab_size)
    return replace(own, rows=own.rows + share.span.start)


def _said(share: _Scored, commit: Commit, logits: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Line, absolute position, logits and token of everything said in this step: by its source's row, or by the row of its position."""
    if commit.source is None:
        return share.line, share.position, logits, token
    assert share.part.step is not None
    step = share.part.step
    taken = torch.arange(commit.tokens.shape[1], device=token.device) < commit.count[:, None]
    line = torch.arange(len(commit.count), device=token.device)[:, None].expand_as(taken)[taken]
    flat = line * step.tokens.shape[1] + commit.source[taken]
    where = torch.zeros(step.tokens.numel(), dtype=torch.int64, device=token.device)
    where[share.flat] = torch.arange(len(share.flat), device=token.device)
    return line, step.positions.flatten()[flat] + int(share.group.decoder.shifted), logits[where[flat]], commit.tokens[taken]


def _alternatives(line: Tensor, position: Tensor, logits: Tensor, token: Tensor, k: int, mask_token: int | None) -> list[Tensor]:
    """Columns line, absolute position, rank and k ids [L, 3 + k], and k log-probabilities [L, k]."""
    ids, values, rank = top_logprobs(_unmasked(logits, mask_token), token, k)
    return [torch.cat([torch.stack([line, position, rank], 1), ids], 1), values]


def _unmasked(logits: Tensor, mask_token: int | None) -> Tensor:
    """The mask token of a diffusion model has no mass."""
    if mask_token is None:
        return logits
    return logits.index_fill(-1, torch.tensor([mask_token], device=logits.device), -torch.inf)


def _compact(part: Part, commit: Commit, model: Model, page_tokens: int) -> None:
    """Move kept rows' K/V together behind the prefix."""
    assert part.step is not None
    slots = row_slots(part, part.step, page_tokens)
    rank = (commit.keep.long().cumsum(1) - 1).clamp(min=0)
    model.move_rows(slots[commit.keep], slots.gather(1, rank)[commit.keep])


def _deed(arrays: Iterator[np.ndarray], group: Group) -> Deed:
    count, kept, drafted, accepted, rows = next(arrays)
    tokens, logprob = next(arrays), next(arrays)
    alternatives = (next(arrays), next(arrays)) if group.needs.alternatives >= 0 else None
    trace = (next(arrays), next(arrays)) if group.needs.trace else None
    return Deed(count, kept, drafted, accepted, tokens, logprob, rows, alternatives, trace)


def _cat(items: Listlike[Draw] | Listlike[Penalty]) -> dict[str, Tensor]:
    return {name: torch.cat([vars(item)[name] for item in items]) for name in vars(items[0])}
