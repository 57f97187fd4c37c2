"""AUP against its known answer; measuring and drawing on the hash network; a trace that agrees with the counters."""

import json
from pathlib import Path

import pytest
from rig import engine, prompts, request, run

from drawloom.decoders.recipes import RECIPES
from drawloom.errors import SettingError
from drawloom.jobs.bench.aup import aup
from drawloom.jobs.bench.decode import Curve, chosen, engine_and_text, held_out, lines, measure, numbers, read_tasks, run_decode
from drawloom.jobs.report.decode import read_records, report_decode
from drawloom.jobs.report.decode_map import facts, report_map
from drawloom.jobs.report.row import trace_row


def test_aup_of_the_known_vector() -> None:
    assert aup([(4, 76), (1, 80), (2, 79)], best=80) == pytest.approx(299.55234470822177, abs=1e-9)


def test_points_far_below_the_first_do_not_count() -> None:
    assert aup([(1, 80), (2, 60), (3, 80)], best=80) == aup([(1, 80), (3, 80)], best=80)
    with pytest.raises(SettingError, match="more than 5 below"):
        aup([(1, 80), (2, 74)], best=80)
    with pytest.raises(SettingError, match="at least one point"):
        aup([], best=80)


def test_measured_drawn_and_read_back(tmp_path: Path) -> None:
    curves = [Curve("hash", "ar", {}), Curve("hash", "multi-block", {"block": 8}, "threshold", (0.3, 0.9))]
    found = list(lines(run_decode(curves, held_out(6, 1), 4)))
    assert len(found) == 5
    (tmp_path / "found.jsonl").write_text("\n".join(found))
    records = read_records(tmp_path / "found.jsonl")
    assert [one["params"].get("threshold") for one in records[:3]] == [None, 0.3, 0.9]
    plain, eager, careful, *_ = records
    assert plain["tpf"] <= 1 < careful["tpf"] <= eager["tpf"]
    assert plain["rows_per_forward"] < careful["rows_per_forward"]
    picture, page = report_decode(records, tmp_path / "out")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in page.read_text()
    assert 'src="http' not in page.read_text()


def test_what_is_no_measurement_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(json.dumps({"x": 1}))
    (tmp_path / "b").write_text("hello")
    for name in ("a", "b", "c"):
        with pytest.raises(SettingError, match="what `drawloom bench decode` printed"):
            read_records(tmp_path / name)
    with pytest.raises(SettingError, match="no such file"):
        read_tasks(tmp_path / "none.parquet", 5)
    with pytest.raises(SettingError, match="cannot be read as Parquet"):
        read_tasks(tmp_path / "b", 5)
    with pytest.raises(SettingError, match="cannot be a folder"):
        report_decode([{"tpf": 1, "accuracy": 1}], tmp_path / "b")
    with pytest.raises(SettingError, match="has no network"):
        trace_row("fake", "ar", {}, "x", 0, tmp_path / "map")
    with pytest.raises(SettingError, match="are numbers by comma"):
        numbers(["0.5", "a"])
    with pytest.raises(SettingError, match="did you mean 'tiny-mbd'"):
        chosen(["tiny-mdb"], ())
    assert {curve.values for curve in chosen(["tiny-bd"], (0.2,))} == {(0.2,)}


def test_groups_are_measured_when_they_are_asked_for() -> None:
    """Verifiers at a temperature, where they differ; the rest greedy, and only what is in the zoo when nothing is named."""
    assert {curve.group for curve in chosen([], ())} == {"zoo"}
    assert {curve.group for curve in chosen(["tiny-ar"], ())} == {"zoo"}
    tested = chosen(["verifiers"], ())
    assert {curve.temperature for curve in tested} == {1.0}
    assert len({curve.name for curve in tested}) == len(tested) == 10
    assert [curve.name for curve in chosen(["tiny-ar sampled-paths 2 block"], ())] == ["tiny-ar sampled-paths 2 block"]
    assert {curve.model for curve in chosen(["retrieval"], ())} == {"embedded"}


def test_tokens_per_forward_of_each_task() -> None:
    tasks = held_out(9, 3)
    record = measure(*engine_and_text("tiny-ar", 4), tasks, "ar", {}, 1.0)
    assert record["tpf_by_task"].keys() == record["accuracy_by_task"].keys() == {task.task for task in tasks}
    assert all(0.5 < value <= 1.0 for value in record["tpf_by_task"].values())


@pytest.mark.parametrize("name", list(RECIPES))
def test_forwards_recomputed_from_the_trace_are_the_reported_ones(name: str) -> None:
    """The end token counts as one; a text of length max_tokens has none."""
    params = {"block": 8} if "block" in RECIPES[name].params else {}
    asked = [request(f"{k}", prompt, name, k, params, max_tokens=5 + 7 * k, temperature=0.5) for k, prompt in enumerate(prompts(6, 3))]
    asked = [type(one)(**{**vars(one), "trace": True}) for one in asked]
    machine = engine(prefill_rows=8, num_pages=60)  # prompts in chunks, some sequences preempted
    for done in run(machine, asked).values():
        sample = done.samples[0]
        assert sample.reveals is not None
        assert len(sample.reveals) == len(sample.token_ids) + (sample.finish_reason == "stop")
        assert facts(sample.reveals)["forwards"] == done.stats.forwards
        assert all(1 <= one.shown <= one.final for one in sample.reveals)
        assert [one.final for one in sample.reveals] == sorted(one.final for one in sample.reveals)
        assert any(one.edits for one in sample.reveals) <= (RECIPES[name].params.keys() & {"edit", "sure"} != set())


def test_a_map_is_drawn(tmp_path: Path) -> None:
    asked = request("x", [1, 2, 3], "dmax", 1, {"block": 4, "threshold": 0.3}, max_tokens=30, ignore_eos=True)
    sample = run(engine(), [type(asked)(**{**vars(asked), "trace": True})])["x"].samples[0]
    tokens = [f"<{token}>" for token in sample.token_ids]
    picture, page = report_map(sample, tokens, 3, 4, "a & b", tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "a &amp; b" in page.read_text()
    assert "&lt;" in page.read_text()
