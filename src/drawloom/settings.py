"""Frozen settings that refuse strangers (pydantic), and the one function that turns their complaints into SettingError."""

import difflib
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from drawloom.errors import SettingError


class Settings(BaseModel):
    """Base of every settings class: frozen, complete at birth, unknown keys are errors that name the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any], where: str = "") -> Self:
        """Validate `raw`; raise SettingError naming the key, the value and the way out. `where` says what was read (a file, a flag)."""
        try:
            return cls.model_validate(dict(raw))
        except ValidationError as error:
            raise SettingError(complaint(error, cls, where)) from None


def complaint(error: ValidationError, cls: type[BaseModel], where: str = "") -> str:
    """One line per fault: path, what is wrong, the value met, and the nearest known name for an unknown key."""
    return "; ".join(_line(dict(fault), cls) for fault in error.errors()) + (f" (in {where})" if where else "")


def nearest(name: str, known: list[str]) -> str:
    """`did you mean X?`, or the list of known names when nothing is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(sorted(known))


def _line(fault: dict[str, Any], cls: type[BaseModel]) -> str:
    path = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        owner = _owner(cls, fault["loc"][:-1])
        return f"{path!r} is not a setting; {nearest(str(fault['loc'][-1]), list(owner.model_fields))}"
    return f"{path or 'value'}: {fault['msg'].removeprefix('Value error, ')} (got {_short(fault.get('input'))})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _owner(cls: type[BaseModel], path: tuple[Any, ...]) -> type[BaseModel]:
    for part in path:
        field = cls.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return cls
        cls = field.annotation
    return cls
