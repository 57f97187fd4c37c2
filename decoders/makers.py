"""Decoders of the zoo from their numbers, which are checked here: what several rows of decoders/recipes.py share."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from drawloom.decoders import scores
from drawloom.decoders.denoise import Denoise, Revise, Select, Window
from drawloom.decoders.draft_verify import DraftVerify
from drawloom.decoders.drafters import Drafter, by_network, lookup
from drawloom.decoders.drafting import Drafting
from drawloom.decoders.frontier import Frontier, Rules
from drawloom.decoders.full_canvas import CACHES, FullCanvas
from drawloom.decoders.guided import Guided
from drawloom.decoders.pace import paced
from drawloom.decoders.paths import sampled_paths
from drawloom.decoders.prefixes import best_first, choices_of, reranked, static_tree
from drawloom.decoders.recycling import RANKS, recycling
from drawloom.decoders.scores import SCORES
from drawloom.decoders.self_verify import Policy, SelfVerify, by_entropy, by_margin
from drawloom.decoders.step import Decoder
from drawloom.decoders.sub_blocks import SubBlocks
from drawloom.decoders.suffix import suffix
from drawloom.decoders.tree_drafters import jacobi_blocks, lookahead
from drawloom.decoders.trees import TreeDrafter, TreeVerify, chain
from drawloom.decoders.verifiers import verifier_named
from drawloom.errors import SettingError
from drawloom.settings import nearest

SUB_CACHES = ("none", "sub")
ESTIMATES = ("entropy", "margin")
KINDS = {"draft-model": "network", "dflash": "block", "eagle": "eagle", "medusa": "heads"}
MOST_ROWS, MOST_REMEMBERED, MOST_CANDIDATES = 1024, 1 << 16, 1 << 16
WHOLE = 1 << 20  # a block that no canvas fills: all positions are open at once


def window(mask: int, block: int, buffer: int, open_at: float, semi_at: float, stable_at: float = 0.0) -> dict[str, Any]:
    at_least(1, block=block, buffer=buffer)
    return {"window": Window(block, buffer, open_at, semi_at, stable_at), "mask_token": mask}


def single(mask: int, block: int) -> dict[str, Any]:
    """A window of one; the second slot lets a settled block's rows ride beside the next block's."""
    return window(mask, block, 2, 1.0, 1.0)


def one_block(mask: int, block: int, select: Select, score: str = "max_probability", revise: Revise | None = None) -> Denoise:
    """One block at a time."""
    return Denoise(**single(mask, block), score=score_named(score), select=select, revise=revise)


def canvas(
    mask: int, block: int, select: Select, score: str = "max_probability", cache: str = "none", *, shifted: bool = False
) -> FullCanvas:
    at_least(1, block=block)
    if cache not in CACHES:
        raise SettingError(f"cache {cache!r} is unknown; {nearest(cache, list(CACHES))}")
    return FullCanvas(block, score_named(score), select, mask, cache, shifted=shifted)


def score_named(name: str) -> Any:
    if name not in SCORES:
        raise SettingError(f"score {name!r} is unknown; {nearest(name, list(SCORES))}")
    return SCORES[name]


def drafted(drafter: Drafter, width: int, verifier: str, pace: float = 0.0) -> Decoder:
    """A chain of up to `width` drafted tokens; pace > 0: of as many as the text's own drafts were worth lately."""
    at_least(1, width=width)
    _few_rows(width + 1)
    if not 0 <= pace <= 1:
        raise SettingError(f"pace is {pace}; the weight of the newest draft in an average from 0 (none is kept) to 1 is needed")
    found = verifier_named(verifier)
    drafter = paced(drafter, pace) if pace else drafter
    return DraftVerify(drafter, width) if found.same_text else tree(chain(drafter, width), 0, verifier)


def by_draft_model(draft: str, width: int, confidence: float, verifier: str, pace: float, kind: str = "network") -> Decoder:
    if not 0 <= confidence <= 1:
        raise SettingError(f"confidence is {confidence}; a probability from 0 to 1 is needed")
    found = verifier_named(verifier)
    asked = Drafting(draft, count(width=width), confidence, coupled=found.coupled, laws=not found.same_text, kind=kind)
    return drafted(by_network(asked), width, verifier, pace)


