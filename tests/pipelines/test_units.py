"""Planning and reading: units partition every input exactly, in every format, whatever the row groups and the order of reading."""

import csv
import gzip
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from commit_rig import prompts, write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drawloom.errors import DrawloomError, SettingError
from drawloom.pipelines.columns import Columns
from drawloom.pipelines.reading import UnitReader, UnitRows, read_unit
from drawloom.pipelines.sources import find_inputs
from drawloom.pipelines.units import Plan, Unit, dump_plan, load_plan, plan_units


def plan_of(spec: Path | str, rows_per_unit: int = 3, columns: Columns | None = None) -> Plan:
    return plan_units(find_inputs(str(spec)), rows_per_unit, columns)


def read_all(plan: Plan, columns: Columns | None = None) -> list[dict[str, Any]]:
    """Every row, in input order, by one reader."""
    reader = UnitReader(plan.schema, columns)
    tables = [reader.read(unit).table for unit in plan.units()]
    reader.close()
    return pa.concat_tables(tables).to_pylist()


def write_jsonl(path: Path, lines: Sequence[Any], compress: str = "") -> Path:
    """Lines are bytes as they stand, or values to dump."""
    data = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    return write_bytes(path.with_name(path.name + compress), data, compress)


def write_bytes(path: Path, data: bytes, compress: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = {"": lambda: data, ".gz": lambda: gzip.compress(data), ".zst": lambda: zstandard.compress(data)}[compress]()
    path.write_bytes(packed)
    return path


FORMATS = ("parquet", "jsonl", "jsonl.gz", "csv.zst")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.tuples(st.sampled_from(FORMATS), st.integers(0, 40), st.integers(1, 17)), min_size=1, max_size=5),
    rows_per_unit=st.integers(1, 50),
    seed=st.integers(0, 1 << 16),
)
def test_units_partition_the_input(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[str, int, int]], rows_per_unit: int, seed: int
) -> None:
    folder, start = tmp_path_factory.mktemp("in"), 0
    for number, (kind, count, group) in enumerate(files):
        _write_kind(folder / f"{number}.{kind}", kind, prompts(count, start), group)
        start += count
    if not start:
        with pytest.raises(SettingError, match="no rows"):
            plan_of(folder, rows_per_unit)
        return
    plan = plan_of(folder, rows_per_unit)
    units = list(plan.units())
    assert plan == plan_of(folder, rows_per_unit)  # a function of the listing alone
    assert [unit.ordinal for unit in units] == list(range(plan.num_units))
    assert sorted({unit.id for unit in units}) == [unit.id for unit in units]  # distinct, sorted as the input is
    assert all(unit.num_rows <= rows_per_unit for unit in units)
    reader, found = UnitReader(plan.schema), {}
    for unit in random.Random(seed).sample(units, len(units)):
        rows = reader.read(unit).table.to_pylist()
        assert rows == read_unit(unit, plan.schema).table.to_pylist()
        found[unit.ordinal] = rows
    reader.close()
    assert [row for ordinal in sorted(found) for row in found[ordinal]] == prompts(start)
    assert load_plan(dump_plan(plan)) == plan


def _write_kind(path: Path, kind: str, rows: list[dict[str, Any]], group: int) -> None:
    if kind == "parquet":
        write_rows(path, rows, pa.schema([("id", pa.int64()), ("prompt", pa.string())]), row_group_size=group)
    elif kind.startswith("jsonl"):
        write_bytes(path, b"".join(json.dumps(row).encode() + b"\n\n" for row in rows), path.suffix if path.suffix == ".gz" else "")
    else:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["id", "prompt"])
        writer.writerows([row["id"], row["prompt"]] for row in rows)
        write_bytes(path, text.getvalue().encode(), ".zst")


def test_one_row_group_of_many_rows_is_split(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "big.parquet", prompts(100_000), row_group_size=100_000)
    plan = plan_of(path, 256)
    assert plan.num_units == 391
    middle = list(plan.units())[200]
    assert read_unit(middle, plan.schema).table.column("id").to_pylist() == list(range(middle.start, middle.stop))


