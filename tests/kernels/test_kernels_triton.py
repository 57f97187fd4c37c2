"""The other Triton kernels in the interpreter, against their references, at odd sizes."""

import random

import pytest
import torch

from drawloom.kernels.kv import move_rows
from drawloom.kernels.kv_triton import move_rows_triton, pages_copied, write_rows_triton
from drawloom.kernels.noise import gumbel
from drawloom.kernels.pick import Draw, pick, pick_reference
from drawloom.kernels.pick_triton import head_statistics, pick_statistics, pick_triton
from drawloom.kernels.reveal import above
from drawloom.kernels.reveal_triton import reveal_triton
from drawloom.kernels.verify import reach, walk_tree
from drawloom.kernels.verify_sampled import Draft, specinfer, traversal
from drawloom.kernels.verify_triton import block_triton, specinfer_triton, walk_tree_triton


def draws(rows: int, seed: int) -> Draw:
    generator = torch.Generator().manual_seed(seed)
    integers = [torch.randint(-(2**62), 2**62, (rows,), generator=generator), torch.arange(rows) % 3, torch.arange(rows) * 7]
    temperature = torch.tensor([0.0, 0.7, 1.5])[torch.arange(rows) % 3]
    nothing = torch.zeros(rows, dtype=torch.int64), torch.ones(rows), torch.zeros(rows)
    return Draw(temperature, *nothing, *integers)


