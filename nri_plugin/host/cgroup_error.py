"""What the kernel means when it refuses a cpuset, in words an operator can act on."""

import errno
import os

from nri_plugin.errors import HostError

GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})
"""No such cgroup; ENODEV is a write to one that was removed after its file was opened."""

_EITHER = {
    errno.ERANGE: "an id in {text} is beyond the CPUs this kernel can ever have",
    errno.EINVAL: "none of {text} is a CPU that may be used here: they are offline or the list is malformed",
    errno.ENOSPC: "{text} would leave its processes without a CPU or a memory node",
    errno.EROFS: "the cgroup tree is mounted read-only; mount the host's tree read-write",
    errno.EPERM: "{text} was refused to this user; run as root and outside a user namespace",
    errno.EACCES: "{text} was refused to this user; run as root",
    errno.EBUSY: "{text} conflicts with an exclusive cpuset or partition beside or below it",
}
_V1 = {
    errno.EACCES: "{text} is not within its parent's CPUs {parent}; widen the parent first (or run as root)",
    errno.EBUSY: "{text} would take CPUs away from a cgroup below it; shrink that one first",
    errno.EINVAL: "{text} holds a CPU that is offline or that its parent's {parent} does not have",
}


def host_error(path: str, error: OSError, text: str, version: int) -> HostError:
    """The error for a refused write of `text` to the `cpuset.cpus` at `path`.

    Source: kernel kernel/cgroup/cpuset.c and cpuset-v1.c, validate_change() and cpuset_write_resmask().
    """
    table = _EITHER | _V1 if version == 1 else _EITHER
    meaning = table.get(error.errno or 0, "{text} was not taken")
    reason = meaning.format(text=text, parent=_parent_value(path) if version == 1 else "")
    return HostError(path, f"{reason} ({error.strerror})")


def _parent_value(path: str) -> str:
    above = os.path.join(os.path.dirname(os.path.dirname(path)), os.path.basename(path))
    try:
        with open(above, encoding="ascii", errors="replace") as file:
            return file.read(4096).strip() or "(none)"
    except OSError:
        return "(unreadable)"
