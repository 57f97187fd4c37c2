"""Verifiers written plainly, with fractions: what the tensor versions of kernels/ must equal, and what enumeration proves lossless.

A language model is a function: tokens so far -> probabilities of the next. A draft is a tree of Nodes behind the committed text. A
verifier returns the accepted tokens and the one token after them, which is always the target's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from exact.dice import Dice

Law = Sequence[Fraction]
Text = tuple[int, ...]
Model = Callable[[Text], Law]  # text -> probabilities of the next token


@dataclass
class Node:
    """A drafted token and what was drafted behind it, in the order of drawing. `row` names it in the tensor versions; the root has 0."""

    token: int = -1
    children: list["Node"] = field(default_factory=list)
    row: int = 0
    q: Law | None = None  # what it was drawn from, where that is not the drafter's law after its parent


Verdict = tuple[Text, int]  # accepted draft tokens, the token after them
Verifier = Callable[[Node, Model, Model, Dice], Verdict]


def positive(values: Sequence[Fraction]) -> list[Fraction]:
    return [max(value, Fraction(0)) for value in values]


def norm(values: Sequence[Fraction]) -> list[Fraction]:
    total = sum(values)
    return [value / total for value in values] if total else list(values)


def ratio(p: Fraction, q: Fraction) -> Fraction:
    """min(1, p / q)."""
    return min(Fraction(1), p / q) if q else Fraction(1)


def chain(root: Node) -> list[Node]:
    """The nodes of a draft without branches."""
    found, node = [], root
    while node.children:
        assert len(node.children) == 1
        node = node.children[0]
        found.append(node)
    return found


def law_of(node: Node, q: Model, text: Text) -> Law:
    """What `node`, a child of `text`, was drawn from."""
    return q(text) if node.q is None else node.q


def match(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
    """The target draws for itself; a draft that says the same saved a forward. Whatever was drafted, the text is the target's."""
    node, text = root, ()
    while True:
        token = dice.draw(p(text), ("draw", len(text)))
        found = [child for child in node.children if child.token == token]
        if not found:
            return text, token
        node, text = found[0], (*text, token)


