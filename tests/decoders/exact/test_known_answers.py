"""Published and hand-checked figures of the verifiers, exactly."""

from collections.abc import Callable
from fractions import Fraction as F

import pytest

from exact.dice import Dice, law, mean
from exact.drafts import constant, full, likeliest, one_chain, paths
from exact.verifiers import (
    Model,
    Node,
    Verdict,
    Verifier,
    best_path,
    block,
    kseq,
    match,
    norm,
    rejection,
    smallest_rho,
    specinfer,
    topk,
    traversal,
    without,
)

Draft = Callable[[Model, Dice], Node]
P, Q = (F(1, 3), F(2, 3)), (F(2, 3), F(1, 3))


def accepted(verifier: Verifier, draft: Draft, p: tuple[F, ...] = P, q: tuple[F, ...] = Q) -> F:
    """Expected number of accepted draft tokens."""
    target, drafter = constant(*p), constant(*q)
    return mean(law(lambda dice: verifier(draft(drafter, dice), target, drafter, dice)), lambda verdict: len(verdict[0]))


def chains(depth: int) -> Draft:
    return lambda q, dice: one_chain(q, depth, dice)


def independent(count: int, depth: int) -> Draft:
    return lambda q, dice: paths(q, count, depth, dice)


def distinct(count: int) -> Draft:
    return lambda q, dice: full(q, count, 1, dice, replace=False)


