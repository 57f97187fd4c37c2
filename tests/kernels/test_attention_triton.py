"""The Triton attention in the interpreter: against the reference, in parts, over shared prefixes, and alone as in company."""

import random

import numpy as np
import pytest
import torch
from batches import SCORINGS, Case, make_case

from drawloom.kernels.attention import Scoring, attend_padded, attend_reference
from drawloom.kernels.attention_triton import attend_triton, part_for, plan, spans_of


def in_parts(size: int):
    return lambda *given: attend_triton(*given, part=size)


@pytest.mark.parametrize("part", [6, 2048], ids=["parts", "whole"])
@pytest.mark.parametrize("tree", [False, True], ids=["see", "tree"])
@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_equals_the_reference(scoring: Scoring, tree: bool, part: int) -> None:
    """Odd sizes, empty prefixes, pages in any order; NaN in every slot that no row may see."""
    for seed in range(3):
        case = make_case(seed, tree=tree, page_tokens=1 + 3 * seed)
        got, want = case.attend(in_parts(part), scoring), case.attend(attend_reference, scoring)
        assert (got - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize(
    ("heads", "size"), [((1, 1), 8), ((4, 4), 64), ((9, 3), 64), ((8, 1), 80), ((2, 2), 96), ((4, 2), 128), ((2, 1), 256)]
)
def test_head_shapes(heads: tuple[int, int], size: int) -> None:
    case = make_case(7, heads=heads, size=size, num_sequences=2)
    got, want = case.attend(in_parts(16), Scoring(size**-0.5)), case.attend(attend_reference, Scoring(size**-0.5))
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_errs_no_more_than_twice_torch(dtype: torch.dtype) -> None:
    for seed in range(3):
        case = make_case(seed, heads=(4, 2), size=64)
        exact = case.attend(attend_reference, Scoring(0.125)).double()
        low = Case(case.query.to(dtype), case.keys.to(dtype), case.values.to(dtype), case.rows)
        errors = [(low.attend(path, Scoring(0.125)).double() - exact).abs().max() for path in (attend_triton, attend_padded)]
        assert errors[0] <= 2 * errors[1]


def test_many_sequences() -> None:
    case = make_case(3, num_sequences=64, page_tokens=3)
    assert torch.allclose(case.attend(attend_triton, Scoring(0.2)), case.attend(attend_reference, Scoring(0.2)), atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_a_prefix_that_is_shared_is_read_once(seed: int) -> None:
    """Sequences with the same first pages: one program reads them for all rows; what comes out is what each would read by itself."""
    draw = random.Random(seed)
    case = make_case(seed + 20, num_sequences=4, page_tokens=4, tree=seed % 2 == 1)
    prefixes = list(case.rows.prefix_lens_host)
    members = sorted(draw.sample(range(4), 2 + seed % 3))
    whole = min(prefixes[one] for one in members) // 4
    pages = case.rows.pages.clone()
    for one in members:
        pages[one, :whole] = pages[members[0], :whole]
    rows = case.rows._replace(pages=pages)
    want = Case(case.query, case.keys, case.values, rows).attend(attend_reference, Scoring(0.3))
    told = rows._replace(scratch={"shared": [(members, 4 * whole)]} if whole else {})
    got = attend_triton(case.query, case.keys, case.values, told, Scoring(0.3), part=8)
    assert torch.allclose(got, want, atol=1e-5)


def test_a_row_does_not_depend_on_its_batch() -> None:
    """Bit for bit: each sequence alone and beside the others."""
    case, scoring = make_case(5, num_sequences=4, tree=True), Scoring(0.3)
    together, bits = case.attend(attend_triton, scoring), case.rows.ancestors
    assert bits is not None
    for sequence in range(4):
        first, end = case.rows.row_starts_host[sequence : sequence + 2]
        prefix = case.rows.prefix_lens_host[sequence]
        alone = case.rows._replace(
            positions=case.rows.positions[first:end].clone(),
            see=case.rows.see[first:end].clone(),
            ancestors=bits[first:end].clone(),
            row_starts=torch.tensor([0, end - first], dtype=torch.int32),
            prefix_lens=torch.tensor([prefix], dtype=torch.int32),
            pages=case.rows.pages[sequence : sequence + 1].clone(),
            row_starts_host=[0, end - first],
            prefix_lens_host=[prefix],
            scratch={},
        )
        one = Case(case.query[first:end].clone(), case.keys, case.values, alone)
        assert torch.equal(one.attend(attend_triton, scoring), together[first:end])


@pytest.mark.parametrize("seed", range(20))
def test_every_key_is_read_once_by_every_row(seed: int) -> None:
    """Of the plan: the spans of a row's parts are its prefix, without gap or overlap; its own rows are in exactly one part."""
    draw = random.Random(seed)
    counts, prefixes = [draw.choice([0, 1, 5, 40]) for _ in range(6)], [draw.choice([0, 1, 7, 64, 1000]) for _ in range(6)]
    starts = [sum(counts[:index]) for index in range(7)]
    members = [one for one in range(6) if prefixes[one] >= 7 and counts[one]]
    shared = [(members, 7)] if len(members) > 1 else []
    items, ids, parts = plan(starts, prefixes, draw.choice([1, 4, 16]), draw.choice([4, 64, 2048]), shared)
    spans: dict[int, list[tuple[int, int, int]]] = {}
    for first, count, _, begin, end, own, part, of in items.tolist():
        for row in ids[first : first + count].tolist():
            spans.setdefault(row, []).append((part, end - begin if end > begin else 0, own))
            assert (of == 1) == (parts[row] == 1)  # a tile of a shared prefix has rows with more and fewer others
    sequence = np.repeat(np.arange(6), counts)
    assert sorted(spans) == list(range(starts[-1]))
    for row, own in spans.items():
        assert sorted(part for part, _, _ in own) == list(range(parts[row]))
        assert sum(keys for _, keys, _ in own) == prefixes[sequence[row]]
        assert sum(flag for _, _, flag in own) == 1


def test_parts_end_at_the_same_keys_whatever_the_prefix() -> None:
    assert spans_of(0, 0, 8) == [(0, 0)]
    assert spans_of(0, 8, 8) == [(0, 8)]
    assert spans_of(0, 12, 8) == [(0, 12)]
    assert spans_of(0, 13, 8) == [(0, 8), (8, 13)]
    assert spans_of(5, 40, 8) == [(5, 8), (8, 16), (16, 24), (24, 32), (32, 40)]


def test_few_sequences_are_cut_into_more_parts() -> None:
    few, many = (make_case(1, num_sequences=count).rows._replace(prefix_lens_host=[8192] * count) for count in (1, 64))
    assert part_for(few, 8, 32, 264) < part_for(many, 8, 32, 264)
