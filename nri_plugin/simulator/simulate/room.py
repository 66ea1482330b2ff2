"""How many more pods of a shape fit on a node.

Pods are added one by one to a copy of the node, by the same decisions as the agent's, until one is refused. `standing_node`
makes that copy of a real node: its machine, its options and the state of its agent.

Differs: an agent decides about each pod anew; here: a pod without an allocation leaves the state as it was,
    so the next one of its shape is decided alike, and the free resources of the node are divided instead of
    tried. Why: thousands of such pods fit on a node. Option: none.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from nri_plugin.model.options import Node
from nri_plugin.model.records import PodRecord, QOSClass
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.policy.memory_state import MEMORY
from nri_plugin.simulator.machine.devices import DeviceLink, PlacedDevice
from nri_plugin.simulator.simulate.device_manager import DeviceManager, NotAdmittedError
from nri_plugin.simulator.simulate.node import NodeRoom, PlayedNode, fact_requests, node_room, pod_requests
from nri_plugin.simulator.simulate.pods import (
    DEFAULT_RUNTIME,
    RUNTIMES,
    ContainerSpec,
    Driver,
    PodSpec,
    RuntimeIdentity,
)
from nri_plugin.simulator.simulate.rows import overruled, refusal, words
from nri_plugin.simulator.simulate.simulation import RefusalStage, SimulatedRefusal

MOST_TRIED = 4096
"""Trials of one shape; as many as the largest machines have CPUs."""


@dataclass(slots=True)
class TrialBudget:
    """How many trials are left; the trials of a shape are finished once begun."""

    left: int


def more_that_fit(
    node: PlayedNode, pod: PodSpec, budget: TrialBudget | None = None
) -> tuple[int, SimulatedRefusal | None]:
    """How many more pods fit, and the refusal of the next one; None if nothing limits them.

    Args:
        node: is left as it is.
        pod: the shape; its name does not matter.
        budget: is reduced by every trial.
    """
    trial = node.fork()
    for count in range(MOST_TRIED):
        if budget is not None:
            budget.left -= 1
        one = replace(pod, name=f"another-{count}", namespace=pod.namespace or "default")
        before, given = trial.state.allocations, trial.devices.given_count
        # A created container holds as much as a started one, but its start ends the memory of its pod's init containers.
        tried = trial.run(one, start=bool(pod.init_containers))
        # a namespace that is never refused gets its container without an allocation: this ends the trials, too
        refusals = (refusal(each) or overruled(each) for each in tried)
        if (why := next(filter(None, refusals), None)) is not None:
            return count, why
        # Nothing was allocated: all further pods of this shape are decided alike.
        if trial.state.allocations == before and trial.devices.given_count == given:
            return _divided(trial, one, count)
        trial.forget_containers()
    return MOST_TRIED, None


def _divided(trial: PlayedNode, pod: PodSpec, count: int) -> tuple[int, SimulatedRefusal | None]:
    """How many more pods without allocations fit, after `count` others and `pod` itself."""
    room = trial.room or NodeRoom({})
    requests = pod_requests(pod)
    rows = [
        (room.allocatable[name] - room.used.get(name, 0)) // amount
        for name, amount in requests.items()
        if name in room.allocatable
    ]
    if not rows:
        return 0, None
    more = min(rows)
    for name, amount in requests.items():
        room.used[name] = room.used.get(name, 0) + more * amount
    try:
        room.check(replace(pod, name="another"))
    except NotAdmittedError as error:
        return count + 1 + more, words(error, RefusalStage.NODE)
    return count + 1 + more, None


# A real node


@dataclass(frozen=True, slots=True)
class FreedRoom:
    """A pod, and how many pods of the shape fit once it has ended.

    Attributes:
        pod: NAMESPACE/NAME, or its uid where the name is not known.
        exclusive: how many exclusive CPUs it holds.
    """

    pod: str
    exclusive: int
    fits: int


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest container with exclusive CPUs that fits under a policy.

    Attributes:
        count: its CPUs; 0 where none fits.
        cpus: those that it would get.
    """

    count: int
    cpus: CPUSet = NO_CPUS