def rejection(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
    """Token by token (Leviathan et al. 2023; Chen et al. 2023)."""
    text: Text = ()
    for node in chain(root):
        law = law_of(node, q, text)
        if not dice.flip(ratio(p(text)[node.token], law[node.token]), ("test", node.row)):
            return text, dice.draw(positive([a - b for a, b in zip(p(text), law, strict=True)]), ("draw", len(text)))
        text = (*text, node.token)
    return text, dice.draw(p(text), ("draw", len(text)))


def block(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
    """Block verification (Sun et al., arXiv 2403.10444)."""
    nodes = chain(root)
    return block_with(nodes, [law_of(node, q, tuple(n.token for n in nodes[:k])) for k, node in enumerate(nodes)], p, dice)


def block_with(nodes: Sequence[Node], laws: Sequence[Law], p: Model, dice: Dice) -> Verdict:
    """The same for a path whose k-th token follows laws[k] given the tokens before."""
    tokens, weight = [node.token for node in nodes], [Fraction(1)]
    for k, (token, law) in enumerate(zip(tokens, laws, strict=True)):
        weight.append(min(Fraction(1), weight[k] * p(tuple(tokens[:k]))[token] / law[token]))
    for k in range(len(tokens), 0, -1):
        text, w = tuple(tokens[:k]), weight[k]
        if k == len(tokens):
            chance, left = w, p(text)
        else:
            left = positive([w * a - b for a, b in zip(p(text), laws[k], strict=True)])
            total = sum(left)
            chance = total / (total + 1 - w) if total + 1 - w else Fraction(1)
        if dice.flip(chance, ("test", nodes[k - 1].row)):
            return text, dice.draw(left if sum(left) else p(text), ("draw", k))
    left = positive([a - b for a, b in zip(p(()), laws[0], strict=True)]) if laws else p(())
    return (), dice.draw(left if sum(left) else p(()), ("draw", 0))


def specinfer(root: Node, p: Model, q: Model, dice: Dice, *, replace: bool = True) -> Verdict:
    """Multi-step rejection over children drawn independently (Miao et al., arXiv 2305.09781), or without replacement (Chen et al.,
    Sequoia, arXiv 2402.12374): then a refused token is drawn no more."""
    node, text = root, ()
    while True:
        left, gone = list(p(text)), set()
        for child in node.children:
            law = norm([Fraction(0) if token in gone else share for token, share in enumerate(law_of(child, q, text))])
            if dice.flip(ratio(left[child.token], law[child.token]), ("test", child.row)):
                break
            left = norm(positive([a - b for a, b in zip(left, law, strict=True)]))
            gone |= set() if replace else {child.token}
        else:
            return text, dice.draw(left, ("draw", len(text)))
        node, text = child, (*text, child.token)


def without(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
    return specinfer(root, p, q, dice, replace=False)


def topk(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
    """EAGLE's rule: each candidate is taken with what is left of the target's own probability (Li et al., arXiv 2401.15077)."""
    node, text = root, ()
    while True:
        left = list(p(text))
        for child in node.children:
            if dice.flip(left[child.token], ("test", child.row)):
                break
            left[child.token] = Fraction(0)
            left = norm(left)
        else:
            return text, dice.draw(left, ("draw", len(text)))
        node, text = child, (*text, child.token)


def kseq(root: Node, p: Model, q: Model, dice: Dice, bits: int = 40) -> Verdict:
    """K-SEQ (Sun et al., SpecTr, arXiv 2310.15141) over k candidates drawn independently; any rho in [1, k] that is large enough keeps
    the law, and the smallest accepts most. It is found here to `bits` binary digits, rounded up."""
    node, text = root, ()
    while True:
        target, law, k = p(text), q(text), len(node.children)
        if not k:
            return text, dice.draw(target, ("draw", len(text)))
        rho = smallest_rho(target, law, k, bits)
        for child in node.children:
            if dice.flip(ratio(target[child.token], rho * law[child.token]), ("test", child.row)):
                break
        else:
            beta = sum(min(b, a / rho) for a, b in zip(target, law, strict=True))
            taken = 1 - (1 - beta) ** k
            each = taken / beta if beta else Fraction(0)
            left = [a - min(b, a / rho) * each for a, b in zip(target, law, strict=True)]
            return text, dice.draw(left, ("draw", len(text)))
        node, text = child, (*text, child.token)


def smallest_rho(p: Law, q: Law, k: int, bits: int = 40) -> Fraction:
    """The smallest rho in [1, k], to 2**-bits and from above, at which 1 - (1 - beta)**k <= rho * beta, beta = sum min(q, p / rho)."""

    def enough(rho: Fraction) -> bool:
        beta = sum(min(b, a / rho) for a, b in zip(p, q, strict=True))
        return 1 - (1 - beta) ** k <= rho * beta

    low, high = Fraction(1), Fraction(k)
    if enough(low):
        return low
    for _ in range(bits):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def traversal(root: Node, p: Model, q: Model, dice: Dice) -> Verdict:
    """From the leaves to the root: a whole subtree is tried before its prefix is given up (after Weng et al., arXiv 2505.12398).
    On a chain this is block verification."""

    def visit(node: Node, text: Text, mass: Fraction) -> Verdict | None:
        left: Law = list(p(text))
        for child in node.children:
            law = law_of(child, q, text)
            inside = min(Fraction(1), mass * left[child.token] / law[child.token]) if law[child.token] else Fraction(1)
            if (found := visit(child, (*text, child.token), inside)) is not None:
                return found
            rest = positive([mass * a - b for a, b in zip(left, law, strict=True)])
            total = sum(rest)
            left = norm(rest) if total else left
            mass = total / (total + 1 - mass) if total + 1 - mass else Fraction(1)
        if node is root or dice.flip(mass, ("test", node.row)):
            return text, dice.draw(left, ("draw", len(text)))
        return None

    found = visit(root, (), Fraction(1))
    assert found is not None
    return found


def best_path(root: Node, p: Model, q: Model, dice: Dice, *, guard: bool = False) -> Verdict:
    """Block verification of the best of several independent paths: at each depth the token that the target wants most, relative to
    the drafter, among those of the paths that agree so far. Its law is known, so the verification stays exact. After the idea of greedy
    multi-path block verification (Thomas & Pal, arXiv 2602.16961). guard: only as many paths as help."""
    alive, text, laws = [chain(Node(children=[child])) for child in root.children], (), []
    while alive and len(text) < len(alive[0]):
        target, law = p(text), q(text)
        order = preference(target, law)
        if guard:
            worth = [sum(map(min, target, best_of(law, order, m))) for m in range(1, len(alive) + 1)]
            alive = alive[: worth.index(max(worth)) + 1]
        said = [path[len(text)].token for path in alive]
        token = min(said, key=order.index)
        laws.append(best_of(law, order, len(alive)))
        alive = [path for path, one in zip(alive, said, strict=True) if one == token]
        text = (*text, token)
    return block_with(alive[0] if alive else [], laws, p, dice)


def preference(p: Law, q: Law) -> list[int]:
    """Tokens by p / q, the largest first, the lower id among equals; those that are never drafted come last."""
    return sorted(range(len(p)), key=lambda token: (-(p[token] / q[token]) if q[token] else Fraction(1), token))


def best_of(q: Law, order: Sequence[int], paths: int) -> list[Fraction]:
    """The law of the token that comes first in `order` among `paths` independent draws."""
    out, rest = [Fraction(0)] * len(q), Fraction(1)
    for token in order:
        out[token] = rest**paths - (rest - q[token]) ** paths
        rest -= q[token]
    return out
