"""Attention of ragged paged rows: the reference against one written key by key, the fast paths against the reference."""

import math

import pytest
import torch
from batches import SCORINGS, Case, make_case

from drawloom.errors import SettingError
from drawloom.kernels.attention import Rows, Scoring, attend_padded, attend_reference
from drawloom.kernels.attention_native import attend_native
from drawloom.kernels.choose import choose
from drawloom.kernels.native import why_not

PATHS = {"native": attend_native, "padded": attend_padded}


def attend_by_definition(case: Case, scoring: Scoring) -> torch.Tensor:
    """Key by key and number by number, in float64, straight from the words of kernels/attention.py."""
    rows, out = case.rows, torch.zeros_like(case.query, dtype=torch.float64)
    for sequence, prefix in enumerate(rows.prefix_lens_host):
        first = rows.row_starts_host[sequence]
        for row in range(rows.row_starts_host[sequence + 1] - first):
            position = int(rows.positions[first + row])
            seen = [(index, index) for index in range(prefix)]
            for other in range(int(rows.see[first + row])):
                if rows.ancestors is None or int(rows.ancestors[first + row, other // 64]) >> other % 64 & 1:
                    seen.append((prefix + other, int(rows.positions[first + other])))
            if scoring.window is not None:
                seen = [(index, stands) for index, stands in seen if stands > position - scoring.window]
            for head in range(case.query.shape[1]):
                out[first + row, head] = _one_head(case, scoring, sequence, [index for index, _ in seen], (first + row, head))
    return out


def _one_head(case: Case, scoring: Scoring, sequence: int, seen: list[int], where: tuple[int, int]) -> torch.Tensor:
    size, key_head = case.rows.page_tokens, where[1] * case.keys.shape[1] // case.query.shape[1]
    slots = [int(case.rows.pages[sequence, index // size]) * size + index % size for index in seen]
    scores = [float(case.query[where].double() @ case.keys[slot, key_head].double()) * scoring.scale for slot in slots]
    if scoring.softcap is not None:
        scores = [math.tanh(score / scoring.softcap) * scoring.softcap for score in scores]
    weights = [math.exp(score) for score in scores]
    total = sum(weights) + (0.0 if scoring.sinks is None else math.exp(float(scoring.sinks[where[1]])))
    return torch.stack([weight * case.values[slot, key_head].double() for weight, slot in zip(weights, slots, strict=True)]).sum(0) / total


@pytest.mark.parametrize("tree", [False, True], ids=["see", "tree"])
@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_reference_is_the_definition(scoring, tree):
    for seed in range(4):
        case = make_case(seed, tree=tree)
        assert torch.allclose(case.attend(attend_reference, scoring).double(), attend_by_definition(case, scoring), atol=2e-6)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("tree", [False, True], ids=["see", "tree"])
@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_fast_paths_equal_reference(scoring, tree, path):
    """Twelve batches each; a NaN in the answer means that a path looked where no row may."""
    for seed in range(12):
        case = make_case(seed, tree=tree, page_tokens=1 + seed % 7)
        got, want = case.attend(path, scoring), case.attend(attend_reference, scoring)
        assert (got - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize(
    ("heads", "size"), [((1, 1), 8), ((4, 4), 64), ((9, 3), 64), ((8, 1), 80), ((2, 2), 96), ((4, 2), 128), ((2, 1), 256)]
)
def test_head_shapes(heads, size, path):
    case = make_case(7, heads=heads, size=size, num_sequences=3)
    got, want = case.attend(path, Scoring(size**-0.5)), case.attend(attend_reference, Scoring(size**-0.5))
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()


def test_many_sequences():
    case = make_case(3, num_sequences=64, page_tokens=3)
    want = case.attend(attend_reference, Scoring(0.2))
    for path in PATHS.values():
        assert torch.allclose(case.attend(path, Scoring(0.2)), want, atol=1e-5)


def test_error_within_twice_that_of_torch():
    """Against float64, the kernel's largest error is at most twice that of torch's own attention in float32."""
    case, scoring = make_case(11, heads=(4, 2), size=64, num_sequences=5), Scoring(0.125)
    exact = attend_by_definition(case, scoring)
    errors = {name: (case.attend(path, scoring).double() - exact).abs().max() for name, path in PATHS.items()}
    assert errors["native"] <= 2 * errors["padded"] + 1e-7


def test_native_row_does_not_depend_on_its_batch():
    """Bit for bit: each sequence alone and beside the others."""
    case, scoring = make_case(5, num_sequences=4, tree=True), Scoring(0.3)
    together, bits = case.attend(attend_native, scoring), case.rows.ancestors
    assert bits is not None
    for sequence in range(4):
        first, end = case.rows.row_starts_host[sequence : sequence + 2]
        pages, prefix = case.rows.pages[sequence : sequence + 1], case.rows.prefix_lens_host[sequence]
        alone = case.rows._replace(
            positions=case.rows.positions[first:end].clone(),
            see=case.rows.see[first:end].clone(),
            ancestors=bits[first:end].clone(),
            row_starts=torch.tensor([0, end - first], dtype=torch.int32),
            prefix_lens=torch.tensor([prefix], dtype=torch.int32),
            pages=pages.clone(),
            row_starts_host=[0, end - first],
            prefix_lens_host=[prefix],
            scratch={},
        )
        one = Case(case.query[first:end].clone(), case.keys, case.values, alone)
        assert torch.equal(one.attend(attend_native, scoring), together[first:end])


def test_native_row_does_not_depend_on_hidden_rows():
    """Bit for bit: a leaf of a tree, with rows of other branches between its ancestors, and after its branch was committed alone."""
    generator = torch.Generator().manual_seed(0)
    query, keys, values = torch.randn(1, 6, 24, generator=generator), *torch.randn(2, 60, 2, 24, generator=generator)
    branch = [0, 2, 5, 6, 10]  # of 11 rows behind a prefix of 13
    slots = [*range(13), *(13 + row for row in branch)]

    def attend(prefix: int, num_rows: int, bits: int, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        rows = Rows(
            positions=torch.full((num_rows,), 17),
            see=torch.full((num_rows,), num_rows, dtype=torch.int32),
            ancestors=torch.full((num_rows, 1), bits),
            row_starts=torch.tensor([0, num_rows], dtype=torch.int32),
            prefix_lens=torch.tensor([prefix], dtype=torch.int32),
            pages=torch.arange(12, dtype=torch.int32)[None],
            page_tokens=5,
            row_starts_host=[0, num_rows],
            prefix_lens_host=[prefix],
            scratch={},
        )
        return attend_native(query.expand(num_rows, -1, -1), *cache, rows, Scoring(0.3))[-1]

    in_tree = attend(13, 11, sum(1 << row for row in branch), (keys, values))
    committed = attend(len(slots) - 1, 1, 1, (keys[slots].clone(), values[slots].clone()))
    assert torch.equal(in_tree, committed)


def test_native_threads_agree_bit_for_bit():
    case, threads = make_case(9, num_sequences=5), torch.get_num_threads()
    got = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        got.append(case.attend(attend_native, Scoring(0.3)))
    torch.set_num_threads(threads)
    assert torch.equal(got[0], got[1])
    assert torch.equal(got[0], got[2])


def test_choice_is_named_and_refusals_give_the_reason():
    assert why_not() == "", "the native kernels must build where the tests run"
    known, reasons = {"fast": 1, "slow": 2}, {"fast": "no compiler"}
    assert choose("attention", "auto", known, reasons) == ("slow", 2)
    assert choose("attention", "auto", known, {}) == ("fast", 1)
    with pytest.raises(SettingError, match="attention 'fast' cannot run here: no compiler"):
        choose("attention", "fast", known, reasons)
    with pytest.raises(SettingError, match=r"no implementation 'faster'.*fast, slow"):
        choose("attention", "faster", known, reasons)
