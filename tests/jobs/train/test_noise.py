"""Masks and noise against slow, plain readings of their rules."""

import numpy as np
import pytest
import torch
from torch import Generator
from torch.nn.attention.flex_attention import create_mask

from drawloom.jobs.train.data import Corpus, Packed, batches, pack
from drawloom.jobs.train.multi_block import noisy_view
from drawloom.jobs.train.noise import blocks_with_answers, chain_uniform, hidden_at, hide, layout, single_blocks
from drawloom.jobs.train.settings import MultiBlockSettings
from drawloom.jobs.train.visibility import CLEAN, clean, dense_mask, join, mask_mod_of

BLOCK, MASK, END = 4, 99, 0


def some_corpus(seed: int, count: int = 40) -> Corpus:
    dice = np.random.default_rng(seed)
    lengths = dice.integers(2, 23, count)
    answers = np.array([dice.integers(0, length) for length in lengths])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Corpus(dice.integers(1, 90, starts[-1]).astype(np.int32), starts, answers)


def some_batch(seed: int, block: int = BLOCK) -> Packed:
    return next(batches(some_corpus(seed), 5, 48, seed, END, block))


def seen(mask: torch.Tensor, row: int, index: int) -> set[int]:
    return set(mask[row, 0, index].nonzero()[:, 0].tolist())


