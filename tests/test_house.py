"""The house around the code: it is clean, it installs, and what its documents promise exists."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer.main

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def tracked() -> list[Path]:
    """Files of the repository, as git lists them; new ones that it does not ignore included."""
    listing = _run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT).stdout
    return [ROOT / line for line in listing.splitlines() if (ROOT / line).is_file() and not (ROOT / line).is_symlink()]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize("command", [["ruff", "check", "."], ["pyright"]], ids=["ruff", "pyright"])
def test_checkers_are_content(command: list[str]) -> None:
    done = _run([str(BIN / command[0]), *command[1:]], cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_the_root_is_not_on_the_path() -> None:
    """With the root on sys.path our folder `kernels` would hide the package of that name that transformers imports."""
    assert str(ROOT) not in sys.path, "run bin/pytest, not python -m pytest"
    spec = importlib.util.find_spec("kernels")  # a folder tests/kernels would hide it just as well
    assert spec is None or str(ROOT) not in str(spec), f"{spec} hides the package that transformers looks for"
    code = (
        "import importlib.util, sys, drawloom.kernels, drawloom.models, transformers\n"
        f"assert {str(ROOT)!r} not in sys.path\n"
        "assert all(importlib.util.find_spec(name) is None for name in ('jobs', 'actors', 'pipelines', 'decoders', 'models'))\n"
        "spec = importlib.util.find_spec('kernels')\n"
        f"assert spec is None or not str(spec.origin).startswith({str(ROOT)!r})\n"
    )
    done = _run([sys.executable, "-W", "ignore", "-c", code], cwd=Path("/"))
    assert done.returncode == 0, done.stderr


def test_the_wheel_holds_real_files(tmp_path: Path) -> None:
    """The links in src/ become folders of files, every source file is in, and nothing else is."""
    tree = tmp_path / "tree"
    for path in tracked():
        (tree / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tree / path.relative_to(ROOT))
    for link in (ROOT / "src/drawloom").iterdir():
        if link.is_symlink():
            (tree / "src/drawloom" / link.name).symlink_to(link.readlink())
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(tmp_path)!r})"
    done = _run([sys.executable, "-W", "ignore", "-c", build], cwd=tree)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("drawloom/")}
    folders = ("jobs", "pipelines", "actors", "decoders", "models", "kernels")
    paths = [path.relative_to(ROOT) for path in tracked()]
    own = {f"drawloom/{path}" for path in paths if path.parts[0] in folders}
    assert held == own | {f"drawloom/{name}" for name in ("__init__.py", "errors.py", "settings.py", "py.typed")}


def test_documents_name_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {(path.name, target) for path in DOCUMENTS for target in re.findall(r"\bmake ([a-z][a-z-]*)\b`?", _code(path))}
    assert {("README.md", "run"), ("README.md", "test")} <= named
    assert sorted((name, target) for name, target in named if target not in targets) == []


def test_documents_name_commands_that_exist() -> None:
    from drawloom.jobs.cli import app

    known = set(typer.main.get_command(app).commands)  # pyright: ignore[reportAttributeAccessIssue]
    named = {(path.name, command) for path in DOCUMENTS for command in re.findall(r"\bdrawloom ([a-z][a-z-]+)\b", _code(path))}
    assert {("README.md", "generate"), ("README.md", "verify")} <= named
    assert sorted((name, command) for name, command in named if command not in known) == []


def test_documents_name_files_that_exist() -> None:
    """Links, and paths with an ending in backquotes or at the start of a line of a file tree."""
    missing = []
    for path in DOCUMENTS:
        text = path.read_text()
        links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
        paths = re.findall(r"`((?:[\w-]+/)+[\w.-]+\.(?:py|md|toml|yaml|txt))`", text)
        missing += [f"{path.name}: {link}" for link in links if not (path.parent / link).exists()]
        missing += [f"{path.name}: {name}" for name in paths if not (ROOT / name).exists()]
    assert missing == []


def test_the_changelog_knows_this_version() -> None:
    assert f"## {project()['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_path_of_one_machine() -> None:
    """A home folder or a work folder in a file would hold on one machine alone."""
    pattern = re.compile(rb"(?<![\w.*])/(?:home|root|Users|work)/[\w.]")
    assert [str(path.relative_to(ROOT)) for path in tracked() if pattern.search(path.read_bytes())] == []


def test_constraints_satisfy_what_is_declared() -> None:
    """Every dependency of pyproject.toml is pinned, so that a fresh machine gets the versions that were tested."""
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    wanted = project()["dependencies"] + [item for extra in project()["optional-dependencies"].values() for item in extra]
    names = {re.split(r"[\[<>=!~ ]", item)[0].lower() for item in wanted}
    assert sorted(names - {name.lower() for name in pins}) == []


def test_the_example_is_what_its_script_writes() -> None:
    namespace: dict = {"__name__": "make_prompts", "__file__": str(ROOT / "examples/make_prompts.py")}
    exec(compile((ROOT / "examples/make_prompts.py").read_text(), "make_prompts.py", "exec"), namespace)
    table = pq.read_table(ROOT / "examples/prompts.parquet")
    assert table.equals(namespace["table"]())
    assert table.num_rows >= 60
    assert len(set(table["id"].to_pylist())) == table.num_rows


def _code(path: Path) -> str:
    """Code blocks and `code words` of a document: what a reader would type."""
    text = path.read_text()
    blocks = re.findall(r"```.*?```", text, re.DOTALL)
    return "\n".join(blocks + re.findall(r"`[^`\n]+`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))
