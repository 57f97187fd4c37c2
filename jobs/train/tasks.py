"""Text with answers that can be checked: sums with worked steps, list operations, JSON records, short Python functions.

A row is a prompt, its answer and what is needed to grade another answer. Rows are a function of (seed, index) alone. Which split a prompt
belongs to is a function of its text, so that no held-out prompt is ever trained on, whatever the seeds.
List operations after ParallelBench (arXiv 2510.04767): they are what parallel decoding breaks first.
"""

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from drawloom.errors import SettingError
from drawloom.jobs.folders import made
from drawloom.settings import nearest

SPLITS = ("train", "held-out")
HELD_OUT_SHARE = 20  # one prompt in so many is held out


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words(
    "Ann Ben Cara Dan Eva Finn Gina Hugo Ida Jack Kim Leo Mia Noah Olga Paul Rosa Sam Tina Uma Vera Will Yuki Zoe Adam Bella Carl Dora "
    "Emil Fay"
)
THINGS = _words("apples books cards coins cups eggs hats keys lamps pens plums rings shells shirts stamps stones toys tickets beads bricks")
CITIES = _words("Rome Oslo Lima Cairo Paris Tokyo Delhi Quito Bern Kyoto Milan Turin Porto Lagos Dakar Seoul Hanoi Malmo Leeds Vienna")
WORDS = _words(
    "ant bear cat deer eel fox goat hare ibis jay koala lion mole newt owl pig rat seal toad wolf yak zebra acorn birch cedar daisy elm "
    "fern grape holly iris juniper kale lemon maple nettle olive palm quince rose sage tulip violet willow anvil bell chair desk engine "
    "fork glove hammer ink jar kite ladder mirror needle oven piano quilt rope saw table urn vase wheel cloud dew earth fog gale hail "
    "ice lake moon night ocean rain snow tide wind amber black coral green ivory jade khaki lilac navy ochre pink red teal white"
)


@dataclass(frozen=True)
class Task:
    """One prompt, its reference answer, and the facts that grade another (JSON text)."""

    task: str
    prompt: str
    answer: str
    check: str

    @property
    def held_out(self) -> bool:
        return hashlib.sha256(self.prompt.encode()).digest()[0] % HELD_OUT_SHARE == 0


def rows(
    split: str, seed: int, count: int, only: tuple[str, ...] = (), weights: Mapping[str, float] | None = None, stretch: int = 1
) -> Iterator[Task]:
    """`count` tasks of a split ("train" or "held-out") in an order that the seed gives; `only` limits the kinds, `weights` says how often
    each of them comes in the training split (WEIGHTS where it says nothing). Sums have up to 3 * stretch steps and lists up to 14 * stretch
    items (those to sort 7)."""
    kinds, found, index, shares = only or tuple(TASKS), 0, 0, {**WEIGHTS, **(weights or {})}
    while found < count:
        dice = random.Random(f"{seed}/{index}")
        kind = kinds[index % len(kinds)] if split == "held-out" else dice.choices(kinds, [shares.get(one, 1.0) for one in kinds])[0]
        task = TASKS[kind](dice, stretch)
        index += 1
        if task.held_out == (split == "held-out"):
            found += 1
            yield task


def _task(kind: str, prompt: str, answer: str, check: Any) -> Task:
    return Task(kind, prompt + "\n", answer, json.dumps(check))


def _arithmetic(dice: random.Random, stretch: int) -> Task:
    """Two or three steps and more where stretched; every intermediate result stays within 0..999."""
    name, thing, total = dice.choice(NAMES), dice.choice(THINGS), dice.randint(2, 60)
    told, worked = [f"{name} has {total} {thing}."], []
    for step in range(dice.choice((2, 2, 3)) if stretch == 1 else dice.randint(2, 3 * stretch)):
        sign = dice.choice("+-*" if step == 0 and total <= 20 else "+-")
        if sign == "-" and total < 2:
            sign = "+"
        amount = dice.randint(2, 9) if sign == "*" else dice.randint(1, min(total, 60) if sign == "-" else 60)
        after = total * amount if sign == "*" else total + amount if sign == "+" else total - amount
        told.append(dice.choice(_STORIES[sign]).format(n=amount, thing=thing))
        worked.append(f"{total} {sign} {amount} = {after}")
        total = after
    told.append(f"How many {thing} does {name} have now?")
    return _task("arithmetic", " ".join(told), "\n".join([*worked, f"answer: {total}"]), total)


