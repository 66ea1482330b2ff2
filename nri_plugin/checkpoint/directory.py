"""The state directory: who may write to it, whether it can be written at all, and its making."""

import os
import stat
from contextlib import suppress

from nri_plugin.host.mounts import read_mounts
from nri_plugin.model.errors import HostError

REMOVED = "//deleted"
"""The end of a mount's root whose directory was removed. Source: Linux, fs/proc_namespace.c, seq_dentry."""


def unsafe(path: str) -> str:
    """Return why another user may replace files of the directory, with advice; empty if none may."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    if not stat.S_ISDIR(status.st_mode):
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}, who can replace the checkpoint; chown it to root"
    if status.st_mode & stat.S_IWOTH:
        mode = stat.S_IMODE(status.st_mode)
        return f"everybody may write to it (mode {mode:04o}) and replace the checkpoint; chmod 700 it"
    return ""


def unwritable(path: str) -> str:
    """Return why no file can be made in the directory, without trying; empty if no reason is known.

    A missing directory can be made, or the first save reports the reason.
    """
    if not os.path.lexists(path):
        return ""
    if not os.path.isdir(path):
        return "is no directory; give another with --state-dir or stateDir"
    if os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    return (
        "is mounted read-only; mount it read-write"
        if is_read_only
        else "is not writable; let it belong to root"
    )


def removed_mount(path: str) -> str:
    """Return why this process can never write to the directory again; empty when it can.

    A container sees the host's directory through a mount. When the host removes the directory, the mount still shows
    the removed one, also after the host has made a new one.
    """
    try:
        is_removed = os.stat(path).st_nlink == 0 or _is_marked(path)
    except OSError:
        return ""
    return (
        "was removed on the host, and this container's mount still shows the removed directory; "
        "only a restart of the agent heals that"
        if is_removed
        else ""
    )


def _is_marked(path: str) -> bool:
    real = os.path.realpath(path)
    try:
        mounts = [mount for mount in read_mounts() if mount.point == real]
    except HostError:
        return False
    return bool(mounts) and mounts[-1].root.endswith(REMOVED)


def sync_directory(path: str) -> None:
    """Write names in a directory to the disk: a rename or link is lost in a crash until then."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: str) -> None:
    """Make the state directory and its parents; OSError when that fails."""
    # Parents first and apart: they keep the usual mode, and only the last directory is closed to others.
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
