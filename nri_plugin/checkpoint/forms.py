"""The forms that hold allocations: our checkpoint and the kubelet's two state files, all versions of each.

A conversion reports everything that the other form cannot hold: allocations, which are lost, and facts that the runtime,
the kubelet or the machine know as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from nri_plugin.checkpoint.format import FORMAT, VERSION, Encoder, with_version
from nri_plugin.checkpoint.kubelet_export import FIRST_WITH_PODS, cpus_by_id, without_pods
from nri_plugin.checkpoint.kubelet_files import UnreadableError, parse
from nri_plugin.checkpoint.kubelet_import import CPU_FILE, MEMORY_FILE, nodes_of
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.model.options import MemoryManagerPolicy, Node, Options
from nri_plugin.model.records import Allocation, allocation_key, is_whole_pod, named, owner_of, pod_of
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology


class RowKind(StrEnum):
    """The kinds of file, recognized by their content."""

    CHECKPOINT = "checkpoint"
    CPU = "cpu_manager_state"
    MEMORY = "memory_manager_state"


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of a conversion, one sentence each.

    Attributes:
        allocations: allocations of CPUs or memory, which are lost.
        others: facts that the runtime, the kubelet or the machine know as well.
    """

    allocations: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def kind_of(data: bytes) -> RowKind | None:
    """The kind of a file; None if it is none of these."""
    if data.startswith(b'{"format":"%s"' % FORMAT.encode()):
        return RowKind.CHECKPOINT
    try:
        record = parse(data)
    except UnreadableError:
        return None
    if "machineState" in record:
        return RowKind.MEMORY
    return RowKind.CPU if "defaultCpuSet" in record or "policyName" in record else None


def checkpoint_file(
    state: State, facts: NodeFacts | None, generation: int = 1, version: int = VERSION
) -> bytes:
    """The checkpoint with these allocations.

    Args:
        state: the allocations; an older version holds what `without_newer` keeps of them.
        facts: the machine; None if unknown.
        generation: of the checkpoint.
        version: of its form.
    """
    state = without_newer(state, version)
    if version == 1:
        facts = facts and replace(facts, memory=())
    text = b"".join(Encoder().encode(state, generation, facts))
    return text if version == VERSION else with_version(text, version)


class NewerField(NamedTuple):
    """A field that older versions of a checkpoint lack.

    Attributes:
        name: of the field.
        default: its value in a version that lacks it.
        loss: the sentence where a record has another value, with `{}` for the record; empty where the loss is that of
            an allocation (`_resizes`, `_of_whole_pods`).
        since: the first version that has it.
    """

    name: str
    default: object
    loss: str
    since: int = 2


NEWER: Mapping[str, Sequence[NewerField]] = {
    "pods": (
        NewerField("facts", None, "the facts of the cluster on pod {}"),
        NewerField("is_admitted", False, "that pod {} was admitted as a whole", 3),
        NewerField("regime", None, "the rules by which pod {} was admitted", 3),
        NewerField("vm_handler", "", "that pod {} runs in a virtual machine", 3),
        NewerField("refusal", None, "why pod {} was refused", 3),
        NewerField(
            "devices_counted", False, "that the hint of pod {} counts the devices of all its containers"
        ),
        NewerField("limit_milli", 0, "the CPU limit of pod {}"),
        NewerField("sandbox_path", "", "the cgroup of the sandbox of pod {}"),
    ),
    "containers": (
        NewerField("limit_milli", 0, "the CPU limit of container {}"),
        NewerField("affinity", None, "the hint of container {}"),
        NewerField("affinity_preferred", True, "the hint of container {}"),
    ),
    "allocations": (
        NewerField("grown", (), "which CPUs of {} came with a resize"),
        NewerField(
            "is_init",
            False,
            "that {} is an init container, and its CPUs that later containers of its pod hold",
            3,
        ),
        NewerField("is_pod_shared", False, "", 3),
        NewerField("claim", "", "that a resource claim gave {} its CPUs", 3),
        NewerField("resize", None, ""),
    ),
}