def test_a_reader_in_order_decodes_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_rows(tmp_path / "in.parquet", prompts(5000), row_group_size=2000)
    opened, decoded = [], []
    real_open, real_batches = pq.ParquetFile.__init__, pq.ParquetFile.iter_batches

    def count_open(self: pq.ParquetFile, *args: Any, **named: Any) -> None:
        opened.append(self)
        real_open(self, *args, **named)

    def count_batches(self: pq.ParquetFile, *args: Any, **named: Any) -> Any:
        for batch in real_batches(self, *args, **named):
            decoded.append(batch.num_rows)
            yield batch

    plan = plan_of(path, 100)
    monkeypatch.setattr(pq.ParquetFile, "__init__", count_open)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", count_batches)
    assert [row["id"] for row in read_all(plan)] == list(range(5000))
    assert (len(opened), sum(decoded)) == (1, 5000)
    decoded.clear()
    read_unit(list(plan.units())[45], plan.schema)  # rows 4500 on: the first two row groups are not touched
    assert sum(decoded) <= 1000


def test_unit_ids_do_not_depend_on_where_the_input_lies(tmp_path: Path) -> None:
    for place in ("here", "there"):
        write_rows(tmp_path / place / "in.parquet", prompts(10))
    here, there = (plan_of(tmp_path / place) for place in ("here", "there"))
    assert [unit.id for unit in here.units()] == [unit.id for unit in there.units()]


# One schema over many files


def test_schemas_are_joined(tmp_path: Path) -> None:
    role = pa.struct([("role", pa.string()), ("content", pa.string())])
    named = pa.struct([("role", pa.string()), ("content", pa.string()), ("name", pa.string())])
    says = {"role": "user", "content": "hi"}
    first = pa.schema([("p", pa.null()), ("n", pa.int32()), ("messages", pa.list_(role))])
    write_rows(tmp_path / "a.parquet", [{"p": None, "n": 1, "messages": [says]}], first)
    write_rows(
        tmp_path / "b.parquet",
        [{"p": "text", "n": 1 << 40, "messages": [says | {"name": "Ada"}], "more": b"x"}],
        pa.schema([("p", pa.string()), ("n", pa.int64()), ("messages", pa.list_(named)), ("more", pa.binary())]),
    )
    write_rows(tmp_path / "c.parquet", [{"messages": [], "n": None}], pa.schema([("messages", pa.list_(pa.null())), ("n", pa.null())]))
    write_jsonl(tmp_path / "d.jsonl", [{"n": 7, "messages": [says]}])
    plan = plan_of(tmp_path)
    assert plan.schema == pa.schema([("p", pa.string()), ("n", pa.int64()), ("messages", pa.list_(named)), ("more", pa.binary())])
    rows = read_all(plan)
    assert [row["p"] for row in rows] == [None, "text", None, None]
    assert [row["n"] for row in rows] == [1, 1 << 40, None, 7]
    assert [row["messages"] for row in rows] == [[says | {"name": None}], [says | {"name": "Ada"}], [], [says | {"name": None}]]
    assert [row["more"] for row in rows] == [None, b"x", None, None]


