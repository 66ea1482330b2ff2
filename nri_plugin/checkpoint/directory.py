"""The state directory: who may write to it, whether it can be written at all, and its making; how root replaces a file."""

import os
import stat
from contextlib import suppress
from pathlib import Path

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


def other_writers(path: str) -> str:
    """Users other than root who can change a file, or the names in a directory; empty for none.

    In a directory with the sticky bit users change their own names only.
    """
    try:
        found = Path(path).lstat()
    except OSError:
        return ""
    if found.st_uid:
        return f"user {found.st_uid}"
    if stat.S_ISLNK(found.st_mode) or (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "every user"
    return f"group {found.st_gid}" if found.st_mode & stat.S_IWGRP and found.st_gid else ""


def require_own_place(path: str) -> None:
    """Refuse to let root write where another user can put a link, or another directory, in the way.

    Raises:
        HostError: another user can change a directory above the file.
    """
    folder = Path(os.path.abspath(path)).parent
    for place in (folder, *folder.parents, folder.resolve(), *folder.resolve().parents):
        who = "" if os.geteuid() else other_writers(str(place))
        if who:
            raise HostError(
                path, f"is not written, because {who} can change {place}; let only root write there"
            )


def replace_file(
    path: str, data: bytes, *, mode: int = 0o600, like: str = "", may_exist: bool = True
) -> None:
    """Make `data` the content of a file, as a whole: after a crash it has the old content or the new.

    A link of that name is replaced, not followed, and the file keeps belonging to this user.

    Args:
        path: of the file.
        data: its content.
        mode: of the file.
        like: a file that gives mode and group, where it is there.
        may_exist: whether a file of that name may be replaced.

    Raises:
        HostError: others can write there.
        OSError: it cannot be written, or is there and may not be.
    """
    require_own_place(path)
    folder, name = os.path.split(os.path.abspath(path))
    # A runtime passes over names that begin with a dot, also one that a crash leaves.
    new = os.path.join(folder, f".{name}.{os.urandom(8).hex()}")
    group = -1
    with suppress(FileNotFoundError):
        if like:
            found = os.lstat(like)
            if not os.geteuid() and (who := other_writers(like)):
                raise HostError(
                    like, f"is not replaced, because {who} can change it; let it belong to root alone"
                )
            mode, group = stat.S_IMODE(found.st_mode) & 0o777, found.st_gid
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(new, flags, 0o600), "wb") as file:
            file.write(data)
            os.fchown(file.fileno(), -1, group)
            os.fchmod(file.fileno(), mode)
            file.flush()
            # Before the rename: else the name may reach the disk first, and show an empty file.
            os.fsync(file.fileno())
        if may_exist:
            os.replace(new, path)
        else:
            os.link(new, path)  # a rename would replace it
        sync_directory(folder)
    finally:
        with suppress(OSError):
            os.unlink(new)


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