def without_newer(state: State, version: int = 1) -> State:
    """The state as an older version of a checkpoint holds it; each CPU has one owner there.

    Fields that the version lacks have their defaults. Before version 3 there are no pods as wholes and no shared pools of
    pods, and an init container keeps only the CPUs that no later container of its pod holds.
    """
    if version >= VERSION:
        return state
    state = _with_one_owner(without_pods(state))
    return State(
        **{
            name: {
                key: replace(record, **{one.name: one.default for one in newer if one.since > version})
                for key, record in getattr(state, name).items()
            }
            for name, newer in NEWER.items()
        }
    )


def _with_one_owner(state: State) -> State:
    """Without those CPUs of init containers that later containers of their pods hold."""
    held: dict[str, int] = {}
    for key, one in state.allocations.items():
        if not one.is_init:
            held[pod_of(key)] = held.get(pod_of(key), 0) | one.cpus.mask
    kept = dict(state.allocations)
    # The last init container first: it is the one that may be running.
    for key in reversed([key for key, one in state.allocations.items() if one.is_init]):
        one, pod = kept[key], pod_of(key)
        later = CPUSet(held.get(pod, 0))
        held[pod] = held.get(pod, 0) | one.cpus.mask
        if not later.isdisjoint(one.cpus):
            kept[key] = _without_cpus(one, later)
    return replace(state, allocations=kept)


def _without_cpus(one: Allocation, cpus: CPUSet) -> Allocation:
    # A resize of a container that has ended is over.
    settled = one.settled(is_done=False)
    grown = tuple(left for part in settled.grown if (left := part - cpus))
    return replace(settled, cpus=settled.cpus - cpus, grown=grown)


def losses_to_version(state: State, version: int, facts: NodeFacts | None = None) -> Losses:
    """The losses when these allocations and the machine become an older version of a checkpoint."""
    if version >= VERSION:
        return Losses()
    lost = [*_of_whole_pods(state), *(_resizes(state) if version == 1 else ())]
    return Losses(tuple(lost), tuple(_newer(state, version, facts)))


def _newer(state: State, version: int, facts: NodeFacts | None) -> Iterator[str]:
    for name, newer in NEWER.items():
        for key, record in getattr(state, name).items():
            # A container is named by the key of its allocation, a pod by its uid.
            if name == "pods":
                shown = f"{record.namespace}/{record.name}" if record.name else key
            else:
                shown = named(state.pods, getattr(record, "key", key))
            yield from dict.fromkeys(
                one.loss.format(shown)
                for one in newer
                if one.since > version and one.loss and getattr(record, one.name) != one.default
            )
    if version == 1 and facts is not None and facts.memory:
        yield "how much memory each NUMA node has: it follows from the machine and the configuration"


def _of_whole_pods(state: State) -> Iterator[str]:
    """Allocations that only forms with pods as wholes hold."""
    for key, one in state.allocations.items():
        name = named(state.pods, key)
        if is_whole_pod(key):
            size = sum(block.size_bytes for block in one.memory)
            yield f"CPUs {one.cpus or 'none'} and {size} bytes of memory that pod {name} holds as a whole"
        elif one.is_pod_shared:
            yield f"CPUs {one.cpus or 'none'} that {name} shares with other containers of its pod"


def losses_to_cpu(state: State, version: int, *, has_memory_file: bool) -> Losses:
    """The losses when these allocations become a `cpu_manager_state`, beside a `memory_manager_state` or alone."""
    lost = list(_resizes(state)) + list(_unsized(state))
    if version < FIRST_WITH_PODS[CPU_FILE]:
        lost += _of_whole_pods(state)
    if not has_memory_file:
        lost += [
            f"memory of {named(state.pods, key)}" for key, one in state.allocations.items() if one.memory
        ]
    if version == 1:
        held = set(cpus_by_id(state))
        known = {record.key for number, record in state.containers.items() if number in held}
        lost += [
            f"CPUs {one.cpus} of {named(state.pods, key)}: version 1 goes by container ids, and there is no such container"
            for key, one in without_pods(state).allocations.items()
            if one.cpus and key not in known
        ]
    return Losses(tuple(dict.fromkeys(lost)), tuple(_records(state)))