@pytest.mark.parametrize(("rows", "vocab"), [(1, 5), (7, 63), (3, 64), (5, 1000), (2, 9001)])
@pytest.mark.parametrize("drawn", [False, True], ids=["greedy", "drawn"])
def test_pick_equals_its_reference(rows: int, vocab: int, drawn: bool) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(rows, vocab, generator=generator) * 3
    choice = logits + torch.randn(rows, vocab, generator=generator) if rows > 2 else logits
    choice[0, 2] = -torch.inf
    draw = draws(rows, vocab) if drawn else None
    token, logprob = pick_triton(logits, choice, draw)
    want, probability = pick_reference(logits, choice, draw)
    assert torch.equal(token, want)
    torch.testing.assert_close(logprob, probability, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("forbidden", [None, 4])
def test_pick_tells_margin_and_entropy(forbidden: int | None) -> None:
    logits = torch.randn(6, 777, generator=torch.Generator().manual_seed(1)) * 4
    logits[1, 5] = logits[1].max() + 0  # two best ones
    want = pick(logits, None, forbidden=forbidden, want_shape=True, impl="torch")
    got = pick_statistics(logits, logits, None, -1 if forbidden is None else forbidden)
    assert want.margin is not None
    assert want.entropy is not None
    assert torch.equal(got.token, want.token)
    torch.testing.assert_close(got.margin, want.margin, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(got.entropy, want.entropy, rtol=1e-5, atol=1e-5)


def test_equal_logits_give_the_lowest_token() -> None:
    logits = torch.zeros(3, 5000)
    logits[1, [4200, 4900]] = 1.0
    assert pick_triton(logits, logits, None)[0].tolist() == [0, 4200, 0]


def test_the_noise_is_the_references() -> None:
    """Picks from flat logits follow the noise alone: the token of the largest one."""
    draw = draws(40, 9)
    draw = Draw(**{**vars(draw), "temperature": torch.ones(40)})
    logits = torch.zeros(40, 3333)
    noise = gumbel(draw.seed, draw.sample, draw.position, 3333)
    assert torch.equal(pick_triton(logits, logits, draw)[0], noise.argmax(1))


@pytest.mark.parametrize(("rows", "width", "vocab"), [(1, 32, 130), (5, 72, 1000), (17, 40, 257)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_fused_head_is_the_head_and_the_pick(rows: int, width: int, vocab: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    hidden, weight = (torch.randn(count, width, generator=generator).to(dtype) for count in (rows, vocab))
    logits = hidden.float() @ weight.float().T
    for draw in (None, draws(rows, vocab)):
        want, got = pick_statistics(logits, logits, draw, 3), head_statistics(hidden, weight, draw, 3)
        assert torch.equal(got.token, want.token)
        for one, other in zip(got[1:], want[1:], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def tree(draw: random.Random, lines: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random parents before their children, and rows that are there only with their parents: [S, K] each."""
    parents, valid = [], []
    for _ in range(lines):
        parent = [0, *(draw.randrange(max(0, row - 4), row) for row in range(1, rows))]
        there = [True]
        for row in range(1, rows):
            there.append(there[parent[row]] and draw.random() < 0.8)
        parents.append(parent)
        valid.append(there)
    return torch.tensor(parents), torch.tensor(valid)


def test_walks_of_300_random_trees() -> None:
    draw, generator = random.Random(5), torch.Generator().manual_seed(5)
    for rows in (1, 2, 3, 17, 33, 65):
        parent, valid = tree(draw, 50, rows)
        token, picked = (torch.randint(0, 3, (50, rows), generator=generator) for _ in range(2))
        own = torch.where(valid, parent, torch.arange(rows))
        want = walk_tree(token, own, reach(own), valid, picked)
        assert torch.equal(walk_tree_triton(token, own, valid, picked), want)


def drafts(seed: int, rows: int, vocab: int, *, chain: bool) -> tuple[Draft, torch.Tensor, torch.Tensor]:
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    parent, valid = tree(draw, 6, rows)
    if chain:
        parent = torch.arange(rows).sub(1).clamp(min=0).expand(6, -1).contiguous()
        valid = torch.arange(rows) < torch.randint(1, rows + 1, (6, 1), generator=generator)
    law = (torch.randn(6, rows, vocab, generator=generator) * 2).softmax(-1)
    p = (torch.randn(6, rows, vocab, generator=generator) * 2).softmax(-1)
    q = law if chain else law.gather(1, parent[..., None].expand_as(law))  # siblings share a law
    tokens = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(6, rows)
    return Draft(tokens, parent, valid, q), p, torch.rand(6, rows, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["rejection", "block"])
def test_verifiers_equal_their_references(kind: str, seed: int) -> None:
    draft, p, coin = drafts(seed, 2 + seed, (5, 64, 100)[seed % 3], chain=kind == "block")
    fast, slow = (specinfer_triton, specinfer) if kind == "rejection" else (block_triton, traversal)
    path, left = fast(draft, p, coin)
    want, rest = slow(draft, p, coin)
    assert torch.equal(path, want)
    torch.testing.assert_close(left / left.sum(1, keepdim=True), rest / rest.sum(1, keepdim=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("heads", "size"), [(1, 8), (3, 24), (17, 64)])
@pytest.mark.parametrize("rotary", [False, True])
def test_rows_are_written_where_they_belong(heads: int, size: int, rotary: bool) -> None:
    generator = torch.Generator().manual_seed(heads)
    keys, values = (torch.randn(5, heads, size, generator=generator) for _ in range(2))
    slots = torch.tensor([11, 3, 7, 0, 12])
    caches = [torch.full((13, heads, size), torch.nan) for _ in range(2)]
    angles = torch.rand(5, size // 2, generator=generator).repeat(1, 2) * 6
    write_rows_triton(keys, values, caches[0], caches[1], slots, (angles.cos(), angles.sin()) if rotary else None)
    if rotary:
        first, second = keys.chunk(2, -1)
        keys = keys * angles.cos()[:, None] + torch.cat([-second, first], -1) * angles.sin()[:, None]
    torch.testing.assert_close(caches[0][slots], keys, rtol=1e-6, atol=1e-6)
    assert torch.equal(caches[1][slots], values)
    others = [slot for slot in range(13) if slot not in slots.tolist()]
    assert caches[0][others].isnan().all()


def test_overlapping_moves_are_safe() -> None:
    cache = torch.randn(20, 3, 8)
    want, source, target = cache.clone(), torch.tensor([5, 6, 9, 7]), torch.tensor([4, 5, 6, 9])
    move_rows(want, source, target)
    move_rows_triton(cache, source, target)
    assert torch.equal(cache, want)
    move_rows_triton(cache, source[:0], target[:0])
    pages_copied(cache, torch.tensor([0, 3]), torch.tensor([4, 1]), 4)
    want = torch.cat([want[:4], want[12:16], want[8:12], want[12:16], want[:4]])
    assert torch.equal(cache, want)


@pytest.mark.parametrize("block", [1, 4, 7, 32])
def test_reveals_equal_their_reference(block: int) -> None:
    generator = torch.Generator().manual_seed(block)
    score = torch.rand(5, 3, block, generator=generator).round(decimals=1)  # ties
    masked, fall = torch.rand(5, 3, block, generator=generator) < 0.6, torch.rand(5, 3, generator=generator) < 0.5
    canvas, token = (torch.randint(0, 99, (5, 3, block), generator=generator) for _ in range(2))
    before = canvas.clone()
    chosen, left = reveal_triton(score, masked, 0.7, fall, canvas, token)
    want = above(score, masked, 0.7, fall)
    assert torch.equal(chosen, want)
    assert torch.equal(canvas, torch.where(want, token, before))
    assert torch.equal(left, (masked & ~want).sum(-1))