_STORIES = {
    "+": ("Then {n} more arrive.", "A friend brings {n} {thing}.", "Next, {n} {thing} are bought."),
    "-": ("Then {n} are lost.", "A friend takes {n} {thing}.", "Next, {n} {thing} are sold."),
    "*": ("Then the number grows {n} times.",),
}


def _items(dice: random.Random, least: int = 4, most: int = 14, stretch: int = 1) -> list[str]:
    return dice.sample(WORDS, dice.randint(least, min(most * stretch, len(WORDS) - 1)))


def _listing(kind: str, order: str, items: list[str], answer: list[str]) -> Task:
    return _task(kind, f"{order}: {' '.join(items)}", " ".join(answer), answer)


def _copy(dice: random.Random, stretch: int) -> Task:
    items = _items(dice, stretch=stretch)
    return _listing("copy", "Copy the list", items, items)


def _reverse(dice: random.Random, stretch: int) -> Task:
    items = _items(dice, stretch=stretch)
    return _listing("reverse", "Reverse the list", items, items[::-1])


def _sort(dice: random.Random, stretch: int) -> Task:
    items = _items(dice, 3, 7)
    return _listing("sort", "Sort the list", items, sorted(items))


def _insert(dice: random.Random, stretch: int) -> Task:
    items = _items(dice, 4, 12, stretch)
    fresh, anchor = dice.choice([word for word in WORDS if word not in items]), dice.choice(items)
    at = items.index(anchor) + 1
    return _listing("insert", f"Insert {fresh} after {anchor}", items, [*items[:at], fresh, *items[at:]])


def _remove(dice: random.Random, stretch: int) -> Task:
    items = _items(dice, 5, 14, stretch)
    gone = dice.choice(items)
    return _listing("remove", f"Remove {gone}", items, [word for word in items if word != gone])


def _replace(dice: random.Random, stretch: int) -> Task:
    items = _items(dice, stretch=stretch)
    gone, fresh = dice.choice(items), dice.choice([word for word in WORDS if word not in items])
    return _listing("replace", f"Replace {gone} with {fresh}", items, [fresh if word == gone else word for word in items])


def _shuffle(dice: random.Random, stretch: int) -> Task:
    items = _items(dice, 4, 10, stretch)
    mixed = items
    while mixed == items:
        mixed = dice.sample(items, len(items))
    return _listing("shuffle", "Shuffle the list", items, mixed)


_FIELDS: dict[str, tuple[str, Callable[[random.Random], Any], str]] = {
    "name": ("text", lambda dice: dice.choice(NAMES), "called {}"),
    "age": ("integer", lambda dice: dice.randint(18, 79), "aged {}"),
    "city": ("text", lambda dice: dice.choice(CITIES), "from {}"),
    "pet": ("text", lambda dice: dice.choice(WORDS[:22]), "with a {}"),
    "member": ("boolean", lambda dice: dice.random() < 0.5, "{} member"),
    "items": ("integer", lambda dice: dice.randint(1, 40), "owning {} items"),
}


def _record(dice: random.Random, stretch: int) -> Task:
    chosen = ["name", *dice.sample(list(_FIELDS)[1:], dice.randint(1, 3))]
    told = dice.sample(chosen, len(chosen))  # described in one order, asked for in another
    record = {field: _FIELDS[field][1](dice) for field in chosen}
    schema = ", ".join(f"{field}: {_FIELDS[field][0]}" for field in chosen)
    facts = ", ".join(_FIELDS[field][2].format(_said(record[field])) for field in told)
    return _task("json", f"Write the JSON record {{{schema}}} of a person {facts}", json.dumps(record), record)


def _said(value: Any) -> str:
    return ("a" if value else "no") if isinstance(value, bool) else str(value)


