"""The forms that hold allocations: our checkpoint and the kubelet's two state files, all versions of each.

A conversion reports everything that the other form cannot hold: allocations, which are lost, and facts that runtime,
kubelet or machine know anyway.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from nri_plugin.checkpoint.format import FORMAT, VERSION, Encoder
from nri_plugin.checkpoint.kubelet_files import UnreadableError, parse
from nri_plugin.checkpoint.kubelet_state import cpus_by_id
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.model.options import MemoryManagerPolicy, Node, Options
from nri_plugin.model.sets import NO_NODES, CPUSet, NodeMask
from nri_plugin.model.state import Allocation, State, named
from nri_plugin.model.topology import Topology

CHECKSUM_LINE = b',\n"checksum":"crc32:%08x"}\n'


class RowKind(StrEnum):
    """The kinds of file, recognized by their content."""

    CHECKPOINT = "checkpoint"
    CPU = "cpu_manager_state"
    MEMORY = "memory_manager_state"


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of a conversion, one sentence each.

    Attributes:
        promises: allocations of CPUs or memory, which are lost.
        others: facts that the runtime, the kubelet or the machine know.
    """

    promises: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def kind_of(data: bytes) -> RowKind | None:
    """What a file is; None when it is nothing of this."""
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
        state: the allocations; version 1 holds of them what `without_newer` leaves.
        facts: the machine, None when it is not known.
        generation: of the checkpoint.
        version: of its form.
    """
    if version == 1:
        state, facts = without_newer(state), facts and replace(facts, memory=())
    text = b"".join(Encoder().encode(state, generation, facts))
    if version == VERSION:
        return text
    body = text[: text.rindex(b',\n"checksum"')].replace(
        b'"version":%d,' % VERSION, b'"version":%d,' % version, 1
    )
    return body + CHECKSUM_LINE % zlib.crc32(body)


def without_newer(state: State) -> State:
    """The state without what version 1 of a checkpoint does not have."""
    return State(
        {
            key: replace(pod, facts=None, devices_counted=False, limit_milli=0, sandbox_path="")
            for key, pod in state.pods.items()
        },
        {
            key: replace(record, limit_milli=0, affinity=None, affinity_preferred=True)
            for key, record in state.containers.items()
        },
        {key: replace(one, grown=(), resize=None, returned=()) for key, one in state.allocations.items()},
    )


def losses_to_version_1(state: State, facts: NodeFacts | None = None) -> Losses:
    """What version 1 of a checkpoint does not hold of these allocations and of the machine."""
    return Losses(tuple(_resizes(state)), tuple(_newer(state, facts)))


def _newer(state: State, facts: NodeFacts | None) -> Iterator[str]:
    for key, pod in state.pods.items():
        yield from _named(
            (pod.facts is not None, f"what the cluster said of pod {key}"),
            (pod.devices_counted, f"that the hint of pod {key} counts the devices of all its containers"),
            (pod.limit_milli, f"the CPU limit of pod {key}"),
            (pod.sandbox_path, f"the cgroup of the sandbox of pod {key}"),
        )
    for record in state.containers.values():
        has_hint = record.affinity is not None or not record.affinity_preferred
        yield from _named(
            (record.limit_milli, f"the CPU limit of container {named(state.pods, record.key)}"),
            (has_hint, f"the hint of container {named(state.pods, record.key)}"),
        )
    for key, one in state.allocations.items():
        yield from _named(
            (one.grown, f"which CPUs of {named(state.pods, key)} came with a resize"),
            (
                one.returned,
                f"which memory of {named(state.pods, key)} later containers of its pod may still have",
            ),
        )
    if facts is not None and facts.memory:
        yield "how much memory each NUMA node has: it follows from the machine and the configuration"


def _named(*losses: tuple[object, str]) -> Iterator[str]:
    return (sentence for is_lost, sentence in losses if is_lost)


def losses_to_cpu(state: State, version: int, *, has_memory_file: bool) -> Losses:
    """What a `cpu_manager_state` of that version does not hold, beside a `memory_manager_state` or alone."""
    lost = list(_resizes(state)) + list(_unsized(state))
    if not has_memory_file:
        lost += [
            f"memory of {named(state.pods, key)}" for key, one in state.allocations.items() if one.memory
        ]
    if version == 1:
        held = set(cpus_by_id(state))
        known = {record.key for number, record in state.containers.items() if number in held}
        lost += [
            f"CPUs {one.cpus} of {named(state.pods, key)}, for version 1 goes by container ids and no such container is there"
            for key, one in state.allocations.items()
            if one.cpus and key not in known
        ]
    return Losses(tuple(lost), tuple(_records(state)))


def losses_to_memory(state: State) -> Losses:
    """What a `memory_manager_state` alone does not hold."""
    lost = [
        f"CPUs {one.cpus} of {named(state.pods, key)}" for key, one in state.allocations.items() if one.cpus
    ]
    return Losses((*lost, *_resizes(state), *_unsized(state)), tuple(_records(state)))


def losses_from_kubelet(files: Mapping[RowKind, bytes], state: State, node: Node | None) -> Losses:
    """What a checkpoint does not keep of the kubelet's files, where it would not say the same."""
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
    """A node of which nothing is known, good for taking over allocations as they are."""
    topology = Topology(online=CPUSet(), cores=(), sockets=(), nodes=(), caches=())
    return Node(topology, Options(memory_manager_policy=MemoryManagerPolicy.STATIC), CPUSet())


def _resizes(state: State) -> Iterable[str]:
    for key, one in state.allocations.items():
        if one.resize is not None:
            yield (
                f"the resize of {named(state.pods, key)} under way, from CPUs {one.resize.before.cpus or '-'} "
                f"to {one.resize.after.cpus or '-'}"
            )


def _unsized(state: State) -> Iterable[str]:
    """Memory nodes without an amount: the kubelet's file has nothing else."""
    for key, one in state.allocations.items():
        if _nodes(one) != one.mems:
            name = named(state.pods, key)
            yield f"that {name} is bound to NUMA nodes {one.mems or 'none'}, which are not those of its memory"


def _nodes(held: Allocation) -> NodeMask:
    nodes = NO_NODES
    for block in held.memory:
        nodes |= block.nodes
    return nodes


def _records(state: State) -> Iterable[str]:
    if state.pods or state.containers:
        yield (
            f"the records of {len(state.pods)} pods and {len(state.containers)} containers: "
            "a kubelet knows them from the cluster and the runtime"
        )
    hints = sum(1 for one in state.allocations.values() if one.affinity or not one.preferred)
    if hints:
        yield f"the merged hints of {hints} promises"
