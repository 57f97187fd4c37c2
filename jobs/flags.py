"""Command-line flags as a table over JobSettings: types, defaults and help come from the settings, so that both say the same."""

import inspect
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from drawloom.errors import SettingError
from drawloom.jobs.settings import JobSettings

FLAGS: dict[str, str] = {  # flag -> setting
    "model": "model.name",
    "dtype": "model.dtype",
    "device": "model.device",
    "max-tokens": "sampling.max_tokens",
    "temperature": "sampling.temperature",
    "top-p": "sampling.top_p",
    "top-k": "sampling.top_k",
    "min-p": "sampling.min_p",
    "n": "sampling.n",
    "stop": "sampling.stop",
    "logprobs": "sampling.logprobs",
    "seed": "seed",
    "decoder": "decoder",
    "decoder-params": "decoder_params",
    "prompt-column": "columns.prompt",
    "messages-column": "columns.messages",
    "token-ids-column": "columns.prompt_token_ids",
    "output-prefix": "columns.output_prefix",
    "replicas": "replicas",
    "cpus-per-replica": "cpus_per_replica",
    "gpus-per-replica": "gpus_per_replica",
    "address": "address",
    "wait-for-nodes": "wait_for_nodes_s",
    "max-sequences": "engine.max_sequences",
    "kv-gib": "engine.kv_gib",
    "rows-per-unit": "rows_per_unit",
    "lost-after": "lost_after_s",
    "progress": "progress",
}
HELP = {
    "model.name": "embedded, hash, fake, a folder, a .gguf file or a cached hub id",
    "sampling.max_tokens": "new tokens at most",
    "sampling.temperature": "0 takes the most probable token",
    "sampling.n": "samples of each prompt",
    "sampling.stop": "text that ends a completion; may be repeated",
    "decoder": "how tokens are found; see `drawloom recipes`",
    "decoder_params": "NAME=VALUE of the decoder; may be repeated",
}


def parameters() -> list[inspect.Parameter]:
    """One keyword parameter per flag, for typer."""
    return [_parameter(flag, path, *_field(path)) for flag, path in FLAGS.items()]


def nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Flags that were given, as JobSettings nests them."""
    result: dict[str, Any] = {}
    for flag, path in FLAGS.items():
        value = given[flag.replace("-", "_")]
        if value is None or value == []:
            continue
        *above, leaf = path.split(".")
        place = result
        for name in above:
            place = place.setdefault(name, {})
        place[leaf] = dict(map(pair, value)) if path == "decoder_params" else value
    return result


def _field(path: str) -> tuple[FieldInfo, Any]:
    """A setting's description and its plain type."""
    owner: type[BaseModel] = JobSettings
    *above, leaf = path.split(".")
    for name in above:
        owner = typing.cast(type[BaseModel], owner.model_fields[name].annotation)
    field = owner.model_fields[leaf]
    return field, _plain(field.annotation)


def _plain(annotation: Any) -> Any:
    """int, float, str or list[str], whatever the setting's own type; pydantic judges the value."""
    kinds = [kind for kind in typing.get_args(annotation) if kind is not types.NoneType] if _is_union(annotation) else [annotation]
    if kinds[0] in (int, float, str):
        return kinds[0]
    return str if typing.get_origin(kinds[0]) is typing.Literal else list[str]


def _is_union(annotation: Any) -> bool:
    return isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union


def _parameter(flag: str, path: str, field: FieldInfo, kind: Any) -> inspect.Parameter:
    option = typer.Option(f"--{flag}", help=_help(path, field))
    name = flag.replace("-", "_")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def _help(path: str, field: FieldInfo) -> str:
    """What the setting is, its choices and its default."""
    choices = " | ".join(typing.get_args(field.annotation)) if typing.get_origin(field.annotation) is typing.Literal else ""
    text = ", ".join(filter(None, [HELP.get(path, field.description), choices]))
    shown = isinstance(field.default, int | float | str) and field.default != ""
    return text + (f" (default {field.default})" if shown else "")


def pair(text: str) -> tuple[str, float | int | str]:
    """`block=8` as a name and a number or word."""
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise SettingError(f"--decoder-params {text!r}: write NAME=VALUE, for example --decoder-params block=8")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
