"""Tasks: every reference answer is right, wrong ones are not, splits never meet, and what a model wrote cannot do harm."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from drawloom.errors import SettingError
from drawloom.jobs.train.grade import grade, grade_all, is_plain
from drawloom.jobs.train.tasks import TASKS, rows, write


def test_every_reference_answer_is_right() -> None:
    some = list(rows("train", 1, 400)) + list(rows("held-out", 1, 100))
    assert {task.task for task in some} == set(TASKS)
    assert all(grade_all([(task.task, task.check, task.answer) for task in some]))


def test_an_answer_to_another_prompt_is_wrong() -> None:
    for kind in TASKS:
        first, second = rows("train", 2, 2, (kind,))
        assert first.prompt != second.prompt
        assert not grade(kind, first.check, second.answer), first
        assert not grade(kind, first.check, "")
        assert not grade(kind, first.check, first.answer[:-2])


def test_splits_share_no_prompt_and_seeds_give_the_same_rows() -> None:
    train, held = list(rows("train", 3, 500)), list(rows("held-out", 4, 100))
    assert not {task.prompt for task in train} & {task.prompt for task in held}
    assert list(rows("train", 3, 500)) == train
    assert list(rows("train", 5, 500)) != train


def test_arithmetic_is_worked_step_by_step() -> None:
    for task in rows("train", 6, 50, ("arithmetic",)):
        *steps, last = task.answer.split("\n")
        for step in steps:
            sum_, result = step.split(" = ")
            assert eval(sum_, {"__builtins__": {}}) == int(result)
        assert last == f"answer: {steps[-1].split(' = ')[1]}"


def test_stretched_tasks_are_longer_and_right() -> None:
    usual, long = (list(rows("train", 1, 600, stretch=stretch)) for stretch in (1, 3))
    assert all(grade_all([(task.task, task.check, task.answer) for task in long]))
    words = {name: [len(task.answer.split()) for task in some if task.task == "copy"] for name, some in (("usual", usual), ("long", long))}
    assert max(words["usual"]) <= 14 < max(words["long"]) <= 42
    steps = [task.answer.count("=") for task in long if task.task == "arithmetic"]
    assert min(steps) == 2
    assert max(steps) == 9
    assert not {task.prompt for task in long} & {task.prompt for task in rows("held-out", 4, 100, stretch=3)}


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "def f(x):\n    return x.__class__",
        "def f(x):\n    return open('/etc/passwd')",
        "def f(x):\n    return x ** 9999",
        "def f(x):\n    return [0] * 99999999",
        "def f(x):\n    while x: pass",
        "def f(x):\n    return f(x)",
        "def f(x):\n    return 1\nf(2)",
        "@f\ndef f(x):\n    return 1",
        "def f(x): return 'a'",
        "def",
        "(" * 5000,
        "def f(x):\n    return x\0",
    ],
)
def test_what_reaches_out_is_never_run(source: str) -> None:
    assert not is_plain(source)


def test_functions_that_raise_or_devour_memory_are_wrong_and_harm_no_other() -> None:
    check = '{"name": "f", "inputs": [1, 2], "source": "def f(x):\\n    return x + 1"}'
    greedy = "def f(x):\n    return [x" + " for a in [[1] * 10000 * 10000]" * 3 + "]"
    answers = [
        "def f(x):\n    return x + 1",
        "def f(x):\n    return y",
        greedy,
        "def g(x):\n    return x + 1",
        "def f(x):\n    return 1 + x",
    ]
    assert grade_all([("code", check, answer) for answer in answers]) == [True, False, False, False, True]


def test_a_record_must_have_the_right_types() -> None:
    assert grade("json", '{"items": 1}', '{"items": 1}')
    assert not grade("json", '{"items": 1}', '{"items": true}')
    assert not grade("json", '{"items": 1}', "[" * 100_000)


def test_written_as_parquet(tmp_path: Path) -> None:
    write(tmp_path / "a" / "tasks.parquet", "held-out", 1, 20, ("copy", "sort"))
    table = pq.read_table(tmp_path / "a" / "tasks.parquet")
    assert table.column_names == ["task", "prompt", "answer", "check"]
    assert set(table["task"].to_pylist()) == {"copy", "sort"}
    with pytest.raises(SettingError, match="did you mean 'train'"):
        write(tmp_path / "b.parquet", "trian", 1, 1)
    with pytest.raises(SettingError, match="did you mean 'reverse'"):
        write(tmp_path / "b.parquet", "train", 1, 1, ("revers",))


def test_weights_say_how_often_a_kind_comes(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", "train", 1, 200, ("copy", "sort", "code"), {"copy": 9.0, "code": 0.0})
    kinds = pq.read_table(tmp_path / "a.parquet")["task"].to_pylist()
    assert set(kinds) == {"copy", "sort"}
    assert kinds.count("copy") > 4 * kinds.count("sort")
    with pytest.raises(SettingError, match="did you mean 'sort'"):
        write(tmp_path / "b.parquet", "train", 1, 1, (), {"sortt": 1.0})
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(SettingError, match="the weight of 'sort' is"):
            write(tmp_path / "b.parquet", "train", 1, 1, (), {"sort": weight})
    assert not (tmp_path / "b.parquet").exists()


def test_weights_that_leave_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="every kind has weight 0"):
        write(tmp_path / "b.parquet", "train", 1, 1, ("sort",), {"sort": 0.0})