def guarded(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
    return best_path(root, p, q, dice, guard=True)


@pytest.mark.parametrize(
    ("depth", "token", "blocks"),
    [(1, F(2, 3), F(2, 3)), (2, F(10, 9), F(11, 9)), (3, F(38, 27), F(5, 3)), (4, F(130, 81), F(166, 81)), (5, F(422, 243), F(64, 27))],
)
def test_ka1_block_against_token_verification(depth: int, token: F, blocks: F) -> None:
    assert accepted(rejection, chains(depth)) == token
    assert accepted(block, chains(depth)) == blocks
    if depth < 5:
        assert accepted(traversal, chains(depth)) == blocks  # on a chain it is the same


def test_ka1_how_many_tokens_of_each_draft() -> None:
    target, drafter = constant(*P), constant(*Q)

    def lengths(a: int, b: int) -> dict[int, F]:
        draft = Node(children=[Node(a, [Node(b, row=2)], row=1)])
        found = law(lambda dice: len(block(draft, target, drafter, dice)[0]))
        return {length: chance for length, chance in found.items() if chance}

    assert lengths(0, 0) == {2: F(1, 4), 0: F(3, 4)}
    assert lengths(0, 1) == {2: F(1)}
    assert lengths(1, 0) == {2: F(1, 2), 1: F(1, 2)}
    assert lengths(1, 1) == {2: F(1)}


@pytest.mark.parametrize(
    ("draft", "across", "multi"),
    [
        (chains(2), F(11, 9), F(10, 9)),
        (independent(2, 2), F(38, 27), F(35, 27)),
        (independent(3, 2), F(124, 81), F(115, 81)),
        (lambda q, dice: full(q, 2, 2, dice), F(118, 81), F(112, 81)),
    ],
    ids=["chain", "2 paths", "3 paths", "binary"],
)
def test_ka2_traversal_against_specinfer(draft: Draft, across: F, multi: F) -> None:
    assert accepted(traversal, draft) == across
    assert accepted(specinfer, draft) == multi


@pytest.mark.parametrize(("count", "depth", "wanted"), [(1, 2, F(11, 9)), (2, 1, F(8, 9)), (3, 1, F(26, 27)), (2, 2, F(131, 81))])
def test_ka3_best_path(count: int, depth: int, wanted: F) -> None:
    assert accepted(best_path, independent(count, depth)) == wanted


HALF = ((F(7, 10), F(3, 10)), (F(1, 2), F(1, 2)))
THIRDS = (P, Q)
THREE = ((F(5, 10), F(3, 10), F(2, 10)), (F(2, 10), F(3, 10), F(5, 10)))


@pytest.mark.parametrize(
    ("laws", "count", "multi", "apart", "sequential", "rho", "bound", "best"),
    [
        (HALF, 2, F(9, 10), F(1), 0.931174, 1.262348, F(1), F(95, 100)),
        (HALF, 3, F(95, 100), None, 0.978314, 1.356628, F(1), F(825, 1000)),
        (THIRDS, 2, F(7, 9), None, 0.811420, 1.434259, F(8, 9), F(8, 9)),
        (THIRDS, 3, F(23, 27), None, 0.896576, 1.689729, F(1), F(26, 27)),
        (THREE, 2, F(76, 100), F(82, 100), 0.791355, 1.456776, F(86, 100), F(86, 100)),
        (THREE, 3, F(808, 1000), F(1), 0.858519, 1.792593, F(988, 1000), F(913, 1000)),
    ],
)
def test_ka4_one_step(laws, count: int, multi: F, apart: F | None, sequential: float, rho: float, bound: F, best: F) -> None:
    p, q = laws
    assert accepted(specinfer, independent(count, 1), p, q) == multi
    assert accepted(traversal, independent(count, 1), p, q) == multi
    if apart is not None:
        assert accepted(without, distinct(count), p, q) == apart
    assert float(smallest_rho(p, q, count)) == pytest.approx(rho, abs=1e-6)
    assert float(accepted(kseq, independent(count, 1), p, q)) == pytest.approx(sequential, abs=1e-6)
    assert transport_bound(p, q, count) == bound
    assert accepted(best_path, independent(count, 1), p, q) == best
    for verifier in (specinfer, traversal, kseq, best_path, guarded):
        assert accepted(verifier, independent(count, 1), p, q) <= bound


def test_ka4_one_candidate() -> None:
    assert accepted(rejection, chains(1), *HALF) == F(8, 10)
    assert accepted(rejection, chains(1), *THIRDS) == F(2, 3)
    assert accepted(rejection, chains(1), *THREE) == F(7, 10)
    assert accepted(match, chains(1), *HALF) == F(1, 2)
    assert accepted(match, chains(1), *THREE) == F(29, 100)
    assert accepted(match, lambda q, dice: likeliest(q, 1, 1), *HALF) == F(7, 10)
    assert accepted(match, lambda q, dice: likeliest(q, 1, 1), *THREE) == F(2, 10)


def test_ka4_the_guard_takes_fewer_paths_when_more_would_hurt() -> None:
    assert accepted(guarded, independent(3, 1), *HALF) == F(95, 100)


def test_eagles_rule_takes_what_a_look_up_takes() -> None:
    for width in (1, 2, 3):
        draft: Draft = lambda q, dice, width=width: likeliest(q, width, 1)  # noqa: E731
        assert accepted(topk, draft, *THREE) == accepted(match, draft, *THREE)


def transport_bound(p: tuple[F, ...], q: tuple[F, ...], count: int) -> F:
    """No verifier can accept more often: 1 + min over sets H of P(H) - Q(H)**count."""
    sets = [[token for token in range(len(p)) if bits >> token & 1] for bits in range(1 << len(p))]
    return 1 + min(sum(p[token] for token in some) - sum(q[token] for token in some) ** count for some in sets)


@pytest.mark.parametrize(("rate", "draft", "wanted"), [(F(8, 10), 5, 3.68928), (F(6, 10), 3, 2.176), (F(9, 10), 7, 5.6953279)])
def test_ka5_tokens_a_forward(rate: F, draft: int, wanted: float) -> None:
    """(1 - a**(n + 1)) / (1 - a), here by enumeration: each drafted token agrees with chance a."""

    def program(dice: Dice) -> int:
        count = 0
        while count < draft and dice.flip(rate):
            count += 1
        return count + 1

    assert float(mean(law(program), lambda count: count)) == pytest.approx(wanted, abs=1e-9)


def test_norm_leaves_nothing_as_it_is() -> None:
    assert norm([F(0), F(0)]) == [F(0), F(0)]
