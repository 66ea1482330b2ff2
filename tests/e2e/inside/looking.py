"""What the kernel knows of the machine and of a process's pages."""

import re
from pathlib import Path

from .observe import parse_list

_CPUS = Path("/sys/devices/system/cpu")


def caches_of(cpus: set[int]) -> int:
    """Over how many last-level caches these CPUs are spread; a machine without them has none."""
    found = set()
    for cpu in cpus:
        path = _CPUS / f"cpu{cpu}/cache/index3/shared_cpu_list"
        if path.exists():
            found.add(frozenset(parse_list(path.read_text())))
    return len(found)


def anonymous_nodes(pid: int) -> set[int]:
    """NUMA nodes that hold anonymous pages of a process: its stack, heap and huge pages, no page of a file."""
    lines = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
    own = [line for line in lines if " anon=" in line and (" file=" not in line or " huge " in line)]
    return {int(node) for line in own for node in re.findall(r" N(\d+)=", line)}


def memory_bytes() -> int:
    """Memory of the machine, as a kubelet would count it."""
    found = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) << 10 if found else 1 << 30
