"""docs/recipes.md is what the table says."""

from pathlib import Path

from drawloom.decoders.recipes import RECIPES
from drawloom.jobs.recipes import markdown


def test_the_document_is_generated():
    document = Path(__file__).parents[2] / "docs" / "recipes.md"
    assert document.read_text() == markdown(), "run: python -m drawloom.jobs.recipes > docs/recipes.md"


def test_every_recipe_has_words_and_buildable_defaults():
    for name, row in RECIPES.items():
        assert len(row.about) > 10
        assert f"`{name}`" in markdown()
