"""The zoo: a published method is a row here, an expression over pieces. docs/recipes.md is generated from this table.

A recipe's parameters are the keyword arguments of its expression; a job or a row may override them (`decoder_params`).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from drawloom.decoders import scores
from drawloom.decoders.denoise import Denoise, Revise, Select, Window
from drawloom.decoders.draft_verify import DraftVerify, coupled
from drawloom.decoders.drafters import jacobi, lookup, none
from drawloom.decoders.full_canvas import CACHES, FullCanvas
from drawloom.decoders.scores import SCORES
from drawloom.decoders.step import Decoder
from drawloom.errors import SettingError
from drawloom.settings import nearest

Value = float | int | str


CAUSAL, BLOCKS, FULL = "any causal", "block-causal diffusion", "full-attention diffusion"


@dataclass(frozen=True)
class Recipe:
    """A named expression. `make` takes the parameters (and, for diffusion, the model's mask token) and gives a decoder."""

    make: Callable[..., Decoder]
    about: str
    paper: str
    model: str = CAUSAL  # what attention the model was trained with
    lossless: bool = True  # the text equals plain autoregression with the same seed

    @property
    def diffusion(self) -> bool:
        """Needs a model with a mask token."""
        return self.model != CAUSAL

    @property
    def params(self) -> dict[str, Value]:
        """Parameters and their defaults."""
        signature = inspect.signature(self.make).parameters.values()
        return {p.name: p.default for p in signature if p.default is not inspect.Parameter.empty}


def _window(mask: int, block: int, buffer: int, open_at: float, semi_at: float, stable_at: float = 0.0) -> dict[str, Any]:
    _at_least(1, block=block, buffer=buffer)
    return {"window": Window(block, buffer, open_at, semi_at, stable_at), "mask_token": mask}


def _single(mask: int, block: int) -> dict[str, Any]:
    """A window of one; the second slot lets a settled block's rows ride beside the next block's."""
    return _window(mask, block, 2, 1.0, 1.0)


def _one(mask: int, block: int, select: Select, score: str = "max_probability", revise: Revise | None = None) -> Denoise:
    """One block at a time."""
    return Denoise(**_single(mask, block), score=_score(score), select=select, revise=revise)


def _canvas(
    mask: int, block: int, select: Select, score: str = "max_probability", cache: str = "none", *, shifted: bool = False
) -> FullCanvas:
    _at_least(1, block=block)
    if cache not in CACHES:
        raise SettingError(f"cache {cache!r} is unknown; {nearest(cache, list(CACHES))}")
    return FullCanvas(block, _score(score), select, mask, cache, shifted=shifted)


def _diffusion(make: Callable[..., Decoder], about: str, paper: str, model: str = BLOCKS) -> Recipe:
    return Recipe(make, about, paper, model, lossless=False)


def _score(name: str) -> Any:
    if name not in SCORES:
        raise SettingError(f"score {name!r} is unknown; {nearest(name, list(SCORES))}")
    return SCORES[name]


def _steps(steps: int, block: int) -> int:
    """Forwards of a block; 0 means one for each of its positions."""
    if not 0 <= steps <= block:
        raise SettingError(f"steps is {steps}; 1 to {block} (the block), or 0 for {block}")
    return steps or block


def _count(**value: int) -> int:
    """The one value, which must be at least 1."""
    _at_least(1, **value)
    return next(iter(value.values()))


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise SettingError(f"{name} is {value}, at least {least} is needed")


def _dmax(window: dict[str, Any], threshold: float, sure: float, steps: int) -> Denoise:
    revise = scores.repredict(sure, _steps(steps, window["window"].block), soft=True)
    return Denoise(**window, score=SCORES["max_probability"], select=scores.contiguous(threshold), revise=revise)


WHOLE = 1 << 20  # a block that no canvas fills: all positions are open at once

RECIPES: dict[str, Recipe] = {
    "ar": Recipe(
        lambda: DraftVerify(none(), 0, coupled),
        "plain autoregression, one token a forward",
        "",
    ),
    "lookup": Recipe(
        lambda width=16, ngram=8, least=2, per_match=1: DraftVerify(lookup(ngram, least, per_match), _count(width=width), coupled),
        "drafts what followed the last n tokens earlier in the text, up to per_match * n tokens of it",
        "Prompt lookup decoding, Saxena 2023; LLMA, arXiv 2304.04487; SuffixDecoding, arXiv 2411.04975",
    ),
    "jacobi": Recipe(
        lambda width=8: DraftVerify(jacobi(_count(width=width)), width, coupled),
        "drafts the target's own answers to the last draft",
        "Parallel (Jacobi) decoding, arXiv 2305.10427",
    ),
    "block": _diffusion(
        lambda mask, block=32, threshold=0.9, score="max_probability": _one(mask, block, scores.threshold(threshold), score),
        "one block at a time; reveals what is above the threshold; fallback: the surest position",
        "SDAR low_confidence_dynamic; LLaDA2.0, arXiv 2512.15745",
    ),
    "block-static": _diffusion(
        lambda mask, block=32, per_step=1, score="max_probability": _one(mask, block, scores.top_n(_count(per_step=per_step)), score),
        "one block at a time; reveals the surest `per_step` positions in each forward",
        "SDAR low_confidence_static",
    ),
    "sdar-sequential": _diffusion(
        lambda mask, block=32, steps=0: _one(mask, block, scores.sequential(block, _steps(steps, block))),
        "one block at a time, from left to right, its positions spread evenly over `steps` forwards (0: one each)",
        "SDAR sequential, arXiv 2510.06303",
    ),
    "sdar-static": _diffusion(
        lambda mask, block=32, steps=0: _one(mask, block, scores.static(block, _steps(steps, block))),
        "one block at a time; the surest positions, spread evenly over `steps` forwards (0: one each)",
        "SDAR low_confidence_static, arXiv 2510.06303",
    ),
    "sdar-dynamic": _diffusion(
        lambda mask, block=32, steps=0, threshold=0.9: _one(mask, block, scores.dynamic(threshold, block, _steps(steps, block))),
        "one block at a time; what is above the threshold when that is at least the share of sdar-static; fallback: that share",
        "SDAR low_confidence_dynamic, arXiv 2510.06303",
    ),
    "sdar-entropy": _diffusion(
        lambda mask, block=32, bound=0.35: _one(mask, block, scores.entropy_bound(bound), "neg_entropy"),
        "one block at a time; from the lowest entropy up while they add up to less than `bound` nats; fallback: the surest position",
        "SDAR entropy_bounded with the real entropy; EB-Sampler, arXiv 2505.24857",
    ),
    "llada2": _diffusion(
        lambda mask, block=32, threshold=0.95: _one(mask, block, scores.threshold(threshold)),
        "one block at a time; what is above the threshold; fallback: the surest position",
        "LLaDA2.0, arXiv 2512.15745",
    ),
    "llada2.1": _diffusion(
        lambda mask, block=32, threshold=0.7, edit=0.5, post_steps=16: _one(
            mask, block, scores.threshold(threshold), revise=scores.edits(edit, post_steps)
        ),
        "llada2 whose filled positions take another token that is above `edit`; a full block settles when nothing was edited or after "
        "post_steps forwards; fallback: the surest position",
        "LLaDA2.1, quality mode (0.5 and 0.0: speed mode)",
    ),
    "dmax": _diffusion(
        lambda mask, block=32, threshold=0.5, sure=0.9, steps=0: _dmax(_single(mask, block), threshold, sure, steps),
        "one block at a time; reveals up to the first unsure position and predicts every filled one anew from soft inputs, until all are "
        "sure, none changes, or it has been open for `steps` forwards (0: one for each position); fallback: the leftmost position",
        "DMax, arXiv 2604.08302",
    ),
    "dmax-multi-block": _diffusion(
        lambda mask, block=32, buffer=4, open_at=0.1, semi_at=0.9, stable_at=0.5, threshold=0.5, sure=0.9, steps=0: _dmax(
            _window(mask, block, buffer, open_at, semi_at, stable_at), threshold, sure, steps
        ),
        "dmax over a running set of blocks; the next one opens when the last is far enough and stable; fallback: the leftmost position, "
        "only when the block before is semi-complete",
        "Multi-Block Diffusion LMs (MBD-LM) on DMax",
    ),
    "multi-block": _diffusion(
        lambda mask, block=32, buffer=4, open_at=0.1, semi_at=0.9, threshold=0.9, score="max_probability": Denoise(
            **_window(mask, block, buffer, open_at, semi_at), score=_score(score), select=scores.threshold(threshold)
        ),
        "a running set of blocks in one forward; what is above the threshold; fallback: the surest position of a block, only when the "
        "block before it is semi-complete",
        "Multi-Block Diffusion LMs (MBD-LM, Diffulex)",
    ),
    "llada": _diffusion(
        lambda mask, block=32, steps=0: _canvas(mask, block, scores.static(block, _steps(steps, block))),
        "the whole canvas is visible; block after block, the surest positions, spread evenly over `steps` forwards (0: one each)",
        "LLaDA low_confidence, arXiv 2502.09992",
        FULL,
    ),
    "dream": _diffusion(
        lambda mask, steps=64, score="neg_entropy", eps=1e-3: _canvas(
            mask, WHOLE, scores.decaying(_count(steps=steps), eps), score, shifted=True
        ),
        "the whole canvas is open; a falling share of what is masked, surest first, at least one position; score max_probability is its "
        "maskgit_plus, margin its topk_margin",
        "Dream 7B, arXiv 2508.15487",
        FULL,
    ),
    "fast-dllm": _diffusion(
        lambda mask, block=32, threshold=0.9, cache="dual": _canvas(mask, block, scores.at_least(threshold), cache=cache),
        "the whole canvas is visible; block after block, what reaches the threshold and always the surest; cache none, prefix or dual "
        "(the last two keep stale K/V by design)",
        "Fast-dLLM, arXiv 2505.22618",
        FULL,
    ),
    "fast-dllm-factor": _diffusion(
        lambda mask, block=32, factor=1.0, cache="dual": _canvas(mask, block, scores.factor(factor), cache=cache),
        "fast-dllm whose threshold falls with the number of positions it reveals: the k-th must reach 1 - factor / (k + 1)",
        "Fast-dLLM, arXiv 2505.22618",
        FULL,
    ),
}


def recipe(name: str) -> Recipe:
    """The recipe of that name; SettingError names the nearest."""
    if name not in RECIPES:
        raise SettingError(f"decoder {name!r} is unknown; {nearest(name, list(RECIPES))}")
    return RECIPES[name]


def build(name: str, overrides: Mapping[str, Value], mask_token: int | None, block_tokens: int = 0) -> Decoder:
    """The decoder of recipe `name` with its parameters overridden; SettingError for an unknown name, parameter or type.

    block_tokens: the model's own block (0: any), which is then the default of `block`. Equal settings give the same object.
    """
    found = recipe(name)
    params = found.params
    if "block" in params and block_tokens > 1:
        params["block"] = block_tokens
    for key, value in overrides.items():
        if key not in params:
            raise SettingError(f"{key!r} is not a parameter of decoder {name!r}; {nearest(key, list(params)) if params else 'it has none'}")
        params[key] = _typed(name, key, value, params[key])
    if found.diffusion and mask_token is None:
        raise SettingError(f"decoder {name!r} needs a masked diffusion model; this one has no mask token: choose one of {_for_any_model()}")
    return _made(name, tuple(params.items()), mask_token)


@lru_cache(maxsize=4096)
def _made(name: str, params: tuple[tuple[str, Value], ...], mask_token: int | None) -> Decoder:
    found = RECIPES[name]
    return found.make(mask_token, **dict(params)) if found.diffusion else found.make(**dict(params))


def _typed(name: str, key: str, value: Value, default: Value) -> Value:
    wanted = type(default)
    if isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted):
        if wanted is int and isinstance(value, float) and value.is_integer():
            return int(value)
        raise SettingError(f"{key} of decoder {name!r} takes a {wanted.__name__}, got {value!r}; its default is {default!r}")
    return wanted(value)


def _for_any_model() -> str:
    return ", ".join(name for name, row in RECIPES.items() if not row.diffusion)
