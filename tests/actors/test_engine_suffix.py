"""Drafters that remember other texts: same texts as without them, fewer forwards the second time, bounded memory."""

import resource

import pytest
import torch
from rig import engine, ids, request, run

from drawloom.decoders.recipes import build
from drawloom.decoders.recycling import RANKS, Successors, shape_of
from drawloom.decoders.suffix import LEAST_ROOM, SuffixMemory, Trail
from drawloom.errors import SettingError
from drawloom.models.hash_lm import HashLM

FREE = {"max_tokens": 60, "temperature": 0.9, "ignore_eos": True}


def asked(decoder: str, count: int, params: dict | None = None) -> list:
    return [request(f"{decoder} {k}", [1, 2, 3, k], decoder, k, params or {}, **FREE) for k in range(count)]


def test_what_was_said_once_is_drafted_the_second_time() -> None:
    machine = engine(HashLM(3), max_sequences=4)
    first = run(machine, asked("suffix", 6))
    again = run(machine, asked("suffix", 6))
    plain = run(machine, asked("ar", 6))
    for k in range(6):
        assert ids(first[f"suffix {k}"]) == ids(again[f"suffix {k}"]) == ids(plain[f"ar {k}"])
    assert sum(one.stats.forwards for one in again.values()) < 0.4 * sum(one.stats.forwards for one in first.values())


def test_recycled_successors_save_forwards_from_the_first_text_on() -> None:
    model = HashLM(3, sway=40.0)
    machine = engine(model, max_sequences=4)
    done, plain = run(machine, asked("recycling", 8)), run(machine, asked("ar", 8))
    assert all(ids(done[f"recycling {k}"]) == ids(plain[f"ar {k}"]) for k in range(8))
    assert sum(one.stats.forwards for one in done.values()) < 0.9 * sum(one.stats.forwards for one in plain.values())
    (memory,) = machine.planner.memories.values()
    assert isinstance(memory, Successors)
    assert memory.table.shape == (model.info.vocab_size, len(RANKS))
    assert int(memory.table.max()) < model.info.vocab_size


def test_successors_begin_with_texts() -> None:
    memory = Successors(10)
    memory.feed([[3, 4, 5], [9]])
    assert memory.table[:, 0].tolist() == [-1, -1, -1, 4, 5, -1, -1, -1, -1, -1]


def test_texts_of_another_tokenizer_are_refused() -> None:
    with pytest.raises(SettingError, match="token ids up to 64, and hash-3 knows 64"):
        engine(HashLM(3), past=[[1, 2], [], [64]])


def test_the_shape_of_a_tree() -> None:
    """Likeliest prefixes first: a parent stands before its children, and no prefix comes twice."""
    parents, ranks, depths = shape_of(40, 4)
    assert len(parents) == 41
    assert all(parent < row and depths[row] == depths[parent] + 1 for row, parent in enumerate(parents) if row)
    assert len({(parent, rank) for parent, rank in zip(parents[1:], ranks[1:], strict=True)}) == 40
    assert max(depths) == 4
    assert (parents[:3], ranks[:3]) == ([0, 0, 1], [0, 0, 0])


def test_recipes_with_another_width_share_the_memory() -> None:
    machine = engine(HashLM(3))
    run(machine, asked("suffix", 4))
    narrow = run(machine, asked("suffix", 4, {"width": 4}))
    assert len(machine.planner.memories) == 1
    assert sum(one.stats.accepted for one in narrow.values()) > 100


def test_an_engine_begins_with_the_texts_of_another() -> None:
    done = run(engine(HashLM(3)), asked("ar", 5))
    texts = [ids(one) for one in done.values()]
    cold, warm = (run(engine(HashLM(3), past=past), asked("suffix", 5)) for past in ((), texts))
    assert [ids(one) for one in warm.values()] == texts
    assert sum(one.stats.forwards for one in warm.values()) < 0.4 * sum(one.stats.forwards for one in cold.values())


def test_a_small_memory_forgets_and_changes_nothing() -> None:
    machine = engine(HashLM(3), max_sequences=5)
    params = {"memory": LEAST_ROOM}
    for round_ in range(8):
        some = [request(f"{round_} {k}", [round_, k], "suffix", k, params, **FREE) for k in range(12)]
        plain = [request(f"ar {round_} {k}", [round_, k], "ar", k, **FREE) for k in range(12)]
        done = run(machine, [*some, *plain])
        assert all(ids(done[f"{round_} {k}"]) == ids(done[f"ar {round_} {k}"]) for k in range(12))
    (memory,) = machine.planner.memories.values()
    assert isinstance(memory, SuffixMemory)
    assert memory.generation >= 4
    assert memory.tokens <= LEAST_ROOM


def test_what_stands_behind_an_end_is_not_remembered() -> None:
    model = HashLM(5, sway=4.0)
    machine = engine(model)
    done = run(machine, [request(f"{k}", [k], "suffix", k, max_tokens=60, temperature=1.2) for k in range(20)])
    (memory,) = machine.planner.memories.values()
    assert isinstance(memory, SuffixMemory)
    assert memory.tokens == sum(len(ids(one)) + (one.samples[0].finish_reason == "stop") for one in done.values())


def churn(requests: int, room: int) -> SuffixMemory:
    """As many short texts as requests, a thousand at a time, each with words of its own."""
    memory, generator = SuffixMemory(room), torch.Generator().manual_seed(0)
    for _ in range(requests // 1000):
        trail = Trail(torch.zeros(1000).long(), torch.full((1000,), -1))
        for _ in range(2):
            trail = memory.add(torch.randint(30_000, (1000, 4), generator=generator), torch.full((1000,), 4), trail)
        assert memory.tokens <= room
    return memory


@pytest.mark.parametrize("requests", [60_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_20_the_memory_bound_holds(requests: int) -> None:
    room = 100_000
    churn(20_000, room)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = churn(requests, room)
    assert memory.generation >= requests * 8 // room - 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000  # KiB; the texts alone are more


@pytest.mark.parametrize(
    ("params", "says"), [({"memory": 10}, "at least 2048"), ({"share": 0.0}, "share is 0.0"), ({"width": 0}, "width is 0")]
)
def test_settings_that_cannot_work_are_refused(params: dict, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        build("suffix", params, None)
