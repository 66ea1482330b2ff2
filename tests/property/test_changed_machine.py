"""CPUs that go offline and come back, by the kernel's rules of both cgroup versions: a story told step by step.

On v1 the kernel takes an offline CPU out of every set and never puts it back, so that also what is above the
containers has to be widened again.
"""

import dataclasses

import pytest
from msgspec.structs import replace

from nri_plugin.model.options import Node, Options
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.simulate.pods import ContainerSpec, Driver, PodSpec
from tests.lab.runtime.cgroup_tree import CpusetFile
from tests.simulated_node import SimulatedNode
from tests.topology_rows import topology_of_rows

GIB = 1 << 30
ROWS = [(cpu, cpu // 2, 0, 0, 0) for cpu in range(8)]
OWNER = PodSpec("owner", containers=(ContainerSpec("c", 2000, 2000, GIB, GIB),))
OTHER = PodSpec("other", containers=(ContainerSpec("c", 500),))


def machine(offline: CPUSet) -> Topology:
    rows = [row for row in ROWS if row[0] not in offline]
    return replace(topology_of_rows(rows, memory_bytes={0: 32 * GIB}), offline=offline)


class Story:
    def __init__(self, version: int, driver: Driver) -> None:
        options = Options(pool_floor=version == 2)
        self.node = SimulatedNode(machine(CPUSet()), "containerd-2.1", driver, version)
        self.machine = Node(machine(CPUSet()), options, CPUSet.of(0))
        self.agent = self.node.connect(self.machine)
        for pod in (OWNER, OTHER):
            self.node.runtime.run_pod(pod)
            self.node.runtime.create(pod.key, pod.containers[0])
            self.node.runtime.start(f"{pod.key}/c")

    def goes_offline(self, cpus: str) -> None:
        topology = machine(CPUSet.parse(cpus))
        self.node.tree.set_online(topology.online)
        self.agent.machine_changes(dataclasses.replace(self.machine, topology=topology))

    def path(self, pod: PodSpec) -> str:
        return next(
            record.names.path for record in self.node.runtime.records() if record.key.startswith(pod.key)
        )

    def runs_on(self) -> tuple[str, str]:
        effective = self.node.tree.effective_cpus
        return str(effective(self.path(OWNER))), str(effective(self.path(OTHER)))


@pytest.fixture(
    params=[(version, driver) for version in (1, 2) for driver in Driver],
    ids=lambda one: f"v{one[0]}-{one[1]}",
)
def story(request: pytest.FixtureRequest) -> Story:
    return Story(*request.param)


def test_everybody_follows_and_the_owner_gets_its_own_back(story: Story) -> None:
    promises = story.agent.state.allocations
    assert story.runs_on() == ("2-3", "0-1,4-7")
    story.goes_offline("7")
    assert story.runs_on() == ("2-3", "0-1,4-6")
    story.goes_offline("3,7")
    assert story.runs_on() == ("2", "0-1,4-6")
    story.goes_offline("2-3,7")
    assert story.runs_on() == ("0-1,4-6", "0-1,4-6")
    story.goes_offline("3")
    assert story.runs_on() == ("2", "0-1,4-7")
    story.goes_offline("")
    assert story.runs_on() == ("2-3", "0-1,4-7")
    assert story.agent.state.allocations == promises


def test_what_went_offline_is_given_to_nobody_else(story: Story) -> None:
    story.goes_offline("2-3")
    pod = PodSpec("late", containers=(ContainerSpec("c", 2000, 2000, GIB, GIB),))
    story.node.runtime.run_pod(pod)
    story.node.runtime.create(pod.key, pod.containers[0])
    story.node.runtime.start(f"{pod.key}/c")
    assert story.agent.state.exclusive == CPUSet.parse("2-5")
    story.goes_offline("")
    assert story.runs_on() == ("2-3", "0-1,6-7")


def test_repairs_of_somebody_elses_writes_go_by_the_machine_as_it_is(story: Story) -> None:
    story.goes_offline("7")
    story.node.tree.write(story.path(OTHER), CpusetFile.CPUS, "0-1")
    assert story.agent.sweep() == 1
    assert story.runs_on() == ("2-3", "0-1,4-6")
