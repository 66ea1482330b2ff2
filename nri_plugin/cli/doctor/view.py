"""Reads of a node from wherever the program runs: on it, in a pod that has a part of it mounted, or at a copy.

A missing file and a file that cannot be seen are two things. A path below `root` can be seen when the whole root is the
node's, or when a mount brings it here; anything else is `Hidden`, and names the mount that would show it.
"""

import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nri_plugin.host.mounts import MountPoint, read_mounts
from nri_plugin.model.errors import HostError

MOST_BYTES = 4 << 20
"""No file that is read as evidence is larger."""

CONNECT_S = 1.0
"""A listening socket takes a connection at once; a full queue is a finding by itself."""

FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the node's own process namespace. Source: Linux, include/linux/proc_ns.h."""

OF_EVERY_CONTAINER = ("/proc", "/sys", "/dev", "/run", "/etc", "/var", "/var/run")
"""Mount points that every container has, or that by themselves show nothing of the node."""

FOLDERS = (
    "/etc/containerd",
    "/etc/crio",
    "/etc/nri",
    "/etc/nri-pin",
    "/opt/nri",
    "/var/lib/kubelet",
    "/var/lib/rancher",
    "/var/run/nri",
    "/run/nri-pin",
    "/sys/fs/cgroup",
    "/sys",
    "/proc",
)
"""Directories that are mounted as a whole: a mounted file stays the old one when the node replaces it."""

NOT_COPIED = "not among the files that were copied"

