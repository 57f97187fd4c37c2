"""What a store of bytes must offer: one small interface over a local folder and an S3 prefix (`pipelines/store.py` opens one).

A path is relative to the store's root and uses "/". Objects appear whole or not at all. `put_if_absent` is the only
primitive that exactly-once rests on: of any number of callers, one gets True and its bytes stand for ever.

StoreError(DrawloomError)   storage refused or stayed away: names the place and the action; the job can be resumed
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self

import pyarrow as pa

from drawloom.errors import DrawloomError, SettingError

TMP = "_drawloom/tmp/"


class StoreError(DrawloomError):
    """Storage refused or stayed away; before the start of a job it becomes a SettingError (`before_start`)."""


@contextmanager
def before_start() -> Iterator[None]:
    """Turn a StoreError into a SettingError: nothing has been started yet, so the caller can put it right."""
    try:
        yield
    except StoreError as error:
        raise SettingError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a listing. `tag` changes when the content does (S3: the ETag; local: the modification time in ns)."""

    path: str
    size: int
    tag: str


class Store(Protocol):
    """A folder of objects. Picklable; safe to use from several threads and processes at once."""

    @property
    def uri(self) -> str:
        """What `open_store` was given, made absolute."""
        ...

    @property
    def exclusive(self) -> bool:
        """Whether `put_if_absent` is atomic here. False only for an S3 server that ignores If-None-Match (found by `probe`)."""
        ...

    def probe(self) -> Self:
        """Write, read and delete a small object; return the store with `exclusive` as found. Raises StoreError within 15 s."""
        ...

    def brisk(self) -> Self:
        """The same store for first contact: every operation gives up within 15 s."""
        ...

    def read(self, path: str) -> bytes:
        """The whole object. Raises FileNotFoundError."""
        ...

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop), fewer at the end of the object. Raises FileNotFoundError."""
        ...

    def stat(self, path: str) -> Listed | None:
        """Size and tag of one object, or None when it is not there."""
        ...

    def list(self, prefix: str = "") -> Iterator[Listed]:
        """Every object whose path starts with prefix, in no order."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Create or replace an object atomically and durably."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create an object unless it exists; False when it does. Where `exclusive` is False, two callers at once may both
        get True and the later bytes stand."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects; those that are not there are passed over."""
        ...

    def open_input(self, path: str) -> pa.NativeFile:
        """Random access for pyarrow. Raises FileNotFoundError."""
        ...
