"""What each field of a request accepts: as an Arrow type, as a JSON value and as a CSV cell."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from drawloom.actors.request import Sampling

PROMPTS = ("prompt", "messages", "prompt_token_ids")
OVERRIDES = (*Sampling.model_fields, "decoder", "decoder_params", "speculation", "seed", "priority")
EXACT = 1 << 53  # integers up to here are float64 as well


@dataclass(frozen=True)
class Kind:
    """`accepts` judges a column's type, `fits` a JSON value, `cell` says how a CSV cell reads (lists and records: JSON text)."""

    wanted: str
    accepts: Callable[[pa.DataType], bool]
    fits: Callable[[Any], bool]
    cell: Literal["text", "number", "boolean"] = "text"
    empty: pa.DataType = field(default_factory=pa.string)  # of a column in which every row is null


def _text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _record(kind: pa.DataType) -> bool:
    return _text(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind)


def _list_of(accepts: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    """A list of such items (or of nulls), or text: one item, or JSON."""

    def check(kind: pa.DataType) -> bool:
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            return _text(kind)
        return pa.types.is_null(kind.value_type) or accepts(kind.value_type)

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= EXACT


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_tokens(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(type(item) is int and abs(item) < 1 << 63 for item in value))


def _are_texts(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _are_messages(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(_is_message(item) for item in value))


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role", ""), str) and isinstance(item.get("content"), (str, list, type(None)))


def _is_seed(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _is_record(value: Any) -> bool:
    return isinstance(value, (dict, str))


def _are_biases(value: Any) -> bool:
    return isinstance(value, (dict, str)) or (isinstance(value, list) and all(isinstance(item, dict) for item in value))


_NUMBER = Kind("a number between -2^53 and 2^53", _number, _is_number, "number", pa.float64())
_INTEGER = Kind("an integer", _number, _is_number, "number", pa.int64())  # 5.0 is one; 5.5 is found row by row
_TEXT = Kind("text", _text, _is_text)
_TOKENS = Kind("a list of integers", _list_of(_number), _are_tokens)
CONTRACT: dict[str, Kind] = {
    "prompt": _TEXT,
    "messages": Kind("a list of {role, content}, or its JSON text", _list_of(pa.types.is_struct), _are_messages),
    "prompt_token_ids": _TOKENS,
    "max_tokens": _INTEGER,
    "temperature": _NUMBER,
    "top_k": _INTEGER,
    "top_p": _NUMBER,
    "min_p": _NUMBER,
    "repetition_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "presence_penalty": _NUMBER,
    "logit_bias": Kind("{token id: bias}", lambda kind: _record(kind) or _list_of(_record)(kind), _are_biases),
    "stop": Kind("text or a list of text", _list_of(_text), _are_texts),
    "stop_token_ids": _TOKENS,
    "ignore_eos": Kind("true or false", pa.types.is_boolean, lambda value: isinstance(value, bool), "boolean", pa.bool_()),
    "max_repeats": _INTEGER,
    "logprobs": _INTEGER,
    "n": _INTEGER,
    "decoder": _TEXT,
    "decoder_params": Kind("a struct, or its JSON text", _record, _is_record),
    "speculation": Kind('"off", "auto", a struct with a drafter, or its JSON text', _record, _is_record),
    "seed": Kind("an integer from 0 to 2^64 - 1", _number, _is_seed, "number", pa.uint64()),
    "priority": _INTEGER,
}