def test_a_column_that_is_always_null_becomes_text(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", [{"prompt": "x", "note": None, "tags": []}])
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": "x", "note": None, "tags": []}])
    assert plan_of(tmp_path).schema.field("note").type == pa.string()
    assert plan_of(tmp_path).schema.field("tags").type == pa.list_(pa.string())


def test_a_setting_that_is_always_null_keeps_its_type(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("temperature", "max_tokens", "ignore_eos", "seed", "stop"))
    write_rows(tmp_path / "a.parquet", [{"prompt": "x"} | nothing])
    assert plan_of(tmp_path).schema.types[1:] == [pa.float64(), pa.int64(), pa.bool_(), pa.uint64(), pa.string()]


def test_dictionary_and_view_columns_are_read_plainly(tmp_path: Path) -> None:
    table = pa.table({"prompt": pa.array(["a", "b", "a"]).dictionary_encode(), "view": pa.array(["x", None, "y"], pa.string_view())})
    pq.write_table(table, tmp_path / "a.parquet")
    write_rows(tmp_path / "b.parquet", [{"prompt": "c", "view": "z"}])
    plan = plan_of(tmp_path)
    assert plan.schema.types == [pa.string(), pa.string()]
    assert [row["view"] for row in read_all(plan)] == ["x", None, "y", "z"]


def test_metadata_of_other_tools_is_left_behind(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a"]}).replace_schema_metadata({"huggingface": '{"info": {"features": {}}}', "pandas": "{}"})
    pq.write_table(table, tmp_path / "a.parquet")
    assert plan_of(tmp_path).schema.metadata is None


def test_types_that_cannot_be_joined_name_column_types_and_files(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", [{"prompt": "x", "n_tries": 1}])
    write_rows(tmp_path / "b.parquet", [{"prompt": "x", "n_tries": "one"}])
    with pytest.raises(SettingError, match=r"'n_tries' is int64 in .*a\.parquet and string in .*b\.parquet"):
        plan_of(tmp_path)


def test_repeated_columns_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table([pa.array(["x"]), pa.array(["y"])], names=["prompt", "prompt"]), tmp_path / "a.parquet")
    with pytest.raises(SettingError, match="'prompt' appears twice"):
        plan_of(tmp_path)


@pytest.mark.parametrize("data", [b"", b"PAR1 no parquet PAR1", b"x" * 100])
def test_a_damaged_parquet_file_is_named(tmp_path: Path, data: bytes) -> None:
    write_bytes(tmp_path / "bad.parquet", data)
    with pytest.raises(SettingError, match=r"bad\.parquet: cannot be read as Parquet"):
        plan_of(tmp_path)


def test_a_file_that_changed_after_planning_is_refused(tmp_path: Path) -> None:
    for path in (write_rows(tmp_path / "a.parquet", prompts(10)), write_jsonl(tmp_path / "b.jsonl", prompts(10))):
        plan = plan_of(path, 4)
        write_rows(path, prompts(9)) if path.suffix == ".parquet" else write_jsonl(path, prompts(9))
        with pytest.raises(DrawloomError, match="has changed since the job was planned"):
            read_all(plan)


def test_a_file_that_is_gone_or_damaged_in_its_middle_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": random.Random(number).randbytes(40).hex()} for number in range(300)]
    for path in (write_rows(tmp_path / "a.parquet", rows), write_jsonl(tmp_path / "b.jsonl", rows)):
        plan = plan_of(path, 100)
        data = bytearray(path.read_bytes())
        data[2000:6000] = b"\0" * 4000
        if path.suffix == ".parquet":
            path.write_bytes(data)
            with pytest.raises(DrawloomError, match=r"a\.parquet: rows 0 to 100 cannot be read"):
                read_all(plan)
        path.unlink()
        with pytest.raises(DrawloomError, match="cannot be read"):
            read_all(plan)


# Text


META = {"k": 1, "deep": {"x": [1.5]}}


@pytest.mark.parametrize("compress", ["", ".gz", ".zst"])
def test_jsonl_keeps_values_and_types(tmp_path: Path, compress: str) -> None:
    rows = [
        {"id": 1, "prompt": "é\u2028 \U0001f600", "score": 1, "ok": True, "date": "2026-01-01", "tags": ["a"], "meta": META},
        {"id": 2, "prompt": "two", "score": 0.5, "ok": None, "tags": [], "meta": None, "late": "only here"},
        {"id": 3, "prompt": "three", "score": None, "tags": None, "meta": {"k": None, "new": "n"}},
    ] * 3
    path = write_jsonl(tmp_path / "in.jsonl", rows, compress)
    plan = plan_of(path, 2)
    meta = pa.struct([("k", pa.int64()), ("deep", pa.struct([("x", pa.list_(pa.float64()))])), ("new", pa.string())])
    wanted = {"id": pa.int64(), "prompt": pa.string(), "score": pa.float64(), "ok": pa.bool_(), "date": pa.string()}
    assert plan.schema == pa.schema([*wanted.items(), ("tags", pa.list_(pa.string())), ("meta", meta), ("late", pa.string())])
    found = read_all(plan)
    assert [row["prompt"] for row in found] == [row["prompt"] for row in rows]
    assert found[0]["meta"] == META | {"new": None}
    assert found[2]["meta"] == {"k": None, "deep": None, "new": "n"}


def test_jsonl_lines_end_in_many_ways(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf{"prompt": "a"}\r\n\n  \n{"prompt": "b"}\n\r\n{"prompt": "c"}'  # byte order mark, blank lines, no last newline
    plan = plan_of(write_bytes(tmp_path / "in.jsonl", data), 1)
    assert [row["prompt"] for row in read_all(plan)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "values",
    [[1, "a"], [1, True], [{"a": 1}, "x"], [[1], {"a": 1}], [1 << 70, 1], [(1 << 53) + 1, 0.5], [{}], [{str(i): i} for i in range(70)]],
)
def test_jsonl_values_without_a_common_type_become_json_text(tmp_path: Path, values: list[Any]) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "p", "any": value} for value in [*values, None]])
    plan = plan_of(path)
    assert plan.schema.field("any").type == pa.string()
    found = [row["any"] for row in read_all(plan)]
    assert [None if text is None else json.loads(text) for text in found] == [*values, None]


