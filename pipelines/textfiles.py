"""JSONL and CSV, record by record. A record that cannot be used is a fault of its row, never the end of a job."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from drawloom.errors import SettingError
from drawloom.pipelines.columns import JSON_TEXT
from drawloom.pipelines.contract import CONTRACT
from drawloom.pipelines.shapes import NUMBER, CellShape, Mixed, Shape, cell_value
from drawloom.pipelines.sources import InputFile
from drawloom.pipelines.streams import open_stream

MAX_LINE_BYTES = 1 << 26
MAX_RAW_CHARS = 4096  # of a faulty record, kept in its error


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a record cannot become a request; `raw` is the record as it stands in the file, cut to MAX_RAW_CHARS."""

    code: str
    message: str
    raw: str


@dataclass(slots=True)
class Record:
    """One record: bytes [start, stop) of the stream, its values (those that can be used), and what is wrong with it."""

    start: int
    stop: int
    values: dict[str, Any]
    fault: Fault | None


@dataclass(frozen=True)
class Scan:
    """What planning learns of a text file. offsets[k] is the byte where unit k starts in the uncompressed file; one more at the end."""

    num_rows: int
    offsets: tuple[int, ...]
    header: tuple[str, ...]  # CSV only


def scan(file: InputFile, expected: Mapping[str, str], rows_per_unit: int, shapes: dict[str, Any]) -> Scan:
    """Read a file once: count records, note where units start, and add what its values are to `shapes` (column -> shape)."""
    offsets, count, stop = [], 0, 0
    with open_stream(file) as stream:
        header, start = read_header(file, stream) if file.format == "csv" else ((), 0)
        for record in records(file, stream, start, header, expected):
            if count % rows_per_unit == 0:
                offsets.append(record.start)
            count, stop = count + 1, record.stop
            for name, value in record.values.items():
                if name not in shapes:
                    shapes[name] = CellShape() if file.format == "csv" else Shape()
                shapes[name].add(value)
    return Scan(count, (*offsets, stop), header)


def records(file: InputFile, stream: BinaryIO, start: int, header: Sequence[str], expected: Mapping[str, str]) -> Iterator[Record]:
    """The records from the stream's position (byte `start` of the file) to its end. `expected`: column -> the request field it
    fills, so that a value of another type is a fault."""
    if file.format == "jsonl":
        return _json_records(file, stream, start, expected)
    return _csv_records(file, stream, start, header, expected)


def schema_of(shapes: Mapping[str, Any]) -> pa.Schema:
    """Columns in order of appearance; a column whose values share no type is text, each cell the value's JSON."""
    fields = []
    for name, shape in shapes.items():
        try:
            fields.append(pa.field(name, shape.arrow()))
        except Mixed:
            fields.append(pa.field(name, pa.string(), metadata=JSON_TEXT))
    return pa.schema(fields)


def to_table(found: Sequence[Record], schema: pa.Schema, kind: str) -> pa.Table:
    """Records as a table of `schema`."""
    arrays = []
    for field in schema:
        cells = [record.values.get(field.name) for record in found]
        if (field.metadata or {}).get(b"drawloom.json") and kind == "jsonl":
            cells = [None if cell is None else json.dumps(cell, ensure_ascii=False) for cell in cells]
        elif kind == "csv":
            cells = [None if cell is None else cell_value(cell, field.type) for cell in cells]
        arrays.append(pa.array(cells, field.type))
    return pa.table(arrays, schema=schema)


def read_header(file: InputFile, stream: BinaryIO) -> tuple[tuple[str, ...], int]:
    """The column names of a CSV file and the bytes they take; the stream is left behind them. Raises SettingError."""
    taken: list[bytes] = []
    try:
        lines = (raw.decode("utf-8-sig") for raw in _lines(file, stream, taken))
        names = next(csv.reader(lines, delimiter=_delimiter(file), strict=True), [])
    except (csv.Error, UnicodeDecodeError) as error:
        raise SettingError(f"{file.uri}: the header line cannot be read as UTF-8 CSV: {error}") from error
    if not all(names) or len(set(names)) < len(names):
        raise SettingError(f"{file.uri}: the header line has an empty or repeated column name: {names}")
    return tuple(names), sum(map(len, taken))


def _lines(file: InputFile, stream: BinaryIO, taken: list[bytes] | None = None) -> Iterator[bytes]:
    """Lines with their ends; each is also noted in `taken`."""
    while line := stream.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES:
            raise SettingError(f"{file.uri}: a line is longer than {MAX_LINE_BYTES} bytes; is this a text file with one row a line?")
        if taken is not None:
            taken.append(line)
        yield line


