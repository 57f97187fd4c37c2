"""Finding input: files, folders, globs; what is refused and with which words."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from commit_rig import prompts, write_rows
from s3_rig import BUCKET, Server

from drawloom.errors import SettingError
from drawloom.pipelines.sources import find_inputs, refuse_overlap
from drawloom.pipelines.store import open_store

FILES = ("b.parquet", "a.parquet", "deep/c.parquet", "deep/er/d.jsonl", "README.md")
HIDDEN = ("_hidden/x.parquet", ".cache/y.parquet", "deep/_tmp.parquet")


@pytest.fixture(params=["local", "moto"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, use_s3: Callable[..., None]) -> str:
    """The same files in a local folder and under an S3 prefix."""
    if request.param == "local":
        root = str(tmp_path / "in")
    else:
        server: Server = request.getfixturevalue("moto_server")
        use_s3(server)
        root = f"s3://{BUCKET}/{tmp_path.name}-{os.getpid()}/in"
        server.client().put_object(Bucket=BUCKET, Key=root.removeprefix(f"s3://{BUCKET}/") + "/deep/", Body=b"")  # a console's folder
    for name in FILES + HIDDEN:
        open_store(root).put(name, name.encode())
    return root


def names(spec: str | list[str]) -> list[str]:
    return [file.name for file in find_inputs(spec)]


def test_a_folder_is_searched_through_and_sorted(folder: str) -> None:
    wanted = ["a.parquet", "b.parquet", "deep/c.parquet", "deep/er/d.jsonl"]
    assert names(folder) == names(folder + "/") == wanted
    assert [file.size for file in find_inputs(folder)] == [len(name) for name in wanted]
    assert {file.format for file in find_inputs(folder)} == {"parquet", "jsonl"}


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("*.parquet", ["a.parquet", "b.parquet"]),
        ("[ax].parquet", ["a.parquet"]),
        ("[!a].parquet", ["b.parquet"]),
        ("?.parquet", ["a.parquet", "b.parquet"]),
        ("**/*.parquet", ["a.parquet", "b.parquet", "deep/c.parquet"]),
        ("deep/**", ["deep/c.parquet", "deep/er/d.jsonl"]),
        ("de*/er/*.jsonl", ["deep/er/d.jsonl"]),
        ("_hidden/*.parquet", ["_hidden/x.parquet"]),
    ],
)
def test_a_glob(folder: str, pattern: str, wanted: list[str]) -> None:
    assert [file.uri.removeprefix(folder + "/") for file in find_inputs(f"{folder}/{pattern}")] == wanted


def test_one_file_and_several_specs(folder: str) -> None:
    assert names(folder + "/a.parquet") == ["a.parquet"]
    assert names([folder + "/b.parquet", folder + "/a.parquet"]) == ["a.parquet", "b.parquet"]
    with pytest.raises(SettingError, match="give one common folder"):
        names([folder + "/a.parquet", folder + "/*.parquet"])


def test_nothing_found(folder: str) -> None:
    for spec in (folder + "/nowhere", folder + "/*.csv", folder + "/nowhere.parquet", folder + "/README.md"):
        with pytest.raises(SettingError, match=r"no input found at .*; files end in"):
            find_inputs(spec)
    with pytest.raises(SettingError, match="no input given"):
        find_inputs([])


@pytest.mark.parametrize("name", ["x.jsonl.bz2", "x.json", "x.parquet.gz", "x"])
def test_an_unknown_ending_is_refused_not_passed_over(folder: str, name: str) -> None:
    open_store(folder).put(name, b"x")
    for spec in (folder, f"{folder}/{name}"):
        with pytest.raises(SettingError, match=rf"{name}: cannot tell the format .* known are \.parquet"):
            find_inputs(spec)


def test_names_with_glob_characters_and_blanks(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data [v1]" / "what*is this?.parquet", prompts(1))
    assert names(str(path)) == names(str(path.parent)) == ["what*is this?.parquet"]


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.parquet")).write_bytes(b"x")
    with pytest.raises(SettingError, match="not UTF-8; rename it"):
        find_inputs(str(tmp_path))


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "in" / "a.parquet", prompts(1))
    monkeypatch.chdir(tmp_path)
    for spec in ("in", "./in/", "in/a.parquet", "in/*.parquet", "i*/a.parquet", "file://" + str(tmp_path / "in")):
        assert [file.name.rpartition("/")[2] for file in find_inputs(spec)] == ["a.parquet"]
    monkeypatch.chdir(tmp_path / "in")
    assert names("a.parquet") == names("*.parquet") == names(".") == ["a.parquet"]


def test_endings_and_compressions(tmp_path: Path) -> None:
    for name in ("a.JSONL", "b.ndjson.gz", "c.csv.zst", "d.tsv", "e.pq"):
        (tmp_path / name).write_bytes(b"x")
    found = [(file.format, file.compression) for file in find_inputs(str(tmp_path))]
    assert found == [("jsonl", ""), ("jsonl", ".gz"), ("csv", ".zst"), ("csv", ""), ("parquet", "")]


@pytest.mark.parametrize(
    ("spec", "output", "bad"),
    [
        ("in", "in/out", True),
        ("in", "in", True),
        ("in/a.parquet", "in/out", False),
        ("in/*.parquet", "in/out", False),
        ("in/**/*.parquet", "in/out", True),
        ("in", "inout", False),
        ("in", ".", True),
        ("in/a.parquet", "in", True),
        ("in", "in/_out", False),
    ],
)
def test_an_output_that_a_rerun_would_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, output: str, bad: bool) -> None:
    write_rows(tmp_path / "in" / "a.parquet", prompts(1))
    monkeypatch.chdir(tmp_path)
    if bad:
        with pytest.raises(SettingError, match="the output"):
            refuse_overlap(spec, open_store(output))
    else:
        refuse_overlap(spec, open_store(output))
