"""Selection rules position by position, and the chain walk against a loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawloom.kernels.reveal import above, best_of_each, reveal, surest
from drawloom.kernels.verify import walk_chain


def random_blocks(seed: int, s: int = 3, n: int = 4, b: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(s, n, b, generator=generator), torch.rand(s, n, b, generator=generator) < 0.6


@pytest.mark.parametrize("seed", range(20))
def test_above_is_the_rule_in_words(seed):
    score, masked = random_blocks(seed)
    may = torch.rand(3, 4, generator=torch.Generator().manual_seed(seed + 99)) < 0.5
    got = above(score, masked, 0.8, may)
    for s in range(3):
        for n in range(4):
            places = [b for b in range(5) if masked[s, n, b]]
            want = {b for b in places if score[s, n, b] > 0.8}
            if not want and places and may[s, n]:
                want = {max(places, key=lambda b: float(score[s, n, b]))}
            assert set(got[s, n].nonzero()[:, 0].tolist()) == want


def test_a_score_equal_to_the_threshold_is_not_above_it():
    score = torch.tensor([[[0.9, 0.5]]])
    assert not above(score, torch.ones(1, 1, 2, dtype=torch.bool), 0.9, torch.zeros(1, 1, dtype=torch.bool)).any()


@pytest.mark.parametrize("count", [1, 2, 9])
def test_surest_takes_the_best_masked_ones(count):
    score, masked = random_blocks(7)
    got = surest(score, masked, count)
    assert not (got & ~masked).any()
    assert torch.equal(got.sum(-1), masked.sum(-1).clamp(max=count))
    left_out = torch.where(masked & ~got, score, -1.0).max(-1).values
    taken = torch.where(got, score, 2.0).min(-1).values
    assert (taken >= left_out).all()


def test_equal_scores_take_the_leftmost():
    score, masked = torch.full((1, 1, 4), 0.5), torch.tensor([[[False, True, True, True]]])
    assert best_of_each(score, masked).nonzero()[:, 2].tolist() == [1]
    assert surest(score, masked, 2).nonzero()[:, 2].tolist() == [1, 2]


def test_reveal_never_touches_what_was_not_chosen():
    score, masked = random_blocks(3)
    canvas, token = torch.randint(0, 9, (2, 3, 4, 5)).unbind(0)
    chosen = surest(score, masked, 1)
    out = reveal(canvas, chosen, token)
    assert torch.equal(out[~chosen], canvas[~chosen])
    assert torch.equal(out[chosen], token[chosen])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_walk_chain_is_a_loop_over_the_draft(data):
    width, lines = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 4))
    token = st.integers(0, 2)
    draft = [[data.draw(token) for _ in range(width)] for _ in range(lines)]
    picked = [[data.draw(token) for _ in range(width + 1)] for _ in range(lines)]
    num = [data.draw(st.integers(0, width)) for _ in range(lines)]
    want = []
    for d, p, n in zip(draft, picked, num, strict=True):
        run = 0
        while run < n and d[run] == p[run]:
            run += 1
        want.append(run)
    got = walk_chain(torch.tensor(draft).view(lines, width), torch.tensor(num), torch.tensor(picked))
    assert got.tolist() == want
