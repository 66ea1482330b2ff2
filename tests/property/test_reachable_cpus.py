"""Whatever the cgroup above the pods has from moment to moment: exclusive CPUs are disjoint, in reach, and not moved."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Phase
from nri_plugin.model.sets import CPUSet
from nri_plugin.simulator.simulate.pods import ContainerSpec, Driver, PodSpec
from tests.lab.runtime.cgroup_tree import ROOT, CpusetFile
from tests.lab.runtime.runtime import PluginRefusedError
from tests.simulated_node import SimulatedNode
from tests.topology_rows import topology_of_rows

GIB = 1 << 30
ALL = CPUSet.parse("0-7")
MACHINE = topology_of_rows([(cpu, cpu // 2, 0, cpu // 4, 0) for cpu in ALL], memory_bytes={0: GIB, 1: GIB})
SOME = st.sets(st.sampled_from(list(ALL)), min_size=1).map(CPUSet.from_ids)
KUBEPODS = {Driver.SYSTEMD: "kubepods.slice", Driver.CGROUPFS: "kubepods"}


class Reach(RuleBasedStateMachine):
    @initialize(driver=st.sampled_from(list(Driver)), reserved=SOME, root=SOME)
    def begin(self, driver: Driver, reserved: CPUSet, root: CPUSet) -> None:
        self.kubepods, self.serial = KUBEPODS[driver], 0
        self.live: dict[str, CPUSet] = {}
        self.sim = SimulatedNode(MACHINE, "containerd-2.1", driver, 2)
        self.sim.tree.set_online(root)
        self.node = Node(MACHINE.within(self.reach), Options(), reserved)
        self.agent = self.sim.connect(self.node)

    @property
    def reach(self) -> CPUSet:
        tree = self.sim.tree
        return tree.effective_cpus(self.kubepods if self.kubepods in tree else ROOT)

    def follow(self) -> None:
        self.node = replace(self.node, topology=MACHINE.within(self.reach))
        self.agent.machine_changes(self.node)

    @rule(cpus=SOME)
    def root_changes(self, cpus: CPUSet) -> None:
        before = self.sim.tree.effective_cpus(ROOT)
        self.sim.tree.set_online(cpus)
        if self.reach <= self.agent.state.exclusive:
            self.sim.tree.set_online(before)  # nobody could give shared containers a CPU
        self.follow()

    @rule(cpus=SOME)
    def an_administrator_limits_kubepods(self, cpus: CPUSet) -> None:
        if self.kubepods in self.sim.tree:
            before = self.sim.tree.own_cpus(self.kubepods) or ALL
            self.sim.tree.write(self.kubepods, CpusetFile.CPUS, str(cpus))
            if self.reach <= self.agent.state.exclusive:
                self.sim.tree.write(self.kubepods, CpusetFile.CPUS, str(before))
            self.follow()

    @rule(cpus=st.integers(0, 5))
    def create(self, cpus: int) -> None:
        self.serial += 1
        amounts = (1000 * cpus, 1000 * cpus, 1 << 20, 1 << 20) if cpus else (100,)
        pod = PodSpec(f"p{self.serial}", containers=(ContainerSpec("c", *amounts),))
        before = self.agent.state.exclusive
        self.sim.runtime.run_pod(pod)
        try:
            self.sim.runtime.create(pod.key, pod.containers[0])
            self.sim.runtime.start(f"{pod.key}/c")
        except PluginRefusedError:
            self.sim.runtime.remove_pod(pod.key)
            return
        got = self.agent.state.exclusive - before
        assert len(got) == cpus
        assert got <= self.reach - self.node.reserved
        assert not got or self.reach - self.agent.state.exclusive, "the shared pool has no CPU"
        self.live[pod.key] = got

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.live:
            key = data.draw(st.sampled_from(sorted(self.live)))
            self.sim.runtime.remove_pod(key)
            del self.live[key]

    @rule(remembers=st.booleans())
    def restart(self, remembers: bool) -> None:
        whole = self.reach >= self.agent.state.exclusive
        state = self.sim.disconnect()
        # What a container has lost is in no cgroup, so only the checkpoint knows it.
        self.agent = self.sim.connect(self.node, state if remembers or not whole else None)

    @invariant()
    def exclusive_cpus_are_disjoint_in_reach_and_where_they_were(self) -> None:
        state, tree = self.agent.state, self.sim.tree
        assert sum(map(len, self.live.values())) == len(state.exclusive)
        running = {
            record.key: tree.effective_cpus(record.names.path)
            for record in self.sim.runtime.records()
            if record.has_cgroup
        }
        for key, own in self.live.items():
            left = own & self.reach
            if not left:
                continue
            assert running[f"{key}/c"] == left
            for other, theirs in running.items():
                assert other == f"{key}/c" or theirs.isdisjoint(left), (key, other)
        assert all(one.phase is not Phase.CREATING for one in state.containers.values())


TestReach = Reach.TestCase
TestReach.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
