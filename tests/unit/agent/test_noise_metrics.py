"""Metrics of the noise: sums since a container was first read, at most one reading in a period, nothing of those that ended."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from nri_plugin.agent.observing.metrics import OF_NOISE, Metrics, Shown, exposition
from nri_plugin.agent.observing.noise_metrics import NoiseReadings
from nri_plugin.config.loading import load_text
from nri_plugin.host.cgroup import Cgroups
from nri_plugin.host.kernel_counters import TICK_US, ContainerFiles, CounterFiles
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.agent_fakes import Bench
from tests.builders import node as a_node

NODE = a_node()
WEB = {"namespace": "shop", "pod": "web-0", "container": "app"}
PERIOD_S = 10.0


def state_of(cpus: str = "2-3", phase: Phase = Phase.RUNNING) -> State:
    pod = PodRecord("u1", "s1", "web-0", "shop", QOSClass.GUARANTEED, "/kubepods/podu1")
    record = ContainerRecord("c1", "u1", "app", phase, CgroupRef("/kubepods/podu1", "/kubepods/podu1/c1"))
    other = replace(record, id="c2", name="shared")
    return State({"u1": pod}, {"c1": record, "c2": other}, {record.key: Allocation(CPUSet.parse(cpus))})


class Scraped:
    """A node of files whose counters a test sets."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock_s, self.state = root, 100.0, state_of()
        (root / "proc").mkdir()
        cgroup = root / "cgroup/kubepods/podu1/c1"
        cgroup.mkdir(parents=True)
        (root / "cgroup/cgroup.controllers").write_text("cpuset cpu memory\n")
        self.cgroup = cgroup
        self.put(0, 0)
        files = ContainerFiles(Cgroups.open(str(root / "cgroup")))
        counters = CounterFiles([str(root)], lambda: self.clock_s)
        self.registry = CollectorRegistry()
        readings = NoiseReadings(lambda: (NODE, self.state), counters, files, PERIOD_S)
        self.registry.register(Shown(OF_NOISE, readings.read_when_due))

    def put(self, count: int, used_us: int, **cgroup: str) -> None:
        """Give every counter this value; the CPUs are busy for as many ticks."""
        head = "CPU0 CPU1 CPU2 CPU3\n"
        cells = f"0 0 {count} {count}"
        (self.root / "proc/interrupts").write_text(
            f"{head}24: {cells} chip  1-edge  disk\nLOC: {cells} tick\n"
        )
        (self.root / "proc/softirqs").write_text(f"{head}TIMER: {cells}\n")
        (self.root / "proc/stat").write_text("".join(f"cpu{cpu} {count} 0 0 9 0 0 0 0\n" for cpu in range(4)))
        (self.cgroup / "cpu.stat").write_text(f"usage_usec {used_us}\nthrottled_usec {count}\n")
        (self.cgroup / "memory.numa_stat").write_text("anon N0=1 N1=2048\n")

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"nri_pin_cpu_noise_{name}", labels)

    def interrupts(self, kind: str) -> float | None:
        return self.value("interrupts_total", **WEB, kind=kind)


@pytest.fixture
def scraped(tmp_path: Path) -> Scraped:
    return Scraped(tmp_path)


def test_sums_rise_by_the_difference_of_two_readings(scraped: Scraped) -> None:
    assert scraped.interrupts("device") is None  # one reading has no difference
    scraped.clock_s += PERIOD_S
    scraped.put(5, 2 * TICK_US)
    assert scraped.interrupts("device") == 10
    assert scraped.interrupts("timer") == 10
    assert scraped.value("softirqs_total", **WEB, kind="TIMER") == 10
    assert scraped.value("foreign_seconds_total", **WEB) == pytest.approx(8 * TICK_US / 1e6)
    assert scraped.value("throttled_seconds_total", **WEB) == pytest.approx(5e-6)
    assert scraped.value("foreign_memory_bytes", **WEB) == 2048
    assert scraped.value("queue_seconds_total", **WEB) is None  # this kernel does not tell
    scraped.clock_s += PERIOD_S
    scraped.put(6, 2 * TICK_US)
    assert scraped.interrupts("device") == 12


def test_counters_are_read_at_most_once_in_a_period(scraped: Scraped) -> None:
    for wait_s, readings in ((0.0, 1), (PERIOD_S / 2, 1), (PERIOD_S / 2, 2), (0.1, 2)):
        scraped.clock_s += wait_s
        assert scraped.value("readings_total") == readings


def test_only_containers_with_exclusive_cpus_that_exist_are_told(scraped: Scraped) -> None:
    scraped.interrupts("device")
    scraped.clock_s += PERIOD_S
    samples = [one for family in scraped.registry.collect() for one in family.samples if one.labels]
    assert {one.labels["container"] for one in samples} == {"app"}
    for gone in (state_of(phase=Phase.STOPPED), State()):
        scraped.state = gone
        scraped.clock_s += PERIOD_S
        assert [one for family in scraped.registry.collect() for one in family.samples if one.labels] == []


def test_a_container_whose_cpus_changed_begins_a_new_difference(scraped: Scraped) -> None:
    scraped.interrupts("device")
    scraped.state = state_of("3")
    scraped.clock_s += PERIOD_S
    scraped.put(5, 0)
    assert scraped.interrupts("device") is None
    scraped.clock_s += PERIOD_S
    scraped.put(6, 0)
    assert scraped.interrupts("device") == 1


def test_nothing_is_read_where_it_is_not_asked_for() -> None:
    assert load_text('reservedSystemCPUs: "0"', "here").cpu_noise_period_seconds == 0


WRONG: Mapping[str, str] = {
    "cpuNoisePeriodSeconds: 3": "expected 0 for no readings or 5 to 3600 seconds, found 3",
    "cpuNoisePeriodSeconds: 10": "readings are only for metrics, which are off",
    "cpuNoisePeriodSeconds: often": "expected a plain number",
}


@pytest.mark.parametrize(("line", "told"), WRONG.items())
def test_a_period_that_reads_too_often_or_for_nobody_is_refused(line: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_text(f'reservedSystemCPUs: "0"\n{line}\n', "here")


def test_metrics_of_an_agent_have_the_noise_where_they_follow_it(tmp_path: Path) -> None:
    metrics, handler = Metrics(), Bench(NODE).handler
    assert b"cpu_noise" not in exposition(metrics.registry)
    metrics.follow_noise(handler, str(tmp_path), str(tmp_path / "no tree"), PERIOD_S)
    assert metrics.registry.get_sample_value("nri_pin_cpu_noise_readings_total") == 1
