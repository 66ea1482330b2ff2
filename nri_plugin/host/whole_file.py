"""Files that are written as a whole or not at all, and are on the disk when the call returns."""

import os
from contextlib import suppress

from nri_plugin.errors import CheckpointError


def write_whole(path: str, data: bytes, *, replace: bool = False) -> None:
    """Make `data` the file; a crash leaves what was there or what should be there, never half of it.

    Args:
        path: of the file, only its owner may read it.
        data: its content.
        replace: whether a file that is there may go.

    Raises:
        CheckpointError: it is there already and may not go, or it cannot be written.
    """
    new = f"{path}.new-{os.getpid()}"
    try:
        _write_new(new, data)
        if replace:
            os.replace(new, path)
        else:
            os.link(new, path)  # fails where a rename would quietly take the place of another file
        sync_directory(os.path.dirname(path) or ".")
    except FileExistsError:
        raise CheckpointError(path, "is there already; give another name, or --force to replace it") from None
    except OSError as error:
        raise CheckpointError(path, f"cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            os.unlink(new)


def keep_aside(path: str) -> str:
    """Give the file a second name, `path.damaged-N`, so that it outlives its replacement; empty when there is none.

    Raises:
        CheckpointError: it cannot be given one.
    """
    number = 1
    while True:
        target = f"{path}.damaged-{number}"
        try:
            os.link(path, target, follow_symlinks=False)
        except FileExistsError:
            number += 1
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise CheckpointError(path, f"cannot be kept as {target}: {error.strerror}") from None
        else:
            sync_directory(os.path.dirname(path) or ".")
            return target


def sync_directory(path: str) -> None:
    """Make names in a directory outlive a crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_new(path: str, data: bytes) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