def test_jsonl_unsigned_seeds_survive(tmp_path: Path) -> None:
    plan = plan_of(write_jsonl(tmp_path / "in.jsonl", [{"prompt": "p", "seed": (1 << 64) - 1}, {"prompt": "p", "seed": 1}]))
    assert plan.schema.field("seed").type == pa.uint64()
    assert [row["seed"] for row in read_all(plan)] == [(1 << 64) - 1, 1]


BAD_LINES = [
    (b'{"prompt": "cut', "bad_json", "not JSON"),
    (b'{"prompt": "x"} trailing', "bad_json", "not JSON"),
    (b'["prompt", "x"]', "bad_json", "holds list"),
    (b"null", "bad_json", "holds NoneType"),
    (b'{"prompt": "\xff\xfe"}', "bad_encoding", "not UTF-8"),
    (b'{"prompt": "\\ud800"}', "bad_encoding", "not UTF-8"),
    (b'{"a":' * 100_000, "bad_json", "nested too deeply"),
    (b'{"prompt": 5}', "wrong_type", "column 'prompt' holds 5, but prompt needs text"),
    (b'{"prompt": {"text": "x"}}', "wrong_type", "prompt needs text"),
    (b'{"prompt": "x", "max_tokens": "ten"}', "wrong_type", "max_tokens needs an integer"),
    (b'{"prompt": "x", "temperature": NaN}', "wrong_type", "temperature needs a number"),
    (b'{"prompt": "x", "stop": [1]}', "wrong_type", "stop needs text or a list of text"),
    (b'{"prompt": "x", "seed": -1}', "wrong_type", "seed needs an integer from 0"),
]


@pytest.mark.parametrize(("line", "code", "words"), BAD_LINES)
def test_a_bad_jsonl_line_is_its_rows_fault_alone(tmp_path: Path, line: bytes, code: str, words: str) -> None:
    good = [{"id": number, "prompt": f"p{number}", "max_tokens": 5} for number in range(5)]
    plan = plan_of(write_jsonl(tmp_path / "in.jsonl", [*good[:2], line, *good[2:]]), 2)
    assert plan.schema == pa.schema([("id", pa.int64()), ("prompt", pa.string()), ("max_tokens", pa.int64())]) or code == "wrong_type"
    assert plan.schema.field("prompt").type == pa.string()
    reader = UnitReader(plan.schema)
    found = [reader.read(unit) for unit in plan.units()]
    assert [rows.table.num_rows for rows in found] == [2, 2, 2]
    assert [dict(rows.faults).keys() for rows in found] == [set(), {0}, set()]
    fault = found[1].faults[0]
    assert fault.code == code
    assert words in fault.message
    assert fault.raw == line.decode("utf-8", "backslashreplace")[:4096]
    assert [row["id"] for rows in found for row in rows.table.to_pylist() if row["id"] is not None] == [0, 1, 2, 3, 4]


def test_a_file_of_bad_lines_alone_still_gives_rows(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "fine"}])
    write_jsonl(tmp_path / "b.jsonl", [b"bad", b"worse"])
    plan = plan_of(tmp_path)
    assert plan.num_rows == 3
    assert [row["prompt"] for row in read_all(plan)] == ["fine", None, None]


@pytest.mark.parametrize("compress", [".gz", ".zst"])
@pytest.mark.parametrize("cut", [0.3, 0.9, -3])
def test_a_compressed_file_that_is_cut_short_is_refused(tmp_path: Path, compress: str, cut: float) -> None:
    lines = [{"prompt": random.Random(number).randbytes(50).hex()} for number in range(2000)]
    path = write_jsonl(tmp_path / "in.jsonl", lines, compress)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * cut)] if cut > 0 else data[: int(cut)])
    with pytest.raises(SettingError, match="damaged or cut short"):
        plan_of(tmp_path)


@pytest.mark.parametrize("compress", [".gz", ".zst"])
def test_several_compressed_pieces_in_one_file(tmp_path: Path, compress: str) -> None:
    pieces = [write_jsonl(tmp_path / f"{number}.jsonl", prompts(40, 40 * number), compress).read_bytes() for number in range(3)]
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / f"in.jsonl{compress}").write_bytes(b"".join(pieces))
    assert read_all(plan_of(tmp_path / "whole", 7)) == prompts(120)


