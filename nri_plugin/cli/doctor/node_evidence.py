"""Reads of a node from wherever the program runs: on it, in a pod that has a part of it mounted, or at a copy.

A missing file and a file that cannot be seen are two things. A path below `root` can be seen when the whole root is the
node's, or when a mount brings it here; anything else is `Hidden`, and names the mount that would show it.

`NodeView` finds files, processes and sockets. `read_kernel` and `read_tree` use it for the kernel (version, command line,
isolation, NUMA balancing) and the cgroup tree (version, delegated controllers, width, partitions).
"""

import errno
import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nri_plugin.host.cgroup import CPUS, EXCLUSIVE, MENDED
from nri_plugin.host.mounts import MOUNTINFO, MountPoint, find_cpuset_tree, read_mounts
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import CPUSet

MOST_BYTES = 4 << 20
"""No file that is read as evidence is larger."""

CONNECT_S = 1.0
"""A listening socket takes a connection at once; a full queue is a finding by itself."""

FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the node's own process namespace. Source: Linux, include/linux/proc_ns.h."""

OF_EVERY_CONTAINER = ("/proc", "/sys", "/dev", "/run", "/etc", "/var", "/var/run")
"""Mount points that a container has of its own, or that show nothing of the node by themselves."""

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
"""What is mounted as a whole: a mounted file stays the old one when its node replaces it."""

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
        is_whole: whether everything below the root is the node's, and not only what is mounted there.
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
    def is_copy(self) -> bool:
        """Whether this is a tree of files that nothing runs on."""
        return self.root != "/" and not any(_is_in(point, self.root) for point in self._points)

    def find(self, path: str) -> str | Hidden:
        """Where the node's `path` is from here, whether or not it exists.

        Links are followed as on the node: below the root, and not out of it. A copy tells nothing of what is below
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
        """What to say of a path that cannot be seen."""
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
        """What a directory holds, sorted; None when the node has none of that name."""
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

    def processes(self) -> tuple[Process, ...] | Hidden:
        """What runs on the node; without the kernel's threads and those that have ended and wait for their parents."""
        proc = self.find("/proc") if self.root != "/" or not self.in_pod else self.hidden("/proc")
        if self.in_pod and (isinstance(proc, Hidden) or self.root == "/") and _sees_all_processes():
            proc = "/proc"
        if isinstance(proc, Hidden):
            return proc
        if not os.path.isdir(os.path.join(proc, "1")):
            return Hidden(
                "/proc", "" if self.is_copy else os.path.join(self.root, "proc"), "no processes here"
            )
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


ISOLATING = ("isolcpus", "nohz_full", "rcu_nocbs")
BALANCING = "/proc/sys/kernel/numa_balancing"
SYS_ADMIN = 21
"""Source: Linux, include/uapi/linux/capability.h."""

_FLAG = re.compile(r"^[a-z_]+$")
_IN_FORCE = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel.

    Attributes:
        release: such as `6.12.48`.
        options: of its command line that concern CPUs: `isolcpus`, `nohz_full`, `rcu_nocbs`.
        unread: options whose value is no plain CPU list, unparsed; by name.
        numa_balancing: None without such a switch.
    """

    release: str
    options: Mapping[str, CPUSet] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    numa_balancing: bool | Hidden | None = None


def read_kernel(view: NodeView) -> Kernel | Hidden:
    """The kernel of the node; every kernel has a command line and a release, so what has none is no evidence."""
    line = view.kernel_text("/proc/cmdline")
    if line is None:
        return Hidden("/proc/cmdline", why=NOT_COPIED)
    if isinstance(line, Hidden):
        return line
    balancing = view.kernel_text(BALANCING)
    version = view.kernel_text("/proc/sys/kernel/osrelease")
    release = version.strip() if isinstance(version, str) else "" if view.is_copy else platform.release()
    known, unread = boot_options(line)
    if isinstance(balancing, str):
        return Kernel(
            release, known, unread, balancing.strip() not in ("", "0") if balancing.strip() else None
        )
    if balancing is None and not isinstance(version, str):
        balancing = Hidden(BALANCING, why=NOT_COPIED)
    return Kernel(release, known, unread, balancing)


def boot_options(line: str) -> tuple[dict[str, CPUSet], dict[str, str]]:
    """CPUs by option, and what cannot be read as a list (`isolcpus=managed_irq,2-5` has flags before it)."""
    known: dict[str, CPUSet] = {}
    unread: dict[str, str] = {}
    for word in line.split():
        name, _, value = word.partition("=")
        if name not in ISOLATING or not value:
            continue
        lists = ",".join(part for part in value.split(",") if not _FLAG.match(part))
        try:
            known[name] = CPUSet.parse(lists)
        except ValueError:
            unread[name] = value
    return known, unread


def is_admin(view: NodeView, pid: int) -> bool | None:
    """Whether a process of the node has the capability SYS_ADMIN; None where that cannot be seen."""
    proc = "/proc" if view.root == "/" else f"{view.root}/proc"
    try:
        found = _IN_FORCE.search(Path(proc, str(pid), "status").read_text("utf-8", "replace"))
    except OSError:
        return None
    return bool(int(found[1], 16) >> SYS_ADMIN & 1) if found else None


def free_bytes(path: str) -> int | None:
    """What is left where `path` is; None when that cannot be told."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


