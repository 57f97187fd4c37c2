"""docs/recipes.md is what the table says."""

from pathlib import Path

import pytest

from drawloom.decoders.recipes import RECIPES, build
from drawloom.errors import SettingError
from drawloom.jobs.recipes import markdown


def test_the_document_is_generated():
    document = Path(__file__).parents[2] / "docs" / "recipes.md"
    assert document.read_text() == markdown(), "run: python -m drawloom.jobs.recipes > docs/recipes.md"


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("jacobi", {"width": 0}, "width is 0, at least 1"),
        ("lookup", {"width": -3}, "width is -3, at least 1"),
        ("block-static", {"per_step": 0}, "per_step is 0, at least 1"),
        ("multi-block", {"buffer": 0}, "buffer is 0, at least 1"),
        ("block", {"block": -1}, "block is -1, at least 1"),
        ("block", {"score": "entropy"}, "did you mean 'neg_entropy'"),
        ("sdar-static", {"steps": 33}, "steps is 33; 1 to 32"),
        ("dmax", {"steps": -1}, "steps is -1"),
        ("llada2.1", {"post_steps": -1}, "post_steps is -1"),
        ("dream", {"steps": 0}, "steps is 0, at least 1"),
        ("fast-dllm", {"cache": "dul"}, "did you mean 'dual'"),
    ],
)
def test_parameters_that_could_never_end_are_refused(name, params, words):
    with pytest.raises(SettingError, match=words):
        build(name, params, 63)


def test_every_recipe_has_words_and_buildable_defaults():
    for name, row in RECIPES.items():
        assert len(row.about) > 10
        assert f"`{name}`" in markdown()
