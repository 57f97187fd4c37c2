"""Recipes that draft trees equal plain oracles: the text, and how many tokens each forward makes final."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from rig import engine, ids, request, run
from tree_oracle import JacobiBlocks, Lookahead, Loop

from drawloom.decoders.recipes import build
from drawloom.decoders.step import lines_of
from drawloom.decoders.tree_drafters import empty_pool, recall, remember
from drawloom.decoders.trees import TreeVerify
from drawloom.errors import SettingError
from drawloom.kernels.verify import reach, walk_chain, walk_tree
from drawloom.models.hash_lm import HashLM


def some(name: str, rng: random.Random) -> tuple[dict, Loop]:
    if name == "lookahead":
        params = {
            "window": rng.randrange(1, 7),
            "ngram": rng.randrange(2, 5),
            "guesses": rng.randrange(1, 5),
            "pool": rng.choice([1, 6, 40]),
        }
        return params, Lookahead(**params)
    params = {"block": rng.choice([1, 4, 16]), "blocks": rng.randrange(1, 4), "spawn": rng.choice([0.0, 0.5, 0.85])}
    params |= {"pool": rng.randrange(4), "width": rng.choice([1, 4, 8])}
    return params, JacobiBlocks(**params)


@pytest.mark.parametrize("name", ["jacobi-forcing", "lookahead"])
@pytest.mark.parametrize("number", range(20))
def test_equals_its_oracle_step_by_step(name: str, number: int) -> None:
    rng = random.Random(f"{name} {number}")
    model = HashLM(number, sway=rng.choice([8.0, 14.0]))
    prompt = [rng.randrange(62) for _ in range(rng.randrange(1, 30))]
    params, naive = some(name, rng)
    one = request(
        "x", prompt, name, number, params, max_tokens=rng.randrange(1, 50), temperature=rng.choice([0.0, 0.8]), ignore_eos=number % 4 == 3
    )
    done = run(engine(model), [replace(one, trace=True)])["x"]
    want, counts = naive.run(model, prompt, one.sampling, number)
    assert ids(done) == want
    reveals = done.samples[0].reveals
    assert reveals is not None
    by_forward = Counter(one.final for one in reveals)
    assert [by_forward[forward] for forward in sorted(by_forward)] == counts


@pytest.mark.parametrize("name", ["jacobi-forcing", "lookahead"])
def test_drafts_are_accepted(name: str) -> None:
    """On text that repeats, both make several tokens a forward final."""
    done = run(engine(HashLM(1, sway=40.0)), [request("x", [1, 2, 3], name, max_tokens=200, temperature=0.0, ignore_eos=True)])["x"]
    assert done.stats.forwards < 120


def test_a_chain_is_a_tree() -> None:
    generator = torch.Generator().manual_seed(0)
    draft, picked = (torch.randint(3, (50, width), generator=generator) for width in (6, 7))
    num = torch.randint(7, (50,), generator=generator)
    tokens = torch.cat([draft[:, :1] * 0, draft], 1)
    row = torch.arange(7).expand(50, -1)
    parent = (row - 1).clamp(min=0)
    path = walk_tree(tokens, parent, reach(parent), row <= num[:, None], picked)
    assert path.sum(1).tolist() == (walk_chain(draft, num, picked) + 1).tolist()
    assert (path == (row < path.sum(1, keepdim=True))).all()


def test_reach_of_a_small_tree() -> None:
    parent = torch.tensor([[0, 0, 1, 0, 3, 4]])
    want = [{0}, {0, 1}, {0, 1, 2}, {0, 3}, {0, 3, 4}, {0, 3, 4, 5}]
    assert [set(row.nonzero()[:, 0].tolist()) for row in reach(parent)[0]] == want


def test_the_deepest_path_wins_and_the_first_among_equals() -> None:
    tokens, parent = torch.tensor([[9, 5, 5, 6, 5]]), torch.tensor([[0, 0, 0, 2, 0]])
    every = torch.ones(1, 5, dtype=torch.bool)

    def path(*picked: int) -> list[bool]:
        return walk_tree(tokens, parent, reach(parent), every, torch.tensor([picked]))[0].tolist()

    assert path(5, 6, 6, 7, 6) == [True, False, True, True, False]
    assert path(5, 1, 1, 7, 1) == [True, True, False, False, False]


def test_the_pool_keeps_the_newest_runs() -> None:
    pool = empty_pool(lines_of([[1]], [2], [()], 1), 2, 3)
    assert recall(pool, torch.tensor([1]), 1, 2)[1].tolist() == [[0]]
    for run_ in ([1, 2, 3], [4, 4, 5], [7, 1, 6], [8, 8, 8]):
        pool = remember(pool, torch.tensor([[run_]]), torch.tensor([[1 if run_[0] == 8 else 3]]))
    tokens, count = recall(pool, torch.tensor([4]), 2, 2)
    assert tokens[0, 0, : count[0, 0]].tolist() == [5]  # behind its latest place
    assert count[0].tolist() == [1, 0]
    tokens, count = recall(pool, torch.tensor([1]), 2, 2)
    assert (tokens[0, 0, :1].tolist(), count[0].tolist()) == ([6], [1, 0])  # the first run is forgotten


@pytest.mark.parametrize("params", [{"ngram": 1}, {"window": 0}, {"guesses": 0}])
def test_a_lookahead_that_cannot_work_is_refused(params: dict[str, int]) -> None:
    with pytest.raises(SettingError, match="at least"):
        build("lookahead", params, None)


@pytest.mark.parametrize(
    ("name", "params"), [("lookahead", {"window": 500}), ("lookahead", {"pool": 1 << 20}), ("jacobi-forcing", {"block": 4096})]
)
def test_drafts_without_bounds_are_refused(name: str, params: dict[str, int]) -> None:
    with pytest.raises(SettingError, match="at most"):
        build(name, params, None)


def test_only_drafts_that_the_verifier_can_take() -> None:
    class Soft:
        law, paths, rows, depth = "soft", False, 1, 0

    with pytest.raises(SettingError, match="soft"):
        TreeVerify(Soft())  # type: ignore[arg-type]
