"""One Arrow schema for many files: merge what differs, and make each table fit it."""

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from drawloom.errors import SettingError


def plain(kind: pa.DataType) -> pa.DataType:
    """The type that is written for `kind`: no dictionaries, no views, every field nullable, null where nothing is known yet."""
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([plain_field(field) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_field(kind.value_field), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(plain_field(kind.value_field))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(plain_field(kind.value_field))
    return kind


def plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, plain(field.type), metadata={k: v for k, v in (field.metadata or {}).items() if k.startswith(b"drawloom.")})


def unify(schemas: Sequence[tuple[str, pa.Schema]], empty: Mapping[str, pa.DataType]) -> pa.Schema:
    """One schema that holds all of (file name, schema): columns in order of appearance, integers and floats widened, structs
    joined, null types filled by the others. A column that is null everywhere gets its type of `empty`, else text.
    Metadata of other tools is dropped: it describes other columns.

    Raises SettingError naming the column, both types and both files when they cannot be joined.
    """
    whole = pa.schema([])
    seen: dict[str, str] = {}
    for name, schema in schemas:
        if repeated := {column for column in schema.names if schema.names.count(column) > 1}:
            raise SettingError(f"{name}: the column {sorted(repeated)[0]!r} appears twice; rename one")
        for field in schema:
            whole = _join(whole, plain_field(field), name, seen.get(field.name, name))
            seen.setdefault(field.name, name)
    return pa.schema([_filled(field, empty) for field in whole])


def _filled(field: pa.Field, empty: Mapping[str, pa.DataType]) -> pa.Field:
    return field.with_type(empty[field.name] if pa.types.is_null(field.type) and field.name in empty else _known(field.type))


def _join(whole: pa.Schema, field: pa.Field, name: str, first: str) -> pa.Schema:
    position = whole.get_field_index(field.name)
    if position < 0:
        return whole.append(field)
    old = whole.field(position)
    if old.type == field.type:
        return whole
    pair = [pa.schema([one.remove_metadata()]) for one in (old, field)]
    try:
        kind = pa.unify_schemas(pair, promote_options="permissive").types[0]
    except pa.ArrowTypeError as error:
        raise SettingError(
            f"column {field.name!r} is {old.type} in {first} and {field.type} in {name}, which no one type holds; "
            "convert one of them, or run two jobs"
        ) from error
    return whole.set(position, pa.field(field.name, kind, metadata=old.metadata or field.metadata))


def _known(kind: pa.DataType) -> pa.DataType:
    """Text in place of null types: every reader knows it, and a later value of any kind would not fit a null column."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_known(field.type)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_known(kind.value_type)), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_known(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_known(kind.value_type)))
    return kind


def conform(batches: Iterable[pa.RecordBatch], schema: pa.Schema, where: str) -> pa.Table:
    """The batches as one table of exactly `schema`: missing columns and struct fields are null, types widened, never narrowed."""
    tables = [_fit(batch, schema, where) for batch in batches]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _fit(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.Table:
    arrays = []
    for field in schema:
        position = batch.schema.get_field_index(field.name)
        try:
            arrays.append(pa.nulls(batch.num_rows, field.type) if position < 0 else batch.column(position).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SettingError(f"{where}: column {field.name!r} does not fit {field.type}: {error}") from error
    return pa.table(arrays, schema=schema)
