"""What the columns of an input mean: which holds the prompt, which override a field of the request."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pydantic import Field

from drawloom.errors import SettingError
from drawloom.pipelines.contract import CONTRACT, OVERRIDES, PROMPTS
from drawloom.settings import Settings, nearest

OUTPUTS = ("samples", "prompt_tokens", "usage", "seed", "error", "engine")
JSON_TEXT = {b"drawloom.json": b"1"}  # metadata of a text column whose cells are JSON, because no one type fits them


class Columns(Settings):
    """Names of input columns. Null means the field's own name, where such a column exists."""

    prompt: str | None = Field(default=None, description="column with the prompt as text")
    messages: str | None = Field(default=None, description="column with a chat: list of {role, content, ...}, or JSON text of one")
    prompt_token_ids: str | None = Field(default=None, description="column with token ids")
    overrides: Mapping[str, str] | None = Field(
        default=None, description="request field -> column; null takes every column that is named like a field, {} takes none"
    )
    output_prefix: str = Field(default="", description="put before the names of the output columns, when the input has the same ones")


@dataclass(frozen=True)
class Roles:
    """`Columns` resolved against one input schema. Which column fills which field; names of the output columns."""

    prompts: Mapping[str, str]  # "prompt" | "messages" | "prompt_token_ids" -> column
    overrides: Mapping[str, str]  # field of OVERRIDES -> column
    outputs: Mapping[str, str]  # name of OUTPUTS -> column
    json_text: frozenset[str]  # columns whose text cells are JSON


def resolve(columns: Columns, schema: pa.Schema) -> Roles:
    """Match settings and schema; raise SettingError for missing, ambiguous, wrongly typed or clashing columns."""
    prompts = _prompts(columns, schema)
    overrides = _overrides(columns, schema)
    for field, name in (prompts | overrides).items():
        _check_type(field, name, schema.field(name).type)
    marked = frozenset(field.name for field in schema if (field.metadata or {}).get(b"drawloom.json"))
    return Roles(prompts, overrides, _outputs(columns, schema, overrides), marked)


def _prompts(columns: Columns, schema: pa.Schema) -> dict[str, str]:
    named = {field: name for field in PROMPTS if (name := getattr(columns, field)) is not None}
    for field, name in named.items():
        _check_there(field, name, schema)
    found = named or {field: field for field in PROMPTS if field in schema.names}
    if not found:
        raise SettingError(
            f"the input has no column {' or '.join(PROMPTS)}; name one of {_listed(schema)} by --prompt-column (columns.prompt) or its like"
        )
    if len(found) > 1 and not named:
        raise SettingError(f"the input has the columns {' and '.join(found)}; say which holds the prompt, for example columns.prompt")
    return found


def _overrides(columns: Columns, schema: pa.Schema) -> dict[str, str]:
    if columns.overrides is None:
        return {field: field for field in OVERRIDES if field in schema.names}
    for field, name in columns.overrides.items():
        if field not in OVERRIDES:
            raise SettingError(f"columns.overrides: {field!r} is not a field of a request; {nearest(field, list(OVERRIDES))}")
        _check_there(f"overrides.{field}", name, schema)
    return dict(columns.overrides)


def _outputs(columns: Columns, schema: pa.Schema, overrides: Mapping[str, str]) -> dict[str, str]:
    """A column that sets the seed stays as it is; the seed that was used then goes beside it, into `seed_used`."""
    names = {name: columns.output_prefix + name for name in OUTPUTS}
    if overrides.get("seed") == names["seed"]:
        names["seed"] += "_used"
    taken = {name.lower() for name in schema.names}
    if clash := [name for name in names.values() if name.lower() in taken]:
        raise SettingError(
            f"the input already has the column {', '.join(clash)}, which the output would need (is it an earlier output?); "
            "set columns.output_prefix, for example to 'new_', or drop the column from the input"
        )
    return names


def _check_there(setting: str, name: str, schema: pa.Schema) -> None:
    if name not in schema.names:
        raise SettingError(f"columns.{setting}: the input has no column {name!r}; {nearest(name, schema.names)}")


def _listed(schema: pa.Schema) -> str:
    return ", ".join(repr(name) for name in schema.names[:12]) + (", ..." if len(schema.names) > 12 else "")


def expected(columns: Columns) -> dict[str, str]:
    """column -> request field, before a schema is known: what text files must hold in these columns."""
    prompts = {getattr(columns, field) or field: field for field in PROMPTS}
    overrides = {field: field for field in OVERRIDES} if columns.overrides is None else columns.overrides
    named = {name: field for field, name in overrides.items()}
    return {name: field for name, field in (named | prompts).items() if field in CONTRACT}


def _check_type(field: str, name: str, kind: pa.DataType) -> None:
    if pa.types.is_null(kind) or CONTRACT[field].accepts(kind):
        return
    way_out = "set columns.overrides so that it is left alone" if field in OVERRIDES else "name another column"
    raise SettingError(f"column {name!r} holds {kind}, but {field} needs {CONTRACT[field].wanted}; convert it, or {way_out}")