def test_csv_cells_quotes_and_types(tmp_path: Path) -> None:
    text = (
        "id,prompt,zip,score,flag,note,max_tokens\r\n"
        '1,"two\nlines, and a ""quote""",00501,1,true,,5\r\n'
        '2,plain 5" pipe,10115,0.25,false,x,\r\n'
        "\r\n"
        "3,,10117,,true,y,7"
    )
    plan = plan_of(write_bytes(tmp_path / "in.csv", text.encode()), 1)
    wanted = {"id": pa.int64(), "prompt": pa.string(), "zip": pa.string(), "score": pa.float64(), "flag": pa.bool_(), "note": pa.string()}
    assert plan.schema == pa.schema([*wanted.items(), ("max_tokens", pa.int64())])
    assert [list(row.values()) for row in read_all(plan)] == [
        [1, 'two\nlines, and a "quote"', "00501", 1.0, True, None, 5],
        [2, 'plain 5" pipe', "10115", 0.25, False, "x", None],
        [3, None, "10117", None, True, "y", 7],
    ]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (b"9", "bad_csv", "has 1 cells, the header 3"),
        (b"9,p,5,more", "bad_csv", "has 4 cells"),
        (b"9,\xff,5", "bad_encoding", "not UTF-8"),
        (b"9,a\rb,5", "bad_csv", "not CSV"),
        (b"9,p,many", "wrong_type", "'max_tokens' holds 'many'"),
    ],
)
def test_a_bad_csv_line_is_its_rows_fault_alone(tmp_path: Path, line: bytes, code: str, words: str) -> None:
    data = b"id,prompt,max_tokens\n1,a,5\n" + line + b'\n2,"b\nc",6\n'
    plan = plan_of(write_bytes(tmp_path / "in.csv", data), 2)
    found = [UnitReader(plan.schema).read(unit) for unit in plan.units()]
    assert [dict(rows.faults).keys() for rows in found] == [{1}, set()]
    assert found[0].faults[1].code == code
    assert words in found[0].faults[1].message
    assert [row["prompt"] for rows in found for row in rows.table.to_pylist()][::2] == ["a", "b\nc"]


def test_csv_with_long_cells_and_tabs(tmp_path: Path) -> None:
    long = "x" * 300_000  # beyond csv's own limit of 131072
    write_bytes(tmp_path / "in.tsv", f"id\tprompt\n1\t{long}\n2\ta,b\n".encode())
    assert [row["prompt"] for row in read_all(plan_of(tmp_path))] == [long, "a,b"]


def test_csv_faults_that_stop_the_job(tmp_path: Path) -> None:
    for data, words in (
        (b'id,prompt\n1,"never closed\n2,b\n3,c\n', "never ends"),
        (b"id,,prompt\n1,2,3\n", "empty or repeated column name"),
        (b"id,id,prompt\n1,2,3\n", "empty or repeated column name"),
        ("id,prompt\n1,a\n".encode("utf-16"), "cannot be read as UTF-8"),
    ):
        write_bytes(tmp_path / "in.csv", data)
        with pytest.raises(SettingError, match=words):
            plan_of(tmp_path)


def test_csv_files_with_different_columns_and_types(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a.csv", b"prompt,code\nx,1\n")
    write_bytes(tmp_path / "b.csv", b"code,prompt,more\nA1,y,2\n")
    plan = plan_of(tmp_path)
    assert read_all(plan) == [{"prompt": "x", "code": "1", "more": None}, {"prompt": "y", "code": "A1", "more": 2}]


def test_rows_per_unit_is_checked(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", prompts(3))
    with pytest.raises(SettingError, match="rows_per_unit is 0"):
        plan_of(tmp_path, 0)


def test_units_and_rows_pickle(tmp_path: Path) -> None:
    import pickle

    plan = plan_of(write_jsonl(tmp_path / "in.jsonl", [{"prompt": "a"}, b"bad"]))
    unit: Unit = pickle.loads(pickle.dumps(next(plan.units())))
    rows: UnitRows = pickle.loads(pickle.dumps(read_unit(unit, plan.schema)))
    assert rows.table.num_rows == 2
    assert rows.faults[1].code == "bad_json"
