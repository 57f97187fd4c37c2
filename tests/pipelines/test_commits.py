"""The exactly-once log: killed anywhere, resumed, raced, tampered with."""

import json
import os
import random
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import commit_rig
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commit_rig import POINTS, Rig, prompts, write_rows

from drawloom.errors import DrawloomError, SettingError
from drawloom.jobs.status import status
from drawloom.jobs.verify import verify
from drawloom.pipelines import commits
from drawloom.pipelines.columns import Columns
from drawloom.pipelines.manifests import part_path
from drawloom.pipelines.rows import RowSettings
from drawloom.pipelines.store import LocalStore

ROWS = 23


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(str(write_rows(tmp_path / "in.parquet", prompts(ROWS))), str(tmp_path / "out"))


def read(output: str) -> list[dict]:
    """All rows as any reader of the folder sees them, without times."""
    return [{**row, "engine": None} for row in pq.read_table(output).to_pylist()]


class Stop(BaseException):
    """Raised by a hook: the process is gone at this point."""


def stop_at(point: str):
    def hook(now: str) -> None:
        if now == point:
            raise Stop

    return hook


def test_runs_once_and_is_then_a_no_op(rig: Rig) -> None:
    job = rig.run()
    assert job.finished
    assert [row["id"] for row in read(rig.output)] == list(range(ROWS))  # in input order
    before = sorted((path, os.stat(path).st_mtime_ns) for path in Path(rig.output).rglob("*") if path.is_file())
    again = rig.open()
    assert again.finished
    assert list(again.pending()) == []
    assert sorted((path, os.stat(path).st_mtime_ns) for path in Path(rig.output).rglob("*") if path.is_file()) == before


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("unit", [0, 3, 5])
def test_stops_at_each_point_and_resumes(rig: Rig, tmp_path: Path, point: str, unit: int) -> None:
    job = rig.open()
    for one in list(job.plan.units())[:unit]:
        job.record(rig.commit(job, one))
    victim = list(job.plan.units())[unit]
    with pytest.raises(Stop):
        rig.commit(rig.open(stop_at(point)), victim)
    kept = set(rig.open().committed())
    # What reached the folder is never generated again, what did not is pending.
    assert (victim.id in kept) == (point != "before_data")
    rig.run()
    unbroken = replace(rig, output=str(tmp_path / "unbroken"))
    unbroken.run()
    assert read(rig.output) == read(unbroken.output)
    assert verify(rig.output, deep=True).ok
    assert verify(rig.output).sums["content"] == verify(unbroken.output).sums["content"]


