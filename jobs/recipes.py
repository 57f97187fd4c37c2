"""The table of recipes, for the terminal and for docs/recipes.md (`python -m drawloom.jobs.recipes > docs/recipes.md`)."""

from rich.table import Table

from drawloom.decoders.recipe import Recipe
from drawloom.decoders.recipes import RECIPES

INTRO = """# Recipes

Generated from `decoders/recipes.py` by `python -m drawloom.jobs.recipes`; do not edit.

A job chooses a recipe with `--decoder NAME` and overrides its parameters with `--decoder-params`; a row may do both with the columns
`decoder` and `decoder_params`. *Lossless* means: the text equals plain autoregression with the same model, prompt, seed and sampling
settings. A diffusion recipe needs a masked diffusion model of its kind of attention: block-causal (SDAR, or a config with
`mask_token_id` and `block_size`), block-causal with shifted logits (Fast-dLLM v2), or full (LLaDA, Dream); another one is refused. The
text of a diffusion recipe depends on its parameters, and never on batch mates.

What happens when nothing is sure enough is part of a recipe, and stands in its line as the fallback. `semi-complete` means at least
`semi_at` filled; a block that may not fall back reveals nothing in that forward.
"""


def markdown() -> str:
    """docs/recipes.md."""
    head = "| recipe | what it does | parameters (defaults) | model | lossless | from |\n|---|---|---|---|---|---|"
    rows = [" | ".join(("", f"`{name}`", *_cells(row), "")).strip() for name, row in RECIPES.items()]
    return "\n".join((INTRO, head, *rows, ""))


def table() -> Table:
    """The same for a terminal."""
    out = Table("recipe", "what it does", "parameters", "model", "lossless", "from", title="Recipes")
    for name, row in RECIPES.items():
        out.add_row(name, *_cells(row))
    return out


def _cells(row: Recipe) -> tuple[str, ...]:
    params = ", ".join(f"{name}={value}" for name, value in row.params.items())
    return row.about, params, row.model, "yes" if row.lossless else "no", row.paper


if __name__ == "__main__":
    print(markdown(), end="")
