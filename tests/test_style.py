"""Counters of the code's shape that may only go down. When one of yours fails, mend the code; when one has gone down, lower it here."""

import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("jobs", "pipelines", "actors", "decoders", "models", "kernels", "src/drawloom", "examples")
MAX_LINES, MAX_ARGUMENTS, MAX_FILE_LINES, MAX_MEDIAN = 60, 7, 300, 9

# What stands today, by file. Everything that is not named here is 0.
BROAD_EXCEPT: dict[str, int] = {
    "actors/child.py": 2,  # the row border, and the replica border on the engine's side
    "actors/keeper.py": 1,  # the replica border on the callers' side
    "pipelines/rows.py": 1,  # the row border on the way in
}
ENVIRONMENT: dict[str, int] = {
    "actors/process.py": 1,  # handed on to the engine's process
    "jobs/bench/remote.py": 1,  # handed on to a peer's process
    "kernels/native.py": 1,  # XDG_CACHE_HOME: where a cache lies, not what it holds
    "models/embedded.py": 1,  # the same
}
LONG_FILES: dict[str, int] = {}  # lines
# Loops in code that runs over a group's lines in every step. None may be over sequences or blocks.
GROUP_CODE = (
    "decoders/canvas.py",
    "decoders/denoise.py",
    "decoders/frontier.py",
    "decoders/full_canvas.py",
    "decoders/guided.py",
    "decoders/self_verify.py",
    "decoders/sub_blocks.py",
    "decoders/draft_verify.py",
    "decoders/drafters.py",
    "decoders/draws.py",
    "decoders/recycling.py",
    "decoders/scores.py",
    "decoders/suffix.py",
    "decoders/tree_drafters.py",
    "decoders/trees.py",
    "kernels/reveal.py",
    "kernels/verify.py",
    "kernels/verify_sampled.py",
)
GROUP_LOOPS: dict[str, int] = {
    "decoders/canvas.py": 3,  # over the tensors of a state, twice, and over three of a step
    "decoders/drafters.py": 1,  # over the lengths of an n-gram
    "decoders/recycling.py": 6,  # over the levels of a tree; the others when its shape is made, or a memory begins
    "decoders/suffix.py": 5,  # over two generations, thrice; over generations that fill up; when a memory begins
    "decoders/tree_drafters.py": 1,  # over the columns of a tree's rows
    "kernels/verify.py": 1,  # over doublings of a tree's depth
    "kernels/verify_sampled.py": 5,  # over a line's drafted rows in their order, each test depending on the one before; over bisections
}


@dataclass(frozen=True)
class Source:
    path: str  # below the root
    text: str
    tree: ast.Module

    @property
    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def source(path: str, text: str) -> Source:
    return Source(path, text, ast.parse(text))


@cache
def sources() -> tuple[Source, ...]:
    """Every source file once; links are not followed, tests and scripts of infra are not counted."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "src/drawloom/" not in str(path.parent))
    return tuple(source(str(path.relative_to(ROOT)), path.read_text()) for path in paths)


def broad_excepts(file: Source) -> int:
    """Handlers of everything that do not pass it on, and suppress(Exception)."""
    handlers = [node for node in ast.walk(file.tree) if isinstance(node, ast.ExceptHandler)]
    caught = [node for node in handlers if node.type is None or _names(node.type) & {"Exception", "BaseException"}]
    swallowed = [node for node in caught if not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)]
    suppressed = [node for node in ast.walk(file.tree) if isinstance(node, ast.Call) and "suppress" in _names(node.func)]
    return len(swallowed) + sum(1 for call in suppressed for item in call.args if _names(item) & {"Exception", "BaseException"})


def environment_reads(file: Source) -> int:
    """os.environ, os.getenv and what was imported of them."""
    nodes = list(ast.walk(file.tree))
    used = sum(isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"} for node in nodes)
    imported = [alias.name for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "os" for alias in node.names]
    return used + sum(name in {"environ", "environb", "getenv"} for name in imported)


def globals_used(file: Source) -> int:
    return sum(isinstance(node, ast.Global) for node in ast.walk(file.tree))


def unfinished(file: Source) -> int:
    """Marks of work that was put off."""
    words = ("TO" + "DO", "FIX" + "ME", "X" + "XX", "Not" + "ImplementedError")
    return len(re.findall(rf"\b(?:{'|'.join(words)})\b", file.text))


def file_lines(file: Source) -> int:
    lines = file.text.count("\n")
    return lines if lines > MAX_FILE_LINES else 0


def long_functions(file: Source) -> int:
    return 0 if file.path.startswith("kernels/") else sum(_length(function) > MAX_LINES for function in file.functions)


def crowded_functions(file: Source) -> int:
    return 0 if file.path.startswith("kernels/") else sum(_arguments(function) > MAX_ARGUMENTS for function in file.functions)


def group_loops(file: Source) -> int:
    """Loops and comprehensions in the tensor code of groups."""
    kinds = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)
    return sum(isinstance(node, kinds) for node in ast.walk(file.tree)) if file.path in GROUP_CODE else 0


def untyped_functions(file: Source) -> int:
    """Functions with an argument or a result that has no type; self, cls and lambdas aside."""
    own = [function for function in file.functions if not any("jit" in _names(one) for one in function.decorator_list)]  # Triton's language
    return sum(function.returns is None or any(item.annotation is None for item in _own(function)) for function in own)


def _names(node: ast.expr) -> set[str]:
    return {part.id if isinstance(part, ast.Name) else part.attr for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)}


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def _own(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    spec = function.args
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    return [item for item in named if item.arg not in ("self", "cls")] + [item for item in (spec.vararg, spec.kwarg) if item]


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return len(_own(function))


COUNTERS = [
    (broad_excepts, BROAD_EXCEPT),
    (environment_reads, ENVIRONMENT),
    (file_lines, LONG_FILES),
    (globals_used, {}),
    (unfinished, {}),
    (long_functions, {}),
    (crowded_functions, {}),
    (untyped_functions, {}),
    (group_loops, GROUP_LOOPS),
]


@pytest.mark.parametrize(("counter", "allowed"), COUNTERS, ids=[counter.__name__ for counter, _ in COUNTERS])
def test_counters_only_go_down(counter, allowed) -> None:
    """Compared by equality, so that what has been won is written down here and cannot be lost again."""
    found = {file.path: number for file in sources() if (number := counter(file))}
    assert found == allowed


def test_functions_are_short() -> None:
    lengths = [_length(function) for file in sources() for function in file.functions]
    assert statistics.median(lengths) <= MAX_MEDIAN


FAULTS = """
import os
from os import getenv
from contextlib import suppress

def f(a, b, c, d, e, f, g, h):
    global x
    try:
        x = os.environ["A"]
    except (OSError, Exception):
        pass
    try:
        x = 2
    except BaseException:
        x = 3
        raise
    with suppress(Exception):
        x = 4  # TODO
"""


def test_counters_see_faults() -> None:
    file = source("actors/x.py", FAULTS)
    seen = Counter({counter.__name__: counter(file) for counter, _ in COUNTERS})
    assert seen == Counter(broad_excepts=2, environment_reads=2, globals_used=1, unfinished=1, crowded_functions=1, untyped_functions=1)
    long = "def f() -> None:\n" + "    pass\n" * 300
    assert long_functions(source("actors/x.py", long)) == 1
    assert long_functions(source("kernels/x.py", long)) == 0
    assert file_lines(source("actors/x.py", long)) == 301
