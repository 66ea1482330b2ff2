"""Files that a command leaves behind: whole or not at all, in places that were tried before the work began."""

import os
import tempfile
from pathlib import Path

from .shell import LabError


def make_folder(folder: Path) -> None:
    """Make it where it is not, and see that files can be written there.

    Raises:
        LabError: they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise LabError(
            f"nothing can be written to {folder}: {error.strerror}; name another folder"
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Replace a file by one step, so that nobody ever reads half of it.

    Raises:
        LabError: it could not be written; what was there before stays.
    """
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_text(text, "utf-8")
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise LabError(f"{path} could not be written: {error.strerror}") from error
