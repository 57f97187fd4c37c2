"""Verify and status: an untouched output passes, every way of tampering is named, and both say where a job stands."""

import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from commit_rig import Rig, prompts, write_rows
from rich.console import Console

from drawloom.errors import DrawloomError, SettingError
from drawloom.jobs import status as status_job
from drawloom.jobs import verify as verify_job
from drawloom.jobs.status import status
from drawloom.jobs.verify import verify
from drawloom.pipelines.ledger import LOG, MANIFESTS
from drawloom.pipelines.manifests import dump_entries, load_entries, part_path

ROWS = 10
IDS = [f"{number:08d}" for number in range(3)]  # what unit ids start with


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rows = prompts(ROWS)
    rows[4]["prompt"] = None
    return Rig(str(write_rows(tmp_path / "in.parquet", rows)), str(tmp_path / "out"))


@pytest.fixture
def output(rig: Rig) -> Path:
    rig.run()
    return Path(rig.output)


def part(output: Path, number: int) -> Path:
    return next(output.glob(f"part-{IDS[number]}*"))


def rewrite_entries(output: Path, change: Callable[[dict], None]) -> None:
    """Alter the entry of the second unit in the log."""
    (log,) = (output / LOG).iterdir()
    entries = load_entries(log.read_bytes(), log.name)
    fields = {name: getattr(entries[1], name) for name in entries[1].__dataclass_fields__}
    change(fields)
    log.write_bytes(dump_entries([entries[0], type(entries[1])(**fields), *entries[2:]]))


def test_an_untouched_output_passes(output: Path) -> None:
    for deep in (False, True):
        verdict = verify(str(output), deep)
        assert verdict.ok, verdict.problems
        assert (verdict.sums["rows"], verdict.sums["completed"], verdict.sums["errors"], verdict.units) == (10, 9, 1, 3)
    shutil.move(output, output.with_name("moved"))  # without input or model, wherever it lies
    shutil.rmtree(output.with_name("in.parquet"), ignore_errors=True)
    assert verify(str(output.with_name("moved")), deep=True).ok


def flip_a_byte(output: Path) -> None:
    data = bytearray(part(output, 1).read_bytes())
    data[50] ^= 1
    part(output, 1).write_bytes(data)


def replace_by_another_jobs_part(output: Path) -> None:
    """The same unit of a job with another seed: a whole part with the right rows."""
    spec = str(output.parent / "in.parquet")
    other = Rig(spec, str(output.parent / "other"), config={"seed": 2})
    other.run()
    shutil.copy(part(Path(other.output), 1), part(output, 1))


TAMPERING: list[tuple[Callable[[Path], object], str, bool]] = [  # what is done, what is said, whether only `deep` can see it
    (lambda output: part(output, 1).unlink(), f"unit {IDS[1]}.*: the part is gone", False),
    (lambda output: part(output, 1).write_bytes(b"x"), f"unit {IDS[1]}.*: the part has 1 bytes, its entry says", False),
    (lambda output: shutil.copy(part(output, 1), output / "copy.parquet"), "copy.parquet belongs to no unit", False),
    (lambda output: shutil.copy(part(output, 1), output / "part-00000009-00000000.parquet"), "part-00000009.* belongs to no unit", False),
    (lambda output: (output / "deep").mkdir() or shutil.copy(part(output, 1), output / "deep"), "deep/part-.* belongs to no unit", False),
    (lambda output: (output / "_SUCCESS").unlink(), "not finished: there is no _SUCCESS", False),
    (lambda output: (output / "_SUCCESS").write_text('{"rows": 9}'), "_SUCCESS says rows 9, the entries 10", False),
    (lambda output: rewrite_entries(output, lambda entry: entry.update(rows=5)), "with 5 rows", False),
    (lambda output: rewrite_entries(output, lambda entry: entry.update(completed=4)), "4 completed and 1 failed do not make 4 rows", False),
    (lambda output: rewrite_entries(output, lambda entry: entry.update(unit="u9")), f"unit {IDS[1]}.*: the part has no entry", False),
    (lambda output: rewrite_entries(output, lambda entry: entry.update(content="0" * 32)), "_SUCCESS says content", False),
    (lambda output: rewrite_entries(output, lambda entry: entry.update(data_sha256="0" * 64)), "data_sha256 differ from its entry", True),
    (flip_a_byte, f"unit {IDS[1]}.*: ", True),
    (replace_by_another_jobs_part, "was not written by this job|bytes, its entry says", True),
]