def test_killed_in_many_rounds_every_row_is_there_once(tmp_path: Path) -> None:
    count, rig = 52, Rig(str(write_rows(tmp_path / "few.parquet", prompts(11))), str(tmp_path / "unbroken"))
    script = [sys.executable, commit_rig.__file__, rig.spec, str(tmp_path / "many"), "7", str(count)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rig.run()
    expected, content = read(rig.output), verify(rig.output).sums["content"]
    for number in range(count):
        output = str(tmp_path / "many" / f"job-{number:03d}")
        verdict = verify(output, deep=True)
        assert verdict.ok, verdict.problems
        assert verdict.sums["content"] == content
        assert read(output) == expected


def test_two_committers_of_a_unit_end_with_one_part_and_its_entry(rig: Rig) -> None:
    job, zombie = rig.open(), rig.open()
    unit = next(job.plan.units())
    first, second = rig.table(job, unit), rig.table(zombie, unit)  # same text, other times
    entry = job.log.commit(unit, first)
    assert zombie.log.commit(unit, second) == entry
    assert zombie.log.adopt(unit) == entry
    rig.run()
    assert verify(rig.output, deep=True).ok


def test_many_committers_at_once(rig: Rig) -> None:
    job = rig.open()
    unit = next(job.plan.units())
    tables = [rig.table(job, unit) for _ in range(8)]
    barrier, entries = threading.Barrier(len(tables)), []

    def work(table: pa.Table) -> None:
        barrier.wait()
        entries.append(job.log.commit(unit, table))

    threads = [threading.Thread(target=work, args=(table,)) for table in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entries) == len(tables)
    assert len(set(map(repr, entries))) == 1
    assert len(list(LocalStore(rig.output).list("part-"))) == 1
    assert list(LocalStore(rig.output).list("_drawloom/tmp/")) == []


def test_a_zombie_after_the_end_changes_nothing(rig: Rig) -> None:
    zombie = rig.open()
    unit = next(zombie.plan.units())
    table = rig.table(zombie, unit)
    rig.run()
    before = read(rig.output)
    zombie.log.commit(unit, table)
    assert read(rig.output) == before
    assert verify(rig.output, deep=True).ok
    assert rig.open().finished


def test_two_drivers_at_once_share_one_plan(rig: Rig) -> None:
    other = replace(rig, rows_per_unit=5)
    ours, theirs = rig.open(), other.open()
    assert theirs.plan.rows_per_unit == ours.plan.rows_per_unit == 4
    for unit in list(theirs.pending())[::2]:
        theirs.record(other.commit(theirs, unit))
    for unit in list(ours.pending())[::3]:
        ours.record(rig.commit(ours, unit))
    other.run()
    assert verify(rig.output, deep=True).ok


def test_the_loser_of_the_start_goes_on_with_the_winners_plan(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = commits.load_job, []

    def blind_at_first(store):  # as if another driver bound the folder just after this one looked
        calls.append(store)
        if len(calls) == 1:
            replace(rig, rows_per_unit=5).open()
            return None
        return real(store)

    monkeypatch.setattr(commits, "load_job", blind_at_first)
    assert rig.open().plan.rows_per_unit == 5


@pytest.mark.parametrize("fold_at", [1, 2, 100])
def test_folded_manifests_count_as_single_ones_do(rig: Rig, monkeypatch: pytest.MonkeyPatch, fold_at: int) -> None:
    monkeypatch.setattr(commits, "FOLD_AT", fold_at)
    job = rig.open()
    for unit in list(job.pending())[:5]:
        job.record(rig.commit(job, unit))
        assert len(list(LocalStore(rig.output).list("_drawloom/manifests/"))) == len(job.entries) % fold_at
        assert status(rig.output).sums["units"] == len(job.entries)
    assert rig.open().committed() == job.committed()
    rig.run()
    assert list(LocalStore(rig.output).list("_drawloom/manifests/")) == []
    assert verify(rig.output, deep=True).ok


def test_a_resume_reads_few_objects_however_many_units_there_are(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "FOLD_AT", 8)
    many = replace(rig, rows_per_unit=1)
    job = many.open()
    for unit in list(job.pending())[:20]:
        job.record(many.commit(job, unit))
    seen: list[str] = []
    real = LocalStore.read

    def count(self: LocalStore, path: str) -> bytes:
        seen.append(path)
        return real(self, path)

    monkeypatch.setattr(LocalStore, "read", count)
    assert len(many.open().committed()) == 20
    assert len(seen) == 2 + 20 // 8 + 20 % 8  # job and plan, folded logs, single manifests: no part


def test_a_crash_between_log_and_deletion_leaves_equal_copies(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    job = rig.open()
    for unit in list(job.pending())[:3]:
        job.record(rig.commit(job, unit))

    def die(self: LocalStore, paths: object) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", die)
        with pytest.raises(Stop):
            job.fold()
    assert status(rig.output).sums["units"] == 3
    rig.run()
    verdict = verify(rig.output, deep=True)
    assert verdict.ok, verdict.problems


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"config": {"sampling": {"temperature": 0.5}}}, "sampling.temperature is 1.0 there, 0.5 here"),
        ({"config": {"sampling": {"temperature": 1.0, "n": 2}}}, "sampling.n is None there, 2 here"),
        ({"model": "other"}, "model_fingerprint is 'fake' there, 'other' here"),
        ({"code": "2"}, "code_version is '1' there, '2' here"),
        ({"settings": RowSettings(columns=Columns(output_prefix="x_"))}, "columns.output_prefix is '' there, 'x_' here"),
    ],
)
def test_refuses_another_job_and_says_which_key(rig: Rig, change: dict, named: str) -> None:
    rig.open()
    with pytest.raises(SettingError, match=named):
        replace(rig, **change).open()
    rig.run()
    with pytest.raises(SettingError, match=named):
        replace(rig, **change).open()


def test_operational_settings_may_change(rig: Rig) -> None:
    job = rig.open()
    job.record(rig.commit(job, next(job.pending())))
    replace(rig, rows_per_unit=9).run()
    assert verify(rig.output).ok


