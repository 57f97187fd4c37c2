"""The zoo: a published method is a row here, an expression over pieces. docs/recipes.md is generated from this table.

A recipe's parameters are the keyword arguments of its expression; a job or a row may override them (`decoder_params`).
"""

from collections.abc import Mapping
from functools import lru_cache

from drawloom.decoders import makers, scores
from drawloom.decoders.denoise import Denoise
from drawloom.decoders.frontier import Rules
from drawloom.decoders.recipe import FULL, SHIFTED_BLOCKS, Recipe, Value, diffusion
from drawloom.decoders.recipes_speculative import SPECULATIVE
from drawloom.decoders.self_verify import above_score, bandit, between_scores, long_run
from drawloom.decoders.step import Decoder
from drawloom.errors import SettingError
from drawloom.kernels.attention import FULL as FULL_TOKENS
from drawloom.settings import nearest

RECIPES: dict[str, Recipe] = {
    **SPECULATIVE,
    "block": diffusion(
        lambda mask, block=32, threshold=0.9, score="max_probability": makers.one_block(mask, block, scores.threshold(threshold), score),
        "one block at a time; reveals what is above the threshold; fallback: the surest position",
        "SDAR low_confidence_dynamic; LLaDA2.0, arXiv 2512.15745",
    ),
    "block-static": diffusion(
        lambda mask, block=32, per_step=1, score="max_probability": makers.one_block(
            mask, block, scores.top_n(makers.count(per_step=per_step)), score
        ),
        "one block at a time; reveals the surest `per_step` positions in each forward",
        "SDAR low_confidence_static",
    ),
    "sdar-sequential": diffusion(
        lambda mask, block=32, steps=0: makers.one_block(mask, block, scores.sequential(block, makers.steps_of(steps, block))),
        "one block at a time, from left to right, its positions spread evenly over `steps` forwards (0: one each)",
        "SDAR sequential, arXiv 2510.06303",
    ),
    "sdar-static": diffusion(
        lambda mask, block=32, steps=0: makers.one_block(mask, block, scores.static(block, makers.steps_of(steps, block))),
        "one block at a time; the surest positions, spread evenly over `steps` forwards (0: one each)",
        "SDAR low_confidence_static, arXiv 2510.06303",
    ),
    "sdar-dynamic": diffusion(
        lambda mask, block=32, steps=0, threshold=0.9: makers.one_block(
            mask, block, scores.dynamic(threshold, block, makers.steps_of(steps, block))
        ),
        "one block at a time; what is above the threshold when that is at least the share of sdar-static; fallback: that share",
        "SDAR low_confidence_dynamic, arXiv 2510.06303",
    ),
    "sdar-entropy": diffusion(
        lambda mask, block=32, bound=0.35: makers.one_block(mask, block, scores.entropy_bound(bound), "neg_entropy"),
        "one block at a time; from the lowest entropy up while they add up to less than `bound` nats; fallback: the surest position",
        "SDAR entropy_bounded with the real entropy; EB-Sampler, arXiv 2505.24857",
    ),
    "llada2": diffusion(
        lambda mask, block=32, threshold=0.95: makers.one_block(mask, block, scores.threshold(threshold)),
        "one block at a time; what is above the threshold; fallback: the surest position",
        "LLaDA2.0, arXiv 2512.15745",
    ),
    "llada2.1": diffusion(
        lambda mask, block=32, threshold=0.7, edit=0.5, post_steps=16: makers.one_block(
            mask, block, scores.threshold(threshold), revise=scores.edits(edit, post_steps)
        ),
        "llada2 whose filled positions take another token that is above `edit`; a full block settles when nothing was edited or after "
        "post_steps forwards; fallback: the surest position",
        "LLaDA2.1, quality mode (0.5 and 0.0: speed mode)",
    ),
    "dmax": diffusion(
        lambda mask, block=32, threshold=0.5, sure=0.9, steps=0: makers.dmax(makers.single(mask, block), threshold, sure, steps),
        "one block at a time; reveals up to the first unsure position and predicts every filled one anew from soft inputs, until all are "
        "sure, none changes, or it has been open for `steps` forwards (0: one for each position); fallback: the leftmost position",
        "DMax, arXiv 2604.08302",
    ),
    "dmax-multi-block": diffusion(
        lambda mask, block=32, buffer=4, open_at=0.1, semi_at=0.9, stable_at=0.5, threshold=0.5, sure=0.9, steps=0: makers.dmax(
            makers.window(mask, block, buffer, open_at, semi_at, stable_at), threshold, sure, steps
        ),
        "dmax over a running set of blocks; the next one opens when the last is far enough and stable; fallback: the leftmost position, "
        "only when the block before is semi-complete",
        "Multi-Block Diffusion LMs (MBD-LM) on DMax",
    ),
    "multi-block": diffusion(
        lambda mask, block=32, buffer=4, open_at=0.1, semi_at=0.9, threshold=0.9, score="max_probability": Denoise(
            **makers.window(mask, block, buffer, open_at, semi_at), score=makers.score_named(score), select=scores.threshold(threshold)
        ),
        "a running set of blocks in one forward; what is above the threshold; fallback: the surest position of a block, only when the "
        "block before it is semi-complete",
        "Multi-Block Diffusion LMs (MBD-LM, Diffulex)",
    ),
    "fast-dllm-v2": diffusion(
        lambda mask, block=32, sub=8, threshold=0.9, cache="sub": makers.sub_blocks(mask, block, sub, threshold, cache),
        "one block at a time, sub-block after sub-block, shifted logits; what is above the threshold and always the surest; cache none or "
        "sub (stale K/V outside the sub-block by design)",
        "Fast-dLLM v2, arXiv 2509.26328",
        SHIFTED_BLOCKS,
    ),
    "s2d2": diffusion(
        lambda mask, block=32, threshold=0.85, on=0.0, cost=1.0, cost_of="static", estimate="entropy", sharpness=0.1: makers.s2d2(
            mask, block, threshold, estimate, above_score(on, cost, makers.dynamic_cost(cost_of)), sharpness
        ),
        "drafts a block, then either reveals what is above the threshold, or verifies the first masked run with the same network token by "
        "token: when the tokens that it should accept, less `cost`, are at least `on`; cost_of dynamic counts the cost once for each sure "
        "position; estimate entropy or margin; fallback: the surest position",
        "S2D2 score_threshold, arXiv 2603.25702",
    ),
    "s2d2-hysteresis": diffusion(
        lambda mask, block=32, threshold=0.85, on=1.0, off=-5.0, cost=1.0, cost_of="static", estimate="entropy", sharpness=0.1: makers.s2d2(
            mask, block, threshold, estimate, between_scores(on, off, cost, makers.dynamic_cost(cost_of)), sharpness
        ),
        "s2d2 that begins to verify when the score reaches `on` and goes on until it falls below `off`",
        "S2D2 score_hysteresis, arXiv 2603.25702",
    ),
    "s2d2-span": diffusion(
        lambda mask, block=32, threshold=0.85, least=2: makers.s2d2(
            mask, block, threshold, "entropy", long_run(makers.count(least=least)), 0.1
        ),
        "s2d2 that verifies every masked run of at least `least` positions",
        "S2D2 mask_span_length, arXiv 2603.25702",
    ),
    "s2d2-bandit": diffusion(
        lambda mask, block=32, threshold=0.85, wide=1.0, estimate="entropy", sharpness=0.1: makers.s2d2(
            mask, block, threshold, estimate, bandit(wide), sharpness
        ),
        "s2d2 that learns within each text when to verify, from the tokens a forward that it got (upper confidence bounds of width `wide`)",
        "S2D2 contextual_bandit_ucb, arXiv 2603.25702",
    ),
    "llada": diffusion(
        lambda mask, shifted, block=32, steps=0, score="max_probability", guidance=0.0: makers.llada(
            mask, shifted, block, steps, score, guidance
        ),
        "the whole canvas is visible; block after block, the surest positions, spread evenly over `steps` forwards (0: one each); score "
        "random is its random remasking, guidance > 0 its classifier-free guidance",
        "LLaDA, arXiv 2502.09992",
        FULL,
    ),
    "dream": diffusion(
        lambda mask, shifted, steps=64, score="neg_entropy", eps=1e-3: makers.canvas(
            mask, makers.WHOLE, scores.decaying(makers.count(steps=steps), eps), score, shifted=shifted
        ),
        "the whole canvas is open; a falling share of what is masked, surest first, at least one position; score max_probability is its "
        "maskgit_plus, margin its topk_margin",
        "Dream 7B, arXiv 2508.15487",
        FULL,
        shifted=True,
    ),
    "dream-origin": diffusion(
        lambda mask, shifted, steps=64, eps=1e-3: makers.canvas(
            mask, makers.WHOLE, scores.by_chance(makers.count(steps=steps), eps), "random", shifted=shifted
        ),
        "the whole canvas is open; each masked position is revealed with the chance that leaves a falling share masked, in random order",
        "Dream 7B origin, arXiv 2508.15487; masked diffusion's own sampler",
        FULL,
        shifted=True,
    ),
    "d3llm": diffusion(
        lambda mask, shifted, block=32, threshold=0.5, open_at=0.1, full_at=0.95, delay=2, refresh=10000: makers.d3llm(
            mask, shifted, Rules(block, threshold, open_at, full_at, None if delay < 0 else delay, refresh)
        ),
        "the whole canvas is visible; several blocks at once; what has an entropy of at most `threshold` nats and always the surest; a "
        "full block keeps its K/V after `delay` forwards (-1: never), all is recomputed every `refresh` forwards; fallback: the surest "
        "position of the first block whose predecessor is `full_at` full; an end token fills what stands behind it",
        "d3LLM, arXiv 2601.07568",
        FULL,
    ),
    "fast-dllm": diffusion(
        lambda mask, shifted, block=32, threshold=0.9, cache="dual": makers.canvas(
            mask, block, scores.at_least(threshold), cache=cache, shifted=shifted
        ),
        "the whole canvas is visible; block after block, what reaches the threshold and always the surest; cache none, prefix or dual "
        "(the last two keep stale K/V by design)",
        "Fast-dLLM, arXiv 2505.22618",
        FULL,
    ),
    "fast-dllm-factor": diffusion(
        lambda mask, shifted, block=32, factor=1.0, cache="dual": makers.canvas(
            mask, block, scores.factor(factor), cache=cache, shifted=shifted
        ),
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


def build(name: str, overrides: Mapping[str, Value], mask_token: int | None, block_tokens: int = 0, shifted: bool | None = None) -> Decoder:
    """The decoder of recipe `name` with its parameters overridden; SettingError for an unknown name, parameter or type.

    block_tokens: the model's own block (0: any), which is then the default of `block`; shifted: whether its row i predicts position i + 1
    (None: it does not say). Equal settings give the same object.
    """
    found = recipe(name)
    params = found.params
    if "block" in params and 1 < block_tokens < FULL_TOKENS:
        params["block"] = block_tokens
    for key, value in overrides.items():
        if key not in params:
            raise SettingError(f"{key!r} is not a parameter of decoder {name!r}; {nearest(key, list(params)) if params else 'it has none'}")
        params[key] = _typed(name, key, value, params[key])
    if found.diffusion and mask_token is None:
        raise SettingError(f"decoder {name!r} needs a masked diffusion model; this one has no mask token: choose one of {_for_any_model()}")
    return _made(name, tuple(params.items()), mask_token, found.shifted if shifted is None else shifted)


@lru_cache(maxsize=4096)
def _made(name: str, params: tuple[tuple[str, Value], ...], mask_token: int | None, shifted: bool) -> Decoder:
    found = RECIPES[name]
    told = (mask_token, shifted) if found.model == FULL else (mask_token,) if found.diffusion else ()
    return found.make(*told, **dict(params))


def _typed(name: str, key: str, value: Value, default: Value) -> Value:
    wanted = type(default)
    if isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted):
        if wanted is int and isinstance(value, float) and value.is_integer():
            return int(value)
        raise SettingError(f"{key} of decoder {name!r} takes a {wanted.__name__}, got {value!r}; its default is {default!r}")
    return wanted(value)


def _for_any_model() -> str:
    return ", ".join(name for name, row in RECIPES.items() if not row.diffusion)