def _json_records(file: InputFile, stream: BinaryIO, start: int, expected: Mapping[str, str]) -> Iterator[Record]:
    for raw in _lines(file, stream):
        stop = start + len(raw)
        text = raw.removeprefix(b"\xef\xbb\xbf") if start == 0 else raw
        if text.strip():
            values, fault = _parse_json(text)
            yield Record(start, stop, values, fault or _misfit(values, expected, text, _json_fits))
        start = stop


def _parse_json(raw: bytes) -> tuple[dict[str, Any], Fault | None]:
    try:
        values = json.loads(raw.decode())
        if b"\\ud" in raw.lower():
            json.dumps(values, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except UnicodeError as error:
        return {}, _fault("bad_encoding", f"the line is not UTF-8 text: {error}", raw)
    except RecursionError:
        return {}, _fault("bad_json", "the line is nested too deeply", raw)
    except ValueError as error:
        return {}, _fault("bad_json", f"the line is not JSON: {error}", raw)
    if not isinstance(values, dict):
        return {}, _fault("bad_json", f"the line holds {type(values).__name__}, but a row is an object with named fields", raw)
    return values, None


def _csv_records(file: InputFile, stream: BinaryIO, start: int, header: Sequence[str], expected: Mapping[str, str]) -> Iterator[Record]:
    csv.field_size_limit(MAX_LINE_BYTES)
    taken: list[bytes] = []  # lines of the record that is being read
    last: list[bytes] = []  # lines of the record before, if it had several
    lines = (raw.decode("utf-8", "surrogateescape") for raw in _lines(file, stream, taken))
    reader = csv.reader(lines, delimiter=_delimiter(file))
    while True:
        try:
            cells, wrong = next(reader), ""
        except StopIteration:
            return _refuse_open_quote(file, last, start)
        except csv.Error as error:
            cells, wrong = [], str(error)
        raw = b"".join(taken)
        last = list(taken) if len(taken) > 1 else []
        taken.clear()
        if cells or wrong:
            values, fault = _csv_values(raw, cells, header, wrong)
            yield Record(start, start + len(raw), values, fault or _misfit(values, expected, raw, _cell_fits))
        start += len(raw)


def _csv_values(raw: bytes, cells: list[str], header: Sequence[str], wrong: str) -> tuple[dict[str, Any], Fault | None]:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return {}, _fault("bad_encoding", f"the line is not UTF-8 text: {error}", raw)
    if wrong:
        return {}, _fault("bad_csv", f"the line is not CSV: {wrong}", raw)
    if len(cells) != len(header):
        return {}, _fault("bad_csv", f"the line has {len(cells)} cells, the header {len(header)}", raw)
    return {name: cell or None for name, cell in zip(header, cells, strict=True)}, None


def _refuse_open_quote(file: InputFile, last: list[bytes], stop: int) -> None:
    """A quote that never ends swallows the rest of the file: say so instead of losing those rows."""
    try:
        list(csv.reader([raw.decode("utf-8", "replace") for raw in last], delimiter=_delimiter(file), strict=True))
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            start = stop - sum(map(len, last))
            raise SettingError(f"{file.uri}: the quoted cell of the record at byte {start} never ends; close its quote") from error


def _delimiter(file: InputFile) -> str:
    return "\t" if file.name.lower().removesuffix(file.compression).endswith(".tsv") else ","


def _json_fits(field: str, value: Any) -> bool:
    return CONTRACT[field].fits(value)


def _cell_fits(field: str, cell: str) -> bool:
    """Lists and records stand in CSV as JSON text, which is read row by row later."""
    kind = CONTRACT[field].cell
    return kind == "text" or (NUMBER.fullmatch(cell) is not None if kind == "number" else cell in ("true", "false"))


def _misfit(values: dict[str, Any], expected: Mapping[str, str], raw: bytes, fits: Callable[[str, Any], bool]) -> Fault | None:
    """Empty the cells that cannot be what their request field needs; the first of them is the row's fault."""
    fault = None
    for name, field in expected.items():
        value = values.get(name)
        if value is not None and not fits(field, value):
            values[name] = None
            message = f"column {name!r} holds {shorten(value)}, but {field} needs {CONTRACT[field].wanted}"
            fault = fault or _fault("wrong_type", message, raw)
    return fault


def shorten(value: Any) -> str:
    """A value for a message: its repr, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _fault(code: str, message: str, raw: bytes) -> Fault:
    return Fault(code, message, raw.decode("utf-8", "backslashreplace").rstrip("\r\n")[:MAX_RAW_CHARS])
