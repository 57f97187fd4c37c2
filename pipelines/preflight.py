"""Everything that can be found wrong with the storage before any work starts is found here."""

from collections.abc import Sequence

from drawloom.errors import SettingError
from drawloom.pipelines.objects import Store, before_start
from drawloom.pipelines.sources import InputFile, refuse_overlap
from drawloom.pipelines.store import open_store


def preflight(spec: str | Sequence[str], files: Sequence[InputFile], output: Store) -> Store:
    """Read a byte of the first and the last input file, write and delete a small object in the output; return the output store as
    `open_job` wants it. Takes under 15 s; raises SettingError naming place and action."""
    refuse_overlap(spec, output)
    with before_start():
        for file in {files[0], files[-1]}:
            _read_one_byte(file)
        return output.probe()


def _read_one_byte(file: InputFile) -> None:
    try:
        open_store(file.root).brisk().read_range(file.name, 0, min(1, file.size))
    except FileNotFoundError as error:
        raise SettingError(f"{file.uri} was listed but cannot be opened: it is gone, or a link to nothing") from error
