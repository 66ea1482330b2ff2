"""A simulated node without a process: pods go in, decisions come out.

`PlayedNode` does the steps from a pod to decisions:

1. scheduler and kubelet: `NodeRoom.check` counts the requests, `DeviceManager.admit` allocates devices.
2. runtime: `runtime.pods` makes the messages of RunPodSandbox and of each CreateContainer, with the events around them.
3. agent: `PodFactsLookup` of the agent adds devices and pod facts to CreateContainer. `_SimulatedExporter` stands for the exporter
   and gives `runtime.pods.pod_facts`.
4. core: `core.engine.decide` returns the decision, `core.validator` checks it, and its state is kept unless it is a refusal.

There is no socket, thread, cgroup or clock, so a pod costs less than a millisecond. Invariant: besides the state it keeps
only the messages of pods and containers that exist.

`NodeRoom` counts the requests of pods against the allocatable resources of the node, as scheduler and kubelet do before
a runtime is asked. Invariant: requests never exceed what is allocatable. Amounts are thousandths of CPUs and bytes. Huge
pages are not part of the memory for pods. The device manager counts devices.

Source: kubelet v1.36, node allocatable and GeneralPredicates; kube-scheduler NodeResourcesFit.
Differs: kubelet and scheduler count the number of pods (`maxPods`) and ephemeral storage; here: they are not
    counted. Why: they limit how many pods a node takes, and do not decide where a container runs. Option:
    none.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from logging import getLogger

from msgspec.structs import replace

from nri_plugin.agent.serving.pod_facts import PodFactsLookup, PodResourcesClient
from nri_plugin.core.decision import Decision, ExporterAnswer
from nri_plugin.core.engine import decide
from nri_plugin.core.pods import admits_whole
from nri_plugin.core.requests import pod_total, regime_of
from nri_plugin.core.validator import checked
from nri_plugin.host.devices import DeviceLocator
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model.options import Node
from nri_plugin.model.records import Amounts, Kind, Phase, PodFacts, Regime
from nri_plugin.model.refusals import AdmissionRefusal
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.simulator.simulate.device_manager import DeviceManager, Given, NotAdmittedError
from nri_plugin.simulator.simulate.pods import (
    ContainerSpec,
    Names,
    PodSpec,
    RuntimeIdentity,
    Telling,
    ToldFacts,
    container_message,
    hugepages_name,
    pod_facts,
    pod_message,
    requests_and_limits,
    stable_id,
    stable_uid,
)
from nri_plugin.simulator.simulate.simulation import RefusalStage
from nri_plugin.wire.nri import events
from nri_plugin.wire.nri.messages import Container, Pod, Resources

Requests = Mapping[str, int]
"""By resource: CPUs in thousandths, all others in bytes."""


class NodeRoom:
    """Counts requests.

    Attributes:
        allocatable: by resource; a resource that is not in it is not counted.
        used: by resource.
    """

    def __init__(self, allocatable: Requests) -> None:
        self.allocatable = dict(allocatable)
        self.used: dict[str, int] = dict.fromkeys(allocatable, 0)
        self._pods: dict[str, Requests] = {}

    def copy(self) -> "NodeRoom":
        """A copy, for trials."""
        made = NodeRoom(self.allocatable)
        made.used, made._pods = dict(self.used), dict(self._pods)
        return made

    def check(self, pod: PodSpec) -> None:
        """Check that a pod fits; a second one of the same name replaces the first.

        Raises:
            NotAdmittedError: it does not fit; the text is the kubelet's.
        """
        before = self._pods.get(pod.key, {})
        for name, amount in pod_requests(pod).items():
            used = self.used.get(name, 0) - before.get(name, 0)
            capacity = self.allocatable.get(name)
            if capacity is None and name.startswith("hugepages-"):
                capacity = 0
            if capacity is not None and used + amount > capacity:
                raise NotAdmittedError(
                    f"OutOf{name}",
                    f"Node didn't have enough resource: {name}, "
                    f"requested: {amount}, used: {used}, capacity: {capacity}",
                )

    def take(self, pod: PodSpec) -> None:
        """Count a pod."""
        self.hold(pod.key, pod_requests(pod))

    def hold(self, key: str, requests: Requests) -> None:
        """Count requests under a name; earlier ones of that name no longer count."""
        self.give_back(key)
        self._pods[key] = requests
        self._add(requests, 1)

    def give_back(self, key: str) -> None:
        """Stop counting a pod."""
        self._add(self._pods.pop(key, {}), -1)

    def _add(self, amounts: Requests, sign: int) -> None:
        for name, amount in amounts.items():
            self.used[name] = self.used.get(name, 0) + sign * amount


def node_room(node: Node, reserved_count: int = 0) -> NodeRoom:
    """The room of an empty node; memory of unknown size is not counted.

    Args:
        node: machine and options.
        reserved_count: how many CPUs are kept for the system where the node does not say which.
    """
    topology = node.topology
    reserved = len(node.reserved) or reserved_count
    amounts = {"cpu": max(0, len(topology.online) - reserved) * 1000}
    pages: dict[str, int] = {}
    for one in topology.nodes:
        for size_kb, count in one.hugepages:
            name = hugepages_name(size_kb)
            pages[name] = pages.get(name, 0) + size_kb * count * 1024
    sizes = [one.memory_bytes for one in topology.nodes]
    if None not in sizes:
        total = sum(size or 0 for size in sizes)
        amounts["memory"] = max(0, total - sum(pages.values()) - node.options.kept_memory_bytes)
    return NodeRoom(amounts | pages)


def pod_requests(pod: PodSpec) -> dict[str, int]:
    """Requests of a pod as the scheduler counts them: pod-level resources, else the peak of its containers.

    Source: Kubernetes component-helpers/resource PodRequests.
    """
    amounts = fact_requests(pod_facts(pod, ""))
    for name, amount in pod.overhead:
        amounts[name] = amounts.get(name, 0) + amount
    return {name: amount for name, amount in amounts.items() if amount}


def fact_requests(facts: PodFacts) -> dict[str, int]:
    """The requests of a pod by its facts, which do not have the overhead of its runtime class."""
    names = dict.fromkeys(name for one in facts.containers for name in _requests(one.amounts))
    amounts = {name: _peak(facts, name) for name in names}
    if facts.pod_resources is not None:
        amounts |= {name: amount for name, amount in _requests(facts.pod_resources).items() if amount}
    return amounts


def _peak(facts: PodFacts, name: str) -> int:
    asked = [(_requests(one.amounts).get(name, 0), one.kind) for one in facts.containers]
    inits = [(amount, kind is Kind.SIDECAR) for amount, kind in asked if kind is not Kind.APP]
    return pod_total(inits, [amount for amount, kind in asked if kind is Kind.APP])


def _requests(amounts: Amounts) -> dict[str, int]:
    return {name: request for name, (request, _) in requests_and_limits(amounts).items()}


# The node


NO_FILES = "/nonexistent"
"""Path of the host's files. It is never read, because the exporter's answer has the devices of every container."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A container of a pod and the result for it.

    Attributes:
        kind: app container, init container or sidecar.
        decision: of the agent; None if it was not asked.
        error: why the container does not run; None if it runs.
        stage: what refused it, if anything did.
        devices: from the device manager.
        container_id: the runtime's; empty if it was not created.
        of_pod: the error is of the whole pod: nothing of it runs, and nothing is allocated to it.
    """

    spec: ContainerSpec
    kind: Kind
    decision: Decision | None = None
    error: NotAdmittedError | AdmissionRefusal | None = None
    stage: RefusalStage | None = None
    devices: Given | None = None
    container_id: str = ""
    of_pod: bool = False


class PlayedNode:
    """One node.

    Args:
        node: machine and options.
        devices: the kubelet's device manager.
        who: the runtime whose messages are simulated.
        has_device_hints: `deviceHints` of the configuration.
        knows_pods: whether the exporter has pod facts.
        room: counts requests of pods; None for no limit.

    Attributes:
        state: of the agent.
        live: messages of the containers that exist, in order, by `NAMESPACE/POD/CONTAINER`.
    """

    def __init__(
        self,
        node: Node,
        devices: DeviceManager,
        who: RuntimeIdentity,
        *,
        has_device_hints: bool = True,
        knows_pods: bool = True,
        room: NodeRoom | None = None,
    ) -> None:
        self.node = node
        self.devices = devices
        self.state = State()
        self.room = room
        self._who = who
        self._knows_pods = knows_pods
        self._told = ToldFacts()
        self._has_device_hints = has_device_hints
        self._serial = 0
        self._pods: dict[str, tuple[PodSpec, Pod, Names]] = {}
        self.live: dict[str, tuple[Pod, Container]] = {}
        locator = DeviceLocator(KernelFiles(NO_FILES)) if has_device_hints else None
        self._pod_facts = PodFactsLookup(
            locator, _SimulatedExporter(self._answer), getLogger(__name__), lambda: 0.0
        )

    def run(self, pod: PodSpec, *, start: bool = True, telling: Telling = Telling.LOST) -> tuple[Tried, ...]:
        """Run a pod; returns the results of its containers, init containers first.

        Args:
            pod: the pod.
            start: whether its app containers are started.
            telling: when the exporter tells its facts; at once where it knows all pods.
        """
        self._told.tell(pod, Telling.KNOWN if self._knows_pods else telling)
        try:
            if self.room is not None:
                self.room.check(pod)
            self.devices.admit(pod)
        except NotAdmittedError as error:
            return tuple(
                Tried(spec, kind, error=error, stage=RefusalStage.NODE, of_pod=True)
                for spec, kind in pod.members
            )
        self._sandbox(pod)
        tried = tuple(self._containers(pod, start=start))
        if self.room is not None and any(one.container_id for one in tried):
            self.room.take(pod)
        return tried

    def start(self, target: str) -> None:
        """Start created containers."""
        for key in self._keys(target):
            self._send(events.StartContainer(*self.live[key]))
            self._send(events.PostStartContainer(*self.live[key]))

    def stop(self, target: str) -> None:
        """Stop containers; with a pod as target its sandbox too."""
        for key in self._keys(target):
            if self.is_running(key):
                self._send(events.StopContainer(*self.live[key]))
        if target in self._pods:
            self._send(events.StopPodSandbox(self._pods[target][1]))
            self.devices.free(target)

    def remove(self, target: str) -> None:
        """Stop and remove containers; with a pod as target the pod too."""
        self.stop(target)
        for key in self._keys(target):
            self._send(events.RemoveContainer(*self.live.pop(key)))
        if target in self._pods:
            spec, message, _ = self._pods.pop(target)
            self._send(events.RemovePodSandbox(message))
            if self.room is not None:
                self.room.give_back(spec.key)

    def update(self, key: str, resources: Resources) -> AdmissionRefusal | None:
        """Change a container's resources as the kubelet does; returns the refusal, if any."""
        decision = self._send(events.UpdateContainer(*self.live[key], resources))
        if decision.refusal is None:
            self._send(events.PostUpdateContainer(*self.live[key]))
        return decision.refusal

    def specs(self) -> Iterable[PodSpec]:
        """Pods that exist."""
        return (spec for spec, _, _ in self._pods.values())

    def fork(self) -> "PlayedNode":
        """A copy in the same state, for trials."""
        room = self.room.copy() if self.room is not None else None
        made = PlayedNode(
            self.node,
            self.devices.copy(),
            self._who,
            has_device_hints=self._has_device_hints,
            knows_pods=self._knows_pods,
            room=room,
        )
        made.state, made._serial = self.state, self._serial + 1
        made.forget_containers()
        return made

    def forget_containers(self) -> None:
        """Keep only allocations and their pods: trials never start, stop or update a container."""
        self.state = State(pods=self.state.pods, allocations=self.state.allocations)
        self._pods, self.live = {}, {}

    def is_running(self, key: str) -> bool:
        """Whether a container exists and has not ended."""
        record = self.state.containers.get(self.container_id(key)) if key in self.live else None
        return record is not None and record.phase is not Phase.STOPPED

    def container_id(self, key: str) -> str:
        """The runtime's id of a container that exists."""
        _, message = self.live[key]
        return message.id

    def _sandbox(self, pod: PodSpec) -> None:
        self._serial += 1
        uid = stable_uid(pod.key, str(self._serial))
        message, names = pod_message(pod, uid, stable_id("sandbox", pod.key, str(self._serial)), self._who)
        self._pods[pod.key] = (pod, message, names)
        self._send(events.RunPodSandbox(message))

    def _containers(self, pod: PodSpec, *, start: bool) -> Iterator[Tried]:
        """Create containers as the kubelet does: a refused init container ends the pod, a refused app container does not.

        A pod that is admitted as a whole is refused at its first creation, and all its containers with it.
        """
        blocked = False
        refused: Tried | None = None
        for spec, kind in pod.members:
            if refused is not None:
                yield dataclasses.replace(refused, spec=spec, kind=kind, devices=None)
                continue
            if blocked:
                yield Tried(spec, kind)
                continue
            tried = self._create(pod, spec, kind)
            if tried.error is not None and self._is_whole(pod):
                tried = refused = dataclasses.replace(tried, of_pod=True)
            yield tried
            blocked = tried.error is not None and kind is not Kind.APP
            if tried.error is None and (start or kind is not Kind.APP):
                key = f"{pod.key}/{spec.name}"
                self.start(key)
                if kind is Kind.INIT:
                    self.stop(key)

    def _is_whole(self, pod: PodSpec) -> bool:
        """Whether one decision is made about all containers of the pod."""
        uid = self._pods[pod.key][1].uid
        if not self._told.is_known_in_time(pod.key) or uid not in self.state.pods:
            return False
        record = replace(self.state.pods[uid], facts=pod_facts(pod, uid))
        return admits_whole(self.node, record) or regime_of(self.node.options, record) is Regime.WHOLE

    def _create(self, pod: PodSpec, spec: ContainerSpec, kind: Kind) -> Tried:
        _, sandbox, names = self._pods[pod.key]
        self._serial += 1
        made = stable_id("container", pod.key, spec.name, str(self._serial))
        message, _ = container_message(pod, sandbox, names, spec, made, self._who)
        given = self.devices.given(pod.key, spec.name)
        decision = self._send(events.CreateContainer(sandbox, message))
        if decision.refusal is not None:
            self._undo(sandbox, message)
            return Tried(spec, kind, decision, decision.refusal, RefusalStage.PLACEMENT, given)
        self.live[f"{pod.key}/{spec.name}"] = sandbox, message
        self._send(events.PostCreateContainer(sandbox, message))
        return Tried(spec, kind, decision, devices=given, container_id=made)

    def _undo(self, sandbox: Pod, message: Container) -> None:
        """Send the events of runtimes that report a container whose creation failed."""
        if self._who.kind.undoes_failed_creation:
            self._send(events.StopContainer(sandbox, message))
            self._send(events.RemoveContainer(sandbox, message))

    def _send(self, event: events.NRIEvent) -> Decision:
        known = self._pod_facts(self.node, events.Request(0, None, event))
        decision = checked(self.node, self.state, known, decide(self.node, self.state, known))
        if decision.refusal is None:
            self.state = decision.state
        return decision

    def _keys(self, target: str) -> list[str]:
        """Keys of existing containers that `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER` names."""
        return [key for key, (pod, _) in self.live.items() if target in (key, f"{pod.namespace}/{pod.name}")]

    def _answer(self, event: events.CreateContainer) -> ExporterAnswer:
        """The exporter's answer: the devices, and the facts of the pod if the exporter knows pods."""
        key = f"{event.pod.namespace}/{event.pod.name}"
        everyone = tuple(self.devices.containers(key).values())
        return ExporterAnswer(
            devices=self._resources(self.devices.given(key, event.container.name)),
            pod_devices=self._resources(*everyone),
            facts=self._told.facts(key, event.pod.uid),
        )

    def _resources(self, *given: Given) -> tuple[DeviceResource, ...]:
        """The devices by resource, in the order of the first."""
        by_resource: dict[str, dict[str, Device]] = {}
        for one in given:
            for device in self.devices.placed(one):
                by_resource.setdefault(device.resource, {})[device.id] = Device(device.id, device.nodes)
        return tuple(
            DeviceResource(name, tuple(devices.values()), self.devices.totals(name))
            for name, devices in by_resource.items()
        )


class _SimulatedExporter(PodResourcesClient):
    """The exporter without a socket."""

    def __init__(self, answer: Callable[[events.CreateContainer], ExporterAnswer]) -> None:
        super().__init__("", lambda: 0.0)
        self._answer = answer

    def ask(self, event: events.CreateContainer, limit_s: float, *, devices: bool = True) -> ExporterAnswer:  # noqa: ARG002 - it is at hand
        """The answer."""
        known = self._answer(event)
        return known if devices else replace(known, devices=None, pod_devices=())
