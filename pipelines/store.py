"""Opens the store at an address; the store of a local folder."""

import errno
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa

from drawloom.errors import SettingError
from drawloom.pipelines.objects import TMP, Listed, Store, StoreError


def open_store(uri: str) -> Store:
    """The store at a local folder (it may not exist yet) or at s3://bucket/prefix.

    S3 takes endpoint, region and credentials as boto3 does (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, profiles, roles).
    """
    scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]+)://", uri)
    if scheme is None:
        return LocalStore(os.path.abspath(os.path.expanduser(uri)))
    if scheme[1] == "file":
        return LocalStore(os.path.abspath(uri.removeprefix("file://")))
    if scheme[1] == "s3":
        from drawloom.pipelines.s3 import S3Store  # boto3 takes 0.3 s to import: only who uses S3 pays

        return S3Store.at(uri)
    raise SettingError(f"{uri!r}: {scheme[1]}:// is not supported; use a local path or s3://bucket/prefix")


@dataclass(frozen=True)
class LocalStore:
    """A folder of a file system with hard links and atomic renames (a network file system when nodes share it)."""

    root: str
    exclusive: bool = True

    @property
    def uri(self) -> str:
        return self.root

    def probe(self) -> Self:
        if os.path.exists(self.root) and not os.path.isdir(self.root):
            raise StoreError(f"{self.root} is a file; name a folder for the output")
        name = f"{TMP}probe-{uuid.uuid4().hex}"
        if not (self.put_if_absent(name, b"drawloom") and self.read(name) == b"drawloom" and not self.put_if_absent(name, b"")):
            raise StoreError(f"{self.root}: a file was written but does not read back as it was; choose another folder")
        self.delete([name])
        return self

    def brisk(self) -> Self:
        return self

    def read(self, path: str) -> bytes:
        with _naming("read", self._full(path)):
            return Path(self._full(path)).read_bytes()

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        with _naming("read", self._full(path)), open(self._full(path), "rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def stat(self, path: str) -> Listed | None:
        try:
            found = os.stat(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISDIR(found.st_mode):
            return None
        return Listed(path, found.st_size, str(found.st_mtime_ns))

    def list(self, prefix: str = "") -> Iterator[Listed]:
        folder = prefix.rpartition("/")[0]
        with _naming("list", self._full(folder)):
            yield from self._walk(folder + "/" if folder else "", prefix)

    def put(self, path: str, data: bytes) -> None:
        with _naming("write", self._full(path)):
            temp = self._temp(path, data)
            os.replace(temp, self._full(path))
            _sync_folder(os.path.dirname(self._full(path)))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        with _naming("write", self._full(path)):
            if os.path.exists(self._full(path)):
                return False
            temp = self._temp(path, data)
            try:
                won = _link(temp, self._full(path))
            finally:
                Path(temp).unlink(missing_ok=True)
            _sync_folder(os.path.dirname(self._full(path)))
            return won

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with _naming("delete", self._full(path)):
                Path(self._full(path)).unlink(missing_ok=True)

    def open_input(self, path: str) -> pa.NativeFile:
        with _naming("read", self._full(path)):
            return pa.OSFile(self._full(path), "rb")

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _temp(self, path: str, data: bytes) -> str:
        """A synced temporary file beside nothing that readers list; the target's folder is made as well."""
        temp = self._full(f"{TMP}{uuid.uuid4().hex}")
        os.makedirs(os.path.dirname(temp), exist_ok=True)
        os.makedirs(os.path.dirname(self._full(path)), exist_ok=True)
        with open(temp, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return temp

    def _walk(self, folder: str, prefix: str) -> Iterator[Listed]:
        try:
            entries = list(os.scandir(self._full(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            path = folder + entry.name
            if entry.is_dir():
                if (path + "/").startswith(prefix):
                    yield from self._walk(path + "/", prefix)
            elif path.startswith(prefix) and (found := self.stat(path)) is not None:
                yield found


def _link(temp: str, target: str) -> bool:
    """Give temp a second name; False when the name is taken. A lost answer (NFS) is told apart by comparing the files."""
    try:
        os.link(temp, target)
    except FileExistsError:
        return os.path.samefile(temp, target)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK):
            raise StoreError(f"{target}: this file system has no hard links, which commits rest on; use another folder or s3://") from error
        raise
    return True


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _naming(action: str, where: str) -> Iterator[None]:
    """Say which path and action an operating system error is about; a missing file stays a FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{where}: cannot {action}: {error.strerror or error}") from error
