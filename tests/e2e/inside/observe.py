"""What the kernel says about a container: its cgroup's cpuset files and its process's status.

CPUs and NUMA nodes are plain sets of numbers here: this half must not depend on the code it judges.
"""

from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CRUN_LEVEL = "container"
"""With systemd crun puts the processes, and a cpuset of their own, one level below the scope."""


def parse_list(text: str) -> set[int]:
    """Read the kernel's list format, `0-3,8`."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return found


def cpu_weight(pid: int) -> int:
    """Weight of the process's cgroup: `cpu.shares` on cgroup v1, `cpu.weight` on v2, in their own units."""
    return int((_controller_directory(pid, "cpu") / ("cpu.shares" if _is_v1() else "cpu.weight")).read_text())


def memory_limit(pid: int) -> int:
    """Memory limit of the process's cgroup in bytes."""
    name = "memory.limit_in_bytes" if _is_v1() else "memory.max"
    return int((_controller_directory(pid, "memory") / name).read_text())


def parse_mask(data: bytes) -> set[int]:
    """Read an affinity mask as the kernel hands it out: bit n of byte n // 8 is CPU n."""
    return {8 * at + bit for at, byte in enumerate(data) for bit in range(8) if byte >> bit & 1}


def format_list(numbers: set[int]) -> str:
    """Write the kernel's list format."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in parts)


@dataclass(frozen=True, slots=True)
class Observed:
    """One running container as the kernel sees it."""

    file_cpus: set[int]
    effective_cpus: set[int]
    effective_mems: set[int]
    allowed_cpus: set[int]
    allowed_mems: set[int]


def _is_v1() -> bool:
    return (CGROUPS / "cpuset").is_dir()


def _controller_directory(pid: int, controller: str) -> Path:
    """Return the directory of the process's cgroup in the hierarchy that carries `controller`."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return CGROUPS / controller / path.lstrip("/")
        if number == "0" and not _is_v1():
            return CGROUPS / path.lstrip("/")
    raise LookupError(f"process {pid} is in no cgroup with the {controller} controller")


def cpuset_directory(pid: int) -> Path:
    """The process's cgroup in the hierarchy that carries cpusets."""
    return _controller_directory(pid, "cpuset")


def observe(pid: int) -> Observed:
    """Read everything at once."""
    directory = _controller_directory(pid, "cpuset")
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    return Observed(
        file_cpus=parse_list((directory / "cpuset.cpus").read_text()),
        effective_cpus=parse_list(_first(directory, "cpuset.cpus.effective", "cpuset.effective_cpus")),
        effective_mems=parse_list(_first(directory, "cpuset.mems.effective", "cpuset.effective_mems")),
        allowed_cpus=parse_list(status["Cpus_allowed_list"]),
        allowed_mems=parse_list(status["Mems_allowed_list"]),
    )


def machine_cpus() -> set[int]:
    """All online CPUs of the kernel we run on."""
    return parse_list(Path("/sys/devices/system/cpu/online").read_text())


def node_cpus() -> dict[int, set[int]]:
    """CPUs of every NUMA node of the kernel we run on; one node where it knows none."""
    nodes = Path("/sys/devices/system/node")
    found = {
        int(path.name[4:]): parse_list((path / "cpulist").read_text()) for path in nodes.glob("node[0-9]*")
    }
    return found or {0: machine_cpus()}


def capabilities(pid: int) -> dict[str, int]:
    """Return the capability sets of a process by name, as numbers, and its no_new_privs flag."""
    wanted = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
    lines = (
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    return {name: int(value, 16) for name, value in lines if name in wanted}


def _first(directory: Path, *names: str) -> str:
    for name in names:
        if (directory / name).exists():
            return (directory / name).read_text()
    raise FileNotFoundError(f"{directory} has none of {', '.join(names)}")
