"""The state directory as it lies there: who else may change it, and whether it is still one."""

import os
import stat

from nri_plugin.errors import HostError
from nri_plugin.host.mounts import read_mounts

LOCK_FILE = "lock"
"""In the directory; locked by the agent or the command that works on it."""

REMOVED = "//deleted"
"""How the kernel marks the root of a mount whose directory was removed. Source: fs/proc_namespace.c, seq_dentry."""


def unsafe(path: str) -> str:
    """Why somebody else may replace what lies in the directory, and what to do; empty when nobody may."""
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
    """Why nothing can be made in the directory, as far as that can be told without trying; empty when it can.

    A directory that is missing can be made, or the first save tells why not.
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
    """Why the directory can never be written to again from here; empty when that is not so.

    A container sees the host's directory through a mount. When the host removes the directory, the mount goes on
    showing the removed one, also after the host has made it anew.
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
