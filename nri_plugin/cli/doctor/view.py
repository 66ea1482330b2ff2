"""Reads of a node from wherever the program runs: on it, in a pod that has a part of it mounted, or at a copy.

A missing file and a file that cannot be seen are two things. A path below `root` can be seen when the whole root is the
node's, or when a mount brings it here; anything else is `Hidden`, and names the mount that would show it.
"""

import errno
import os
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from nri_plugin.host.cri import peer_of
from nri_plugin.host.mounts import MountPoint, read_mounts
from nri_plugin.model.errors import HostError

T = TypeVar("T")

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

NAMESPACES = {"mnt": "mount", "pid": "process id", "user": "user"}
"""Of a process, which a container has of its own."""

OF_PODS = "kubepods"
"""Below a cgroup whose name has this text are pods, whatever the driver is."""

_OF_SYSTEMD = re.compile(r"^(?:0:|\d+:name=systemd):(.*)$", re.MULTILINE)
_UIDS = re.compile(r"^Uid:((?:\s+\d+)+)$", re.MULTILINE)
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


class Stranger(NamedTuple):
    """A process that has the name of a service of the host and is none.

    Attributes:
        why: the evidence.
    """

    process: Process
    why: str


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
        found = mounts_of_this_process() if mounts is None else mounts
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
        return self._read(path, _content)

    def names(self, path: str) -> tuple[str, ...] | Hidden | None:
        """The names in a directory, sorted; None when the node has none of that name."""
        return self._read(path, lambda place: tuple(sorted(os.listdir(place))))

    def _read(self, path: str, read: Callable[[str], T]) -> T | Hidden | None:
        place = self.find(path)
        if isinstance(place, Hidden):
            return place
        try:
            return read(place)
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

    def services(
        self,
        processes: Iterable[Process],
        is_named: Callable[[Process], bool],
        sockets: Sequence[str] = (),
        pids: Sequence[int] = (),
        *,
        in_containers: bool = False,
    ) -> tuple[list[Process], list[Stranger]]:
        """The processes with the names of a service of the host, those that are one apart from strangers.

        Anybody may give a process any name and any command line. A service of the host belongs to root, is in no cgroup
        of pods, and has the namespaces of the first process, or of this one. One with a mount namespace of its own is
        known by systemd, or by a socket that it listens on: only root can listen there. Nothing runs on a copy of
        files, whose proc is incomplete: there only what it has of this evidence is judged.

        Args:
            processes: of the node.
            is_named: whether a process has the name.
            sockets: paths of the service.
            pids: main processes of units of systemd.
            in_containers: root's processes in containers are services, too.
        """
        own: list[Process] = []
        strangers: list[Stranger] = []
        named = list(filter(is_named, processes))
        known = {*pids, *map(self._listener, sockets)} if named else set()
        for process in named:
            is_known = in_containers or process.pid in known
            why = self._why_stranger(process.pid, may_be_in_container=is_known)
            if why:
                strangers.append(Stranger(process, why))
            else:
                own.append(process)
        return own, strangers

    def unit_of(self, pid: int) -> str:
        """The unit of systemd whose cgroup a process is in; empty for none."""
        found = _OF_SYSTEMD.search(self._process_text(pid, "cgroup"))
        *above, last = found[1].split("/") if found else [""]
        is_unit = last.endswith(".service") and all(name.endswith((".slice", "..")) for name in above[1:])
        return last if is_unit else ""

    def _why_stranger(self, pid: int, *, may_be_in_container: bool) -> str:
        """Why a process is no service of the host; empty for one that is."""
        uids = _UIDS.search(self._process_text(pid, "status"))
        is_live = not self.is_copy and _is_there(os.path.join(self._proc_of_node, "1/ns"))
        if uids is None and is_live:
            return "its user cannot be seen"
        users = sorted(set(uids[1].split()) - {"0"}, key=int) if uids else []
        if users:
            return f"it belongs to user {users[0]}"
        if may_be_in_container:
            return ""
        # A node that is itself a pod of another cluster has the name in all its cgroups.
        if OF_PODS in self._process_text(pid, "cgroup") and OF_PODS not in self._process_text(1, "cgroup"):
            return "it is in the cgroup of a pod"
        unseen = []
        for name, words in NAMESPACES.items():
            its = self._namespace(self._proc_of_node, pid, name)
            hosts = {self._namespace(self._proc_of_node, 1, name)}
            if self.is_here:
                hosts.add(self._namespace("/proc", os.getpid(), name))
            if its is None or hosts == {None}:
                unseen.append(words)
            elif its not in hosts:
                return f"it has another {words} namespace than the host"
        if unseen and is_live and not self.unit_of(pid):
            return f"its {unseen[0]} namespace cannot be seen; run as root"
        return ""

    @property
    def _proc_of_node(self) -> str:
        """The mount of proc that shows the processes of the node; where there is none, no process has files in it."""
        found = self.process_folder()
        return self.proc if isinstance(found, Hidden) else found

    def _process_text(self, pid: int, name: str) -> str:
        try:
            return Path(self._proc_of_node, str(pid), name).read_text("utf-8", "replace")
        except OSError:
            return ""

    def _namespace(self, proc: str, pid: int, name: str) -> str | None:
        try:
            return os.readlink(os.path.join(proc, str(pid), "ns", name))
        except OSError:
            return None

    def _listener(self, path: str) -> int:
        """The process of root that listens on a socket; 0 where there is none, or it cannot be seen."""
        place = self.find(path)
        if self.is_copy or isinstance(place, Hidden):
            return 0
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(CONNECT_S)
            connection.connect(place)
            pid, uid = peer_of(connection)
            return 0 if uid else pid
        return 0

    def connects(self, path: str) -> str | Hidden:
        """Empty when a unix socket accepts connections, else why not."""
        place = self.find(path)
        if isinstance(place, Hidden):
            return place
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(CONNECT_S)
                peer.connect(place)
        except FileNotFoundError:
            return "there is no such socket"
        except ConnectionRefusedError:
            return "no process listens on it"
        except OSError as error:
            return Hidden(path, why=_why(error)) if isinstance(error, PermissionError) else _why(error)
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


def _content(place: str) -> str:
    with open(place, "rb") as file:
        return file.read(MOST_BYTES).decode("utf-8", "replace")


def _is_system(root: str) -> bool:
    """Whether this is a whole system, and not a place with some mounts in it."""
    return all(os.path.isdir(os.path.join(root, name)) for name in ("etc", "usr"))


def is_in_pod() -> bool:
    """Whether this process runs in a container of Kubernetes, where / is not the root of the node."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and not (
        _sees_all_processes() and _same_root("/proc/1/root")
    )


def _is_there(path: str) -> bool:
    """Whether a path is there, also where it may not be seen."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno not in _PASSED_OVER
    return True


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


def mounts_of_this_process() -> list[MountPoint]:
    """Empty where they cannot be read."""
    try:
        return read_mounts()
    except HostError:
        return []


def _is_in(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def _why(error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return f"{reason}; run as root" if isinstance(error, PermissionError) and os.geteuid() else reason
