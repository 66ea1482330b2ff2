"""Interrupts of the guest as its kernel shows them, and sources that make some at will."""

import contextlib
import functools
import os
import socket
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .observe import parse_list

IRQS = Path("/proc/irq")
_ABOUT = Path("/sys/kernel/irq")
DEFAULT_MASK = IRQS / "default_smp_affinity"
WORKQUEUES = (
    Path("/sys/devices/virtual/workqueue/cpumask"),
    Path("/sys/devices/virtual/workqueue/writeback/cpumask"),
)
LATENCIES = "/sys/devices/system/cpu/cpu{}/power/pm_qos_resume_latency_us"


@dataclass(frozen=True, slots=True)
class Line:
    """One interrupt with a handler."""

    number: int
    actions: str
    cpus: frozenset[int]
    effective: frozenset[int]
    is_movable: bool


@functools.cache
def _takes_a_write(number: str, actions: str, file: Path) -> bool:
    """Whether the kernel lets anybody set it: before Linux 6.12 only a write tells, that of its own value."""
    try:
        write(file, file.read_text().strip())
    except OSError:
        return False
    return True


def lines() -> list[Line]:
    """Every interrupt that has a handler."""
    found = []
    for place in sorted(IRQS.iterdir(), key=lambda path: path.name.zfill(8)):
        if not place.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            actions = (_ABOUT / place.name / "actions").read_text().strip()
            if not actions:
                continue
            file = place / "smp_affinity_list"
            found.append(
                Line(
                    int(place.name),
                    actions,
                    frozenset(parse_list(file.read_text().strip())),
                    frozenset(parse_list((place / "effective_affinity_list").read_text().strip())),
                    bool(file.stat().st_mode & 0o200) and _takes_a_write(place.name, actions, file),
                )
            )
    return found


def lines_by_number() -> dict[int, Line]:
    """The same by number."""
    return {line.number: line for line in lines()}


def named(part: str) -> Line:
    """The interrupt with a handler of this name."""
    return next(line for line in lines() if part in line.actions)


def counts(number: int) -> list[int]:
    """How often it came to each possible CPU."""
    return [int(one) for one in (_ABOUT / str(number) / "per_cpu_count").read_text().strip().split(",")]


def movable_counts(cpus: set[int]) -> dict[str, int]:
    """How often each movable interrupt came to these CPUs."""
    return {
        f"{line.number} {line.actions}": sum(counts(line.number)[cpu] for cpu in cpus)
        for line in lines()
        if line.is_movable
    }


def steering() -> list[Path]:
    """The steering of received packets, by queue."""
    return sorted(Path("/sys/class/net").glob("*/queues/rx-*/rps_cpus"))


def settings() -> dict[str, str]:
    """Every setting that quiet CPUs may change, as text."""
    found = {f"irq {line.number}": (IRQS / str(line.number) / "smp_affinity").read_text() for line in lines()}
    for file in (
        DEFAULT_MASK,
        *WORKQUEUES,
        *steering(),
        *(Path(LATENCIES.format(cpu)) for cpu in range(os.cpu_count() or 1)),
    ):
        with contextlib.suppress(OSError):
            found[str(file)] = file.read_text()
    return found


def write(file: Path, text: str) -> None:
    """Write with one call.

    Raises:
        OSError: the kernel refuses.
    """
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def draw_random(blocks: int = 200) -> None:
    """Make about as many interrupts of the random number generator."""
    subprocess.run(
        ["dd", "if=/dev/hwrng", "of=/dev/null", "bs=64", f"count={blocks}"], check=True, capture_output=True
    )


def read_disk(disk: str, cpu: int, blocks: int = 30) -> None:
    """Read a disk past the page cache from one CPU: an interrupt of that CPU's queue for each block."""
    command = ["dd", f"if=/dev/{disk}", "of=/dev/null", "bs=4096", "iflag=direct", f"count={blocks}"]
    subprocess.run(["taskset", "-c", str(cpu), *command], check=True, capture_output=True)


GATEWAY = "10.0.2.2"
"""What answers behind the guest's network device. Source: QEMU, user networking."""


def network() -> str:
    """The guest's network device, with an address; empty where it has none."""
    found = [path.name for path in Path("/sys/class/net").iterdir() if (path / "device").exists()]
    if not found:
        return ""
    name = found[0]
    for words in (("addr", "replace", "10.0.2.15/24", "dev", name), ("link", "set", name, "up")):
        subprocess.run(["ip", *words], check=True, capture_output=True)
    return name


def ping(count: int) -> int:
    """Send packets that are answered; return how many were."""
    answered = 0
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as peer:
        peer.settimeout(1)
        for number in range(count):
            head = struct.pack("!BBHHH", 8, 0, 0, 1, number)
            words = sum(struct.unpack("!4H", head))
            peer.sendto(head[:2] + struct.pack("!H", ~words & 0xFFFF) + head[4:], (GATEWAY, 0))
            with contextlib.suppress(TimeoutError):
                peer.recv(1 << 12)
                answered += 1
    return answered
