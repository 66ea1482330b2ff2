"""The counters of this machine's kernel: figures lie between those of a separate reader that reads before and after."""

import os
import time
from pathlib import Path

import pytest

from nri_plugin.host.cpu_noise import NoiseKind, noise_of
from nri_plugin.host.kernel_counters import TICK_US, CounterFiles
from nri_plugin.host.kernel_work import read_interrupts, read_kernel_threads
from nri_plugin.model.sets import CPUSet
from tests.oracles import kernel_counters as oracle

FILES = ("interrupts", "softirqs", "stat")


def texts() -> dict[str, str]:
    return {name: Path("/proc", name).read_text("ascii", "replace") for name in FILES}


def busy() -> None:
    """Something for the counters: reads, forks and the threads that these wake."""
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        Path("/proc/self/maps").read_bytes()


@pytest.mark.skipif(
    not texts()["interrupts"], reason="/proc/interrupts is masked here; run this on the machine itself"
)
def test_figures_are_those_of_a_separate_reader() -> None:
    cpus = CPUSet.parse(Path("/sys/devices/system/cpu/online").read_text())
    files = CounterFiles(["/"], time.monotonic)
    outer_first = texts()
    first = files.read(cpus)
    inner_first = texts()
    busy()
    inner_last = texts()
    last = files.read(cpus)
    outer_last = texts()
    noise = noise_of(cpus, first, last)
    assert not noise.uncounted
    assert noise.total(NoiseKind.TICK)
    compared = 0
    for row in noise.rows:
        name = "softirqs" if row.kind is NoiseKind.SOFTIRQ else "interrupts"
        label = row.name if row.interrupt is None else str(row.interrupt)
        for cpu, value in row.by_cpu.items():
            if row.kind is NoiseKind.STEAL:
                least = oracle.ticks(inner_last["stat"], cpu)[1] - oracle.ticks(inner_first["stat"], cpu)[1]  # type: ignore[index]
                most = oracle.ticks(outer_last["stat"], cpu)[1] - oracle.ticks(outer_first["stat"], cpu)[1]  # type: ignore[index]
                assert least * TICK_US <= value <= most * TICK_US
                continue
            least = oracle.rise(inner_first[name], inner_last[name], label, cpu)
            most = oracle.rise(outer_first[name], outer_last[name], label, cpu)
            assert least is not None
            assert most is not None
            assert least <= value <= most
            compared += 1
    lines = [
        line
        for line in outer_last["interrupts"].splitlines()[1:]
        if not line.strip().startswith(("ERR", "MIS"))
    ]
    assert compared >= len(lines) * len(cpus)


def test_interrupts_of_this_machine_have_affinities() -> None:
    found = read_interrupts()
    assert found
    assert all(one.handlers and one.allowed for one in found)


@pytest.mark.skipif(
    not Path("/proc/2/stat").exists(),
    reason="no kernel threads are seen here; run this on the machine itself",
)
def test_kernel_threads_of_this_machine_are_told_from_processes() -> None:
    found = {one.name: one for one in read_kernel_threads("/proc")}
    assert os.getpid() not in {one.pid for one in found.values()}
    assert found["ksoftirqd/0"].allowed == CPUSet.of(0)
    assert found["ksoftirqd/0"].is_bound
    assert not found["kthreadd"].is_bound
