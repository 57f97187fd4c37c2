"""Progress as numbers and as lines."""

import io
import time

import pytest
from rich.console import Console

from drawloom.actors.keeper import ReplicaStats
from drawloom.actors.request import EngineStats
from drawloom.pipelines import progress
from drawloom.pipelines.board import ReplicaSeen, Snapshot
from drawloom.pipelines.manifests import Entry
from drawloom.pipelines.progress import Tally, duration, shown
from drawloom.pipelines.receipts import Receipt


def receipt(rows: int = 8, errors: int = 0, slowest=()) -> Receipt:
    codes = {"too_long": errors} if errors else {}
    entry = Entry("u", 0, rows, rows - errors, errors, "0", 1, "0", 100, 90, 30, 80, 60, codes)
    return Receipt(entry, slowest)


def snapshot(finished: int, tokens: int, deaths: int = 0) -> Snapshot:
    stats = ReplicaStats(EngineStats(finished=finished, tokens=tokens), deaths=deaths)
    return Snapshot({"a": ReplicaSeen(stats, None, 0.0, finished)}, {}, 1, None)


def test_figures_add_up_receipts_and_speak_of_this_run() -> None:
    tally = Tally(total_rows=100, done_rows=20, began_s=time.monotonic() - 10)
    tally.committed(receipt(8, 1, ((2.0, 5, "f", 3), (1.0, 5, "f", 4))))
    tally.committed(receipt(8, 2, ((9.0, 5, "f", 30),)))
    tally.seen(snapshot(finished=20, tokens=400, deaths=2))
    found = tally.figures()
    assert (found.rows, found.total_rows, found.errors) == (36, 100, 3)
    assert found.error_codes == {"too_long": 3}
    assert found.tokens_per_forward == 3.0
    assert found.acceptance == 0.75
    assert found.slowest[0] == (9.0, 5, "f", 30)
    assert found.tokens_per_s == pytest.approx(40, rel=0.1)
    assert found.eta_s == pytest.approx(60 / 2, rel=0.1)  # 80 rows of this run, 20 of them through the engines, two a second
    for words in ("36 committed", "40/100 rows", "3 errors", "3.00 tok/forward", "75% accepted", "2 engine restarts", "ETA 0:30"):
        assert words in found.line()


def test_nothing_is_made_up_before_anything_is_known() -> None:
    found = Tally(total_rows=100, done_rows=0).figures()
    assert (found.eta_s, found.tokens_per_forward, found.acceptance, found.tokens_per_s) == (None, None, None, 0.0)
    assert "starting" in found.line()
    assert "ETA -:--" in found.line()


@pytest.mark.parametrize(("seconds", "words"), [(None, "-:--"), (5, "0:05"), (95.4, "1:35"), (3600, "1:00:00"), (90061, "25:01:01")])
def test_durations(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


def test_a_pipe_gets_lines_when_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.05)
    out = io.StringIO()
    tally = Tally(100, 0)
    with shown(tally, "auto", Console(file=out)):
        time.sleep(0.4)
        tally.committed(receipt())
        time.sleep(0.4)
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["0/100", "8/100"]


def test_a_terminal_gets_a_bar_and_none_gets_nothing() -> None:
    out, silent = io.StringIO(), io.StringIO()
    with shown(Tally(100, 40), "auto", Console(file=out, force_terminal=True, width=120)):
        time.sleep(0.6)
    assert "40/100" in out.getvalue()
    with shown(Tally(100, 40), "none", Console(file=silent)):
        time.sleep(0.1)
    assert silent.getvalue() == ""
