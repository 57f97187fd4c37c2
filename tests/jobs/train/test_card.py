"""What ships of a trained zoo: files, cards with measured accuracy, and the example that compares two jobs."""

import json
import runpy
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drawloom.errors import SettingError
from drawloom.jobs.train.card import hours, publish
from drawloom.jobs.train.zoo import DRAFTERS, NATIVE
from drawloom.models.checkpoint import ZOO, locate
from drawloom.models.settings import ModelSettings

ROOT = Path(__file__).parents[3]


def trained(home: Path, name: str, base: str, source: str = "tiny-ar") -> None:
    """A finished run as training leaves it, with the weights of a model that ships."""
    shutil.copytree(ZOO / source, home / name)
    told = {"base": str(home / base), "data": str(home / "even.parquet"), "steps": 40, "rows": 2, "row_tokens": 64, "seed": 0}
    (home / name / "settings.json").write_text(json.dumps(told))
    log = [{"step": 20, "loss": 2.0, "tokens_per_s": 100}, {"step": 40, "loss": 1.5, "tokens_per_s": 100, "seconds": 3600.0}]
    (home / name / "log.jsonl").write_text("\n".join(map(json.dumps, log)))


def test_published_with_cards_and_without_training_state(tmp_path: Path) -> None:
    trained(tmp_path / "zoo", "tiny-ar-first", "fresh")
    trained(tmp_path / "zoo", "tiny-ar", "tiny-ar-first")
    assert publish(tmp_path / "zoo", tmp_path / "out", 20, 7) == ["tiny-ar"]
    files = {path.name for path in (tmp_path / "out/tiny-ar").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= files
    assert not files & {"settings.json", "log.jsonl", "training.pt"}
    card = (tmp_path / "out/tiny-ar/README.md").read_text()
    first, second = card.index("from random weights"), card.index("from the stage before")
    assert first < second < card.index("Answers to 20 held-out tasks (seed 7), decoded with `ar`")
    assert "| copy | 100.0 % |" in card
    assert "with `--stretch 2`" in card
    assert str(tmp_path) not in card
    assert locate(ModelSettings(name=str(tmp_path / "out/tiny-ar"))).files()


def test_nothing_to_publish_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no finished model"):
        publish(tmp_path, tmp_path / "out", 1, 0)


def test_time_is_summed_over_what_was_logged() -> None:
    told = {"rows": 10, "row_tokens": 100}
    log = [{"step": 10, "tokens_per_s": 1, "seconds": 1800.0}, {"step": 20, "tokens_per_s": 1, "seconds": 5400.0}]
    assert hours(log, told) == "2.0 hours"
    assert hours([log[0], log[0], log[1]], told) == "2.0 hours"  # a resumed run logs steps again


@pytest.mark.parametrize("path", sorted(ZOO.glob("*/config.json")), ids=lambda path: path.parent.name)
def test_what_ships_has_a_card_and_names_no_machine(path: Path) -> None:
    folder = path.parent
    assert folder.name in {*NATIVE, *DRAFTERS}
    assert f"# {folder.name}" in (folder / "README.md").read_text()
    assert not (folder / "settings.json").exists()
    sizes = {
        one: sum(file.stat().st_size for file in (ZOO / one).rglob("*") if file.is_file())
        for one in {*NATIVE, *DRAFTERS}
        if (ZOO / one).is_dir()
    }
    assert sum(size for one, size in sizes.items() if one not in DRAFTERS) < 20e6
    assert sum(size for one, size in sizes.items() if one in DRAFTERS) < 15e6


def test_the_example_compares_two_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, answer, forwards in (("a", "cat ant", 4), ("b", "ant cat", 2)):
        row = {"task": "reverse", "prompt": "Reverse the list: ant cat\n", "check": '["cat", "ant"]', "samples": [{"text": answer}]}
        row |= {"usage": {"completion_tokens": 2}, "engine": {"decoder": "ar", "forwards": forwards}}
        failed = {**row, "samples": None}
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist([row, failed]), tmp_path / name / "part.parquet")
    monkeypatch.setattr("sys.argv", ["compare.py", str(tmp_path / "a"), str(tmp_path / "b")])
    runpy.run_path(str(ROOT / "examples/compare.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "50.0 %" in said  # one of two rows is right; the other failed
    assert "0.50" in said
    assert "1.00" in said
    assert "ant cat" in said
