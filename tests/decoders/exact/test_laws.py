"""Every lossless verifier leaves the target's law exactly as it is, whatever was drafted by a drafter that it takes; the wrong ones,
and pairs that it must not take, are found out."""

from fractions import Fraction as F

import pytest

from exact import verifiers
from exact.dice import Dice, law
from exact.drafts import bias, completed, likeliest, one_chain, random_model
from exact.kinds import CHAINS, DISTINCT, FIXED, TREES, Draft
from exact.verifiers import Model, Node, Verdict, Verifier, norm, positive, ratio

PATHS = ("2 paths", "3 paths", "2 deep paths")
EVERY = {**CHAINS, **TREES, **DISTINCT, **FIXED}


def guarded(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
    return verifiers.best_path(root, p, q, dice, guard=True)


# Verifier -> the shapes of drafts whose law it takes.
LOSSLESS: dict[str, tuple[Verifier, dict[str, Draft]]] = {
    "match": (verifiers.match, EVERY),
    "topk": (verifiers.topk, {**CHAINS, **TREES, **DISTINCT, **FIXED}),
    "rejection": (verifiers.rejection, {**CHAINS, "argmax chain": FIXED["argmax chain"]}),
    "block": (verifiers.block, {**CHAINS, "argmax chain": FIXED["argmax chain"]}),
    "specinfer": (verifiers.specinfer, {**CHAINS, **TREES, **FIXED}),
    "without": (verifiers.without, {**CHAINS, **DISTINCT}),
    "kseq": (verifiers.kseq, {**CHAINS, **TREES}),
    "traversal": (verifiers.traversal, {**CHAINS, **TREES, **FIXED}),
    "best_path": (verifiers.best_path, {**CHAINS, **{name: TREES[name] for name in PATHS}}),
    "best_path, guarded": (guarded, {**CHAINS, **{name: TREES[name] for name in PATHS}}),
}
CASES = [(name, shape) for name, (_, shapes) in LOSSLESS.items() for shape in shapes]


@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_law_is_the_targets(name: str, shape: str, seed: int) -> None:
    """Two or three tokens, laws that differ after every text, in one case with impossible tokens."""
    verifier, shapes = LOSSLESS[name]
    vocab = 3 if seed == 0 and shape in {"chain 1", "chain 2", "3 paths", "wide", *DISTINCT, *FIXED} and "binary" not in shape else 2
    p, q = random_model(seed, vocab, zeros=seed == 1), random_model(seed + 10, vocab)
    draft = shapes[shape]
    length = {"chain 3": 4, "2 deep paths": 4, "delayed": 4, "argmax chain": 4}.get(shape, 3)
    assert bias(verifier, draft, p, q, length) == 0


def resamples_from_p(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
    """As the public code of SPACE does."""
    text: tuple[int, ...] = ()
    for node in verifiers.chain(root):
        if not dice.flip(ratio(p(text)[node.token], q(text)[node.token])):
            return text, dice.draw(p(text))
        text = (*text, node.token)
    return text, dice.draw(p(text))


def greedy_on_a_miss(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
    """As rows that missed a cache are treated in the public code of speculative speculative decoding."""
    text: tuple[int, ...] = ()
    for node in verifiers.chain(root):
        if node.token != max(range(len(p(text))), key=p(text).__getitem__):
            return text, dice.draw(p(text))
        text = (*text, node.token)
    return text, dice.draw(p(text))


def stops_at_unsure_drafts(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
    """Verifies only tokens that their drafter was sure of: how many are checked depends on what they are."""
    nodes, text = verifiers.chain(root), ()
    kept = Node()
    at = kept
    for node in nodes:
        if q(text)[node.token] < F(1, 2):
            break
        at.children, text = [Node(node.token, row=node.row)], (*text, node.token)
        at = at.children[0]
    return verifiers.rejection(kept, p, q, dice)


def ignores_the_draft_law(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
    """Sampled drafts tested as if they were certain."""
    text: tuple[int, ...] = ()
    for node in verifiers.chain(root):
        if not dice.flip(p(text)[node.token]):
            return text, dice.draw(norm(positive([a - b for a, b in zip(p(text), q(text), strict=True)])))
        text = (*text, node.token)
    return text, dice.draw(p(text))


def one_chance(verifier: Verifier, p: tuple[F, ...], q: tuple[F, ...]) -> F:
    """Probability of the first token being 0."""
    found = law(lambda dice: completed(verifier(one_chain(lambda _: q, 1, dice), lambda _: p, lambda _: q, dice), lambda _: p, 1, dice))
    return found[(0,)]


SEVEN, HALF = (F(7, 10), F(3, 10)), (F(1, 2), F(1, 2))


def test_ka9_what_wrong_verifiers_give() -> None:
    assert one_chance(resamples_from_p, SEVEN, HALF) == F(64, 100)
    assert one_chance(stops_at_unsure_drafts, SEVEN, (F(6, 10), F(4, 10))) == F(88, 100)
    assert one_chance(greedy_on_a_miss, SEVEN, HALF) == F(85, 100)
    for right in (verifiers.rejection, verifiers.block, verifiers.match, verifiers.traversal):
        assert one_chance(right, SEVEN, HALF) == F(7, 10)


def test_ka9_stopping_early_by_what_was_drafted() -> None:
    """A throughput rule that ends the draft where the confidence of the token just drawn is low: exact under match, biased under
    rejection. Confidence of the second place is 0.9 after token 0 and 0 after token 1; so only drafts that begin with 0 are checked."""

    def only_after_zero(verifier: Verifier) -> Verifier:
        def verify(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
            return verifier(root if root.children[0].token == 0 else Node(), p, q, dice)

        return verify

    assert one_chance(only_after_zero(verifiers.rejection), SEVEN, HALF) == F(85, 100)
    assert one_chance(only_after_zero(verifiers.match), SEVEN, HALF) == F(7, 10)


@pytest.mark.parametrize("wrong", [resamples_from_p, greedy_on_a_miss, stops_at_unsure_drafts, ignores_the_draft_law])
def test_wrong_verifiers_are_found_out(wrong: Verifier) -> None:
    found = [bias(wrong, CHAINS["chain 2"], random_model(seed, 2), random_model(seed + 10, 2), 3) for seed in range(4)]
    assert max(found) > F(1, 100)


def best_of_two(q: Model, dice: Dice) -> Node:
    """Two drafts, of which the one with the higher draft probability is handed over: no longer a sample of q."""
    first, second = (one_chain(q, 1, dice) for _ in range(2))
    return max(first, second, key=lambda root: q(())[root.children[0].token])


def certain(q: Model, dice: Dice) -> Node:
    """The likeliest token, handed over as a sample of q."""
    root = likeliest(q, 1, 1)
    root.children[0].q = None
    return root


ILLEGAL: list[tuple[str, Verifier, Draft]] = [
    ("rejection of chosen drafts", verifiers.rejection, best_of_two),
    ("block of chosen drafts", verifiers.block, best_of_two),
    ("rejection of certain drafts as samples", verifiers.rejection, certain),
    ("specinfer of distinct children", verifiers.specinfer, DISTINCT["2 distinct"]),
    ("traversal of distinct children", verifiers.traversal, DISTINCT["2 distinct"]),
    ("kseq of distinct children", verifiers.kseq, DISTINCT["2 distinct"]),
    ("without replacement of independent children", verifiers.without, TREES["3 paths"]),
]


@pytest.mark.parametrize(("verifier", "draft"), [case[1:] for case in ILLEGAL], ids=[case[0] for case in ILLEGAL])
def test_a_pair_that_must_not_be_is_found_out(verifier: Verifier, draft: Draft) -> None:
    found = [bias(verifier, draft, random_model(seed, 3), random_model(seed + 100, 3), 1) for seed in range(30)]
    assert max(found) > F(1, 100)


@pytest.mark.parametrize("draft", [best_of_two, certain], ids=["chosen", "certain"])
def test_match_takes_any_draft(draft: Draft) -> None:
    assert all(bias(verifiers.match, draft, random_model(seed, 3), random_model(seed + 10, 3), 2) == 0 for seed in range(4))
