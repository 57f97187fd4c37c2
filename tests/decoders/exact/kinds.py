"""Shapes of drafts by the law they follow."""

from collections.abc import Callable

from exact import verifiers
from exact.dice import Dice
from exact.drafts import full, likeliest, one_chain, paths
from exact.verifiers import Model, Node

Draft = Callable[[Model, Dice], Node]

CHAINS: dict[str, Draft] = {f"chain {depth}": (lambda q, dice, d=depth: one_chain(q, d, dice)) for depth in (1, 2, 3)}
TREES: dict[str, Draft] = {
    "2 paths": lambda q, dice: paths(q, 2, 2, dice),
    "3 paths": lambda q, dice: paths(q, 3, 1, dice),
    "2 deep paths": lambda q, dice: paths(q, 2, 3, dice),
    "delayed": lambda q, dice: paths(q, 2, 1, dice, trunk=2),
    "binary": lambda q, dice: full(q, 2, 2, dice),
    "wide": lambda q, dice: full(q, 3, 1, dice),
}
DISTINCT: dict[str, Draft] = {
    "2 distinct": lambda q, dice: full(q, 2, 1, dice, replace=False),
    "3 distinct": lambda q, dice: full(q, 3, 1, dice, replace=False),
    "distinct binary": lambda q, dice: full(q, 2, 2, dice, replace=False),
}
FIXED: dict[str, Draft] = {
    "argmax chain": lambda q, dice: likeliest(q, 1, 3),
    "likeliest 2": lambda q, dice: likeliest(q, 2, 2),
    "likeliest 3": lambda q, dice: likeliest(q, 3, 1),
}
KINDS = {"chains": CHAINS, "trees": TREES, "distinct": DISTINCT, "fixed": FIXED}
__all__ = ["CHAINS", "DISTINCT", "FIXED", "KINDS", "TREES", "Draft", "verifiers"]
