"""What the kernel was told of CPUs: its version, its command line, isolation, NUMA balancing."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nri_plugin.cpuset import CPUSet
from nri_plugin.host.node_evidence import NOT_COPIED, Hidden, NodeView

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
        unread: an option whose list is no plain list of CPUs, as it stands there; by name.
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
