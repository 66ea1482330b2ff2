"""Where a cgroup that the runtime names lies below the root of the cgroup tree: text to text.

Names come from the wire. Whatever they hold, the result stays below the root: no part is `.`, `..` or
has a NUL in it, and there is at least one part, so that nobody can point us at the root itself.
"""

import errno
import os
from functools import lru_cache

from nri_plugin.model.errors import HostError
from nri_plugin.model.state import CgroupRef

# ----------------------------------------------------------------------------------------------------
# What the kernel means when it refuses a cpuset, in words an operator can act on.


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


# ----------------------------------------------------------------------------------------------------


SLICE = ".slice"
DEFAULT_SLICE = "system.slice"
"""Where OCI runtimes put a scope that names no slice."""


@lru_cache(maxsize=8192)
def cgroup_path(ref: CgroupRef) -> str:
    """The cgroup's directory, relative to the root of the tree.

    Forms of `ref.path`, in the order they are told apart:
        empty: the parent itself;
        `slice:prefix:id`: systemd driver, `prefix-id.scope` in the expanded slice;
        anything else: cgroupfs driver, the path as it is.

    Raises:
        HostError: the name leaves the tree, is the root, or is no slice systemd could have made.

    Source: opencontainers runtime-spec config-linux.md "cgroupsPath"; runc docs/systemd.md.
    """
    name = ref.path or ref.parent
    parts = _scope_parts(ref.path) if ref.path else _parent_parts(ref.parent)
    if not parts:
        raise HostError(name or "''", "names the root of the cgroup tree, which is never ours to change")
    for part in parts:
        if part in {".", ".."} or "\0" in part:
            raise HostError(repr(name), f"a cgroup path may not hold the part {part!r}")
    return "/".join(parts)


def _scope_parts(path: str) -> list[str]:
    fields = path.split(":")
    if len(fields) != 3 or "/" in fields[1] or "/" in fields[2]:
        return _plain_parts(path)
    parent, prefix, name = fields
    if not name:
        raise HostError(repr(path), "names a systemd unit without a name")
    unit = name if name.endswith(SLICE) else f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
    return [*_parent_parts(parent or DEFAULT_SLICE), unit]


def _parent_parts(parent: str) -> list[str]:
    """The parts of a pod's cgroup parent, which is a full path or only its last part.

    A slice names all its ancestors, so slices before the last say nothing new; what comes before
    the slices (a node that is itself a container) is kept.
    """
    parts = _plain_parts(parent)
    if not parts or not parts[-1].endswith(SLICE):
        return parts
    expanded = expand_slice(parts[-1])
    while parts and parts[-1].endswith(SLICE):
        parts.pop()
    return parts + expanded


def expand_slice(name: str) -> list[str]:
    """`a-b.slice` is `a.slice`, `a-b.slice`: the directories from the outermost slice to this one.

    Raises:
        HostError: a dash at an end or beside another dash, which systemd refuses too.

    Source: systemd.slice(5).
    """
    stem = name.removesuffix(SLICE)
    if stem == "-":
        return []
    words = stem.split("-")
    if not all(words):
        raise HostError(repr(name), "is no systemd slice name: every dash has to separate two names")
    return ["-".join(words[: count + 1]) + SLICE for count in range(len(words))]


def _plain_parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
