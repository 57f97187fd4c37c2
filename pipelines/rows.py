"""From an input row to a Request. What is wrong with one row is a RowError of that row, with the limit and the way out."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from drawloom.actors.request import Request, Sampling
from drawloom.errors import RowError, SettingError
from drawloom.models.text import Text
from drawloom.pipelines.columns import Columns, Roles
from drawloom.pipelines.outcomes import Failure, Outcome
from drawloom.pipelines.reading import UnitRows
from drawloom.pipelines.textfiles import shorten
from drawloom.pipelines.units import Unit
from drawloom.settings import Settings

SEED_LIMIT = 1 << 64
Guard = Callable[[str], Failure | None]


class RowSettings(Settings):
    """What holds for every row unless one of its own columns says otherwise."""

    columns: Columns = Columns()
    sampling: Sampling = Sampling()
    decoder: str = "ar"
    decoder_params: Mapping[str, float | int | str] = Field(default_factory=dict)
    seed: int = Field(default=0, ge=0, lt=SEED_LIMIT, description="of the job; each row derives its own")
    priority: int = 0


@dataclass(frozen=True)
class Place:
    """Where a row comes from: names it, and seeds it whatever the unit size."""

    id: str  # unit id and row within the unit
    file: str  # relative name
    row: int  # in the file


def place_of(unit: Unit, row: int) -> Place:
    return Place(f"{unit.id}:{row}", unit.file.name, unit.start + row)


def default_seed(job_seed: int, place: Place) -> int:
    """64 bits from (job seed, file, row): the same for any unit size, replica and run."""
    text = f"{job_seed}\0{place.row}\0{place.file}"
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")


def requests_of(
    unit: Unit, rows: UnitRows, roles: Roles, settings: RowSettings, text: Text, guard: Guard | None = None
) -> list[Request | Outcome]:
    """One entry per row of the unit, in order: a Request, or the Outcome of a row that can never become one.

    guard: asked with a row's id before the row is rendered; a Failure that it gives is the row's, unrendered.
    """
    wanted = [name for name in rows.table.column_names if name in {*roles.prompts.values(), *roles.overrides.values()}]
    found: list[Request | Outcome] = []
    for index, row in enumerate(rows.table.select(wanted).to_pylist()):
        place, fault = place_of(unit, index), rows.faults.get(index)
        failure = Failure(fault.code, fault.message, raw=fault.raw) if fault else guard(place.id) if guard else None
        entry = failure or _request_or_failure(row, place, roles, settings, text)
        found.append(Outcome(None, entry, default_seed(settings.seed, place)) if isinstance(entry, Failure) else entry)
    return found


def _request_or_failure(row: Mapping[str, Any], place: Place, roles: Roles, settings: RowSettings, text: Text) -> Request | Failure:
    """The row border on the way in: whatever a row's values make a tokenizer or template raise is this row's."""
    try:
        return request_from_row(row, place, roles, settings, text)
    except RowError as error:
        return Failure(error.code, str(error))
    except Exception as error:  # noqa: BLE001
        return Failure("internal", f"the row cannot be made a request: {type(error).__name__}: {error}")


def request_from_row(row: Mapping[str, Any], place: Place, roles: Roles, settings: RowSettings, text: Text) -> Request:
    """The request of one row; a null cell means the job's default.

    Raises RowError: empty_prompt, wrong_type, bad_messages, bad_token_ids, bad_json, invalid_sampling, invalid_seed, ...
    """
    cells = {field: _cell(row, name, roles) for field, name in roles.overrides.items()}
    given = {field: value for field, value in cells.items() if value is not None}
    decoder, params = _decoding(given, settings)
    return Request(
        id=place.id,
        prompt_token_ids=_prompt(row, roles, text),
        sampling=_sampling(given, settings.sampling),
        seed=_integer("seed", given["seed"], 0, SEED_LIMIT - 1) if "seed" in given else default_seed(settings.seed, place),
        decoder=decoder,
        decoder_params=params,
        priority=_integer("priority", given["priority"], -(1 << 31), (1 << 31) - 1) if "priority" in given else settings.priority,
    )


def _prompt(row: Mapping[str, Any], roles: Roles, text: Text) -> Sequence[int]:
    given = {field: cell for field, name in roles.prompts.items() if (cell := _cell(row, name, roles)) is not None}
    if not given:
        raise RowError("empty_prompt", f"{' and '.join(map(repr, roles.prompts.values()))} null; give the row a prompt or drop it")
    if len(given) > 1:
        raise RowError("two_prompts", f"{' and '.join(roles.prompts[field] for field in given)} both hold a value; leave one null")
    field, value = next(iter(given.items()))
    ids = _READERS[field](value, text)
    if not ids:
        raise RowError("empty_prompt", f"column {roles.prompts[field]!r} gives no token; give the row a prompt or drop it")
    return ids


def _from_text(value: Any, text: Text) -> Sequence[int]:
    if not isinstance(value, str):
        raise RowError("wrong_type", f"the prompt is {shorten(value)}, but text is needed")
    if not value:
        raise RowError("empty_prompt", "the prompt is empty; give the row a prompt or drop it")
    return text.encode(value)


def _from_messages(value: Any, text: Text) -> Sequence[int]:
    messages = _parsed("messages", value)
    if not isinstance(messages, list) or not messages:
        raise RowError("bad_messages", f"messages is {shorten(messages)}, but a list of at least one {{role, content}} is needed")
    return text.render([_message(index, one) for index, one in enumerate(messages)])


def _message(index: int, one: Any) -> dict[str, Any]:
    """A message without the keys that other rows have and this one has not (they read as null)."""
    if not isinstance(one, dict):
        raise RowError("bad_messages", f"message {index} is {shorten(one)}, but {{role, content}} is needed")
    if not isinstance(one.get("role"), str) or not one["role"]:
        raise RowError("bad_messages", f"message {index} has the role {one.get('role')!r}; a word such as user or assistant is needed")
    content = one.get("content")
    if not isinstance(content, (str, list)) and not (content is None and one.get("tool_calls")):
        raise RowError("bad_messages", f"message {index} has the content {shorten(content)}, but text or a list of parts is needed")
    return {"role": one["role"], "content": _pruned(content)} | {key: _pruned(value) for key, value in one.items() if value is not None}


def _pruned(value: Any) -> Any:
    """Nested structs without their null fields."""
    if isinstance(value, dict):
        return {key: _pruned(item) for key, item in value.items() if item is not None}
    return [_pruned(item) for item in value] if isinstance(value, list) else value


def _from_token_ids(value: Any, text: Text) -> Sequence[int]:
    ids = _parsed("prompt_token_ids", value)
    if not isinstance(ids, list):
        raise RowError("bad_token_ids", f"prompt_token_ids is {shorten(ids)}, but a list of integers is needed")
    for place, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < text.vocab_size:
            raise RowError("bad_token_ids", f"prompt_token_ids[{place}] is {token!r}; the model knows 0 to {text.vocab_size - 1}")
    return ids


_READERS = {"prompt": _from_text, "messages": _from_messages, "prompt_token_ids": _from_token_ids}


def _sampling(given: Mapping[str, Any], default: Sampling) -> Sampling:
    own = {field: _READ_FIELD.get(field, _plain)(field, value) for field, value in given.items() if field in Sampling.model_fields}
    if not own:
        return default
    try:
        return Sampling.parse(default.model_dump() | own)
    except SettingError as error:
        raise RowError("invalid_sampling", str(error)) from None


def _plain(field: str, value: Any) -> Any:
    if isinstance(value, bool) and field != "ignore_eos":
        raise RowError("invalid_sampling", f"{field} is {value}, but a number is needed")
    return value


def _list(field: str, value: Any) -> Any:
    """A list, JSON text of one, or (stop) one plain text."""
    items = _parsed(field, value) if field != "stop" or not isinstance(value, str) else [value]
    if not isinstance(items, list) or any(item is None for item in items):
        raise RowError("invalid_sampling", f"{field} is {shorten(items)}, but a list without nulls is needed")
    return tuple(items)


def _biases(field: str, value: Any) -> dict[Any, Any]:
    """{token id: bias} from a struct or map, from JSON text, or from a list of records that hold (token id, bias) in this order."""
    return _record("invalid_sampling", field, "{token id: bias}", value)


def _decoding(given: Mapping[str, Any], settings: RowSettings) -> tuple[str, Mapping[str, float | int | str]]:
    """Recipe and parameters: what `speculation` says, or the row's own, or the job's. The job's parameters belong to its own recipe."""
    said = given.get("speculation", "auto")
    if "speculation" in given and (own := [field for field in ("decoder", "decoder_params") if field in given]):
        raise RowError("two_decoders", f"speculation and {own[0]} both hold a value; leave one null")
    if said == "off":
        return "ar", {}
    if said != "auto":
        wanted = '"off", "auto" or {drafter: name, parameter: value, ...}'
        if isinstance(said, str) and not said.lstrip().startswith(("{", "[")):
            raise RowError("invalid_speculation", f"speculation is {shorten(said)}, but {wanted} is needed")
        asked = _record("invalid_speculation", "speculation", wanted, said)
        if not isinstance(drafter := asked.pop("drafter", settings.decoder), str):
            raise RowError("invalid_speculation", f"speculation.drafter is {shorten(drafter)}, but a decoder's name is needed")
        return drafter, _params(asked)
    decoder = given.get("decoder", settings.decoder)
    inherited = settings.decoder_params if decoder == settings.decoder else {}
    return decoder, _params(given["decoder_params"]) if "decoder_params" in given else inherited


