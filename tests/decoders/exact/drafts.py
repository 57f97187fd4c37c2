"""Random models, and programs that draft from them."""

import random
from collections.abc import Callable
from fractions import Fraction

from exact.dice import Dice, law
from exact.verifiers import Law, Model, Node, Text, Verdict, Verifier, norm


def constant(*law: Fraction) -> Model:
    return lambda text: law


def random_model(seed: int, vocab: int, *, zeros: bool = False, most: int = 6) -> Model:
    """Another law after every text, in ratios of numbers up to `most`; with zeros some tokens never come."""

    def model(text: Text) -> Law:
        dice = random.Random(f"{seed} {text}")
        weights = [Fraction(dice.randint(1, most) * (not zeros or dice.random() < 0.8)) for _ in range(vocab)]
        weights[dice.randrange(vocab)] += 1
        return norm(weights)

    return model


def one_chain(q: Model, depth: int, dice: Dice) -> Node:
    return paths(q, 1, depth, dice)


def paths(q: Model, count: int, depth: int, dice: Dice, trunk: int = 0) -> Node:
    """`count` independent continuations of `depth` tokens behind one of `trunk` tokens."""
    root = Node()
    number, start, text = 0, root, ()

    def grow(node: Node, text: Text) -> tuple[Node, Text]:
        nonlocal number
        number += 1
        child = Node(dice.draw(q(text)), row=number)
        node.children.append(child)
        return child, (*text, child.token)

    for _ in range(trunk):
        start, text = grow(start, text)
    for _ in range(count):
        node, own = start, text
        for _ in range(depth):
            node, own = grow(node, own)
    return root


def full(q: Model, width: int, depth: int, dice: Dice, *, replace: bool = True) -> Node:
    """Every node has `width` children, drawn independently or without replacement."""
    number = 0

    def grow(node: Node, text: Text, left: int) -> None:
        nonlocal number
        law = list(q(text))
        for _ in range(width if left else 0):
            if not any(law):
                break
            number += 1
            child = Node(dice.draw(law), row=number)
            node.children.append(child)
            if not replace:
                law[child.token] = Fraction(0)
        for child in node.children:
            grow(child, (*text, child.token), left - 1)

    root = Node()
    grow(root, (), depth)
    return root


def likeliest(q: Model, width: int, depth: int) -> Node:
    """Every node has the `width` likeliest tokens as children: a function of the text alone."""
    number = 0

    def grow(node: Node, text: Text, left: int) -> None:
        nonlocal number
        law = q(text)
        ranked = sorted(range(len(law)), key=lambda token: (-law[token], token))
        for token in ranked[:width] if left else ():
            number += 1
            child = Node(token, row=number, q=[Fraction(int(token == other)) for other in range(len(law))])
            node.children.append(child)
            grow(child, (*text, token), left - 1)

    root = Node()
    grow(root, (), depth)
    return root


def completed(verdict: Verdict, p: Model, length: int, dice: Dice) -> Text:
    """The text that a verdict begins, of `length` tokens; the target says the rest."""
    text: Text = (*verdict[0], verdict[1])[:length]
    while len(text) < length:
        text = (*text, dice.draw(p(text)))
    return text


def target_law(p: Model, length: int) -> dict[Text, Fraction]:
    """Probability of every text of `length` tokens that has any."""
    texts: dict[Text, Fraction] = {(): Fraction(1)}
    for _ in range(length):
        texts = {(*text, token): chance * share for text, chance in texts.items() for token, share in enumerate(p(text)) if share}
    return texts


def difference(found: dict[Text, Fraction], wanted: dict[Text, Fraction]) -> Fraction:
    """Total variation between two laws."""
    return sum((abs(found.get(text, Fraction(0)) - wanted.get(text, Fraction(0))) for text in {*found, *wanted}), Fraction(0)) / 2


def bias(verifier: Verifier, draft: Callable[[Model, Dice], Node], p: Model, q: Model, length: int) -> Fraction:
    """How far the law of the text is from the target's."""
    found = law(lambda dice: completed(verifier(draft(q, dice), p, q, dice), p, length, dice))
    return difference(found, target_law(p, length))