def on_features(kind: str, draft: str, width: int, nodes: int, ranks: int) -> Callable[..., Decoder]:
    """The maker of a recipe whose drafter reads the target's hidden states, with these defaults; nodes 0: a chain, else a tree."""

    def make(
        draft: str = draft,
        width: int = width,
        nodes: int = nodes,
        ranks: int = ranks,
        confidence: float = 0.0,
        pace: float = 0.0,
        verifier: str = "coupled",
    ) -> Decoder:
        if not nodes:
            return by_draft_model(draft, width, confidence, verifier, pace, kind)
        if pace:
            raise SettingError("pace is for chains; a tree has the nodes that it is given: set nodes=0, or leave pace out")
        return likeliest(Drafting(draft, width, confidence, True, False, kind, ranks, nodes), verifier)

    return make


def likeliest(asked: Drafting, verifier: str) -> Decoder:
    """A tree of the `asked.most` likeliest prefixes."""
    at_least(1, width=asked.width, nodes=asked.most, ranks=asked.ranks)
    _few_rows(asked.most + 1)
    grown = asked.ranks * (asked.ranks if asked.kind == "eagle" else 1) * asked.width
    if grown > MOST_CANDIDATES:
        raise SettingError(
            f"width and ranks make {grown} candidates of a tree; at most {MOST_CANDIDATES} are possible: lower ranks or width"
        )
    if not asked.gain >= 0:
        raise SettingError(f"gain is {asked.gain}, at least 0 is needed (0: all levels are drafted)")
    if not 0 <= asked.confidence <= 1:
        raise SettingError(f"confidence is {asked.confidence}; a probability from 0 to 1 is needed")
    if asked.confidence and asked.kind == "eagle":
        raise SettingError("confidence ends chains and the trees of dflash and medusa; a tree of eagle has its nodes: leave it out")
    asked = replace(asked, coupled=verifier_named(verifier).coupled)
    return tree(reranked(asked, asked.most) if asked.kind == "eagle" else best_first(asked, asked.most), 0, verifier)


def static(draft: str, by: str, nodes: str, verifier: str) -> Decoder:
    """The tree that is written, of a network that says its places at once."""
    if (kind := _kind(by)) not in ("block", "heads"):
        raise SettingError(f"by is {by!r}; a static tree is drafted by 'dflash' or 'medusa', whose networks say all places at once")
    choices = choices_of(nodes)
    width, ranks = max(map(len, choices)), 1 + max(map(max, choices))
    asked = Drafting(draft, width, 0.0, verifier_named(verifier).coupled, False, kind, ranks, len(choices))
    return tree(static_tree(asked, choices), 0, verifier)


def independent(draft: str, by: str, width: int, paths: int, trunk: int, verifier: str) -> Decoder:
    """Independent paths behind a trunk."""
    at_least(1, width=width)
    at_least(2, paths=paths)
    if not 0 <= trunk < width:
        raise SettingError(f"trunk is {trunk}; paths part before the last of {width} tokens (width), so 0 to {width - 1} are possible")
    _few_rows(trunk + paths * (width - trunk) + 1)
    if verifier_named(verifier).coupled:
        raise SettingError(f"paths under {verifier!r} would all be the same, drawn with the target's noise; take another, such as 'block'")
    return tree(sampled_paths(Drafting(draft, width, 0.0, False, True, _kind(by), paths=paths, trunk=trunk)), 0, verifier)


def _kind(by: str) -> str:
    """How a decoder's networks draft, by its name."""
    if by not in KINDS:
        raise SettingError(f"by is {by!r}; {nearest(by, list(KINDS))}")
    return KINDS[by]


def remembering(width: int, own: lookup, share: float, memory: int) -> DraftVerify:
    at_least(1, width=width)
    return DraftVerify(suffix(own, share, memory), width)


def recycled(nodes: int, depth: int) -> TreeVerify:
    at_least(1, nodes=nodes, depth=depth)
    if nodes > (most := sum(len(RANKS) ** level for level in range(1, depth + 1))):
        raise SettingError(f"nodes is {nodes}; a tree {depth} deep has at most {most}")
    return tree(recycling(nodes, depth), 0, "coupled")


