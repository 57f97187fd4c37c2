"""Parts and their manifest entries: what is written for one unit, and the facts that prove it."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from drawloom.errors import DrawloomError
from drawloom.pipelines.columns import Roles
from drawloom.pipelines.outcomes import content_digest
from drawloom.pipelines.units import Unit


@dataclass(frozen=True, slots=True)
class Entry:
    """The manifest of one committed unit: a pure function of the part's bytes, so that whoever writes it writes the same."""

    unit: str
    ordinal: int
    rows: int
    completed: int
    errors: int
    content: str  # outcomes.content_digest, 32 hex digits
    data_bytes: int
    data_sha256: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    error_codes: Mapping[str, int] = field(default_factory=dict)
    tag: str = ""  # of the part in its store; noted only where the store is not exclusive


def part_path(unit_id: str) -> str:
    return f"part-{unit_id}.parquet"


def encode_part(table: pa.Table, unit: Unit, job_id: str) -> bytes:
    """The part's bytes: Parquet with zstd; job and unit stand in the file's metadata, outside the schema that readers see."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd") as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"drawloom.job": job_id, "drawloom.unit": unit.id})
    return sink.getvalue().to_pybytes()


def decode_part(data: bytes, unit: Unit, job_id: str, schema: pa.Schema) -> pa.Table:
    """The table of a part that someone committed before. Raises DrawloomError when it is not this job's part of this unit."""
    where = part_path(unit.id)
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            facts = file.metadata.metadata or {}
            table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise DrawloomError(f"{where} is damaged ({' '.join(str(error).split())}); delete it and run the job again") from error
    if facts.get(b"drawloom.job") != job_id.encode() or facts.get(b"drawloom.unit") != unit.id.encode():
        raise DrawloomError(f"{where} was not written by this job; move it away and run the job again")
    if not table.schema.equals(schema) or table.num_rows != unit.num_rows:
        raise DrawloomError(f"{where} has another schema or row count than the job; delete it and run the job again")
    return table.replace_schema_metadata(None)


def describe(table: pa.Table, data: bytes, unit: Unit, roles: Roles, tag: str = "") -> Entry:
    """The entry of a part from its table and bytes."""
    errors = [error["code"] for error in table.column(roles.outputs["error"]).to_pylist() if error is not None]
    usage = [one for one in table.column(roles.outputs["usage"]).to_pylist() if one is not None]
    engine = [one for one in table.column(roles.outputs["engine"]).to_pylist() if one is not None]
    return Entry(
        unit=unit.id,
        ordinal=unit.ordinal,
        rows=table.num_rows,
        completed=table.num_rows - len(errors),
        errors=len(errors),
        content=f"{content_digest(table, roles, unit.file.name, unit.start):032x}",
        data_bytes=len(data),
        data_sha256=hashlib.sha256(data).hexdigest(),
        **{name: sum(one[name] or 0 for one in usage) for name in ("prompt_tokens", "completion_tokens")},
        **{name: sum(one[name] or 0 for one in engine) for name in ("forwards", "drafted", "accepted")},
        error_codes=dict(sorted(Counter(errors).items())),
        tag=tag,
    )


def dump_entry(entry: Entry) -> bytes:
    return json.dumps(asdict(entry), sort_keys=True).encode()


def load_entry(data: bytes, where: str) -> Entry:
    """Raises DrawloomError when the manifest is damaged."""
    try:
        return Entry(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise DrawloomError(f"the manifest {where} is damaged ({error}); delete it: it is written again from its part") from error


def dump_entries(entries: Iterable[Entry]) -> bytes:
    """Many entries as one object: JSON lines, zstd."""
    lines = b"\n".join(dump_entry(entry) for entry in entries)
    return pa.Codec("zstd").compress(lines, asbytes=True) + len(lines).to_bytes(8, "little")


def load_entries(data: bytes, where: str) -> list[Entry]:
    """The inverse of `dump_entries`."""
    try:
        lines = zstandard.ZstdDecompressor().decompressobj().decompress(data[:-8])
        if len(data) <= 8 or len(lines) != int.from_bytes(data[-8:], "little"):
            raise ValueError("it is cut short")
    except (zstandard.ZstdError, ValueError) as error:
        raise DrawloomError(
            f"the log {where} is damaged ({error}); delete it and run the job again: it is made anew from the parts"
        ) from error
    return [load_entry(line, where) for line in lines.split(b"\n") if line]


def load_success(data: bytes) -> dict[str, Any]:
    """The totals that _SUCCESS holds. Raises DrawloomError when it is damaged."""
    try:
        return dict(json.loads(data))
    except (ValueError, TypeError) as error:
        raise DrawloomError(f"_SUCCESS is damaged ({error}); delete it and run the job again") from error
