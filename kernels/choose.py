"""Which implementation of a kernel runs: a named choice, never a silent fallback."""

from collections.abc import Mapping
from typing import TypeVar

from drawloom.errors import SettingError

T = TypeVar("T")


def choose(kernel: str, wanted: str, known: Mapping[str, T], usable: Mapping[str, str]) -> tuple[str, T]:
    """Pick the implementation `wanted` of `kernel`, or with "auto" the first of `known` that is usable here.

    known maps names to implementations, best first; usable maps a name to the reason why it cannot run here ("" when it can).
    Returns (name, implementation), so that callers can report what they got. Raises SettingError when `wanted` is unknown or
    cannot run here.
    """
    if wanted == "auto":
        return next((name, known[name]) for name in known if not usable.get(name, ""))
    if wanted not in known:
        raise SettingError(f"{kernel} has no implementation {wanted!r}; choose auto or one of: {', '.join(known)}")
    if reason := usable.get(wanted, ""):
        raise SettingError(f"{kernel} {wanted!r} cannot run here: {reason}; choose auto")
    return wanted, known[wanted]
