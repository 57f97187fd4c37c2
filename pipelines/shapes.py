"""The Arrow type of values that come without one: JSON values and CSV cells, seen one after another."""

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

MAX_FIELDS = 64  # an object with more distinct keys is data, not a record
EXACT = 1 << 53  # integers beyond it do not survive as float64
INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")


class Mixed(Exception):
    """The values of a column have no common type."""


class Shape:
    """What JSON values of one column, item or key have been."""

    __slots__ = ("fields", "items", "scalars")

    def __init__(self) -> None:
        self.scalars: set[str] = set()
        self.items: Shape | None = None
        self.fields: dict[str, Shape] | None = None

    def add(self, value: Any) -> None:
        if value is None:
            return
        if isinstance(value, str):
            self.scalars.add("text")
        elif isinstance(value, bool):
            self.scalars.add("bool")
        elif isinstance(value, int):
            self.scalars.update(_integer(value))
        elif isinstance(value, float):
            self.scalars.add("float")
        elif isinstance(value, dict):
            self._add_fields(value)
        else:
            self._add_items(value)

    def arrow(self) -> pa.DataType:
        """The common type; null when nothing but null was seen. Raises Mixed when there is none."""
        if sum((bool(self.scalars), self.items is not None, self.fields is not None)) > 1:
            raise Mixed
        if self.items is not None:
            return pa.list_(self.items.arrow())
        if self.fields is not None:
            if not 0 < len(self.fields) <= MAX_FIELDS:
                raise Mixed
            return pa.struct([(name, shape.arrow()) for name, shape in self.fields.items()])
        return _scalar(self.scalars)

    def _add_fields(self, value: dict[str, Any]) -> None:
        if self.fields is None:
            self.fields = {}
        for name, item in value.items():
            shape = self.fields.get(name)
            if shape is None and len(self.fields) <= MAX_FIELDS:
                shape = self.fields[name] = Shape()
            if shape is not None:
                shape.add(item)

    def _add_items(self, value: list[Any]) -> None:
        if self.items is None:
            self.items = Shape()
        if value and set(map(type, value)) == {int}:  # token ids: only the ends matter
            self.items.add(min(value))
            self.items.add(max(value))
            return
        for item in value:
            self.items.add(item)


def _integer(value: int) -> Iterator[str]:
    yield "int" if -(1 << 63) <= value < 1 << 64 else "huge"
    if value < 0:
        yield "negative"
    if abs(value) > EXACT:
        yield "wide"
    if value >= 1 << 63:
        yield "unsigned"


def _scalar(seen: set[str]) -> pa.DataType:
    if not seen:
        return pa.null()
    if seen == {"text"}:
        return pa.string()
    if seen == {"bool"}:
        return pa.bool_()
    if "huge" in seen or seen & {"text", "bool"} or {"negative", "unsigned"} <= seen or {"float", "wide"} <= seen:
        raise Mixed
    if "float" in seen:
        return pa.float64()
    return pa.uint64() if "unsigned" in seen else pa.int64()


class CellShape:
    """What the cells of one CSV column have been: integers that print as they are written, numbers, true/false, or text."""

    __slots__ = ("kinds",)

    def __init__(self) -> None:
        self.kinds: set[str] = set()

    def add(self, cell: str) -> None:
        if not cell or "text" in self.kinds:
            return
        if INTEGER.fullmatch(cell):
            self.kinds.add("int" if len(cell) <= 15 else "wide")
        elif NUMBER.fullmatch(cell):
            self.kinds.add("float")
        else:
            self.kinds.add("bool" if cell in ("true", "false") else "text")

    def arrow(self) -> pa.DataType:
        if not self.kinds:
            return pa.null()
        if self.kinds == {"bool"}:
            return pa.bool_()
        if self.kinds <= {"int", "wide"}:
            return pa.int64()
        return pa.float64() if self.kinds <= {"int", "float"} else pa.string()


def cell_value(cell: str, kind: pa.DataType) -> Any:
    """A CSV cell as a value of `kind`; an empty cell is null. Raises ValueError when it is none."""
    if not cell:
        return None
    if pa.types.is_integer(kind):
        return int(cell)
    if pa.types.is_floating(kind):
        return float(cell)
    if pa.types.is_boolean(kind):
        if cell not in ("true", "false"):
            raise ValueError(cell)
        return cell == "true"
    return cell
