"""Noisy views of packed text: which tokens are hidden, and which blocks are decoded together. Tensor code over whole batches.

Only blocks that hold a part of an answer are ever noisy; prompt tokens inside them stay visible, as they do in decoding.
"""

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from drawloom.jobs.train.data import Packed
from drawloom.jobs.train.visibility import View


@dataclass(frozen=True)
class Noisy:
    """N tokens of blocks with answers, per row of a batch, moved to the front; all [B, N]. What does not exist has document -1."""

    clean: Tensor  # int64, what should stand there
    tokens: Tensor  # int64, what a noisy view shows; equal to clean until hidden
    positions: Tensor
    document: Tensor
    answer: Tensor  # bool
    block: Tensor  # number of the block in its document
    ordinal: Tensor  # number of the block in the row, among blocks with answers
    rank: Tensor  # number of the block in its document, among blocks with answers
    wanted: Tensor  # bool, where the loss is taken

    @property
    def most(self) -> int:
        """More than any ordinal or group of a view."""
        return self.clean.shape[1] + 1


def blocks_with_answers(batch: Packed, block: int) -> Noisy:
    """The tokens that noise may touch, as they stand."""
    number = batch.positions // block
    real = batch.document >= 0
    first = real & ((batch.positions % block == 0) | ~_shifted(real, False))
    ordinal = (first.long().cumsum(1) - 1).clamp(min=0)
    live = real & torch.zeros_like(ordinal).scatter_reduce(1, ordinal, (batch.answer & real).long(), "amax").gather(1, ordinal).bool()
    index = live.long().argsort(dim=1, descending=True, stable=True)[:, : int(live.sum(1).max())]
    there = live.gather(1, index)
    tokens, positions, answer, number = (part.gather(1, index) for part in (batch.tokens, batch.positions, batch.answer, number))
    document = torch.where(there, batch.document.gather(1, index), -1)
    fresh = there & ((document != _shifted(document, -1)) | (number != _shifted(number, -1)))
    ordinal = (fresh.long().cumsum(1) - 1).clamp(min=0)
    opens = there & (document != _shifted(document, -1))
    rank = ordinal - torch.where(opens, ordinal, 0).cummax(1).values
    return Noisy(tokens, tokens, positions, document, answer & there, number, ordinal, rank, torch.zeros_like(there))


def hide(noisy: Noisy, hidden: Tensor, mask_token: int) -> Noisy:
    """The view with `hidden` [B, N] answer tokens masked, which are then what is to be learned."""
    hidden = hidden & noisy.answer
    return replace(noisy, tokens=torch.where(hidden, mask_token, noisy.clean), wanted=hidden)


def single_blocks(noisy: Noisy, number: int) -> View:
    """Every block a group of its own. `number` tells views of one row apart."""
    return View(noisy.document, noisy.block, number * noisy.most + noisy.ordinal, noisy.block)


def grouped(noisy: Noisy, group_of_rank: Tensor, number: int) -> tuple[View, Tensor, Tensor]:
    """Consecutive blocks of a document together, block of rank r in group group_of_rank[b, r] of its document.

    Returns the view, each token's group (numbered over the row) and the place of its block in the group, [B, N] both.
    """
    local = group_of_rank.gather(1, noisy.rank)
    opens = (noisy.document >= 0) & ((local != _shifted(local, -1)) | (noisy.document != _shifted(noisy.document, -1)))
    group = (opens.long().cumsum(1) - 1).clamp(min=0)
    first_ordinal = torch.where(opens, noisy.ordinal, 0).cummax(1).values
    place = noisy.ordinal - first_ordinal
    # `start` is the first block of the group: answers are contiguous, so it lies `place` blocks before.
    return View(noisy.document, noisy.block, number * noisy.most + group, noisy.block - place), group, place


def layout(noisy: Noisy, most: int, random_layouts: int, generator: Generator) -> Tensor:
    """group_of_rank [B, ranks]: for each row one layout, drawn from the systematic ones (size 2..most, every shift) and the random ones
    (sizes drawn from 2..most for each group). MBD-LM, MultiTF."""
    rows, ranks = len(noisy.clean), int(noisy.rank.max()) + 1
    systematic = [(size, shift) for size in range(2, most + 1) for shift in range(size)]
    chosen = torch.randint(len(systematic) + random_layouts, (rows,), generator=generator)
    size, shift = torch.tensor(systematic + [(1, 0)] * random_layouts)[chosen].unbind(1)
    regular = (torch.arange(ranks) + shift[:, None]) // size[:, None]
    ends = torch.randint(2, most + 1, (rows, ranks), generator=generator).cumsum(1)
    irregular = torch.searchsorted(ends, torch.arange(ranks).expand(rows, ranks).contiguous(), right=True)
    return torch.where((chosen < len(systematic))[:, None], regular, irregular)


def chain_uniform(rows: int, groups: int, most: int, low: float, high: float, generator: Generator) -> Tensor:
    """Noise levels [rows, groups, most]: within a group each block is at least as noisy as the one before, as it is in decoding.
    l ~ U(low, high); for each block t ~ U(l, high), then l = t. MBD-LM, MultiTF (with no reserve, rho = 0)."""
    level = low + (high - low) * torch.rand(rows, groups, generator=generator)
    levels = []
    for _ in range(most):
        level = level + (high - level) * torch.rand(rows, groups, generator=generator)
        levels.append(level)
    return torch.stack(levels, -1)


def hidden_at(noisy: Noisy, level: Tensor, generator: Generator) -> Tensor:
    """[B, N] bool: floor(level * n) answer tokens of each block of n, chosen at random. level [B, N] is equal within a block."""
    draw = torch.rand(noisy.clean.shape, generator=generator, dtype=torch.float64)
    key = noisy.ordinal * 4 + torch.where(noisy.answer, draw, 2 + draw) + (noisy.document < 0) * 4 * noisy.most
    place = key.argsort(1).argsort(1)  # place in the row when each block is shuffled in itself
    begins = torch.full_like(place, noisy.most).scatter_reduce(1, noisy.ordinal, place, "amin").gather(1, noisy.ordinal)
    count = torch.zeros_like(place).scatter_add(1, noisy.ordinal, noisy.answer.long()).gather(1, noisy.ordinal)
    return noisy.answer & (place - begins < (level * count).floor())


def _shifted(values: Tensor, fill: int | bool) -> Tensor:
    """values of the token before."""
    return torch.nn.functional.pad(values[:, :-1], (1, 0), value=fill)