_LINKS = 40
_PASSED_OVER = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class Hidden:
    """Evidence that cannot be seen from here.

    Attributes:
        path: on the node.
        at: where to mount it; empty when it is there and may not be read.
        why: then the reason.
    """

    path: str
    at: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the node.

    Attributes:
        name: as the kernel has it, at most 15 characters.
        args: its command line, the program first.
    """

    pid: int
    name: str
    args: tuple[str, ...] = ()

    def option(self, *names: str) -> str | None:
        """The value of the last of these options on its command line; None when none of them is there."""
        found = None
        for place, word in enumerate(self.args):
            name, equals, value = word.partition("=")
            if name in names:
                found = value if equals else " ".join(self.args[place + 1 : place + 2])
        return found


class NodeView:
    """The files, processes and sockets of a node.

    Args:
        root: where the node's root is: `/`, a container's `/host`, or a copy of some of its files.
        mounts: those of this process.
        in_pod: whether `/` is a container's own and not the node's.

    Attributes:
        is_whole: whether everything below the root is the node's, and not only some mounts.
    """

    def __init__(
        self, root: str = "/", mounts: Sequence[MountPoint] | None = None, *, in_pod: bool = False
    ) -> None:
        self.root = os.path.realpath(root)
        self.in_pod = in_pod
        found = _mounts() if mounts is None else mounts
        self._points = tuple(mount.point for mount in found)
        below = [point for point in self._points if self.root != "/" and _is_in(point, self.root)]
        self.is_whole = (
            not in_pod if self.root == "/" else not below or (self.root in below and _is_system(self.root))
        )

    @property
    def is_here(self) -> bool:
        """Whether programs run here run on the node itself, with its files."""
        return self.root == "/" and not self.in_pod

    @property
    def proc(self) -> str:
        """The proc file system below the root."""
        return os.path.join(self.root, "proc")

    @property
    def is_copy(self) -> bool:
        """Whether this is a tree of files that nothing runs on."""
        return self.root != "/" and not any(_is_in(point, self.root) for point in self._points)

    def find(self, path: str) -> str | Hidden:
        """Where the node's `path` is from here, whether or not it exists.

        Links are followed as on the node: below the root, and not out of it. A copy tells nothing of files below
        a folder of the root that it does not have.
        """
        real = self._resolved(path)
        top = "/" + path.strip("/").partition("/")[0]
        if self.is_copy and not os.path.lexists(self.root + top):
            return Hidden(top, why=NOT_COPIED)
        if self.is_whole or self._has_mount(real, self.root):
            return real
        return path if self._is_mounted_as_it_is(path) else self.hidden(path)

    def hidden(self, path: str) -> Hidden:
        """A path that cannot be seen, with the mount that would show it."""
        top = "/host" if self.root == "/" else self.root
        folder = next((name for name in FOLDERS if _is_in(path, name)), path)
        return Hidden(folder, top + folder)

    def text(self, path: str) -> str | Hidden | None:
        """The content of a file; None when the node has none of that name."""
        place = self.find(path)
        if isinstance(place, Hidden):
            return place
        try:
            with open(place, "rb") as file:
                return file.read(MOST_BYTES).decode("utf-8", "replace")
        except OSError as error:
            return None if error.errno in _PASSED_OVER else Hidden(path, why=_why(error))

    def names(self, path: str) -> tuple[str, ...] | Hidden | None:
        """The names in a directory, sorted; None when the node has none of that name."""
        place = self.find(path)
        if isinstance(place, Hidden):
            return place
        try:
            return tuple(sorted(os.listdir(place)))
        except OSError as error:
            return None if error.errno in _PASSED_OVER else Hidden(path, why=_why(error))

    def kernel_text(self, path: str) -> str | Hidden | None:
        """A file of /proc or /sys that says the same in every container of the node."""
        found = self.text(path)
        if isinstance(found, str) or self.is_copy:
            return found
        try:
            return Path(path).read_text("utf-8", "replace")
        except OSError:
            return found

    def process_folder(self) -> str | Hidden:
        """A mount of proc that has the processes of the node."""
        proc = self.find("/proc") if self.root != "/" or not self.in_pod else self.hidden("/proc")
        if self.in_pod and (isinstance(proc, Hidden) or self.root == "/") and _sees_all_processes():
            proc = "/proc"
        if isinstance(proc, Hidden):
            return proc
        if not os.path.isdir(os.path.join(proc, "1")):
            return Hidden(
                "/proc", "" if self.is_copy else os.path.join(self.root, "proc"), "no processes here"
            )
        return proc

    def processes(self) -> tuple[Process, ...] | Hidden:
        """The processes of the node, without kernel threads and zombies."""
        proc = self.process_folder()
        if isinstance(proc, Hidden):
            return proc
        numbers = sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
        return tuple(found for pid in numbers if (found := _process(proc, pid)) is not None)

    def connects(self, path: str) -> str | Hidden:
        """Empty when a unix socket accepts connections, else why not."""
        place = self.find(path)
        if isinstance(place, Hidden):
            return place
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.settimeout(CONNECT_S)
            peer.connect(place)
        except FileNotFoundError:
            return "there is no such socket"
        except ConnectionRefusedError:
            return "no process listens on it"
        except OSError as error:
            return Hidden(path, why=_why(error)) if isinstance(error, PermissionError) else _why(error)
        finally:
            peer.close()
        return ""

    def _has_mount(self, real: str, below: str) -> bool:
        """Whether something mounted below the root holds the path, or the path itself holds such a mount."""
        mine = [point for point in self._points if _is_in(point, below) and point != below]
        return any(_is_in(real, point) for point in mine if below != "/" or point not in OF_EVERY_CONTAINER)

    def _is_mounted_as_it_is(self, path: str) -> bool:
        """Whether a pod has this path of the node under its own name, as the agent has its state directory."""
        if not self.in_pod or path.startswith(("/proc", "/sys")):
            return False
        return self._has_mount(os.path.realpath(path), "/")

    def _resolved(self, path: str) -> str:
        """`path` below the root with every link followed; absolute links start again at the root."""
        if self.root == "/":
            return os.path.realpath(path)
        left, done = path.strip("/").split("/"), self.root
        for _ in range(_LINKS + path.count("/")):
            if not left:
                break
            part = left.pop(0)
            if part in {"", "."}:
                continue
            if part == "..":
                done = self.root if done == self.root else os.path.dirname(done)
                continue
            step = os.path.join(done, part)
            if not os.path.islink(step):
                done = step
                continue
            target = os.readlink(step)
            done = self.root if target.startswith("/") else done
            left = [*target.split("/"), *left]
        return done


def _is_system(root: str) -> bool:
    """Whether this is a whole system, and not a place with some mounts in it."""
    return all(os.path.isdir(os.path.join(root, name)) for name in ("etc", "usr"))


def is_in_pod() -> bool:
    """Whether this process runs in a container of Kubernetes, where / is not the root of the node."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and not (
        _sees_all_processes() and _same_root("/proc/1/root")
    )


def _same_root(other: str) -> bool:
    try:
        return os.path.samefile("/", other)
    except OSError:
        return False


def _sees_all_processes() -> bool:
    try:
        return os.stat("/proc/self/ns/pid").st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return False


def _process(proc: str, pid: int) -> Process | None:
    folder = os.path.join(proc, str(pid))
    try:
        name = Path(folder, "comm").read_text("utf-8", "replace").strip()
        words = Path(folder, "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    return Process(pid, name, tuple(words[:-1])) if words[:-1] else None


def _mounts() -> list[MountPoint]:
    try:
        return read_mounts()
    except HostError:
        return []


def _is_in(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def _why(error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return f"{reason}; run as root" if isinstance(error, PermissionError) and os.geteuid() else reason