_READ_FIELD = {"stop": _list, "stop_token_ids": _list, "logit_bias": _biases}


def _params(value: Any) -> dict[str, float | int | str]:
    found = _record("invalid_decoder_params", "decoder_params", "{name: value}", value)
    for name, item in found.items():
        if not isinstance(item, (float, int, str)):
            raise RowError("invalid_decoder_params", f"decoder_params.{name} is {shorten(item)}, but a number or text is needed")
    return found


def _record(code: str, field: str, wanted: str, value: Any) -> dict[Any, Any]:
    """A struct, a map (pairs), a list of two-field structs, or JSON text of one, without its nulls."""
    found = _parsed(field, value)
    try:
        pairs = found.items() if isinstance(found, dict) else [one.values() if isinstance(one, dict) else one for one in found]
        return {key: item for key, item in pairs if item is not None}
    except (TypeError, ValueError):
        raise RowError(code, f"{field} is {shorten(value)}, but {wanted} is needed") from None


def _integer(field: str, value: Any, low: int, high: int) -> int:
    """An integer, also as 5.0."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or value != value
        or abs(value) == float("inf")
        or value != int(value)
    ):
        raise RowError(f"invalid_{field}", f"{field} is {shorten(value)}, but an integer is needed")
    if not low <= value <= high:
        raise RowError(f"invalid_{field}", f"{field} is {value}; it lies between {low} and {high}")
    return int(value)


def _parsed(field: str, value: Any) -> Any:
    """Lists and records may stand in a text column as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError("bad_json", f"{field} is text that is not JSON: {error}") from None


def _cell(row: Mapping[str, Any], name: str, roles: Roles) -> Any:
    value = row.get(name)
    return _parsed(name, value) if name in roles.json_text and value is not None else value
