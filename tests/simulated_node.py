"""A node without sockets and files, for tests: embedded runtime, cpuset tree, and the engine as its plugin."""

from collections.abc import Callable, Iterable
from pathlib import Path

from nri_plugin.agent.cpusets import WaitingWrites
from nri_plugin.agent.serving.handler import ended_pods, unreported_removal
from nri_plugin.core.decision import CpusetWrite, Decision
from nri_plugin.core.drift import CpusetsObserved, MachineChanged, Observed, OwnEvent, Target, targets
from nri_plugin.core.engine import decide
from nri_plugin.host.cgroup import cgroup_path
from nri_plugin.model.options import Node
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.model.violations import violations
from nri_plugin.simulator.simulate.pods import Driver, RuntimeIdentity
from nri_plugin.wire.nri import events
from nri_plugin.wire.nri.messages import ContainerState
from tests.lab.runtime.cgroup_mirror import CgroupMirror
from tests.lab.runtime.cgroup_tree import CgroupTree, CpusetFile, parent_of
from tests.lab.runtime.profile import BEHAVIOURS
from tests.lab.runtime.runtime import PluginRefusedError, Record, Runtime

MEMORY_BYTES = 64 << 30


class NoMirror(CgroupMirror):
    """A mirror without a directory: tests write to the tree itself."""

    def __init__(self, tree: CgroupTree) -> None:
        super().__init__(tree, Path("/nowhere"))

    def materialize(self) -> None:
        pass

    def add(self, path: str) -> None:
        self.tree.add(path)

    def remove(self, path: str) -> None:
        self.tree.remove(path)

    def absorb(self) -> None:
        pass

    def flush(self) -> None:
        pass


def created_in(runtime: Runtime, key: str) -> list[Record]:
    """Containers of the pod `key` that wait to be started."""
    sandbox = runtime.sandbox(key)
    return [
        each
        for each in runtime.records()
        if each.sandbox is sandbox and each.message.state is ContainerState.CREATED
    ]


class EngineAgent:
    """The engine, answered to and obeyed; what the agent's process does, without the process."""

    def __init__(self, node: Node, tree: CgroupTree, state: State | None = None) -> None:
        self.node = node
        self.tree = tree
        self.state = state or State()
        self.decisions: list[Decision] = []
        self.waiting = WaitingWrites()

    def ask(self, event: events.NRIEvent | OwnEvent) -> events.NRIResponse | None:
        decision = decide(self.node, self.state, event)
        self.decisions.append(decision)
        if decision.refusal is not None:
            raise PluginRefusedError(str(decision.refusal))
        assert violations(self.node, decision.state) == [], decision.steps
        self._write(decision.writes)
        is_sync = isinstance(event, events.Synchronize)
        self.waiting.follow(self.node, self.state, decision.state, is_unknown=is_sync)
        self.state = decision.state
        while self.waiting:
            self._write(self.waiting.take(self.node, self.state).writes)
        return decision.response

    def _write(self, writes: Iterable[CpusetWrite]) -> None:
        for write in writes:
            path = cgroup_path(write.target)
            if path not in self.tree:
                assert not write.must_exist, write
                continue
            if write.make_room:
                self._widen_above(path, write.cpus)
            held = self.tree.own_cpus(path) if write.narrows else write.cpus
            self.tree.write(path, CpusetFile.CPUS, str(held & write.cpus or write.cpus))

    def look(self) -> None:
        """What the agent does by the clock."""
        for pod in ended_pods(self.state, self._is_removed):
            self.ask(unreported_removal(pod))

    def sweep(self) -> int:
        """Look at all cgroups and put right what drifted; returns how many that were."""
        found = [self._observed(target) for target in targets(self.node, self.state)]
        before = len(self.decisions)
        self.ask(CpusetsObserved(tuple(one for one in found if one is not None)))
        return len(self.decisions[before].writes)

    def machine_changes(self, node: Node) -> None:
        """CPUs came or went."""
        self.node = node
        self.ask(MachineChanged())

    def _observed(self, target: Target) -> Observed | None:
        path = cgroup_path(target.cgroup)
        if path not in self.tree:
            return None
        return Observed(target, self.tree.own_cpus(path), self.tree.effective_cpus(path))

    def _widen_above(self, path: str, cpus: CPUSet) -> None:
        """As `nri_plugin.host.cgroup` does."""
        parts = path.split("/")[:-1]
        for count in range(self.tree.version, len(parts) + 1):  # on v2 kubepods is not widened
            above = "/".join(parts[:count])
            own = self.tree.own_cpus(above)
            if not cpus <= own and (own or self.tree.version == 1):
                self.tree.write(above, CpusetFile.CPUS, str(own | cpus))

    def _is_removed(self, ref: CgroupRef) -> bool:
        path = cgroup_path(ref)
        return path not in self.tree and parent_of(path) in self.tree


class SimulatedNode:
    """One runtime on one machine; `connect` puts an agent behind it, `disconnect` takes it away."""

    def __init__(
        self,
        topology: Topology,
        runtime: str = "containerd-2.1",
        driver: Driver = Driver.SYSTEMD,
        version: int = 2,
    ) -> None:
        self.tree = CgroupTree.of(topology, version=version)
        self.runtime = Runtime(
            RuntimeIdentity(BEHAVIOURS[runtime], driver, MEMORY_BYTES), NoMirror(self.tree)
        )
        self.agent: EngineAgent | None = None
        self.new_agent: Callable[[Node, CgroupTree, State | None], EngineAgent] = EngineAgent

    def connect(self, node: Node, state: State | None = None) -> EngineAgent:
        agent = self.new_agent(node, self.tree, state)
        truth = self.runtime.truth()
        answer = agent.ask(events.Synchronize(truth.pods, truth.containers))
        assert isinstance(answer, events.SynchronizeResponse)
        self.runtime.plugin = agent
        assert self.runtime.apply(answer.updates) == ()
        self.agent = agent
        return agent

    def disconnect(self) -> State:
        assert self.agent is not None
        state, self.agent = self.agent.state, None
        self.runtime.disconnect()
        return state
