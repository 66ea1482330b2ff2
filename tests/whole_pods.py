"""Pods with resources of their own, as a runtime and the exporter bring them: each decision is checked by the validator."""

import dataclasses

from msgspec.structs import replace

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.drift import MachineChanged, OwnEvent
from nri_plugin.core.engine import decide
from nri_plugin.core.validator import new_violations
from nri_plugin.model.options import MemoryManagerPolicy, Node, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.records import (
    Amounts,
    ContainerFacts,
    ContainerRecord,
    Kind,
    PodFacts,
    QOSClass,
    owner_of,
)
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod, Resources
from tests.builders import GIB, container, node, pod

PERIOD_US = 100_000


def part(name: str, cpu: float, kind: Kind = Kind.APP, memory: int = GIB) -> ContainerFacts:
    """A container whose requests equal its limits."""
    milli = round(cpu * 1000)
    return ContainerFacts(name, kind, Amounts(milli, milli, memory, memory))


def whole(cpu: float, memory: int = 8 * GIB) -> Amounts:
    """The pod's own resources: requests that equal limits."""
    milli = round(cpu * 1000)
    return Amounts(milli, milli, memory, memory)


def pod_scope(**options: object) -> Node:
    """A node that gives such pods CPUs and memory as a whole."""
    given: dict[str, object] = {
        "topology_manager_policy": TopologyManagerPolicy.BEST_EFFORT,
        "topology_manager_scope": TopologyManagerScope.POD,
        "memory_manager_policy": MemoryManagerPolicy.STATIC,
        "pod_level_managers": True,
    }
    return node(**(given | options))  # type: ignore[arg-type]


class PodLife:
    """The life of one pod on a node.

    Args:
        on: the node.
        parts: its containers in their order.
        resources: the pod's own.
        uid: its uid.
        state: of the node before.

    Attributes:
        is_informed: the exporter is there.
        number: of the instances of its containers.
    """

    is_informed = True
    number = 0

    def __init__(
        self,
        on: Node,
        *parts: ContainerFacts,
        resources: Amounts | None,
        uid: str = "p1",
        state: State | None = None,
    ) -> None:
        self.on, self.state = on, state or State()
        self.facts = PodFacts(uid, QOSClass.GUARANTEED, parts, resources)
        self.amounts = {one.name: one.amounts for one in parts}
        made = pod(uid)
        total = resources or Amounts()
        self.of: Pod = replace(
            made,
            resources=said(total.cpu_request_milli, total.memory_limit_bytes),
            cgroups_path=f"/{uid}/pause",
        )

    def tell(self, event: nri.NRIEvent | InformedCreate | OwnEvent) -> Decision:
        """Decide and keep the state; the decision breaks no invariant."""
        decision = decide(self.on, self.state, event)
        plain = event.event if isinstance(event, InformedCreate) else event
        assert new_violations(self.on, self.state, plain, decision) == []
        assert violations(self.on, decision.state) == []
        self.state = decision.state
        return decision

    def message(self, name: str) -> Container:
        """The container as the runtime has it."""
        amounts, whole = self.amounts.get(name, Amounts()), self.facts.pod_resources or Amounts()
        # The kubelet gives a container without limits those of its pod.
        cpu_limit = amounts.cpu_limit_milli or whole.cpu_limit_milli
        memory_limit = amounts.memory_limit_bytes or whole.memory_limit_bytes
        return replace(
            container(self.of, name, number=self.number),
            resources=said(amounts.cpu_request_milli or cpu_limit, memory_limit),
        )

    def create(self, name: str) -> Decision:
        """Create a container, informed by the exporter where that is there."""
        event = nri.CreateContainer(self.of, self.message(name))
        return self.tell(InformedCreate(event, facts=self.facts if self.is_informed else None))

    def run(self, *names: str) -> None:
        """Bring containers to life."""
        for name in names:
            refusal = self.create(name).refusal
            assert refusal is None, str(refusal)
            for kind in (nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer):
                self.tell(kind(self.of, self.message(name)))

    def restart(self, *names: str) -> None:
        """End containers and bring them to life again."""
        for name in names:
            self.tell(nri.StopContainer(self.of, self.message(name)))
            self.run(name)

    def resize(self, name: str, cpu: float, memory: int = 0) -> Decision:
        """Ask for another size of a container."""
        return self.tell(nri.UpdateContainer(self.of, self.message(name), said(round(cpu * 1000), memory)))

    def resize_pod(self, cpu: float, memory: int = 0) -> Decision:
        """Ask for other resources of the pod."""
        return self.tell(nri.UpdatePodSandbox(self.of, resources=said(round(cpu * 1000), memory)))

    def lose(self, text: str) -> Decision:
        """Take CPUs offline; an empty list brings all back."""
        machine = self.on.topology
        gone = CPUSet.parse(text)
        online = (machine.online | machine.offline) - gone
        self.on = dataclasses.replace(self.on, topology=replace(machine, online=online, offline=gone))
        return self.tell(MachineChanged())

    def record(self, name: str) -> ContainerRecord:
        """The container's record."""
        records = self.state.containers.values()
        return next(one for one in records if (one.pod_uid, one.name) == (self.facts.uid, name))

    def runs_on(self, name: str) -> str:
        """The CPUs that its cgroup should hold."""
        return str(self.state.desired_cpus(self.on, self.record(name)))

    @property
    def held(self) -> dict[str, str]:
        """CPUs by container, and those of the pod as a whole under an empty name."""
        held = ((*owner_of(key), str(one.cpus)) for key, one in self.state.allocations.items())
        return {name: own for uid, name, own in held if uid == self.facts.uid}


def said(milli: int, memory: int = 0) -> Resources:
    """The kubelet's message of requests that equal limits."""
    return Resources(
        cpu_shares=max(2, milli * 1024 // 1000),
        cpu_quota_us=milli * PERIOD_US // 1000 or None,
        cpu_period_us=PERIOD_US if milli else None,
        memory_limit_bytes=memory or None,
    )