TREE = "/sys/fs/cgroup"
TOPS = ("kubepods.slice", "kubepods")
"""As the systemd and the cgroupfs driver name it."""

LEVELS = 3
"""Below the top: the QoS slices, the pods, their containers; Guaranteed pods have no slice of their own above them."""


@dataclass(frozen=True, slots=True)
class CgroupDir:
    """One cgroup.

    Attributes:
        path: below the root of the tree, empty for the root.
        cpus: what it was given; None without cpuset files, empty when it was never given any.
        effective: what its processes run on.
        passes_on: whether those below have cpuset files (cgroup v2; always so on v1).
        partition: `cpuset.cpus.partition`, empty without.
    """

    path: str
    cpus: CPUSet | None
    effective: CPUSet | None
    passes_on: bool
    partition: str = ""


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree.

    Attributes:
        version: 1 or 2.
        directory: as seen from here.
        top: `kubepods.slice` or `kubepods`, empty when the node has run no pod yet.
        groups: the root, the top, QoS slices and pods, outermost first.
        options: of the mount, such as `nsdelegate`; None where the mount is not seen.
        nests_partitions: whether groups below the root can be partitions; None where no group has cpuset files yet.
        is_spoilt: whether CPUs of a partition had to be mended, after which the agent makes none until the next boot.
    """

    version: int
    directory: str
    top: str = ""
    groups: tuple[CgroupDir, ...] = ()
    options: tuple[str, ...] | None = None
    nests_partitions: bool | None = None
    is_spoilt: bool = False


def read_tree(view: NodeView, path: str = "") -> Tree | Hidden | str:
    """The tree that carries cpusets; a text says what is wrong with what is there instead."""
    place = path or view.find(TREE)
    if isinstance(place, Hidden):
        return place
    if view.in_pod and not path and view.root == "/":
        return view.hidden(TREE)
    try:
        found = find_cpuset_tree(place)
    except HostError as error:
        return view.hidden(TREE) if not os.path.isdir(place) and not view.is_here else error.detail
    top = next((name for name in TOPS if os.path.isdir(os.path.join(found.directory, name))), "")
    paths = ["", *_below(found.directory, top)] if top else [""]
    groups = tuple(_group(found.directory, name, found.version) for name in paths)
    return Tree(
        found.version,
        found.directory,
        top,
        groups,
        _options(found.directory),
        _nests_partitions(os.path.join(found.directory, top)) if top else None,
        os.path.isdir(os.path.join(found.directory, MENDED)),
    )


def _nests_partitions(place: str) -> bool | None:
    """By the file that such a group takes its CPUs from; distributions bring it to older kernels, too."""
    if not os.path.exists(os.path.join(place, CPUS)):
        return None
    return os.path.exists(os.path.join(place, EXCLUSIVE))


def _below(directory: str, top: str, levels: int = LEVELS) -> list[str]:
    found = [top]
    if levels:
        try:
            names = sorted(entry.name for entry in os.scandir(os.path.join(directory, top)) if entry.is_dir())
        except OSError:
            names = []
        for name in names:
            found += _below(directory, os.path.join(top, name), levels - 1)
    return found


def _group(directory: str, path: str, version: int) -> CgroupDir:
    place = os.path.join(directory, path)
    effective = "cpuset.cpus.effective" if version == 2 else "cpuset.effective_cpus"
    controllers = (_text(place, "cgroup.subtree_control") or "").split()
    return CgroupDir(
        path,
        _cpus(_text(place, "cpuset.cpus")),
        _cpus(_text(place, effective)),
        version == 1 or "cpuset" in controllers,
        _text(place, "cpuset.cpus.partition") or "",
    )


def _options(directory: str) -> tuple[str, ...] | None:
    """Of the innermost mount that is the tree itself; those of a bind mount are the file system's."""
    try:
        lines = Path(MOUNTINFO).read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        before, _, after = line.partition(" - ")
        fields, source = before.split(" "), after.split(" ")
        if len(fields) > 5 and fields[4] == directory and len(source) >= 3 and source[0] == "cgroup2":
            return tuple(source[2].split(","))
    return None


def _text(place: str, name: str) -> str | None:
    try:
        return Path(place, name).read_text("ascii", "replace").strip()
    except OSError:
        return None


def _cpus(text: str | None) -> CPUSet | None:
    try:
        return None if text is None else CPUSet.parse(text)
    except ValueError:
        return None