@pytest.mark.parametrize("order", [1, BLOCK])
def test_clean_text_sees_its_own_document_up_to_its_block(order: int) -> None:
    batch = some_batch(1)
    mask = dense_mask(clean(batch.document, batch.positions // order))
    for row in range(5):
        for at in range(48):
            own, place = int(batch.document[row, at]), int(batch.positions[row, at])
            wanted = {
                k for k in range(48)
                if own >= 0 and batch.document[row, k] == own and int(batch.positions[row, k]) // order <= place // order
            }  # fmt: skip
            assert seen(mask, row, at) == wanted | {at}


@pytest.mark.parametrize("seed", range(6))
def test_a_noisy_block_sees_its_group_and_the_clean_text_before_it(seed: int) -> None:
    """The rule of MultiTF, read off one token at a time from what the views say of themselves."""
    batch, settings = some_batch(seed), MultiBlockSettings(data="", output="", base="", block=BLOCK, most=3)
    whole, dice = blocks_with_answers(batch, BLOCK), Generator().manual_seed(seed)
    views = [noisy_view(whole, settings, MASK, number, dice) for number in range(2)]
    joined = join(clean(batch.document, batch.positions // BLOCK), *(view for _, view in views))
    mask, width = dense_mask(joined), whole.clean.shape[1]
    for row in range(5):
        for number, (noisy, view) in enumerate(views):
            for at in range(width):
                own, block = int(noisy.document[row, at]), int(noisy.block[row, at])
                index = 48 + number * width + at
                if own < 0:
                    assert seen(mask, row, index) == {index}
                    continue
                mates = [k for k in range(width) if view.group[row, k] == view.group[row, at] and noisy.document[row, k] == own]
                first = min(int(noisy.block[row, k]) for k in mates)
                assert len({int(noisy.block[row, k]) for k in mates}) <= 3
                before = {k for k in range(48) if batch.document[row, k] == own and int(batch.positions[row, k]) // BLOCK < first}
                beside = {48 + number * width + k for k in mates if int(noisy.block[row, k]) <= block}
                assert seen(mask, row, index) == before | beside


def test_only_blocks_with_answers_are_noisy_and_prompts_in_them_stay() -> None:
    batch = some_batch(3)
    whole = blocks_with_answers(batch, BLOCK)
    for row in range(5):
        live = set()
        for at in range(48):
            own, block = int(batch.document[row, at]), int(batch.positions[row, at]) // BLOCK
            if own >= 0 and batch.answer[row, at]:
                live.add((own, block))
        wanted = [
            (int(batch.tokens[row, at]), int(batch.positions[row, at]), bool(batch.answer[row, at]))
            for at in range(48)
            if (int(batch.document[row, at]), int(batch.positions[row, at]) // BLOCK) in live
        ]
        there = whole.document[row] >= 0
        found = list(
            zip(whole.clean[row, there].tolist(), whole.positions[row, there].tolist(), whole.answer[row, there].tolist(), strict=True)
        )
        assert found == wanted
        assert not whole.answer[row, ~there].any()


def test_noise_hides_the_right_number_in_each_block() -> None:
    whole, dice = blocks_with_answers(some_batch(4), BLOCK), Generator().manual_seed(1)
    level = torch.rand(whole.clean.shape, generator=dice).gather(1, whole.ordinal)
    hidden = hidden_at(whole, level, dice)
    noisy, other = hide(whole, hidden, MASK), hide(whole, ~hidden, MASK)
    assert (noisy.wanted ^ other.wanted).equal(whole.answer)  # each answer token is hidden in exactly one of the two
    assert (noisy.tokens == MASK).equal(noisy.wanted)
    for row in range(5):
        for number in set(whole.ordinal[row, whole.document[row] >= 0].tolist()):
            mine = (whole.ordinal[row] == number) & whole.answer[row]
            assert int(hidden[row, mine].sum()) == int(level[row, mine][0] * mine.sum())


def test_groups_of_single_blocks_never_mix() -> None:
    whole = blocks_with_answers(some_batch(5), BLOCK)
    first, second = single_blocks(whole, 0), single_blocks(whole, 1)
    assert not set(first.group.flatten().tolist()) & set(second.group.flatten().tolist())
    assert (first.group != CLEAN).all()


def test_levels_rise_along_a_group_and_layouts_have_the_sizes_asked_for() -> None:
    dice = Generator().manual_seed(2)
    levels = chain_uniform(50, 20, 4, 0.001, 1.0, dice)
    assert (levels.diff(dim=-1) >= 0).all()
    assert levels.min() >= 0.001
    assert levels.max() <= 1
    assert abs(float(levels[..., 0].mean()) - 0.75) < 0.02  # two uniform steps up: 1 - 1/4
    long = Corpus(np.ones(400, dtype=np.int32), np.arange(0, 401, 40), np.zeros(10, dtype=np.int64))
    whole, sizes = blocks_with_answers(next(batches(long, 5, 48, 6, END, BLOCK)), BLOCK), set()
    for _ in range(40):
        groups = layout(whole, 3, 1, dice)
        assert groups[:, 0].eq(0).all()
        assert ((groups.diff(dim=1) == 0) | (groups.diff(dim=1) == 1)).all()
        sizes |= {int((row == number).sum()) for row in groups for number in row.unique()[1:-1]}
    assert sizes == {2, 3}


def test_packing_keeps_every_document_whole_and_in_the_order_of_the_seed() -> None:
    corpus = some_corpus(7)
    found = []
    source = batches(corpus, 3, 64, 5, END)
    for _ in range(4):
        batch = next(source)
        for row in range(3):
            for number in range(int(batch.document[row].max()) + 1):
                mine = batch.document[row] == number
                found.append((tuple(batch.tokens[row, mine].tolist()), int((~batch.answer[row, mine]).sum())))
                assert batch.positions[row, mine].tolist() == list(range(int(mine.sum())))
    whole = {(tuple(corpus.document(k).tolist()), int(corpus.answers[k])) for k in range(len(corpus))}
    assert set(found) <= whole
    assert len(set(found[:40])) == 40  # an epoch holds each once


def test_a_document_longer_than_a_row_is_cut() -> None:
    corpus = Corpus(np.arange(1, 101, dtype=np.int32), np.array([0, 100]), np.array([10]))
    batch = next(batches(corpus, 1, 32, 0, END, BLOCK))
    assert batch.tokens[0].tolist() == list(range(1, 33))
    assert int(batch.answer.sum()) == 22


def test_rows_of_padding_see_themselves() -> None:
    batch = pack([[(np.array([5, 6], dtype=np.int32), 1)]], 6, END)
    mask = dense_mask(clean(batch.document, batch.positions))
    assert mask[0, 0].any(-1).all()
    assert mask[0, 0, 2:].sum() == 4


def test_what_flex_attention_is_told_is_the_dense_mask() -> None:
    batch = some_batch(8)
    whole = blocks_with_answers(batch, BLOCK)
    view = join(clean(batch.document, batch.positions // BLOCK), single_blocks(whole, 0))
    asked = create_mask(mask_mod_of(view), 5, 1, len(view), len(view), device="cpu")
    assert asked.equal(dense_mask(view))
