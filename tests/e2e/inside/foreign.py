"""Others who write cpusets: a person, systemd by a property, systemd after a reload."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .node import Node
from .observe import CGROUPS, CRUN_LEVEL, cpuset_directory

_SOMEBODY = CGROUPS / "somebody"


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The agent stands still meanwhile, so that what happens without it can be seen; 0 is no agent."""
    if pid:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if pid:
            os.kill(pid, signal.SIGCONT)


def hold_apart(kind: str, cpus: str) -> None:
    """Somebody's cgroup at the root of the tree becomes such a partition with these CPUs; as a member it is removed.

    Raises:
        OSError: the kernel does not take it.
    """
    if kind == "member":
        if _SOMEBODY.exists():
            write(_SOMEBODY / "cpuset.cpus.partition", kind)
            _SOMEBODY.rmdir()
        return
    _SOMEBODY.mkdir(exist_ok=True)
    write(_SOMEBODY / "cpuset.cpus", cpus)
    write(_SOMEBODY / "cpuset.cpus.partition", kind)


def somebody_s_partition() -> str:
    """What the kernel says of it."""
    file = _SOMEBODY / "cpuset.cpus.partition"
    return file.read_text().strip() if file.exists() else "member"


def give_kubepods(node: Node, cpus: str) -> Path:
    """Give the cgroup above all pods exactly these CPUs, by its slice where systemd runs; returns it. Empty: all, without pods."""
    top = CGROUPS / ("kubepods.slice" if node.runtime.systemd else "kubepods")
    if node.runtime.systemd:
        _systemctl("set-property", "--runtime", top.name, f"AllowedCPUs={cpus}")
    write(top / "cpuset.cpus", f"{cpus}\n")
    return top


def write_as(who: str, container: str, node: Node, cpus: str) -> None:
    """Put a container on `cpus` in somebody's way; without systemd the write that it would make is made."""
    if who == "write" or not node.runtime.systemd:
        own = cpuset_directory(node.pid(container))
        if own.name == CRUN_LEVEL:  # the level above bounds it
            write(own.parent / "cpuset.cpus", cpus)
        write(own / "cpuset.cpus", cpus)
        return
    scope = f"cri-containerd-{container}.scope"
    if who == "daemon-reload":  # it marks units only; any change of one makes systemd write all that it knows
        _systemctl("daemon-reload")
        _systemctl("set-property", "--runtime", scope, "CPUWeight=77")
        return
    _systemctl("set-property", "--runtime", scope, f"AllowedCPUs={cpus}")


def is_out_of_reach(who: str, container: str, node: Node) -> bool:
    """Whether crun's own level keeps systemd from the processes: it knows the scope, and that has become no tighter."""
    return who != "write" and cpuset_directory(node.pid(container)).name == CRUN_LEVEL


def write(file: Path, text: str) -> None:
    """Write in one call; a shell would truncate first."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _systemctl(*words: str) -> None:
    subprocess.run(["systemctl", *words], check=True, timeout=120)
