"""Rows of the zoo for autoregressive models: who drafts, in which shape, and who tests the drafts (decoders/recipes.py has the rest)."""

from drawloom.decoders import makers
from drawloom.decoders.draft_verify import DraftVerify
from drawloom.decoders.drafters import jacobi, lookup, none
from drawloom.decoders.drafting import Drafting
from drawloom.decoders.recipe import Recipe

STATIC = "0 1 2 3 0.0 0.1 0.2 1.0 2.0 0.0.0 0.0.1 0.1.0 1.0.0 0.0.0.0"  # more of the likelier

SPECULATIVE: dict[str, Recipe] = {
    "ar": Recipe(
        lambda: DraftVerify(none(), 0),
        "plain autoregression, one token a forward",
        "",
    ),
    "lookup": Recipe(
        lambda width=16, ngram=8, least=2, per_match=1, pace=0.0, verifier="coupled": makers.drafted(
            lookup(ngram, least, per_match), width, verifier, pace
        ),
        "drafts what followed the last n tokens earlier in the text, up to per_match * n tokens of it",
        "Prompt lookup decoding, Saxena 2023; LLMA, arXiv 2304.04487; SuffixDecoding, arXiv 2411.04975",
    ),
    "suffix": Recipe(
        lambda width=16, ngram=8, least=2, per_match=2, share=0.1, memory=262144: makers.remembering(
            width, lookup(ngram, least, per_match), share, memory
        ),
        "drafts what most often followed the longest suffix that other texts of this engine had, or the text itself as lookup does; "
        "remembers the last `memory` tokens, and stops where the product of shares falls below `share`",
        "SuffixDecoding, arXiv 2411.04975",
    ),
    "recycling": Recipe(
        lambda nodes=32, depth=6: makers.recycled(nodes, depth),
        "drafts a tree of `nodes` tokens that the target found likely after the same tokens before, in any text of the engine",
        "Token Recycling, arXiv 2408.08696",
    ),
    "draft-model": Recipe(
        lambda draft="tiny-draft", width=4, confidence=0.0, pace=0.0, verifier="coupled": makers.by_draft_model(
            draft, width, confidence, verifier, pace
        ),
        "a smaller network of the same tokenizer drafts, up to the first place whose likeliest token has less than `confidence`; pace > 0: "
        "as many tokens as were accepted lately, `pace` being the weight of the newest draft",
        "Speculative decoding, arXiv 2211.17192 and 2302.01318",
    ),
    "dflash": Recipe(
        makers.on_features("block", "tiny-dflash", 7, 0, 8),
        "a network drafts a block at once from the target's hidden states: a chain, or the `nodes` likeliest prefixes of up to `ranks` "
        "tokens a place (DDTree)",
        "DFlash, arXiv 2602.06036; DDTree, arXiv 2604.12989",
    ),
    "eagle": Recipe(
        makers.on_features("eagle", "tiny-eagle3", 5, 0, 4),
        "one layer drafts token by token from the target's hidden states: a chain, or the `nodes` likeliest of a tree whose every level "
        "grows by `ranks` tokens behind each of the `ranks` likeliest prefixes",
        "EAGLE-3, arXiv 2503.01840; its trees, EAGLE-2, arXiv 2406.16858",
    ),
    "medusa": Recipe(
        makers.on_features("heads", "tiny-medusa", 4, 16, 8),
        "heads on the target's last hidden state draft one place each: a chain, or the `nodes` likeliest prefixes of up to `ranks` tokens",
        "Medusa, arXiv 2401.10774",
    ),
    "opt-tree": Recipe(
        lambda draft="tiny-eagle3", width=8, nodes=16, ranks=4, gain=0.2, verifier="coupled": makers.likeliest(
            Drafting(draft, width, 0.0, True, False, "eagle", ranks, nodes, gain), verifier
        ),
        "the tree of eagle, which grows deeper only while a level adds `gain` tokens to what its `nodes` best prefixes promise",
        "OPT-Tree, arXiv 2406.17276",
    ),
    "static-tree": Recipe(
        lambda draft="tiny-medusa", by="medusa", nodes=STATIC, verifier="coupled": makers.static(draft, by, nodes, verifier),
        "the same tree in every step, by a network that says its places at once (`by`: dflash or medusa); a node is the ranks of its "
        "tokens, the likeliest being 0",
        "Medusa, arXiv 2401.10774",
    ),
    "sampled-paths": Recipe(
        lambda draft="tiny-draft", by="draft-model", width=4, paths=2, trunk=0, verifier="match": makers.independent(
            draft, by, width, paths, trunk, verifier
        ),
        "`paths` independent draws behind `trunk` tokens that they share, by a network of the decoder `by`, for verifiers that test drafts "
        "against their law: rejection, kseq, block, best-path (which takes no trunk)",
        "SpecInfer, arXiv 2305.09781; SpecTr, 2310.15141; delayed tree expansion, 2602.16994",
    ),
    "jacobi": Recipe(
        lambda width=8, verifier="coupled": makers.drafted(jacobi(makers.count(width=width)), width, verifier),
        "drafts the target's own answers to the last draft",
        "Parallel (Jacobi) decoding, arXiv 2305.10427",
    ),
    "jacobi-forcing": Recipe(
        lambda block=16, blocks=2, spawn=0.85, pool=4, width=8, verifier="coupled": makers.forced(
            block, blocks, spawn, pool, width, verifier
        ),
        "jacobi over blocks: a draft ends with its block, one more block is drafted once the share `spawn` of a block is final; what was "
        "said behind rejected tokens is tried again, in up to `pool` branches of `width` tokens",
        "Jacobi Forcing, multi-block decoding with rejection recycling, arXiv 2512.14681",
    ),
    "lookahead": Recipe(
        lambda window=8, ngram=4, guesses=4, pool=64, verifier="coupled": makers.looking_ahead(window, ngram, guesses, pool, verifier),
        "Jacobi iterations over a window give n-grams; up to `guesses` of the last `pool` ones are verified beside them",
        "Lookahead decoding, arXiv 2402.02057",
    ),
}