def standing_node(
    node: Node,
    state: State,
    devices: Iterable[PlacedDevice] = (),
    links: Iterable[DeviceLink] = (),
    *,
    knows_pods: bool = True,
) -> PlayedNode:
    """A node as it stands, for trials.

    Args:
        node: machine and options.
        state: of its agent; requests of its pods are counted as far as they are known.
        devices: those that are available.
        links: between devices.
        knows_pods: whether the exporter tells the agent the facts of a pod.
    """
    who = RuntimeIdentity.on(node.topology, RUNTIMES[DEFAULT_RUNTIME], Driver.SYSTEMD)
    room = node_room(node)
    for pod in state.pods.values():
        room.hold(pod.uid, requests_of(state, pod))
    made = PlayedNode(node, DeviceManager(devices, links), who, knows_pods=knows_pods, room=room)
    made.state = state
    return made


def requests_of(state: State, pod: PodRecord) -> dict[str, int]:
    """The requests of a pod that runs: by its object, else by what the runtime told, else by its allocations.

    A runtime tells the limit of memory and not the request. They are equal for a Guaranteed pod only; for others no memory
    is counted.
    """
    if pod.facts is not None:
        return fact_requests(pod.facts)
    if pod.cpu_milli is not None:
        is_known = pod.qos is QOSClass.GUARANTEED
        memory = {MEMORY: pod.memory_bytes or 0} if is_known else {}
        return {"cpu": pod.cpu_milli, **memory, **dict(pod.hugepages)}
    found = {"cpu": 0}
    for allocation in state.allocations_of(pod.uid).values():
        found["cpu"] += allocation.cpu_milli
        for block in allocation.memory:
            found[block.resource] = found.get(block.resource, 0) + block.size_bytes
    return found


def freed_by(node: PlayedNode, pod: PodSpec, budget: TrialBudget) -> Iterator[FreedRoom]:
    """How many pods of the shape fit after the end of each pod that holds something, the largest holder first.

    Args:
        node: a standing node; is left as it is.
        pod: the shape.
        budget: ends the iteration when it is used up.
    """
    state, room = node.state, node.room
    held = {uid: _exclusive_count(state, uid) for uid in state.pods}
    for uid in sorted(
        held, key=lambda uid: (-held[uid], state.pods[uid].namespace, state.pods[uid].name, uid)
    ):
        if budget.left <= 0:
            return
        trial = node.fork()
        trial.state = trial.state.without_pod(uid)
        if room is not None and trial.room is not None:
            trial.room.give_back(uid)
        count, _ = more_that_fit(trial, pod, budget)
        record = state.pods[uid]
        name = f"{record.namespace}/{record.name}" if record.name else uid
        yield FreedRoom(name, held[uid], count)


def largest_exclusive(node: PlayedNode) -> Largest:
    """The largest Guaranteed container that gets exclusive CPUs on the node as it stands.

    Sizes are tried from the number of available CPUs downwards: a policy may take a large one and refuse a smaller.
    """
    for count in range(len(node.state.available(node.node)), 0, -1):
        spec = ContainerSpec("c", count * 1000, count * 1000, SMALL_BYTES, SMALL_BYTES)
        trial = node.fork()
        tried = trial.run(PodSpec("largest", containers=(spec,)), start=False)
        cpus = trial.state.exclusive - node.state.exclusive
        if cpus and not any(refusal(one) or overruled(one) for one in tried):
            return Largest(count, cpus)
    return Largest(0)


SMALL_BYTES = 1 << 20
"""Memory of a container that is asked about for its CPUs: without any it would not be Guaranteed."""


def _exclusive_count(state: State, uid: str) -> int:
    mask = 0
    for allocation in state.allocations_of(uid).values():
        mask |= allocation.cpus.mask
    return len(CPUSet(mask))
