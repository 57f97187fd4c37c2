"""Drafters line by line against plain loops; recipes and settings that are refused with the way out."""

import random

import pytest
import torch

from drawloom.decoders.drafters import jacobi, lookup
from drawloom.decoders.recipes import RECIPES, build
from drawloom.decoders.step import join, lines_of, take
from drawloom.errors import SettingError


def latest_match(tokens: list[int], ngram: int, least: int, per_match: int, width: int) -> list[int]:
    """What prompt lookup proposes, by definition."""
    for n in range(min(ngram, len(tokens) - 1), least - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                return tokens[end : end + min(width, per_match * n)]
    return []


@pytest.mark.parametrize("seed", range(30))
def test_lookup_is_the_definition(seed):
    rng = random.Random(seed)
    texts = [[rng.randrange(rng.choice([2, 5, 50])) for _ in range(rng.randrange(1, 40))] for _ in range(6)]
    ngram = rng.randrange(1, 9)
    least, per_match, width = rng.randrange(1, ngram + 1), rng.randrange(1, 4), rng.randrange(1, 12)
    lines = lines_of(texts, [len(text) + 9 for text in texts], [()] * 6, width)
    drafter = lookup(ngram, least, per_match)
    tokens, num = drafter.propose(lines, drafter.begin(lines), width)
    for text, draft, count in zip(texts, tokens.tolist(), num.tolist(), strict=True):
        assert draft[:count] == latest_match(text, ngram, least, per_match, width)


def test_jacobi_drafts_the_answers_beyond_what_became_final():
    drafter = jacobi(3)
    lines = lines_of([[7], [8, 9]], [9, 9], [(), ()], 4)
    state = drafter.begin(lines)
    assert drafter.propose(lines, state, 3)[0].tolist() == [[7, 7, 7], [9, 9, 9]]
    state = drafter.learn(lines, state, torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), torch.tensor([1, 3]), torch.tensor([3, 3]))
    assert drafter.propose(lines, state, 3)[0].tolist() == [[2, 3, 4], [8, 8, 8]]


def test_lines_join_and_take():
    one = lines_of([[1, 2]], [5], [(3,)], 2)
    two = lines_of([[4], [5, 6, 7]], [2, 9], [(1, 2), ()], 2)
    both = join(one, two)
    assert both.length.tolist() == [2, 1, 3]
    assert both.ends.tolist() == [[3, -1], [1, 2], [-1, -1]]
    assert both.history[2, :3].tolist() == [5, 6, 7]
    assert take(both, torch.tensor([2, 0])).limit.tolist() == [9, 5]


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        ("lookup", {"ngram": 2, "least": 3}, "1 <= least <= ngram"),
        ("lookup", {"per_match": 0}, "per_match >= 1"),
        ("lookup", {"width": 2.5}, "takes a int"),
        ("block", {"threshold": "high"}, "takes a float"),
        ("multi-block", {"buffer": 0}, "at least 1"),
        ("ar", {"width": 3}, "it has none"),
        ("multiblock", {}, "did you mean 'multi-block'"),
    ],
)
def test_settings_of_recipes_are_refused_with_the_way_out(name, params, says):
    with pytest.raises(SettingError, match=says.replace("*", r"\*")):
        build(name, params, 63)


def test_equal_settings_give_the_same_decoder():
    assert build("lookup", {}, 1) is build("lookup", {"width": 16.0}, 1)
    assert build("lookup", {"width": 3}, 1) is not build("lookup", {}, 1)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_with_its_defaults(name):
    decoder = build(name, {}, 63)
    assert decoder.max_rows >= 1
    assert decoder.lossless == RECIPES[name].lossless
