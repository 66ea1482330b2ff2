"""Figures of `nri-pin noise` beside those of a reader of its own: the same files, read before, meanwhile and afterwards."""

import json
import mmap
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import interrupts
from .agent import PYTHON
from .node import Node, Pod
from .observe import CGROUPS, format_list, parse_list
from .waiting import wait_for

_DISK = "/dev/nvme0n1"
_QUEUES = "nvme0q"
_READS = 50
_STRANGER_S = 2.0
_LEAST_FOREIGN_US = 100_000
_INTERVAL_S = 20
_DEVICES: Mapping[str, Callable[[], object]] = {
    "random": lambda: interrupts.draw_random(1000),
    "network": lambda: interrupts.ping(300),
    "wrap": lambda: interrupts.draw_random(1000),
}
"""Loads of devices whose interrupts come wherever they are sent."""
_SLEEPS = "230 "
"""Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl: clock_nanosleep."""

Json = dict[str, Any]
Texts = dict[str, str]


def measure(node: Node, where: str, pod: Pod, name: str, load: str) -> Json:
    """Measure a container, with or without a load meanwhile, and compare; return what `nri-pin noise` told."""
    cpus = _cpus(node, pod, name)
    key = f"{pod.spec.namespace}/{pod.spec.name}/{name}"
    state_dir = str(node.agent.config.get("stateDir", "/run/nri-pin"))
    command = [PYTHON, "-m", "nri_plugin", "noise", key, "--for", f"{_INTERVAL_S}s", "-o", "json"]
    outer_first = _texts()
    shifted = _Shifted() if load == "wrap" else None
    if shifted is not None:
        command += ["--root", str(shifted.root)]
    with subprocess.Popen([*command, "--state-dir", state_dir], stdout=subprocess.PIPE, text=True) as process:
        # It sleeps between its two readings.
        syscall = Path(f"/proc/{process.pid}/syscall")
        wait_for(lambda: syscall.read_text().startswith(_SLEEPS), 120, "nri-pin noise has read once")
        inner_first = _texts()
        foreign_us = _disturb(cpus) if load == "disk" else 0
        if load in _DEVICES:
            _DEVICES[load]()
        gone = {max(cpus)} if load == "hotplug" else set()
        _switch(gone, is_online=False)
        inner_last = _texts()
        if shifted is not None:
            shifted.update()
        sleeps = syscall.read_text().startswith(_SLEEPS)
        told, _ = process.communicate(timeout=300)
    outer_last = _texts()
    _switch(gone, is_online=True)
    node.expect(f"{where}: the load ended within the interval", sleeps)
    (found,) = json.loads(told)["containers"]
    node.equal(f"{where}: the CPUs of {key}", found["cpus"], format_list(cpus))
    node.equal(f"{where}: CPUs that went offline", found["uncounted"], format_list(gone))
    wrong = _differences(found, (outer_first, inner_first), (inner_last, outer_last), cpus - gone)
    node.equal(f"{where}: figures of {key} lie between those of another reader", wrong, [])
    if not gone:
        _judge_load(node, f"{where}: {key}", found, cpus, foreign_us)
    node.figure(f"noise of {key}, load {load}", json.dumps(found["totals"]))
    return dict(found)


class _Shifted:
    """The files of the kernel, with each counter so far on that it wraps after ten more.

    They are as new as the last `update`: the first is made here, and another one has to come before the last reading.
    """

    _WRAP, _LEFT = 1 << 32, 10

    def __init__(self) -> None:
        self.root = Path("/run/lab/shifted")
        (self.root / "proc").mkdir(parents=True, exist_ok=True)
        for name in ("stat", "schedstat", "irq"):
            link = self.root / "proc" / name
            link.unlink(missing_ok=True)
            link.symlink_to(f"/proc/{name}")
        self._began = {name: _cells(text) for name, text in _texts().items()}
        self.update()

    def update(self) -> None:
        """Write what the kernel shows now, shifted."""
        for name, text in _texts().items():
            head, *lines = text.splitlines()
            began = self._began[name]
            shown = [self._line(line, began.get(line.split()[0], [])) for line in lines]
            new = self.root / "proc" / f"{name}.new"
            new.write_text("\n".join([head, *shown, ""]))
            new.rename(self.root / "proc" / name)

    def _line(self, line: str, began: list[int]) -> str:
        words = line.split()
        for place, first in enumerate(began, 1):
            words[place] = str((int(words[place]) - first + self._WRAP - self._LEFT) % self._WRAP)
        return " ".join(words)


