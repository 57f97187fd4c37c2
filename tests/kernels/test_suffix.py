"""The suffix automaton against counting by hand, and its native version against the plain one."""

import random
from collections import Counter

import pytest
import torch

from drawloom.kernels import native
from drawloom.kernels.suffix import TOKEN_BYTES, NativeAutomaton, Reference, ReferenceAutomaton, automaton

BOTH = [ReferenceAutomaton, pytest.param(NativeAutomaton, marks=pytest.mark.skipif(bool(native.why_not()), reason="no compiler"))]


def texts_of(rng: random.Random, vocab: int, count: int, longest: int) -> list[list[int]]:
    base = [rng.randrange(vocab) for _ in range(12)]
    return [[rng.choice(base) if rng.random() < 0.7 else rng.randrange(vocab) for _ in range(rng.randrange(longest))] for _ in range(count)]


def occurrences(texts: list[list[int]], run: list[int]) -> list[tuple[int, int]]:
    return [(t, k) for t, text in enumerate(texts) for k in range(len(text) - len(run) + 1) if text[k : k + len(run)] == run]


def by_hand(texts: list[list[int]], tail: list[int]) -> tuple[int, dict[int, int], int]:
    """Longest suffix that is a run somewhere, what followed it how often, and how often it came."""
    for length in range(len(tail), 0, -1):
        if found := occurrences(texts, tail[len(tail) - length :]):
            follows = Counter(texts[t][k + length] for t, k in found if k + length < len(texts[t]))
            return length, dict(follows), len(found)
    return 0, {}, 0


@pytest.mark.parametrize("seed", range(30))
def test_longest_run_and_what_follows_it(seed: int) -> None:
    rng = random.Random(seed)
    vocab = rng.choice([2, 3, 8, 40])
    texts = texts_of(rng, vocab, rng.randrange(1, 8), 30)
    machine = Reference(10_000)
    ends = [0] * len(texts)
    told = [0] * len(texts)
    while left := [t for t, text in enumerate(texts) if told[t] < len(text)]:  # texts grow side by side, some tokens at a time
        t = rng.choice(left)
        size = rng.randrange(1, 5)
        _, (ends[t],) = machine.add([texts[t][told[t] : told[t] + size]], [ends[t]])
        told[t] += size
    for _ in range(40):
        tail = [rng.randrange(vocab + 1) for _ in range(rng.randrange(1, 5))]
        if rng.random() < 0.7 and texts[0]:
            start = rng.randrange(len(texts[0]))
            tail += texts[0][start : start + rng.randrange(1, 12)]
        run, drafted = machine.draft(tail, 1, 0.0)
        length, follows, count = by_hand(texts, tail)
        assert run == length
        if drafted:
            assert follows[drafted[0]] == max(follows.values())
            assert machine.draft(tail, 1, follows[drafted[0]] / count - 1e-9)[1] == drafted
            assert machine.draft(tail, 1, follows[drafted[0]] / count + 1e-9)[1] == []
        else:
            assert not follows


@pytest.mark.skipif(bool(native.why_not()), reason="no compiler")
@pytest.mark.parametrize("seed", range(20))
def test_native_equals_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    vocab, room = rng.choice([2, 5, 300]), rng.choice([40, 300, 5000])
    machines = [NativeAutomaton(room), ReferenceAutomaton(room)]
    lines = 5
    ends = [torch.zeros(lines, dtype=torch.int64) for _ in machines]
    for _ in range(60):
        width = rng.randrange(1, 9)
        tokens = torch.tensor([[rng.randrange(vocab) for _ in range(width)] for _ in range(lines)])
        counts = torch.tensor([rng.randrange(width + 1) for _ in range(lines)])
        done = [machine.add(tokens, counts, end) for machine, end in zip(machines, ends, strict=True)]
        assert done[0] == done[1]
        assert ends[0].tolist() == ends[1].tolist()
        tails = torch.tensor([[rng.randrange(vocab) for _ in range(6)] for _ in range(lines)])
        lengths = torch.tensor([rng.randrange(7) for _ in range(lines)])
        first, second = (machine.draft(tails, lengths, 5, 0.2) for machine in machines)
        assert all(a.tolist() == b.tolist() for a, b in zip(first, second, strict=True))
        assert machines[0].tokens == machines[1].tokens <= room
    states, edges, tokens = machines[0].sizes.tolist()
    assert states <= 2 * tokens + 1
    assert edges <= 3 * tokens + 1


@pytest.mark.parametrize("kind", BOTH)
def test_a_full_automaton_takes_no_more_and_still_answers(kind) -> None:
    machine = kind(6)
    last = torch.zeros(2, dtype=torch.int64)
    assert machine.add(torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]]), torch.tensor([4, 4]), last) == 1
    assert machine.tokens == 6
    matched, num, drafted = machine.draft(torch.tensor([[9, 1, 2]]), torch.tensor([3]), 3, 0.0)
    assert (matched.tolist(), num.tolist()) == ([2], [2])
    assert drafted[0, :2].tolist() == [3, 4]


@pytest.mark.parametrize("text", [[1] * 400, [1, 2] * 200, list(range(400))], ids=["one token", "two tokens", "all different"])
@pytest.mark.parametrize("kind", BOTH)
def test_extreme_texts_fit_their_room(kind, text: list[int]) -> None:
    machine = kind(400)
    last = torch.zeros(1, dtype=torch.int64)
    assert machine.add(torch.tensor([text]), torch.tensor([400]), last) == 1
    matched, num, drafted = machine.draft(torch.tensor([text[:8]]), torch.tensor([8]), 4, 0.5)
    assert matched.tolist() == [8]
    assert num.tolist() == [4]
    assert drafted[0].tolist() == text[8:12]


@pytest.mark.skipif(bool(native.why_not()), reason="no compiler")
def test_memory_is_what_is_told() -> None:
    machine = automaton(10_000)
    assert isinstance(machine, NativeAutomaton)
    assert sum(values.numel() * 4 for values in machine.arrays.values()) <= (10_000 + 50) * TOKEN_BYTES
