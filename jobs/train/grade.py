"""Is an answer right? Facts decide, not the wording: the last number, the list, the record, or what the function returns.

Code that a model wrote runs only when it is a single function of plain expressions (no import, attribute, loop, power or string), in a
process of its own with limits on time and memory.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

CHILD_S, CHILD_BYTES = 10, 1 << 30
MAX_NUMBER = 10_000
CALLS = ("len", "sum", "min", "max", "sorted", "abs")
_PLAIN = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Name, ast.Load, ast.Store, ast.Constant, ast.BinOp, ast.Add,
    ast.Sub, ast.Mult, ast.Compare, ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.Eq, ast.NotEq, ast.Call, ast.ListComp, ast.comprehension,
    ast.Subscript, ast.Slice, ast.UnaryOp, ast.USub, ast.Not, ast.BoolOp, ast.And, ast.Or, ast.IfExp, ast.If,
)  # fmt: skip

# Reads [[source, name, inputs], ...]; prints one JSON line each, so that what came before a crash is kept.
_CHILD = f"""
import json, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({CHILD_S}, {CHILD_S}))
resource.setrlimit(resource.RLIMIT_AS, ({CHILD_BYTES}, {CHILD_BYTES}))
names = {{name: getattr(__import__("builtins"), name) for name in {CALLS!r}}}
for source, name, inputs in json.load(sys.stdin):
    try:
        space = {{"__builtins__": names}}
        exec(source, space)
        print(json.dumps([space[name](one) for one in inputs]), flush=True)
    except Exception:
        print("null", flush=True)
"""


def grade(task: str, check: str, answer: str) -> bool:
    """Whether `answer` (text without its end token) solves a row of tasks.py, given the row's `task` and `check`."""
    return grade_all([(task, check, answer)])[0]


def grade_all(rows: Sequence[tuple[str, str, str]]) -> list[bool]:
    """grade() for many (task, check, answer); all functions run in one child process."""
    verdicts = [task != "code" and _GRADES.get(task, _same_list)(json.loads(check), answer) for task, check, answer in rows]
    coded = [index for index, (task, _, _) in enumerate(rows) if task == "code"]
    for index, right in zip(coded, _grade_code([(json.loads(rows[k][1]), rows[k][2]) for k in coded]), strict=True):
        verdicts[index] = right
    return verdicts


def is_plain(source: str) -> bool:
    """Whether the text is one function of the few constructs that cannot reach out of it or run for long."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(tree))
    only_function = len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef)
    return only_function and len(nodes) < 200 and all(isinstance(node, _PLAIN) and _harmless(node) for node in nodes)


def _harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int) and abs(node.value) <= MAX_NUMBER
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in CALLS
    return not (isinstance(node, ast.FunctionDef) and node.decorator_list)


def _grade_code(rows: Sequence[tuple[dict[str, Any], str]]) -> list[bool]:
    plain = [is_plain(answer) for _, answer in rows]
    wanted = _run([(check["source"], check["name"], check["inputs"]) for check, _ in rows])
    found = iter(_run([(answer, check["name"], check["inputs"]) for (check, answer), fit in zip(rows, plain, strict=True) if fit]))
    return [fit and (got := next(found)) is not None and got == right for fit, right in zip(plain, wanted, strict=True)]


def _run(jobs: list[tuple[str, str, list[Any]]]) -> list[Any]:
    """What each function returns for its inputs; None where it raised, or ended the process."""
    results: list[Any] = []
    while len(results) < len(jobs):
        child = subprocess.run(
            [sys.executable, "-I", "-c", _CHILD], input=json.dumps(jobs[len(results) :]), capture_output=True, text=True, check=False
        )
        results += [json.loads(line) for line in child.stdout.splitlines()]
        if len(results) < len(jobs):
            results.append(None)
    return results


def _number(wanted: int, answer: str) -> bool:
    found = re.fullmatch(r"answer: (\d+)", answer.strip().rpartition("\n")[2])
    return found is not None and int(found[1]) == wanted


def _same_list(wanted: list[str], answer: str) -> bool:
    return answer.split() == wanted


def _shuffled(wanted: list[str], answer: str) -> bool:
    return sorted(answer.split()) == sorted(wanted)


def _record(wanted: dict[str, Any], answer: str) -> bool:
    try:
        return json.dumps(json.loads(answer), sort_keys=True) == json.dumps(wanted, sort_keys=True)  # 1 is not true
    except (ValueError, RecursionError):
        return False


_GRADES: dict[str, Callable[[Any, str], bool]] = {"arithmetic": _number, "shuffle": _shuffled, "json": _record}
