"""Settings from flags, files and Python: what is refused, what goes before what, and what binds an output folder."""

from pathlib import Path

import pytest

from drawloom.errors import SettingError
from drawloom.jobs.flags import FLAGS, nested
from drawloom.jobs.settings import JobSettings, load_settings, merged
from drawloom.pipelines import shape

PLACES = {"input": "in.parquet", "output": "out"}


def yaml(tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return str(path)


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    path = yaml(tmp_path, "input: in.parquet\noutput: there\nmodel: fake\nsampling: {temperature: 0.2, top_p: 0.9}\nreplicas: 3\n")
    found = load_settings(path, {"output": "here", "sampling": {"temperature": 0.7}})
    assert (found.output, found.model.name, found.replicas) == ("here", "fake", 3)
    assert (found.sampling.temperature, found.sampling.top_p) == (0.7, 0.9)
    assert load_settings(path, {"model": {"dtype": "bfloat16"}}).model.name == "fake"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("replica: 3", "'replica' is not a setting; did you mean 'replicas'?"),
        ("sampling: {temprature: 1}", "'sampling.temprature' is not a setting; did you mean 'temperature'?"),
        ("engine: {max_sequence: 1}", "did you mean 'max_sequences'?"),
        ("columns: {promt: text}", "did you mean 'prompt'?"),
        ("replicas: 0", "replicas: Input should be greater than or equal to 1 (got 0)"),
        ("seed: -1", "seed: Input should be greater than or equal to 0"),
        ("sampling: {max_repeats: -1}", "max_repeats: Input should be greater than or equal to 0"),
        ("progress: loud", "progress: Input should be 'auto', 'bar', 'lines' or 'none'"),
        ("- a\n- b", "holds list, but a mapping of settings is needed"),
        ("a: [", "cannot be read as a YAML file"),
    ],
)
def test_strangers_and_wrong_values_are_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_settings(yaml(tmp_path, text), PLACES)
    assert words in str(caught.value)
    assert "job.yaml" in str(caught.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="output: Field required"):
        load_settings(None, {"input": "in.parquet"})
    with pytest.raises(SettingError, match="cannot be read"):
        load_settings(str(tmp_path / "none.yaml"), PLACES)


def test_merging_keeps_both_branches() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}, "e": 5}) == {"a": {"b": 4, "c": 2}, "d": 3, "e": 5}


def test_only_what_changes_the_text_binds_a_folder() -> None:
    def config(**other) -> str:
        return JobSettings.parse(PLACES | {"model": "fake"} | other).identity().config_hash

    same = config()
    for operational in ({"replicas": 7}, {"address": "h:1"}, {"rows_per_unit": 3}, {"progress": "none"}, {"engine": {"max_sequences": 5}}):
        assert config(**operational) == same
    binding = [{"seed": 1}, {"sampling": {"top_k": 3}}, {"decoder": "lookup"}, {"decoder_params": {"a": 1}}, {"columns": {"prompt": "x"}}]
    assert len({same, *(config(**other) for other in binding)}) == len(binding) + 1
    assert config(model={"name": "fake", "dtype": "bfloat16"}) != same


def test_another_model_has_another_fingerprint() -> None:
    names = ("fake", "hash")
    assert len({JobSettings.parse(PLACES | {"model": name}).identity().model_fingerprint for name in names}) == 2
    with pytest.raises(SettingError, match="no-such-model"):
        JobSettings.parse(PLACES | {"model": "no-such-model"}).identity()


def test_a_model_in_this_folder_is_found_from_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "fake").mkdir()
    monkeypatch.chdir(tmp_path)
    assert JobSettings.parse(PLACES | {"model": "net"}).model.name == str(tmp_path / "net")
    assert JobSettings.parse(PLACES | {"model": "fake"}).model.name == "fake"
    assert JobSettings.parse(PLACES | {"model": "owner/name"}).model.name == "owner/name"


def test_threads_and_places_of_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drawloom.jobs.settings.local_cores", lambda: 8)

    def settings(**other) -> JobSettings:
        return JobSettings.parse(PLACES | other)

    assert [settings(replicas=count).threads for count in (1, 2, 3, 16)] == [8, 4, 2, 1]
    assert settings(cpus_per_replica=0.5).threads == 1
    assert settings(address="h:1").threads == 1
    assert settings(cpus_per_replica=4, address="h:1").shape == shape.Shape(1, 4.0)
    assert settings(cpus_per_replica=4).shape == shape.Shape(1, 1.0)  # our own Ray counts replicas, not cores


@pytest.mark.parametrize(("rows_per_unit", "sequences", "units"), [(8, 32, 8), (128, 32, 2), (64, 32, 2), (1, 4, 8)])
def test_enough_rows_are_in_flight(rows_per_unit: int, sequences: int, units: int) -> None:
    settings = JobSettings.parse(PLACES | {"engine": {"max_sequences": sequences}})
    assert settings.in_flight(rows_per_unit) == units
    assert JobSettings.parse(PLACES | {"units_in_flight": 5}).in_flight(rows_per_unit) == 5


def test_every_flag_is_a_setting() -> None:
    given = {flag.replace("-", "_"): None for flag in FLAGS}
    assert nested(given) == {}
    given |= {"temperature": 0.5, "stop": ["a", "b"], "decoder_params": ["block=8", "tau=0.5", "score=margin"], "model": "fake", "seed": 0}
    found = JobSettings.parse(PLACES | nested(given))
    assert (found.sampling.temperature, found.sampling.stop, found.model.name, found.seed) == (0.5, ("a", "b"), "fake", 0)
    assert found.decoder_params == {"block": 8, "tau": 0.5, "score": "margin"}
    with pytest.raises(SettingError, match="write NAME=VALUE"):
        nested(given | {"decoder_params": ["block"]})
