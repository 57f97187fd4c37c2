"""Byte streams of input files: plain, gzip and zstd, local or S3, and a digest that tells whether a file is still the same."""

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

import zstandard

from drawloom.errors import SettingError
from drawloom.pipelines.sources import InputFile
from drawloom.pipelines.store import open_store

BUFFER_BYTES = 1 << 23  # one ranged request to S3
WHOLE_BYTES = 1 << 26  # local files up to this size are hashed whole
PIECES = 64  # larger ones by this many evenly spaced pieces of 1 MiB, the first and the last among them


@contextmanager
def open_stream(file: InputFile) -> Iterator[BinaryIO]:
    """The file's uncompressed bytes from the start. Raises SettingError when the compressed data is damaged or cut short."""
    with open_store(file.root).open_input(file.name) as source:
        stream: BinaryIO = io.BufferedReader(source, BUFFER_BYTES)  # type: ignore[arg-type]
        if file.compression == ".gz":
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=stream, mode="rb"))
        elif file.compression == ".zst":
            stream = io.BufferedReader(_Zstd(stream), BUFFER_BYTES)
        try:
            yield stream
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise SettingError(f"{file.uri}: the compressed data is damaged or cut short ({error}); write the file again") from error


class _Zstd(io.RawIOBase):
    """Frames one after another; unlike zstandard's own reader it raises EOFError when the last one is cut short."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False  # bytes of the current frame have been fed
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            data = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = zstandard.ZstdDecompressor().decompressobj(), False
            data = data or self._source.read(1 << 16)
            if not data:
                if self._begun:
                    raise EOFError("the last zstd frame has no end")
                return 0
            self._ready, self._begun = self._frame.decompress(data), True
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def digest_of(file: InputFile) -> str:
    """A word that changes when the content does. S3: the ETag. Local: a hash of the bytes (whole, or evenly spaced pieces when large)."""
    if file.root.startswith("s3://"):
        return f"etag:{file.tag}:{file.size}"
    store = open_store(file.root)
    if file.size <= WHOLE_BYTES:
        content = hashlib.blake2b(store.read(file.name), digest_size=16)
        return f"blake2b:{content.hexdigest()}:{file.size}"
    content = hashlib.blake2b(digest_size=16)
    for piece in range(PIECES):
        start = (file.size - (1 << 20)) * piece // (PIECES - 1)
        content.update(store.read_range(file.name, start, start + (1 << 20)))
    return f"pieces:{content.hexdigest()}:{file.size}"