_FUNCTIONS: tuple[tuple[str, str, str, Callable[[int, int], list[Any]]], ...] = (
    ("returns x plus {a}", "x", "return x + {a}", lambda a, b: [1, 7, a]),
    ("returns x times {a} minus {b}", "x", "return x * {a} - {b}", lambda a, b: [0, 3, b]),
    ("returns True if x is greater than {a}", "x", "return x > {a}", lambda a, b: [a - 1, a, a + 1]),
    ("returns the larger of x and {a}", "x", "return max(x, {a})", lambda a, b: [a - 2, a, a + 5]),
    ("returns x limited to the range {a} to {c}", "x", "return min(max(x, {a}), {c})", lambda a, b: [a - 1, a + 1, a + b + 9]),
    ("counts the items greater than {a}", "items", "return len([n for n in items if n > {a}])", lambda a, b: [[], [a, a + 1, a + 2], [0]]),
    ("adds up the items and {a}", "items", "return sum(items) + {a}", lambda a, b: [[], [1, 2], [b]]),
    ("multiplies each item by {a}", "items", "return [n * {a} for n in items]", lambda a, b: [[], [1, 2], [b, 0]]),
    ("keeps the items smaller than {a}", "items", "return [n for n in items if n < {a}]", lambda a, b: [[], [a, a - 1, 0], [99]]),
    ("returns the first {a} items", "items", "return items[:{a}]", lambda a, b: [[], list(range(12)), [b]]),
    ("drops the last {a} items", "items", "return items[:-{a}]", lambda a, b: [[], list(range(12)), [b]]),
    ("returns the largest item minus {a}", "items", "return max(items) - {a}", lambda a, b: [[1], [3, 9, 2], [a, b]]),
)


def _code(dice: random.Random, stretch: int) -> Task:
    told, argument, body, inputs = dice.choice(_FUNCTIONS)
    a, b = dice.randint(1, 9), dice.randint(1, 9)
    numbers = {"a": a, "b": b, "c": a + b}
    name = dice.choice(("solve", "run", "work", "apply", "f"))
    source = f"def {name}({argument}):\n    {body.format(**numbers)}"
    check = {"name": name, "inputs": inputs(a, b), "source": source}
    return _task("code", f"Write a Python function {name}({argument}) that {told.format(**numbers)}", source, check)


TASKS: dict[str, Callable[[random.Random, int], Task]] = {
    "arithmetic": _arithmetic,
    "copy": _copy,
    "reverse": _reverse,
    "sort": _sort,
    "insert": _insert,
    "remove": _remove,
    "replace": _replace,
    "shuffle": _shuffle,
    "json": _record,
    "code": _code,
}
WEIGHTS = {"arithmetic": 5.0, "json": 1.0, "code": 1.0}


def write(
    output: Path,
    split: str,
    seed: int,
    count: int,
    only: tuple[str, ...] = (),
    weights: Mapping[str, float] | None = None,
    stretch: int = 1,
) -> None:
    """Write rows() to a Parquet file. Raises SettingError for an unknown split or kind, a weight below 0, or a stretch below 1."""
    if split not in SPLITS:
        raise SettingError(f"split {split!r} is unknown; {nearest(split, list(SPLITS))}")
    if strange := [kind for kind in (*only, *(weights or {})) if kind not in TASKS]:
        raise SettingError(f"task {strange[0]!r} is unknown; {nearest(strange[0], list(TASKS))}")
    if wrong := [kind for kind, weight in (weights or {}).items() if not 0 <= weight < math.inf]:
        raise SettingError(f"the weight of {wrong[0]!r} is {(weights or {})[wrong[0]]}; a number of at least 0 is needed")
    if not sum({**WEIGHTS, **(weights or {})}.get(kind, 1.0) for kind in only or TASKS):
        raise SettingError("every kind has weight 0, so there is nothing to write; give one of them more")
    if stretch < 1:
        raise SettingError(f"stretch is {stretch}; a whole number of at least 1 is needed")
    made(output.parent)
    if output.is_dir():
        raise SettingError(f"{output} is a folder; name a file, such as {output / 'tasks.parquet'}")
    pq.write_table(pa.Table.from_pylist([asdict(task) for task in rows(split, seed, count, only, weights, stretch)]), output)
