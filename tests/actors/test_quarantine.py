"""Bisection without processes: a simulated world in which some rows kill."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawloom.actors.quarantine import DEATHS_ALONE, Suspects, blame, next_group


def investigate(rows: list[str], killers: set[str]) -> tuple[list[str], set[str], int]:
    """(rows that completed, rows convicted, deaths) when a group dies whole as soon as it holds a killer."""
    state, convicted, done, deaths = Suspects(), set(), [], 0
    state, _ = blame(state, rows)
    while True:
        state, group = next_group(state)
        if not group:
            return done, convicted, deaths
        if killers & set(group):
            deaths += 1
            state, convict = blame(state, group)
            convicted |= {convict} if convict else set()
        else:
            done += group


@given(st.integers(2, 300), st.data())
def test_killers_are_convicted_and_nobody_else(num_rows: int, data: st.DataObject) -> None:
    rows = [str(place) for place in range(num_rows)]
    killers = set(data.draw(st.lists(st.sampled_from(rows), max_size=5)))
    done, convicted, deaths = investigate(rows, killers)
    assert convicted == killers
    assert sorted(done) == sorted(set(rows) - killers)
    assert deaths <= len(killers) * (math.ceil(math.log2(num_rows)) + DEATHS_ALONE)


def test_one_accident_convicts_nobody() -> None:
    state, convict = blame(Suspects(), ["a"])
    assert convict is None
    state, group = next_group(state)
    assert group == ("a",)
    assert next_group(state) == (Suspects(), ())  # it completed: forgotten


def test_only_rows_that_did_not_complete_are_suspected_further() -> None:
    state, _ = blame(Suspects(), ["a", "b", "c", "d"])
    state, group = next_group(state)
    assert group == ("a", "b")
    state, _ = blame(state, ["b"])  # a had completed before the death
    assert next_group(state)[1] == ("b",)


@pytest.mark.parametrize("state", [Suspects(), Suspects((("a",),), {"a": 1})])
def test_an_idle_death_blames_nobody(state: Suspects) -> None:
    assert blame(state, []) == (state, None)
