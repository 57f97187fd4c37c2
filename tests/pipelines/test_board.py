"""What the board counts, and when a round is given up."""

import asyncio

from drawloom.actors.fake import FakeText
from drawloom.actors.keeper import ReplicaStats
from drawloom.actors.request import Completion, Request, Stats
from drawloom.errors import DrawloomError, SettingError
from drawloom.pipelines.board import Board, ReplicaSeen, Snapshot, stalled
from drawloom.pipelines.quarantine import ROW_TRIES, ReadGuard, one_by_one, reading


def seen(**ages_s: float) -> dict[str, ReplicaSeen]:
    return {name: ReplicaSeen(ReplicaStats(), None, age_s, 0) for name, age_s in ages_s.items()}


def snapshot(open_units: dict[str, str], **ages_s: float) -> Snapshot:
    return Snapshot(seen(**ages_s), open_units, len(ages_s), None)


def test_starts_are_counted_across_replicas() -> None:
    board = Board()
    assert [board.start("u", "a"), board.start("u", "b"), board.start("v", "a")] == [1, 2, 1]
    board.end("u", "b", 7)
    found = board.snapshot()
    assert found.open_units == {"v": "a"}
    board.join("b", None)
    assert board.snapshot().replicas["b"].rows == 7


def test_a_restarted_replica_has_nothing_open() -> None:
    board = Board()
    for unit, replica in (("u", "a"), ("v", "b")):
        board.join(replica, None)
        board.start(unit, replica)
    board.join("a", "new handle")
    found = board.snapshot()
    assert found.open_units == {"v": "b"}
    assert (found.num_starts, found.replicas["a"].handle) == (3, "new handle")


def test_the_first_failure_stands() -> None:
    board = Board()
    first = SettingError("no such model")
    board.fail(first)
    board.fail(DrawloomError("something that followed from it"))
    assert board.snapshot().failure is first


def test_a_round_is_given_up_when_only_the_silent_hold_units() -> None:
    assert stalled(snapshot({"u": "a"}, a=100.0, b=0.1), patience_s=60)
    assert not stalled(snapshot({"u": "a"}, a=10.0, b=0.1), patience_s=60)
    assert not stalled(snapshot({"u": "a", "v": "b"}, a=100.0, b=0.1), patience_s=60)  # b still moves
    assert not stalled(snapshot({}, a=100.0), patience_s=60)  # nothing is being worked on
    assert not stalled(snapshot({"u": "x"}), patience_s=60)  # not known yet


def test_a_row_that_took_the_replica_down_is_not_tried_for_ever() -> None:
    tried = {"r1": ROW_TRIES}  # by replicas that are gone
    requests = [Request(f"r{place}", FakeText().encode("x")) for place in range(3)]
    ran = []

    async def submit(batch) -> list[Completion]:
        ran.extend(request.id for request in batch)
        return [Completion(request.id, (), 1, Stats()) for request in batch]

    async def try_row(row: str) -> int:
        tried[row] = tried.get(row, 0) + 1
        return tried[row]

    async def end_row(row: str) -> None:
        del tried[row]

    for _ in range(ROW_TRIES + 1):  # rows that complete may be run again by any number of later replicas
        ran.clear()
        tried["r1"] = ROW_TRIES
        done = asyncio.run(one_by_one(requests, submit, try_row, end_row))
    assert ran == ["r0", "r2"]
    assert [completion.id for completion in done] == ["r0", "r1", "r2"]
    assert done[1].error is not None
    assert done[1].error[0] == "killed_replica"
    assert f"lost {ROW_TRIES} times" in done[1].error[1]


def test_a_row_that_took_its_reader_down_is_not_rendered_again() -> None:
    board = Board()
    guard, found = ReadGuard(board.try_row, board.end_row), None
    for _ in range(3):  # readers that die while they render r1; what they rendered before does not count against it
        guard = ReadGuard(board.try_row, board.end_row)
        assert guard("r0") is None
        found = guard("r1")
    assert found is not None
    assert found.code == "killed_reader"
    assert guard("r2") is None
    guard.close()
    assert board.try_row(reading("r2")) == 1