def test_refuses_a_changed_input(rig: Rig) -> None:
    rig.open()
    path = Path(rig.spec)
    os.utime(path, ns=(1, 1))  # touched, not changed
    assert rig.open().plan.num_rows == ROWS
    rows = prompts(ROWS)
    rows[7]["prompt"] = "prompt number X"  # as long as before
    write_rows(path, rows)
    with pytest.raises(SettingError, match=r"in\.parquet has changed"):
        rig.open()


def test_refuses_added_and_missing_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_rows(tmp_path / "in" / f"{name}.parquet", prompts(3))
    rig = Rig(str(tmp_path / "in"), str(tmp_path / "out"))
    rig.open()
    write_rows(tmp_path / "in" / "c.parquet", prompts(3))
    with pytest.raises(SettingError, match=r"c\.parquet is new"):
        rig.open()
    (tmp_path / "in" / "c.parquet").unlink()
    (tmp_path / "in" / "b.parquet").unlink()
    with pytest.raises(SettingError, match=r"b\.parquet is gone"):
        rig.open()


def test_a_moved_input_resumes_with_the_same_seeds(rig: Rig, tmp_path: Path) -> None:
    job = rig.open()
    job.record(rig.commit(job, next(job.pending())))
    (tmp_path / "elsewhere").mkdir()
    moved = Path(rig.spec).rename(tmp_path / "elsewhere" / "in.parquet")
    replace(rig, spec=str(moved)).run()
    unbroken = replace(rig, spec=str(moved), output=str(tmp_path / "unbroken"))
    unbroken.run()
    assert read(rig.output) == read(unbroken.output)


def test_refuses_a_folder_with_files_of_others(rig: Rig) -> None:
    write_rows(Path(rig.output) / "theirs.parquet", prompts(2))
    with pytest.raises(SettingError, match=r"holds theirs\.parquet, which no job wrote"):
        rig.open()


def test_a_foreign_part_under_our_name_is_not_adopted(rig: Rig) -> None:
    job = rig.open()
    unit = next(job.pending())
    write_rows(Path(rig.output) / part_path(unit.id), prompts(4))
    with pytest.raises(DrawloomError, match="not written by this job"):
        rig.commit(job, unit)
    with pytest.raises(DrawloomError, match="not written by this job"):
        rig.open()


def test_a_deleted_part_is_made_again(rig: Rig) -> None:
    job = rig.run()
    unit = list(job.plan.units())[2]
    (Path(rig.output) / part_path(unit.id)).unlink()
    verdict = verify(rig.output)
    assert [problem for problem in verdict.problems if unit.id in problem and "gone" in problem]
    assert [one.id for one in rig.open().pending()] == [unit.id]
    rig.run()
    assert verify(rig.output, deep=True).ok
    assert len(read(rig.output)) == ROWS


def test_finish_refuses_while_units_are_missing(rig: Rig) -> None:
    job = rig.open()
    job.record(rig.commit(job, next(job.pending())))
    with pytest.raises(DrawloomError, match="5 of 6 units have no part"):
        job.finish()
    assert not (Path(rig.output) / "_SUCCESS").exists()


def test_the_content_hash_ignores_unit_size_and_order(rig: Rig, tmp_path: Path) -> None:
    contents = set()
    for number, rows_per_unit in enumerate((1, 4, 10, 100)):
        one = replace(rig, output=str(tmp_path / str(number)), rows_per_unit=rows_per_unit)
        one.run(order=random.Random(number))
        contents.add(json.loads((Path(one.output) / "_SUCCESS").read_text())["content"])
        assert [row["seed"] for row in sorted(read(one.output), key=lambda row: row["id"])] == [row["seed"] for row in read(one.output)]
    assert len(contents) == 1


def test_the_content_hash_sees_one_changed_token(rig: Rig, tmp_path: Path) -> None:
    changed = replace(rig, output=str(tmp_path / "changed"), settings=RowSettings(seed=1))
    rig.run()
    changed.run()
    assert verify(rig.output).sums["content"] != verify(changed.output).sums["content"]


def test_the_log_is_picklable(rig: Rig) -> None:
    import pickle

    job = rig.open()
    log = pickle.loads(pickle.dumps(job.log))
    unit = pickle.loads(pickle.dumps(next(job.pending())))
    assert log.commit(unit, rig.table(job, unit)).unit == unit.id
