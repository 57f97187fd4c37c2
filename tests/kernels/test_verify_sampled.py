"""The tensor verifiers equal those written with fractions, coin by coin: the same path, and the same law of the next token."""

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

import pytest
import torch
from exact import verifiers as plain
from exact.drafts import full, likeliest, paths, random_model
from exact.verifiers import Law, Model, Node, Text

from drawloom.kernels import verify_sampled as fast
from drawloom.kernels.verify import reach

VOCAB = 4


class Given:
    """Tests come from a table by row; a draw says what it was asked to draw from."""

    def __init__(self, coins: Sequence[float]) -> None:
        self.coins, self.weights = coins, ()
        self.weights: Sequence[Fraction]

    def flip(self, chance: Fraction, key: tuple = ()) -> bool:
        return self.coins[key[1]] < chance

    def draw(self, weights: Sequence[Fraction], key: tuple = ()) -> int:
        self.weights = weights
        return 0


class Drawn:
    """A Dice of Python's random numbers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def flip(self, chance: Fraction, key: tuple = ()) -> bool:
        return self.rng.random() < chance

    def draw(self, weights: Sequence[Fraction], key: tuple = ()) -> int:
        return self.rng.choices(range(len(weights)), [float(weight) for weight in weights])[0]


def rows_of(root: Node) -> list[tuple[int, int, Text, Node, Sequence[Node]]]:
    """Row, parent row, text before it, itself, and its earlier siblings."""
    found = []

    def walk(node: Node, text: Text) -> None:
        for place, child in enumerate(node.children):
            found.append((child.row, node.row, text, child, node.children[:place]))
            walk(child, (*text, child.token))

    walk(root, ())
    return sorted(found, key=lambda one: one[0])


def law_of(q: Model, text: Text, node: Node, before: Sequence[Node], *, replace: bool) -> Law:
    law = list(q(text) if node.q is None else node.q)
    for one in before if not replace else ():
        law[one.token] = Fraction(0)
    return plain.norm(law)


def tensors(roots: list[Node], p: list[Model], q: list[Model], *, replace: bool = True) -> tuple[fast.Draft, torch.Tensor]:
    """A batch of drafts of different sizes; rows that a line does not have hold what must not matter."""
    lists = [rows_of(root) for root in roots]
    count = max(map(len, lists)) + 1
    tokens = torch.randint(VOCAB, (len(roots), count))
    parent, valid = torch.zeros_like(tokens), torch.zeros_like(tokens, dtype=torch.bool)
    valid[:, 0] = True
    target, drafter = torch.full((2, len(roots), count, VOCAB), torch.nan)
    for line, some in enumerate(lists):
        target[line, 0] = torch.tensor([float(chance) for chance in p[line](())])
        for row, up, text, node, before in some:
            tokens[line, row], parent[line, row], valid[line, row] = node.token, up, True
            target[line, row] = torch.tensor([float(chance) for chance in p[line]((*text, node.token))])
            law = law_of(q[line], text, node, before, replace=replace)
            drafter[line, row] = torch.tensor([float(chance) for chance in law])
    return fast.Draft(tokens, parent, valid, drafter), target


def some_paths(q: Model, dice: Drawn) -> Node:
    return paths(q, dice.rng.randint(1, 4), dice.rng.randint(1, 4), dice)


def some_tree(q: Model, dice: Drawn) -> Node:
    if dice.rng.random() < 0.5:
        return full(q, dice.rng.randint(1, 3), dice.rng.randint(1, 3), dice)
    return paths(q, dice.rng.randint(1, 4), dice.rng.randint(1, 3), dice, trunk=dice.rng.randint(0, 2))


def some_distinct(q: Model, dice: Drawn) -> Node:
    return full(q, dice.rng.randint(1, 3), dice.rng.randint(1, 3), dice, replace=False)


def some_fixed(q: Model, dice: Drawn) -> Node:
    return likeliest(q, dice.rng.randint(1, 3), dice.rng.randint(1, 3))


def some_chain(q: Model, dice: Drawn) -> Node:
    return paths(q, 1, dice.rng.randint(1, 6), dice)


PAIRS: list[tuple[str, Callable, Callable, Callable, bool]] = [
    ("rejection", plain.rejection, fast.specinfer, some_chain, True),
    ("block", plain.block, fast.traversal, some_chain, True),
    ("specinfer", plain.specinfer, fast.specinfer, some_tree, True),
    ("specinfer of certain drafts", plain.specinfer, fast.specinfer, some_fixed, True),
    ("without replacement", plain.without, fast.without_replacement, some_distinct, False),
    ("topk", plain.topk, fast.topk, some_fixed, True),
    ("topk of sampled drafts", plain.topk, fast.topk, some_tree, True),
    ("kseq", plain.kseq, fast.kseq, some_tree, True),
    ("traversal", plain.traversal, fast.traversal, some_tree, True),
    ("traversal of certain drafts", plain.traversal, fast.traversal, some_fixed, True),
    ("best path", plain.best_path, fast.best_path, some_paths, True),
]


@pytest.mark.parametrize("zeros", [False, True], ids=["", "with impossible tokens"])
@pytest.mark.parametrize(("name", "reference", "verifier", "draft", "replace"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_equals_its_reference(name: str, reference, verifier, draft, replace: bool, zeros: bool) -> None:
    rng = random.Random(f"{name} {zeros}")
    torch.manual_seed(0)
    agreed = 0
    for trial in range(8):
        p = [random_model(100 * trial + line, VOCAB, zeros=zeros, most=997) for line in range(9)]
        q = [random_model(100 * trial + line + 50, VOCAB, zeros=zeros, most=997) for line in range(9)]
        dice = Drawn(rng)
        roots = [draft(law, dice) for law in q]
        some, target = tensors(roots, p, q, replace=replace)
        coin = torch.rand(some.tokens.shape, dtype=torch.float64)
        path, left = verifier(some, target, coin)
        for line, root in enumerate(roots):
            given = Given(coin[line].tolist())
            text, _ = reference(root, p[line], q[line], given)
            rows = path[line].nonzero()[:, 0]
            assert tuple(some.tokens[line, rows[1:]].tolist()) == text, (name, trial, line)
            assert rows[0] == 0
            assert (some.parent[line, rows[1:]] == rows[:-1]).all()
            wanted = torch.tensor([float(weight) for weight in plain.norm(given.weights)])
            torch.testing.assert_close(left[line] / left[line].sum(), wanted, atol=2e-5, rtol=2e-4)
            agreed += len(text)
    assert agreed > 20  # drafts were accepted, too


def test_block_keeps_at_least_what_rejection_keeps() -> None:
    """On average; and a chain is all that a best path has when there is one."""
    torch.manual_seed(1)
    lines, rows = 4000, 6
    p, q = (torch.rand(2, lines, rows, VOCAB) ** 3).softmax(-1)
    q = (q * 0.5 + p.roll(1, 1) * 0.5).contiguous()
    tokens = torch.multinomial(q.flatten(0, 1), 1).view(lines, rows)
    parent = torch.arange(rows).sub(1).clamp(min=0).expand(lines, -1)
    draft = fast.Draft(tokens, parent, torch.ones_like(tokens, dtype=torch.bool), q)
    coin = torch.rand(lines, rows)
    kept = {name: verifier(draft, p, coin)[0].sum(1) for name, verifier in (("token", fast.specinfer), ("block", fast.traversal))}
    assert kept["block"].double().mean() > kept["token"].double().mean() * 1.01
    for verifier in (fast.traversal, fast.best_path):
        torch.testing.assert_close(verifier(draft, p, coin)[0].sum(1), kept["block"])


def test_rho_is_the_smallest_that_keeps_the_law() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.2, 0.3, 0.5]).double()
    assert fast.smallest_rho(p, q, torch.tensor(2)).item() == pytest.approx(1.456776, abs=1e-6)
    assert fast.smallest_rho(p, q, torch.tensor(3)).item() == pytest.approx(1.792593, abs=1e-6)
    assert fast.smallest_rho(p, p, torch.tensor(3)).item() == 1


def test_ka10_typical_acceptance() -> None:
    """p = (.5, .3, .2): everything is typical; p = (.97, .02, .01): only the best."""
    for law, taken in (((0.5, 0.3, 0.2), 3), ((0.97, 0.02, 0.01), 1)):
        first = torch.tensor([0.0, 1.0, 0.0])
        p = torch.stack([first, torch.tensor(law)])[None].expand(3, -1, -1)
        p = torch.cat([p, p[:, :1]], 1)
        tokens = torch.tensor([[0, 1, token] for token in range(3)])
        parent, valid = torch.tensor([[0, 0, 1]]).expand(3, -1), torch.ones(3, 3, dtype=torch.bool)
        path, _ = fast.typical(fast.Draft(tokens, parent, valid, p), p, torch.rand(3, 3))
        assert int(path[:, 2].sum()) == taken
        assert path[:, 1].all()


def test_relaxed_criteria_take_what_is_near_the_best() -> None:
    p = torch.tensor([[[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]])
    for token, top, within, taken in ((1, 2, 9.0, True), (2, 2, 9.0, False), (1, 3, 0.4, False), (1, 3, 0.6, True), (0, 1, 0.0, True)):
        draft = fast.Draft(torch.tensor([[0, token]]), torch.zeros(1, 2).long(), torch.ones(1, 2, dtype=torch.bool), p)
        path, _ = partial(fast.among_top, top=top, within=within)(draft, p, torch.rand(1, 2))
        assert bool(path[0, 1]) is taken


def test_a_draft_that_is_not_there_is_plain_decoding() -> None:
    p = torch.rand(3, 5, VOCAB).softmax(-1)
    nothing = torch.zeros(3, 5, dtype=torch.bool)
    nothing[:, 0] = True
    draft = fast.Draft(torch.zeros(3, 5).long(), torch.zeros(3, 5).long(), nothing, torch.full_like(p, torch.nan))
    for verifier in (fast.specinfer, fast.topk, fast.kseq, fast.traversal, fast.best_path, fast.typical, fast.among_top):
        path, left = verifier(draft, p, torch.zeros(3, 5))
        assert (path == nothing).all(), verifier
        torch.testing.assert_close(left / left.sum(1, keepdim=True), p[:, 0])


def test_who_is_below_whom() -> None:
    parent = torch.tensor([[0, 0, 1, 0]])
    some = fast.Draft(parent * 0, parent, torch.ones(1, 4, dtype=torch.bool), torch.zeros(1, 4, VOCAB))
    order, left = fast._visits(some, reach(parent))
    assert list(zip(order[0].tolist(), left[0].tolist(), strict=True)) == [
        (0, False), (1, False), (2, False), (2, True), (1, True), (3, False), (3, True), (0, True),
    ]  # fmt: skip
