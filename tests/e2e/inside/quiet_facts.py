"""What several scenarios of quiet CPUs look at: the CPUs, the interrupts that reach them, and how long that took."""

import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from . import interrupts
from .node import Node
from .waiting import wait_for
from .write_watch import WriteWatch

SOON_S = 120
"""Emulated CPUs are slow; the agent itself needs less than five seconds."""

METRICS = "127.0.0.1:9900"
QUIET_FILE = Path("/run/nri-pin/quiet.json")

_RNG_ID = "0x0004"
"""Source: virtio specification, device types."""


def quiet_cpus(node: Node) -> set[int]:
    """The CPUs of the exclusive containers, as the kernel has them."""
    found: set[int] = set()
    for pod in node.pods:
        if pod.spec.qos == "guaranteed":
            for name in pod.running:
                found |= node.observe(pod.ids[name]).allowed_cpus
    return found


def rng() -> str:
    """The virtio device that generates random numbers, as `virtio1`."""
    files = Path("/sys/bus/virtio/devices").glob("*/device")
    return next(file.parent.name for file in files if file.read_text().strip() == _RNG_ID)


def rng_line() -> interrupts.Line:
    """Its interrupt."""
    return interrupts.named(f"{rng()}-input")


def nothing_reaches(cpus: set[int]) -> list[str]:
    """Movable interrupts that may come to these CPUs."""
    return [f"{one.number} {one.actions}" for one in interrupts.lines() if one.is_movable and one.cpus & cpus]


def mask(file: Path) -> set[int]:
    """The CPUs of a mask."""
    found = int(file.read_text().strip().replace(",", ""), 16)
    return {cpu for cpu in range(found.bit_length()) if found >> cpu & 1}


def wait_until_quiet(cpus: set[int]) -> None:
    """Wait until no movable interrupt may come to these CPUs."""
    wait_for(lambda: not nothing_reaches(cpus), SOON_S, "movable interrupts leave the quiet CPUs")


def timed(node: Node, fact: Callable[[], bool], what: str) -> None:
    """Wait for a fact, and tell how many seconds that took; the time is never judged."""
    began = time.monotonic()
    wait_for(fact, SOON_S, what)
    node.expect(what, True)
    node.figure(f"seconds until {what}", round(time.monotonic() - began, 2))


def settings_watch() -> WriteWatch:
    """A watch of every setting that quiet CPUs may change."""
    names = ("default_smp_affinity", "smp_affinity", "smp_affinity_list")
    names += ("cpumask", "rps_cpus", "pm_qos_resume_latency_us")
    tops = (interrupts.IRQS, Path("/sys/devices/virtual/workqueue"), Path("/sys/devices/system/cpu"))
    return WriteWatch(*tops, *Path("/sys/class/net").iterdir(), having=names, counts=names.__contains__)


def metrics(beginning: str = "nri_pin_quiet") -> dict[str, float]:
    """The agent's metrics of quiet CPUs by name with labels."""
    with urllib.request.urlopen(f"http://{METRICS}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    rows = (line.rpartition(" ") for line in text.splitlines() if line.startswith(beginning))
    return {name: float(value) for name, _, value in rows}