def losses_to_memory(state: State, version: int) -> Losses:
    """The losses when these allocations become a `memory_manager_state` alone."""
    lost = [
        f"CPUs {one.cpus} of {named(state.pods, key)}" for key, one in state.allocations.items() if one.cpus
    ]
    if version < FIRST_WITH_PODS[MEMORY_FILE]:
        lost += _of_whole_pods(state)
    return Losses((*lost, *_resizes(state), *_unsized(state)), tuple(_records(state)))


def losses_from_kubelet(files: Mapping[RowKind, bytes], state: State, node: Node | None) -> Losses:
    """The losses when the kubelet's files become a checkpoint from which the same does not follow."""
    others = []
    if RowKind.CPU in files:
        default = CPUSet.parse(parse(files[RowKind.CPU]).get("defaultCpuSet", ""))
        if node is None:
            others.append(f"defaultCpuSet {default or 'empty'}: the shared pool follows from the machine")
        elif default != state.shared_pool(node):
            others.append(
                f"defaultCpuSet {default or 'empty'}: on this machine the shared pool is {state.shared_pool(node)}"
            )
    if RowKind.MEMORY in files:
        others.append("machineState: it follows from the machine and the reservedMemory of the configuration")
    return Losses((), tuple(others))


def bare_node() -> Node:
    """A node without a machine, good for taking over allocations unchanged."""
    topology = Topology(online=CPUSet(), cores=(), sockets=(), nodes=(), caches=())
    return Node(topology, Options(memory_manager_policy=MemoryManagerPolicy.STATIC), CPUSet())


def _resizes(state: State) -> Iterator[str]:
    for key, one in state.allocations.items():
        if one.resize is not None:
            yield (
                f"the resize of {named(state.pods, key)} under way, from CPUs {one.resize.before.cpus or '-'} "
                f"to {one.resize.after.cpus or '-'}"
            )


def _unsized(state: State) -> Iterator[str]:
    """Allocations with other memory nodes than those of their blocks: the kubelet's file has only blocks."""
    for key, one in state.allocations.items():
        pod = state.allocations.get(allocation_key(pod_of(key), ""), Allocation())
        # A container of a pod with memory of its own is bound to the nodes of the pod; an ended one to none.
        blocks = one.memory or pod.memory
        # Blocks also name the nodes of a hint that have no memory.
        is_part = one.mems <= nodes_of(blocks) and (one.mems or not one.memory)
        if not is_part:
            name = named(state.pods, key)
            yield f"that {name} is bound to NUMA nodes {one.mems or 'none'}, which are not those of its memory"


def _records(state: State) -> Iterator[str]:
    if state.pods or state.containers:
        yield (
            f"the records of {len(state.pods)} pods and {len(state.containers)} containers: "
            "a kubelet knows them from the cluster and the runtime"
        )
    hints = sum(1 for one in state.allocations.values() if one.affinity or not one.preferred)
    if hints:
        yield f"the merged hints of {hints} allocations"
    inits = sum(1 for one in state.allocations.values() if one.is_init)
    if inits:
        yield f"the marks of {inits} init containers: a kubelet knows them from the cluster"
    for key, one in state.allocations.items():
        if is_whole_pod(key):
            yield from _undivided(state, key, one)


def _undivided(state: State, key: str, pod: Allocation) -> Iterator[str]:
    """Facts about the containers of a pod as a whole that follow from its object only."""
    name, record = named(state.pods, key), state.pods.get(pod_of(key))
    if pod.memory and (record is None or record.facts is None):
        yield (
            f"how the containers of pod {name} divide its memory: the facts of the cluster are not known, so each is "
            "shown with all of it; the kubelet counts the pod's"
        )
    sharing = [
        other
        for other, one in state.allocations.items()
        if one.is_pod_shared and not one.is_init and pod_of(other) == pod_of(key)
    ]
    if len(sharing) == 1:
        yield f"that {owner_of(sharing[0])[1]} alone runs in the shared pool of pod {name}: a file without it is the same"
