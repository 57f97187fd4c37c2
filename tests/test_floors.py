"""The floors of the design, read from the source with ast: imports only point down, ray stays where it belongs, nothing runs in circles."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = {"jobs": 5, "pipelines": 4, "actors": 3, "decoders": 2, "models": 2, "kernels": 1, "errors": 0, "settings": 0}
FOLDERS = [name for name, rank in FLOORS.items() if rank]
# Files of actors/ that are the Ray shell around an engine; every other file of that folder, and every lower floor, knows no ray.
RAY_SHELLS = {"actors/replica.py"}
# Plain Python by design: decisions and bookkeeping that no tensor library may slow down or tie to a device.
NO_TORCH = {"models/pages.py", "models/settings.py", "models/text.py", "actors/request.py"}


def sources() -> list[Path]:
    """Every source file of the package, as a path below the root; links are not followed."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")] + list((ROOT / "src/drawloom").glob("*.py"))
    return sorted(path.relative_to(ROOT) for path in found)


def module_of(path: Path) -> str:
    """drawloom.actors.engine for actors/engine.py, drawloom.errors for src/drawloom/errors.py."""
    parts = list(path.with_suffix("").parts)
    parts = parts[1:] if parts[0] == "src" else ["drawloom", *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, text: str) -> set[str]:
    """Dotted names that a file imports anywhere in it, functions included; `from a import b` gives a.b, relative ones are resolved."""
    package = module_of(path).split(".") if path.name == "__init__.py" else module_of(path).split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join(start + ([node.module] if node.module else []))
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def read(path: Path) -> str:
    return (ROOT / path).read_text()


def breaches(path: Path, text: str) -> list[str]:
    """What of the floors a file with this text would break; empty when nothing."""
    own = module_of(path).split(".")[1] if module_of(path) != "drawloom" else "errors"
    wrong = []
    for name in sorted(imports_of(path, text)):
        top, *rest = name.split(".")
        if top in FOLDERS or top == "infra":
            wrong.append(f"{path} imports {name}: write drawloom.{name}")
        if top == "drawloom" and rest and rest[0] in FLOORS and rest[0] != own and FLOORS[rest[0]] >= max(FLOORS[own], 1):
            wrong.append(f"{path} imports {name}: {own} may only import what stands below it")
        if top == "ray" and FLOORS[own] < FLOORS["pipelines"] and str(path) not in RAY_SHELLS:
            wrong.append(f"{path} imports {name}: ray lives in jobs, pipelines and {sorted(RAY_SHELLS)}")
        if top in ("torch", "transformers") and str(path) in NO_TORCH:
            wrong.append(f"{path} imports {name}: it is plain Python by design")
    return wrong


def graph() -> dict[str, set[str]]:
    """Which of our modules each of our modules imports."""
    known = {module_of(path) for path in sources()}
    edges: dict[str, set[str]] = {name: set() for name in known}
    for path in sources():
        for name in imports_of(path, read(path)):
            target = name if name in known else name.rpartition(".")[0]
            if target in known and target != module_of(path):
                edges[module_of(path)].add(target)
    return edges


def circles(edges: dict[str, set[str]]) -> list[str]:
    """One line for every module that can reach itself."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = edges.get(waiting.pop(), set()) - seen
            seen |= new
            waiting.extend(new)
        return seen

    return sorted(name for name in edges if name in reachable(name))


def test_every_floor_is_seen() -> None:
    seen = {path.parts[0] for path in sources()}
    assert seen == {*FOLDERS, "src"}
    assert all((ROOT / "src/drawloom" / folder).is_symlink() for folder in FOLDERS)


def test_imports_only_point_down() -> None:
    assert [line for path in sources() for line in breaches(path, read(path))] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("kernels/kv.py", "from drawloom.models.pages import PagePool"),
        ("models/load.py", "def f():\n    from drawloom import decoders"),
        ("decoders/step.py", "import drawloom.models.ragged"),
        ("decoders/step.py", "from ..actors import request"),
        ("actors/engine.py", "import ray"),
        ("actors/request.py", "def f():\n    import ray.data"),
        ("pipelines/units.py", "from drawloom.jobs.cli import main"),
        ("jobs/cli.py", "from pipelines import units"),
        ("jobs/cli.py", "import infra"),
        ("src/drawloom/settings.py", "import drawloom.kernels.kv"),
        ("src/drawloom/__init__.py", "from drawloom.actors.request import Request"),
        ("models/pages.py", "import torch"),
    ],
)
def test_a_breach_is_found(path: str, text: str) -> None:
    assert len(breaches(Path(path), text)) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("actors/engine.py", "from drawloom.decoders.step import Step\nfrom drawloom.models import pages\nimport drawloom.errors"),
        ("actors/replica.py", "import ray"),
        ("kernels/kv.py", "import torch\nfrom drawloom.errors import SettingError\nfrom .choose import choose"),
        ("jobs/cli.py", "import ray\nfrom drawloom.kernels import kv\nfrom drawloom import __version__"),
    ],
)
def test_what_is_allowed_is_no_breach(path: str, text: str) -> None:
    assert breaches(Path(path), text) == []


def test_no_import_cycle() -> None:
    assert circles(graph()) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]


def test_infra_and_sources_do_not_know_each_other() -> None:
    scripts = sorted((ROOT / "infra").rglob("*.py"))
    assert [path for path in scripts if "drawloom" in {name.split(".")[0] for name in imports_of(path, path.read_text())}] == []


PLANNERS = ["drawloom.jobs.cli", "drawloom.jobs.generate", "drawloom.pipelines.batch", "drawloom.actors.replica"]


@pytest.mark.parametrize(
    ("module", "heavy"),
    [("drawloom.actors.engine", "ray"), ("drawloom.actors.request", "ray"), *((module, "torch") for module in PLANNERS)],
)
def test_nobody_waits_for_what_another_process_needs(module: str, heavy: str) -> None:
    """An engine runs where ray was never imported; drivers, replicas and readers, where torch was not (seconds at each start).
    By ast the file itself is clean; this also catches what hides behind another import."""
    code = f"import sys, {module}; sys.exit({heavy!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr or f"{module} pulls {heavy} in"
