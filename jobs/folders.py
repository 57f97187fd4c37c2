"""Folders that a command writes into."""

from pathlib import Path

from drawloom.errors import SettingError


def made(folder: Path) -> Path:
    """The folder, made if need be. Raises SettingError when it cannot be one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"{folder} cannot be a folder: {error.strerror}; name another") from None
    return folder
