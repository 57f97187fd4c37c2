"""Every outcome of a random program, with its exact probability.

A program takes a Dice and returns something hashable. `law` runs it once for each way its coins can fall. A key names what a coin is for;
enumeration has no use for it, but a Dice that replays given numbers has.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from typing import Protocol, TypeVar

Result = TypeVar("Result", bound=Hashable)
Key = tuple[object, ...]


class Dice(Protocol):
    def flip(self, chance: Fraction, key: Key = ()) -> bool:
        """True with probability `chance`."""
        ...

    def draw(self, weights: Sequence[Fraction], key: Key = ()) -> int:
        """An index; weights need not sum to 1."""
        ...


class _Replay:
    """Follows `fixed` choices, then takes the first that is possible, and notes the others."""

    def __init__(self, fixed: tuple[int, ...]) -> None:
        self.fixed, self.taken, self.untried = fixed, (), []
        self.weight = Fraction(1)
        self.taken: tuple[int, ...]
        self.untried: list[tuple[int, ...]]

    def flip(self, chance: Fraction, key: Key = ()) -> bool:
        return self.draw([1 - chance, chance], key) == 1

    def draw(self, weights: Sequence[Fraction], key: Key = ()) -> int:
        possible = [index for index, weight in enumerate(weights) if weight]
        assert possible, f"nothing is possible at {key}"
        assert all(weight >= 0 for weight in weights), f"a negative chance at {key}"
        at = len(self.taken)
        if at < len(self.fixed):
            choice = self.fixed[at]
        else:
            choice = possible[0]
            self.untried.extend((*self.taken, other) for other in possible[1:])
        self.taken += (choice,)
        self.weight *= Fraction(weights[choice]) / sum(weights)
        return choice


def law(program: Callable[[Dice], Result]) -> dict[Result, Fraction]:
    """Outcome -> probability, exactly."""
    found: dict[Result, Fraction] = defaultdict(Fraction)
    todo: list[tuple[int, ...]] = [()]
    while todo:
        dice = _Replay(todo.pop())
        found[program(dice)] += dice.weight
        todo.extend(dice.untried)
    assert sum(found.values()) == 1
    return dict(found)


def mean(outcomes: dict[Result, Fraction], value: Callable[[Result], int]) -> Fraction:
    return sum((chance * value(result) for result, chance in outcomes.items()), Fraction(0))
