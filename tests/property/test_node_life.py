"""The engine on a whole simulated node, whatever happens in whatever order.

What is judged is what the kernel would let processes run on: the effective cpusets of a tree that
follows the kernel's rules, filled by a runtime that writes back what it has stored.
"""

import dataclasses
from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from nri_plugin.host.cgroup import TOP
from nri_plugin.model.options import Node, Options, TopologyManagerPolicy
from nri_plugin.model.records import QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.simulator.simulate.pods import ContainerSpec, Driver, PodSpec, shares_from_milli
from nri_plugin.wire.nri.messages import Resources
from tests.lab.runtime.cgroup_tree import CgroupWriteError, CpusetFile
from tests.lab.runtime.profile import BEHAVIOURS
from tests.lab.runtime.runtime import PluginRefusedError
from tests.simulated_node import SimulatedNode, created_in
from tests.topology_rows import topology_of_rows

GIB = 1 << 30
ROWS = [(cpu, cpu % 8, cpu % 8 // 4, cpu % 8 // 4, cpu % 8 // 4) for cpu in range(16)]
MACHINE = topology_of_rows(ROWS, memory_bytes={0: 32 * GIB, 1: 32 * GIB})

WHOLE = st.sampled_from([1, 2, 3, 4, 6]).map(lambda n: ContainerSpec("c", n * 1000, n * 1000, GIB, GIB))
SHARED = st.sampled_from(
    [ContainerSpec("c"), ContainerSpec("c", 500), ContainerSpec("c", 500, 500, GIB, GIB)]
)


class Life(RuleBasedStateMachine):
    """Pods come and go, agent and runtime go and come."""

    def __init__(self) -> None:
        super().__init__()
        self.serial = 0
        self.pods: list[str] = []
        self.promised: dict[str, CPUSet] = {}

    @initialize(
        runtime=st.sampled_from(sorted(BEHAVIOURS)),
        driver=st.sampled_from(list(Driver)),
        version=st.sampled_from([1, 2]),
        policy=st.sampled_from(list(TopologyManagerPolicy)),
        whole_cores=st.booleans(),
    )
    def boot(
        self, runtime: str, driver: Driver, version: int, policy: TopologyManagerPolicy, whole_cores: bool
    ) -> None:
        options = Options(
            topology_manager_policy=policy, full_pcpus_only=whole_cores, pool_floor=version == 2
        )
        self.machine = Node(MACHINE, options, CPUSet.of(0, 8))
        self.node = self.new_node(runtime, driver, version)
        self.node.connect(self.machine)
        self.left_behind: State | None = None
        self.last_saved: State | None = None

    def new_node(self, runtime: str, driver: Driver, version: int) -> SimulatedNode:
        """The node of this life."""
        return SimulatedNode(MACHINE, runtime, driver, version)

    def connect(self, machine: Node, state: State | None = None) -> None:
        """As the agent does: once it knows what there is it looks at all of it."""
        self.node.connect(machine, state).sweep()

    @property
    def runtime(self):  # type: ignore[no-untyped-def]
        return self.node.runtime

    def runtime_knows_all_promises(self) -> bool:
        state = self.node.agent.state
        stored = {record.message.id: record.message.resources.cpus for record in self.runtime.records()}
        return all(
            stored.get(key) == str(allocation.cpus)
            for key, record in state.containers.items()
            if (allocation := state.allocation_of(record)) and allocation.cpus
        )

    def running(self) -> dict[str, CPUSet]:
        return {
            record.message.id: self.node.tree.effective_cpus(record.names.path)
            for record in self.runtime.records()
            if record.has_cgroup
        }

    @rule(spec=WHOLE | SHARED, start=st.booleans())
    def run_pod(self, spec: ContainerSpec, start: bool) -> None:
        self.serial += 1
        pod = PodSpec(f"p{self.serial}", containers=(spec,))
        self.runtime.run_pod(pod)
        self.pods.append(pod.key)
        try:
            self.runtime.create(pod.key, spec)
        except PluginRefusedError:
            return
        if start:
            self.runtime.start(f"{pod.key}/c")

    @rule(init=WHOLE | SHARED, main=WHOLE, sidecar=SHARED)
    def run_pod_with_init(self, init: ContainerSpec, main: ContainerSpec, sidecar: ContainerSpec) -> None:
        """The init container has ended before the others are created."""
        self.serial += 1
        named = [
            dataclasses.replace(spec, name=name)
            for spec, name in ((init, "init"), (main, "c"), (sidecar, "side"))
        ]
        pod = PodSpec(f"p{self.serial}", containers=tuple(named), forced_qos=QOSClass.GUARANTEED)
        self.runtime.run_pod(pod)
        self.pods.append(pod.key)
        for spec in named:
            key = f"{pod.key}/{spec.name}"
            try:
                self.runtime.create(pod.key, spec)
            except PluginRefusedError:
                return
            self.runtime.start(key)
            if spec.name == "init":
                self.runtime.stop(key)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        for record in created_in(self.runtime, data.draw(st.sampled_from(self.pods))):
            self.runtime.start(record.key)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def restart_container(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.pods))
        if f"{key}/c" not in self.runtime.containers_of(key):
            return
        spec = next(each for each in self.runtime.sandbox(key).spec.containers if each.name == "c")
        self.runtime.stop(f"{key}/c")
        try:
            self.runtime.create(key, spec)
        except PluginRefusedError:
            return
        self.runtime.start(f"{key}/c")

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), milli=st.sampled_from([100, 700]))
    def kubelet_resizes(self, data: st.DataObject, milli: int) -> None:
        key = data.draw(st.sampled_from(self.pods))
        spec = next(each for each in self.runtime.sandbox(key).spec.containers if each.name == "c")
        if spec.cpu_limit_milli or f"{key}/c" not in self.runtime.containers_of(key):
            return
        self.runtime.update(f"{key}/c", Resources(cpu_shares=shares_from_milli(milli)))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def remove_pod(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.pods))
        self.pods.remove(key)
        self.runtime.remove_pod(key)

    @precondition(lambda self: self.node.agent is not None)
    @rule()
    def agent_restarts(self) -> None:
        self.node.agent.look()
        self.node.agent.sweep()  # a cgroup above that somebody narrowed holds no CPU that was released since
        before = self.running()
        self.connect(self.machine, self.node.disconnect())
        assert self.running() == before

    @precondition(lambda self: self.node.agent is not None)
    @rule()
    def agent_restarts_without_checkpoint(self) -> None:
        """Possible as far as the runtime knows the promises; it does not know those of containers that were
        born while the agent was away. What was kept for an ended init container is free again.
        """
        if self.runtime_knows_all_promises():
            self.node.disconnect()
            self.connect(self.machine)

    @precondition(lambda self: self.node.agent is not None)
    @rule()
    def checkpoint_fails_from_now_on(self) -> None:
        self.last_saved = self.node.agent.state

    @precondition(lambda self: self.node.agent is not None and self.last_saved is not None)
    @rule()
    def agent_restarts_from_its_last_checkpoint(self) -> None:
        """What was allocated since is known to the memory and, as far as it was told, to the runtime."""
        state, older = self.node.agent.state, self.last_saved
        stored = {record.message.id: record.message.resources.cpus for record in self.runtime.records()}
        running = self.running()
        exclusive = {
            key: running[key]
            for key, record in state.containers.items()
            # One that has lost all its CPUs to the machine runs in the shared pool, which may grow.
            if key in running and (held := state.allocation_of(record)) and running[key] <= held.cpus
        }
        told = all(
            stored[key] == str(state.allocation_of(state.containers[key]).cpus)
            for key in exclusive
            if key not in older.containers
            # The checkpoint may be older than a loss of it, after which the container was placed elsewhere.
            or older.allocation_of(older.containers[key]) != state.allocation_of(state.containers[key])
        )
        self.last_saved = None
        if not told:
            return
        self.node.disconnect()
        self.connect(self.machine, older)
        after = self.running()
        assert {key: after[key] for key in exclusive} == exclusive

    @precondition(lambda self: self.node.agent is not None)
    @rule()
    def agent_goes_down(self) -> None:
        self.left_behind, self.last_saved = self.node.disconnect(), None

    @precondition(lambda self: self.node.agent is None)
    @rule()
    def agent_comes_back(self) -> None:
        self.connect(self.machine, self.left_behind)

    @rule()
    def runtime_restarts(self) -> None:
        self.last_saved = None
        state = self.node.disconnect() if self.node.agent else self.left_behind
        self.runtime.restart()
        self.connect(self.machine, state)

    @precondition(lambda self: self.node.agent is not None and self.running())
    @rule(data=st.data(), cpus=st.sets(st.integers(0, 15), min_size=1))
    def somebody_else_writes(self, data: st.DataObject, cpus: set[int]) -> None:
        """To a container, its pod or a slice above.

        On v1 only to containers: a parent is as wide as its children, and where it is narrower than what is to
        come there, the kernel lets no runtime create that. What is written above the slices is an administrator's limit.
        """
        online = self.machine.topology.online
        wanted = CPUSet.from_ids(cpus) & online or online
        containers = [record.names.path for record in self.runtime.records() if record.has_cgroup]
        is_v1 = self.node.tree.version == 1
        paths = containers if is_v1 else [path for path in self.node.tree if path and not TOP.fullmatch(path)]
        self.node.agent.sweep()  # as before a restart: a cgroup above may miss CPUs that were released since
        before = self.running()
        with suppress(CgroupWriteError):
            self.node.tree.write(data.draw(st.sampled_from(paths)), CpusetFile.CPUS, str(wanted))
        self.node.agent.sweep()
        assert self.running() == before
        assert self.node.agent.sweep() == 0

    @precondition(lambda self: self.node.agent is not None and self.node.tree.version == 2)
    @rule(offline=st.sets(st.integers(1, 15), max_size=8))
    def machine_changes(self, offline: set[int]) -> None:
        """Any set of CPUs but CPU 0 is offline from now on.

        On v1 the kernel takes them out of all sets for good, and a container that was created before does
        not start any more: no runtime could have it otherwise. See `test_changed_machine` for v1.
        """
        rows = [row for row in ROWS if row[0] not in offline]
        topology = replace(
            topology_of_rows(rows, memory_bytes={0: 32 * GIB, 1: 32 * GIB}),
            offline=CPUSet.from_ids(offline),
        )
        promises = self.node.agent.state.allocations
        self.machine = dataclasses.replace(self.machine, topology=topology)
        self.node.tree.set_online(topology.online)
        self.node.agent.machine_changes(self.machine)
        assert self.node.agent.state.allocations == promises
        assert self.node.agent.sweep() == 0

    def has_of(self, promised: CPUSet) -> CPUSet:
        """What a container with exclusive CPUs runs on: what is online of them, else the shared pool."""
        agent = self.node.agent
        own = promised & self.machine.topology.online
        return own or (agent.state.shared_pool(self.machine) if agent else own)

    @invariant()
    def promises_are_kept(self) -> None:
        running = self.running()
        self.promised = {key: cpus for key, cpus in self.promised.items() if key in running}
        for key, cpus in self.promised.items():
            if self.node.agent or cpus & self.machine.topology.online:
                assert running[key] == self.has_of(cpus)

    @invariant()
    def nobody_shares_exclusive_cpus(self) -> None:
        agent = self.node.agent
        if agent is None:
            return
        running = self.running()
        for key, record in agent.state.containers.items():
            allocation = agent.state.allocation_of(record)
            if key not in running or allocation is None or not allocation.cpus:
                continue
            assert running[key] == self.has_of(allocation.cpus)
            self.promised[key] = allocation.cpus
            for other, cpus in running.items():
                assert other == key or cpus.isdisjoint(allocation.cpus), (key, other)

    @invariant()
    def the_agent_knows_what_runs(self) -> None:
        if self.node.agent is not None:
            assert set(self.running()) <= set(self.node.agent.state.containers)


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLife = Life.TestCase