@pytest.mark.parametrize(("tamper", "words", "only_deep"), TAMPERING)
def test_tampering_is_named(output: Path, tamper: Callable[[Path], object], words: str, only_deep: bool) -> None:
    tamper(output)
    verdict = verify(str(output), deep=only_deep)
    assert not verdict.ok
    assert len(verdict.problems) <= 3
    assert any(re.search(words, problem) for problem in verdict.problems), verdict.problems


def test_a_log_cut_anywhere_is_damaged(output: Path) -> None:
    """Its last bytes say how long it is; cut, they say anything, such as more than this machine's memory."""
    (log,) = (output / "_drawloom/log").iterdir()
    whole = log.read_bytes()
    assert len(load_entries(whole, "x")) == 3
    for cut in range(len(whole)):
        with pytest.raises(DrawloomError, match=r"the log some/log is damaged .*; delete it and run the job again"):
            load_entries(whole[:cut], "some/log")


def test_damaged_records_are_named(output: Path) -> None:
    job = output / "_drawloom" / "job.yaml"
    text = job.read_text()
    job.write_text(text.replace('"temperature": 1.0', '"temperature": 0.9'))
    with pytest.raises(DrawloomError, match="was changed by hand"):
        verify(str(output))
    job.write_text(text[:50])
    with pytest.raises(DrawloomError, match="is damaged"):
        verify(str(output))
    job.write_text(text)
    (plan,) = (output / "_drawloom" / "plan").iterdir()
    data = plan.read_bytes()
    plan.write_bytes(data[:-1] + b"x")
    with pytest.raises(DrawloomError, match=r"plan/.* is damaged"):
        verify(str(output))
    plan.unlink()
    with pytest.raises(DrawloomError, match=r"plan/.* is gone"):
        status(str(output))
    job.unlink()
    with pytest.raises(SettingError, match="holds no job"):
        verify(str(output))


def test_a_damaged_manifest_says_that_it_can_be_deleted(rig: Rig) -> None:
    job = rig.open()
    entry = rig.commit(job, next(job.pending()))
    path = Path(rig.output) / MANIFESTS / entry.unit
    path.write_text("{")
    with pytest.raises(DrawloomError, match="delete it: it is written again from its part"):
        rig.open()
    path.unlink()
    assert rig.open().committed() == {entry.unit}


def test_status_of_a_job_on_its_way(rig: Rig) -> None:
    job = rig.open()
    first, second, third = job.plan.units()
    job.record(rig.commit(job, second))
    found = status(rig.output)
    assert (found.state, found.rows, found.units) == ("resumable", 10, 3)
    assert found.pending == (first.id, third.id)
    assert (found.sums["rows"], found.sums["error_codes"]) == (4, {"empty_prompt": 1})
    assert found.sums["prompt_tokens"] == sum(len(f"prompt number {row}") for row in (5, 6, 7))
    assert found.sums["completion_tokens"] == 3 * 4
    problems = verify(rig.output).problems
    assert sum("no outcome yet" in problem for problem in problems) == 2
    rig.run()
    assert (status(rig.output).state, status(rig.output).pending) == ("finished", ())


def test_what_is_printed(rig: Rig) -> None:
    job = rig.open()
    job.record(rig.commit(job, list(job.plan.units())[1]))
    out = Console(file=io.StringIO(), width=200)
    status_job.show(status(rig.output), out)
    verify_job.show(verify(rig.output), out)
    rig.run()
    verify_job.show(verify(rig.output, deep=True), out)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    for words in ("resumable", "4 of 10 (40.0 %)", "error empty_prompt", "1 of 3", f"{IDS[0]}", "no outcome yet", "✗", "4 of 10 rows"):
        assert words in text
    assert "✓" in text
    assert "10 of 10 rows have exactly one outcome (9 completed, 1 failed)" in text


def test_many_problems_are_cut(rig: Rig) -> None:
    many = replace(rig, rows_per_unit=1, output=rig.output + "-many")
    many.open()
    out = Console(file=io.StringIO(), width=200)
    verdict = verify(many.output)
    shown = replace(verdict, problems=verdict.problems * 4)
    verify_job.show(shown, out)
    assert f"and {len(shown.problems) - verify_job.MAX_SHOWN} more" in out.file.getvalue()  # type: ignore[attr-defined]


def test_success_holds_the_totals(output: Path) -> None:
    found = json.loads((output / "_SUCCESS").read_text())
    assert found == verify(str(output)).sums
    assert found["data_bytes"] == sum(path.stat().st_size for path in output.glob("part-*"))
    assert part_path("x") == "part-x.parquet"
