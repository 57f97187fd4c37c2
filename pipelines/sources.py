"""Which files a job reads: a file, a folder or a glob, local or s3://, as one sorted listing. No file is opened here."""

import fnmatch
import itertools
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from drawloom.errors import SettingError
from drawloom.pipelines.objects import Listed, Store, before_start
from drawloom.pipelines.store import open_store

Format = Literal["parquet", "jsonl", "csv"]
ENDINGS: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
}
COMPRESSIONS = (".gz", ".zst")
COMPANIONS = ("readme*", "license*", "*.md", "dataset_info*.json", "dataset_dict.json")  # lie beside data and are not data
GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of the input. `name` is relative to the input's root, so that a moved input keeps its seeds.

    `tag` is cheap and changes whenever the file is written again (ETag, modification time); what may not change between
    runs is the digest that planning takes of the content.
    """

    root: str  # for open_store
    name: str
    size: int  # bytes
    tag: str
    format: Format
    compression: str  # "", ".gz" or ".zst"

    @property
    def uri(self) -> str:
        return posixpath.join(self.root, self.name)


@dataclass(frozen=True)
class _Spec:
    """One place to look: the objects under `root` whose relative name `pattern` accepts (None: a folder, searched through)."""

    text: str
    root: str
    prefix: str  # of the names, to list no more than needed
    pattern: re.Pattern[str] | None

    def takes(self, name: str) -> bool:
        if self.pattern is not None:
            return self.pattern.fullmatch(name) is not None
        return not any(part.startswith(("_", ".")) for part in name.split("/"))


def find_inputs(spec: str | Sequence[str]) -> list[InputFile]:
    """Every input file of `spec`, sorted by name.

    spec: a file, a folder (searched through; names that start with "_" or "." are left out), a glob (`*`, `?` and `[..]` within
    a name, `**` across folders), or a list of these. Names are relative to the folder, or to the fixed part of the glob.
    Raises SettingError when nothing is found, an ending is unknown, or two files would have one relative name.
    """
    specs = [spec] if isinstance(spec, str) else list(spec)
    if not specs:
        raise SettingError("no input given; name a file, a folder or a glob")
    with before_start():
        found = sorted((file for one in specs for file in _find(_parse(one))), key=lambda file: file.name)
    for one, two in itertools.pairwise(found):
        if one.name == two.name:
            raise SettingError(f"{one.uri} and {two.uri} are both {two.name!r} to their roots; give one common folder instead")
    return found


def refuse_overlap(spec: str | Sequence[str], output: Store) -> None:
    """Raise SettingError when a later run with this input would read this output, or when the output folder holds input files."""
    for one in [spec] if isinstance(spec, str) else spec:
        place = _parse(one)
        within = _below(posixpath.join(output.uri, "part.parquet"), place.root)
        if within is not None and place.takes(within):
            raise SettingError(f"the output {output.uri} lies where the input {one} is read from; choose an output outside it")
        if _below(posixpath.join(place.root, place.prefix or "x"), output.uri) is not None:
            raise SettingError(f"the output {output.uri} holds the input {one}; choose an output beside it")


def _find(place: _Spec) -> Iterator[InputFile]:
    store = open_store(place.root).brisk()
    listed = [entry for entry in store.list(place.prefix) if place.takes(entry.path)]
    known = 0
    for entry in listed:
        if file := _input_file(store.uri, entry):
            known += 1
            yield file
        elif not _companion(entry.path):
            raise SettingError(
                f"{posixpath.join(store.uri, entry.path)}: cannot tell the format from this ending; known are {', '.join(ENDINGS)}, "
                f"text also with {' or '.join(COMPRESSIONS)}. Leave the file out with a glob, for example {place.root}/*.parquet"
            )
    if not known:
        raise SettingError(f"no input found at {place.text}; files end in {', '.join(ENDINGS)}; text files also in these with .gz or .zst")


def _input_file(root: str, entry: Listed) -> InputFile | None:
    try:
        entry.path.encode()
    except UnicodeEncodeError as error:
        raise SettingError(f"{root}: the file name {entry.path!r} is not UTF-8; rename it") from error
    stem, compression = entry.path, ""
    for ending in COMPRESSIONS:
        if entry.path.endswith(ending):
            stem, compression = entry.path.removesuffix(ending), ending
    kind = ENDINGS.get(posixpath.splitext(stem)[1].lower())
    if kind is None or (kind == "parquet" and compression):
        return None
    return InputFile(root, entry.path, entry.size, entry.tag, kind, compression)


def _companion(path: str) -> bool:
    return any(fnmatch.fnmatch(posixpath.basename(path).lower(), pattern) for pattern in COMPANIONS)


def _parse(text: str) -> _Spec:
    """Split a spec into root and pattern. What exists is taken as it stands, even when its name holds glob characters."""
    text = text.rstrip("/") or text
    root, _, name = text.rpartition("/")
    if not re.fullmatch(r"s3://[^/]*", text):
        parent = open_store(root + "/" if root else "/" if text.startswith("/") else ".").brisk()
        if parent.stat(name) is not None:
            return _Spec(text, parent.uri, name, re.compile(re.escape(name)))
    wild = GLOB.search(text)
    if wild is None or next(iter(open_store(text).brisk().list()), None) is not None:
        return _Spec(text, open_store(text).uri, "", None)
    fixed, slash, _ = text[: wild.start()].rpartition("/")
    pattern = text[len(fixed + slash) :]
    prefix = pattern[: wild.start() - len(fixed + slash)]
    return _Spec(text, open_store(fixed + slash or ".").uri, prefix, _compile(pattern))


def _compile(pattern: str) -> re.Pattern[str]:
    """`*` and `?` stay within a name, `**` crosses folders; wildcards do not meet names that start with "_" or "."."""
    hidden = "" if re.search(r"(^|/)[_.]", pattern) else r"(?!(?:.*/)?[_.])"
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    table = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile(hidden + "".join(table.get(piece) or _literal_or_set(piece) for piece in pieces))


def _literal_or_set(piece: str) -> str:
    if piece.startswith("[") and piece.endswith("]") and len(piece) > 2:
        return "[" + piece[1:-1].replace("\\", "\\\\").replace("!", "^", 1 if piece[1] == "!" else 0) + "]"
    return re.escape(piece)


def _below(uri: str, root: str) -> str | None:
    """The name of uri relative to root, or None when it is not under it."""
    root = root.rstrip("/") + "/"
    return uri.removeprefix(root) if uri.startswith(root) else None
