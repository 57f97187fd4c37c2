"""The page pool keeps its invariants under any order of calls."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from drawloom.models.pages import PagePool
from drawloom.models.runs import Runs


class Pool(RuleBasedStateMachine):
    holds = Bundle("holds")

    def __init__(self):
        super().__init__()
        self.pool = PagePool(12, 4)
        self.held: list[list[int]] = []
        self.meaning: dict[int, int] = {}  # what the content of a page would be, by the key it was named with

    @rule(target=holds, count=st.integers(0, 7), after=st.none() | st.integers(0, 11))
    def take(self, count, after):
        room = self.pool.num_available
        pages = self.pool.take(count, after)
        assert (pages is None) == (count > room)
        pages = pages or []
        assert len(set(pages)) == len(pages)
        in_use = [page for hold in self.held for page in hold]
        assert not set(pages) & set(in_use)
        for page in pages:
            self.meaning.pop(page, None)
        self.held.append(pages)
        return pages

    @rule(target=holds, keys=st.lists(st.integers(0, 5), max_size=4, unique=True))
    def share(self, keys):
        known = self.pool.num_known(keys)
        pages = self.pool.share(keys)
        assert len(pages) == known
        assert [self.meaning[page] for page in pages] == keys[:known]
        self.held.append(pages)
        return pages

    @rule(pages=holds, key=st.integers(0, 5))
    def name(self, pages, key):
        if pages and pages in self.held:
            before = self.pool.num_known([key])
            self.pool.name(pages[0], key)
            if not before and self.pool.num_known([key]) and pages[0] not in self.meaning:
                self.meaning[pages[0]] = key

    @rule(pages=consumes(holds))
    def give_back(self, pages):
        self.held.remove(pages)
        self.pool.give_back(pages)

    @rule()
    def forget(self):
        self.pool.forget()
        in_use = {page for hold in self.held for page in hold}
        self.meaning = {page: key for page, key in self.meaning.items() if page in in_use}

    @invariant()
    def sound(self):
        self.pool.check()
        in_use = {page for hold in self.held for page in hold}
        assert self.pool.num_held == len(in_use)
        assert self.pool.num_available == 12 - len(in_use)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_pages_follow_each_other_when_they_can():
    pool = PagePool(10, 4)
    first = pool.take(2)
    assert first == [0, 1]
    second = pool.take(1)
    assert second is not None
    assert second[0] > 2  # room is left for the first to grow
    assert pool.take(1, after=1) == [2]


def test_prefixes_are_evicted_from_their_ends():
    pool = PagePool(3, 4)
    pages = pool.take(3)
    assert pages is not None
    for page, key in zip(pages, "abc", strict=True):
        pool.name(page, key)
    pool.give_back(pages)
    assert pool.take(1) == [pages[2]]
    assert pool.share("abc") == pages[:2]


def test_a_pool_of_millions_answers_at_once():
    """Work does not grow with the pool: 2,000 sequences come and go in a pool of eight million pages."""
    pool = PagePool(8_000_000, 16)
    steps, real = 0, Runs._put

    def counted(self, start, length):
        nonlocal steps
        steps += 1
        real(self, start, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runs, "_put", counted)
        held = [pool.take(3) for _ in range(2000)]
        for pages in held:
            pool.give_back(pages or [])
    assert steps <= 2000 * 3 * 3
    assert pool.num_available == 8_000_000
    assert pool.take(1) == [0]


@pytest.mark.parametrize("fault", ["_free", "_held"])
def test_check_finds_a_lost_page(fault):
    pool = PagePool(4, 4)
    pool.take(2)
    getattr(pool, fault).take_with_room() if fault == "_free" else getattr(pool, fault).popitem()
    with pytest.raises(AssertionError):
        pool.check()
