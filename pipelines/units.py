"""The plan: input files cut into work units that depend on the input listing alone, never on cluster size."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from drawloom.errors import SettingError
from drawloom.pipelines.columns import Columns, expected, resolve
from drawloom.pipelines.contract import CONTRACT
from drawloom.pipelines.objects import before_start
from drawloom.pipelines.schemas import unify
from drawloom.pipelines.sources import InputFile
from drawloom.pipelines.store import open_store
from drawloom.pipelines.streams import digest_of
from drawloom.pipelines.textfiles import scan, schema_of

FOOTER_THREADS = 16


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows [start, stop) of one file: what is read, generated and committed as a whole. Picklable, complete in itself."""

    id: str  # safe as a file name; sorts in input order
    ordinal: int  # 0.. over the whole plan
    file: InputFile
    start: int
    stop: int
    byte_start: int = 0  # text files: the unit's bytes in the uncompressed file
    byte_stop: int = 0
    header: tuple[str, ...] = ()  # CSV files

    @property
    def num_rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class PlannedFile:
    """One input file and what planning learned of it."""

    file: InputFile
    digest: str
    num_rows: int
    offsets: tuple[int, ...] = ()
    header: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All input files, the one schema that holds them, and the size of a unit."""

    files: tuple[PlannedFile, ...]
    schema: pa.Schema
    rows_per_unit: int

    @property
    def num_rows(self) -> int:
        return sum(one.num_rows for one in self.files)

    @property
    def num_units(self) -> int:
        return sum(-(-one.num_rows // self.rows_per_unit) for one in self.files)

    def units(self) -> Iterator[Unit]:
        """Every unit in input order."""
        ordinal = 0
        for one in self.files:
            for start in range(0, one.num_rows, self.rows_per_unit):
                yield _unit(one, ordinal, start, self.rows_per_unit)
                ordinal += 1


def plan_units(files: Sequence[InputFile], rows_per_unit: int, columns: Columns | None = None) -> Plan:
    """Read footers (Parquet) or the whole text once (JSONL, CSV) and cut every file into units of rows_per_unit rows.

    Raises SettingError when a file cannot be read, the schemas cannot be joined, the columns do not fit, or there is no row.
    """
    if rows_per_unit < 1:
        raise SettingError(f"rows_per_unit is {rows_per_unit}; at least 1")
    columns = columns or Columns()
    wanted = expected(columns)
    shapes: dict[str, dict[str, Any]] = {"jsonl": {}, "csv": {}}
    with before_start(), ThreadPoolExecutor(FOOTER_THREADS) as threads:
        footers = threads.map(_footer, [file for file in files if file.format == "parquet"])
        digests = threads.map(digest_of, files)
        planned, schemas = [], []
        for file, digest in zip(files, digests, strict=True):
            if file.format == "parquet":
                num_rows, schema = next(footers)
                planned.append(PlannedFile(file, digest, num_rows))
                schemas.append((file.uri, schema))
            else:
                found = scan(file, wanted, rows_per_unit, shapes[file.format])
                planned.append(PlannedFile(file, digest, found.num_rows, found.offsets, found.header))
    schemas += [(f"the {kind} files", schema_of(shape)) for kind, shape in shapes.items() if shape]
    empty = {name: CONTRACT[field].empty for name, field in wanted.items()}
    plan = Plan(tuple(planned), unify(schemas, empty), rows_per_unit)
    if not plan.num_rows:
        raise SettingError(f"no rows in {len(files)} input file{'s' if len(files) != 1 else ''} ({files[0].uri if files else 'none'}, ...)")
    resolve(columns, plan.schema)
    return plan


def _footer(file: InputFile) -> tuple[int, pa.Schema]:
    try:
        with open_store(file.root).open_input(file.name) as source, pq.ParquetFile(source) as parquet:
            return parquet.metadata.num_rows, parquet.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise SettingError(f"{file.uri}: cannot be read as Parquet: {error}") from error


def _unit(one: PlannedFile, ordinal: int, start: int, rows_per_unit: int) -> Unit:
    stop = min(start + rows_per_unit, one.num_rows)
    mark = hashlib.blake2b(f"{one.file.name}\0{start}\0{stop}".encode(), digest_size=4).hexdigest()
    place = start // rows_per_unit
    return Unit(
        id=f"{ordinal:08d}-{mark}",
        ordinal=ordinal,
        file=one.file,
        start=start,
        stop=stop,
        byte_start=one.offsets[place] if one.offsets else 0,
        byte_stop=one.offsets[place + 1] if one.offsets else 0,
        header=one.header,
    )


def listing_digest(plan: Plan) -> str:
    """A hash over the names and content digests of all input files."""
    whole = hashlib.blake2b(digest_size=16)
    for one in plan.files:
        whole.update(f"{one.file.name}\0{one.digest}\n".encode())
    return whole.hexdigest()


def dump_plan(plan: Plan) -> bytes:
    """The plan as bytes: Parquet, one line per file, the schema and unit size in its metadata."""
    facts_of = [asdict(one) for one in plan.files]
    lines = [one.pop("file") | one for one in facts_of]
    facts = json.dumps({"rows_per_unit": plan.rows_per_unit}).encode()
    schema = _PLAN_SCHEMA.with_metadata({b"drawloom.plan": facts, b"drawloom.schema": plan.schema.serialize().to_pybytes()})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(lines, schema=schema), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def load_plan(data: bytes) -> Plan:
    """The inverse of `dump_plan`."""
    table = pq.read_table(pa.BufferReader(data))
    facts = json.loads(table.schema.metadata[b"drawloom.plan"])
    files = []
    for line in table.to_pylist():
        file = InputFile(**{name: line.pop(name) for name in ("root", "name", "size", "tag", "format", "compression")})
        files.append(PlannedFile(file, line["digest"], line["num_rows"], tuple(line["offsets"]), tuple(line["header"])))
    return Plan(tuple(files), pa.ipc.read_schema(pa.py_buffer(table.schema.metadata[b"drawloom.schema"])), facts["rows_per_unit"])


def moved(plan: Plan, files: Sequence[InputFile]) -> Plan:
    """The plan with the files' present places; names must be the same. A moved input keeps its units and seeds."""
    places = {file.name: file for file in files}
    return replace(plan, files=tuple(replace(one, file=places[one.file.name]) for one in plan.files))


_PLAN_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("root", "name", "tag", "format", "compression", "digest")),
        ("size", pa.int64()),
        ("num_rows", pa.int64()),
        ("offsets", pa.list_(pa.int64())),
        ("header", pa.list_(pa.string())),
    ]
)