def forced(block: int, blocks: int, spawn: float, pool: int, width: int, verifier: str) -> TreeVerify:
    at_least(1, block=block, blocks=blocks, width=width)
    at_least(0, pool=pool)
    return tree(jacobi_blocks(block, blocks, spawn, pool, width), 2 * pool * (width + 1), verifier)


def looking_ahead(window: int, ngram: int, guesses: int, pool: int, verifier: str) -> TreeVerify:
    at_least(1, window=window, guesses=guesses, pool=pool)
    at_least(2, ngram=ngram)
    return tree(lookahead(window, ngram, guesses, pool), pool * ngram, verifier)


def tree(drafter: TreeDrafter, remembered: int, verifier: str) -> TreeVerify:
    """A tree whose rows see one another through a table of rows x rows."""
    _few_rows(drafter.rows)
    if remembered > MOST_REMEMBERED:
        raise SettingError(f"these parameters remember {remembered} tokens a text; at most {MOST_REMEMBERED} are possible: lower pool")
    return TreeVerify(drafter, verifier_named(verifier))


def _few_rows(rows: int) -> None:
    if rows > MOST_ROWS:
        raise SettingError(f"these parameters ask for {rows} rows a forward; at most {MOST_ROWS} are possible: draft less")


def steps_of(steps: int, block: int) -> int:
    """Forwards of a block; 0 means one for each of its positions."""
    if not 0 <= steps <= block:
        raise SettingError(f"steps is {steps}; 1 to {block} (the block), or 0 for {block}")
    return steps or block


def count(**value: int) -> int:
    """The one value, which must be at least 1."""
    at_least(1, **value)
    return next(iter(value.values()))


def at_least(least: int, /, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise SettingError(f"{name} is {value}, at least {least} is needed")


def dmax(window: dict[str, Any], threshold: float, sure: float, steps: int) -> Denoise:
    revise = scores.repredict(sure, steps_of(steps, window["window"].block), soft=True)
    return Denoise(**window, score=SCORES["max_probability"], select=scores.contiguous(threshold), revise=revise)


def llada(mask: int, shifted: bool, block: int, steps: int, score: str, guidance: float) -> FullCanvas:
    plain = canvas(mask, block, scores.static(block, steps_of(steps, block)), score, shifted=shifted)
    if guidance < 0:
        raise SettingError(f"guidance is {guidance}, at least 0 is needed (0: none)")
    return Guided(plain, guidance) if guidance else plain


def d3llm(mask: int, shifted: bool, rules: Rules) -> Frontier:
    at_least(1, block=rules.block, refresh=rules.refresh)
    if not rules.open_at <= 1:
        raise SettingError(f"open_at is {rules.open_at}; no block is ever more than full, so at most 1 is needed for the next one to open")
    return Frontier(rules, mask, shifted=shifted)


def sub_blocks(mask: int, block: int, sub: int, threshold: float, cache: str) -> SubBlocks:
    at_least(1, block=block, sub=sub)
    if block % sub:
        raise SettingError(f"sub is {sub}; it must divide the block of {block}")
    if cache not in SUB_CACHES:
        raise SettingError(f"cache {cache!r} is unknown; {nearest(cache, list(SUB_CACHES))}")
    return SubBlocks(block, sub, SCORES["max_probability"], scores.above_or_best(threshold), mask, cached=cache == "sub")


def s2d2(mask: int, block: int, threshold: float, estimate: str, policy: Policy, sharpness: float) -> SelfVerify:
    at_least(1, block=block)
    if estimate not in ESTIMATES:
        raise SettingError(f"estimate {estimate!r} is unknown; {nearest(estimate, list(ESTIMATES))}")
    hope = by_entropy(sharpness) if estimate == "entropy" else by_margin(0.05)
    return SelfVerify(block, scores.threshold(threshold), hope, policy, mask)


def dynamic_cost(cost_of: str) -> bool:
    if cost_of not in ("static", "dynamic"):
        raise SettingError(f"cost_of {cost_of!r} is unknown; {nearest(cost_of, ['static', 'dynamic'])}")
    return cost_of == "dynamic"