def _cells(text: str) -> dict[str, list[int]]:
    """The counts of each line by its label."""
    head, *lines = text.splitlines()
    count = len(head.split())
    found = {}
    for line in lines:
        label, *words = line.split()
        found[label] = [int(word) for word in words[:count] if word.isdecimal()]
    return found


def _judge_load(node: Node, what: str, found: Json, cpus: set[int], foreign_us: int) -> None:
    reads = sum(one["total"] for one in found["sources"] if one["name"].startswith(_QUEUES))
    strangers = found["totals"].get("foreign-run-time", -1)
    if foreign_us:
        node.expect(f"{what}: reads from its CPUs are seen", reads >= _READS * len(cpus), reads)
        # Busy time is sampled by the tick, and an emulated CPU that waits for its turn misses ticks: the least is enough.
        detail = f"{strangers} us, the processes themselves say {foreign_us}"
        node.expect(f"{what}: run time of strangers is seen", strangers >= _LEAST_FOREIGN_US, detail)
    else:
        # Processes that no cpuset keeps away, such as this one, read and write a little from there.
        node.expect(f"{what}: queues of the disk hardly interrupt its CPUs", reads < _READS, reads)
        node.expect(f"{what}: run time of strangers is known", strangers >= 0, strangers)


def _cpus(node: Node, pod: Pod, name: str) -> set[int]:
    line = Path(f"/proc/{node.pid(pod.ids[name])}/cgroup").read_text().splitlines()[-1]
    leaf = CGROUPS / line.partition("::")[2].lstrip("/")
    return parse_list((leaf / "cpuset.cpus.effective").read_text())


def _texts() -> Texts:
    return {name: Path("/proc", name).read_text() for name in ("interrupts", "softirqs")}


def _switch(cpus: set[int], *, is_online: bool) -> None:
    for cpu in cpus:
        Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text(str(int(is_online)))


def _disturb(cpus: set[int]) -> int:
    """On each CPU: read from the disk past the page cache, then run for a while; return the time that this took."""
    pids = [_disturber(cpu) for cpu in sorted(cpus)]
    usages = [os.wait4(pid, 0)[2] for pid in pids]
    return sum(int((usage.ru_utime + usage.ru_stime) * 1e6) for usage in usages)


def _disturber(cpu: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.sched_setaffinity(0, {cpu})
        disk, page = os.open(_DISK, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 4096)
        for number in range(_READS):
            os.preadv(disk, [page], number << 12)
        end = time.monotonic() + _STRANGER_S
        while time.monotonic() < end:
            pass
    finally:
        os._exit(0)


def _differences(
    found: Json, first: tuple[Texts, Texts], last: tuple[Texts, Texts], cpus: set[int]
) -> list[str]:
    """Figures that are not between the smaller and the larger difference of the other reader, or are missing."""
    wrong, seen = [], set()
    for one in found["sources"]:
        file = {"softirq": "softirqs"}.get(one["kind"], "interrupts")
        if one["unit"] != "count" or one["kind"] not in _COUNTED:
            continue
        label = one["name"] if one["interrupt"] is None else str(one["interrupt"])
        seen.add(label)
        for cpu in cpus:
            least = _cell(last[0][file], label, cpu) - _cell(first[1][file], label, cpu)
            most = _cell(last[1][file], label, cpu) - _cell(first[0][file], label, cpu)
            figure = one["by_cpu"][str(cpu)]
            if not least <= figure <= most:
                wrong.append(f"{label} of CPU {cpu}: {figure}, not from {least} to {most}")
    lines = [line.split(":")[0].strip() for line in last[1]["interrupts"].splitlines()[1:]]
    return wrong + [f"{label} is missing" for label in lines if label not in seen | {"ERR", "MIS"}]


_COUNTED = ("device-interrupt", "timer-tick", "ipi", "other-interrupt", "softirq")


def _cell(text: str, label: str, cpu: int) -> int:
    """The count of a CPU; 0 where the line is not there."""
    head, *lines = text.splitlines()
    place = head.split().index(f"CPU{cpu}")
    for line in lines:
        words = line.split()
        if words[0] == f"{label}:":
            return int(words[1 + place])
    return 0
