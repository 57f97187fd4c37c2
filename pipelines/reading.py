"""From a unit to its rows. A reader keeps its place in the file, so that units read in order cost one pass."""

import io
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from drawloom.errors import DrawloomError
from drawloom.pipelines.columns import Columns, expected
from drawloom.pipelines.schemas import conform
from drawloom.pipelines.sources import InputFile
from drawloom.pipelines.store import open_store
from drawloom.pipelines.streams import open_stream
from drawloom.pipelines.textfiles import Fault, records, to_table
from drawloom.pipelines.units import Unit

BATCH_ROWS = 1024
BUFFER_BYTES = 1 << 22  # a column of a row group is read in pieces of this size, never whole


@dataclass(frozen=True)
class UnitRows:
    """A unit's rows in the plan's schema, and the faults of those that could not be read as rows (row in the unit -> fault)."""

    table: pa.Table
    faults: Mapping[int, Fault] = field(default_factory=dict)


class UnitReader:
    """Reads units; one per process or thread. Any order works, ascending order within a file reads it once."""

    def __init__(self, schema: pa.Schema, columns: Columns | None = None) -> None:
        self._schema = schema
        self._expected = expected(columns or Columns())
        self._place: _ParquetPlace | _StreamPlace | None = None

    def read(self, unit: Unit) -> UnitRows:
        """The rows of one unit. Raises SettingError when they do not fit the schema, DrawloomError when the file has changed since
        planning or cannot be read."""
        try:
            return self._parquet(unit) if unit.file.format == "parquet" else self._text(unit, self._bytes(unit))
        except (pa.ArrowException, OSError) as error:
            self.close()
            raise DrawloomError(f"{unit.file.uri}: rows {unit.start} to {unit.stop} cannot be read: {error}") from error

    def close(self) -> None:
        if self._place is not None:
            self._place.close()
            self._place = None

    def _parquet(self, unit: Unit) -> UnitRows:
        place = self._place
        if not (isinstance(place, _ParquetPlace) and place.file == unit.file and place.row <= unit.start):
            self.close()
            place = self._place = _ParquetPlace(unit.file)
        table = conform(place.take(unit.start, unit.stop), self._schema, unit.file.uri)
        _check_count(unit, table.num_rows)
        return UnitRows(table)

    def _bytes(self, unit: Unit) -> bytes:
        if not unit.file.compression:
            return open_store(unit.file.root).read_range(unit.file.name, unit.byte_start, unit.byte_stop)
        place = self._place
        if not (isinstance(place, _StreamPlace) and place.file == unit.file and place.byte <= unit.byte_start):
            self.close()
            place = self._place = _StreamPlace(unit.file)
        return place.take(unit.byte_start, unit.byte_stop)

    def _text(self, unit: Unit, data: bytes) -> UnitRows:
        found = list(records(unit.file, io.BytesIO(data), unit.byte_start, unit.header, self._expected))
        _check_count(unit, len(found))
        faults = {row: record.fault for row, record in enumerate(found) if record.fault}
        return UnitRows(to_table(found, self._schema, unit.file.format), faults)


def read_unit(unit: Unit, schema: pa.Schema, columns: Columns | None = None) -> UnitRows:
    """One unit by itself; see UnitReader for many."""
    reader = UnitReader(schema, columns)
    try:
        return reader.read(unit)
    finally:
        reader.close()


class _ParquetPlace:
    """A row position in a Parquet file that moves forward; row groups that lie before a wanted row are skipped unread."""

    def __init__(self, file: InputFile) -> None:
        self.file, self.row = file, 0
        self._stack = ExitStack()
        source = self._stack.enter_context(open_store(file.root).open_input(file.name))
        self._parquet = self._stack.enter_context(pq.ParquetFile(source, buffer_size=BUFFER_BYTES))
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._left: pa.RecordBatch | None = None  # begins at self.row
        self._group_stops = _running([self._parquet.metadata.row_group(i).num_rows for i in range(self._parquet.num_row_groups)])

    def take(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Batches that make up rows [start, stop); fewer when the file ends. Needs row <= start."""
        self._forward(start)
        while self.row < stop and (batch := self._next()) is not None:
            if self.row < start:
                skip = min(start - self.row, batch.num_rows)
                self.row += skip
                self._left = batch.slice(skip) if skip < batch.num_rows else None
                continue
            count = min(stop - self.row, batch.num_rows)
            self.row += count
            self._left = batch.slice(count) if count < batch.num_rows else None
            yield batch.slice(0, count)

    def close(self) -> None:
        self._batches, self._left = iter(()), None
        self._stack.close()

    def _next(self) -> pa.RecordBatch | None:
        left, self._left = self._left, None
        return left if left is not None else next(self._batches, None)

    def _forward(self, start: int) -> None:
        """Jump to the row group that holds `start`, unless the position is already in it (or at its begin, with batches open)."""
        group = sum(stop <= start for stop in self._group_stops)
        begin = self._group_stops[group - 1] if group else 0
        if self.row < begin or self.row == 0:
            self.row, self._left = begin, None
            self._batches = self._parquet.iter_batches(BATCH_ROWS, row_groups=list(range(group, self._parquet.num_row_groups)))


class _StreamPlace:
    """A byte position in a decompressed stream that moves forward."""

    def __init__(self, file: InputFile) -> None:
        self.file, self.byte = file, 0
        self._stack = ExitStack()
        self._stream: BinaryIO = self._stack.enter_context(open_stream(file))

    def take(self, start: int, stop: int) -> bytes:
        while self.byte < start:
            self.byte += len(self._stream.read(min(1 << 20, start - self.byte))) or _gone(self.file)
        data = self._stream.read(stop - start)
        self.byte += len(data)
        return data

    def close(self) -> None:
        self._stack.close()


def _running(counts: list[int]) -> list[int]:
    total, sums = 0, []
    for count in counts:
        total += count
        sums.append(total)
    return sums


def _check_count(unit: Unit, found: int) -> None:
    if found != unit.num_rows:
        raise DrawloomError(
            f"{unit.file.uri}: rows {unit.start} to {unit.stop} hold {found} rows now; the file has changed since the job was planned. "
            "Restore it, or start a new output"
        )


def _gone(file: InputFile) -> int:
    raise DrawloomError(f"{file.uri} is shorter than when the job was planned. Restore it, or start a new output")
