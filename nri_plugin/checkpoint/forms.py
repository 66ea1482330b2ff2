"""The forms that hold allocations: our checkpoint and the kubelet's two state files, all versions of each.

A conversion reports everything that the other form cannot hold: allocations, which are lost, and facts that the runtime,
the kubelet or the machine know as well.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from nri_plugin.checkpoint.format import FORMAT, VERSION, Encoder
from nri_plugin.checkpoint.kubelet_files import UnreadableError, parse
from nri_plugin.checkpoint.kubelet_state import cpus_by_id, nodes_of
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.model.options import MemoryManagerPolicy, Node, Options
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State, named
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
        state: the allocations; version 1 holds what `without_newer` keeps of them.
        facts: the machine; None if unknown.
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


NEWER: Mapping[str, Sequence[tuple[str, object, str]]] = {
    "pods": (
        ("facts", None, "the facts of the cluster on pod {}"),
        ("is_admitted", False, "that pod {} was admitted as a whole"),
        ("devices_counted", False, "that the hint of pod {} counts the devices of all its containers"),
        ("limit_milli", 0, "the CPU limit of pod {}"),
        ("sandbox_path", "", "the cgroup of the sandbox of pod {}"),
    ),
    "containers": (
        ("limit_milli", 0, "the CPU limit of container {}"),
        ("affinity", None, "the hint of container {}"),
        ("affinity_preferred", True, "the hint of container {}"),
    ),
    "allocations": (
        ("grown", (), "which CPUs of {} came with a resize"),
        ("is_init", False, "that {} is an init container, whose CPUs later containers of its pod may hold"),
        ("resize", None, ""),
    ),
}
"""Fields that version 1 of a checkpoint lacks: name, default, and the loss where a record has another value.

The loss of a resize is that of an allocation; see `_resizes`.
"""


def without_newer(state: State) -> State:
    """The state with the defaults of all fields that version 1 of a checkpoint lacks."""
    return State(
        **{
            name: {
                key: replace(record, **{field: default for field, default, _ in newer})
                for key, record in getattr(state, name).items()
            }
            for name, newer in NEWER.items()
        }
    )


def losses_to_version_1(state: State, facts: NodeFacts | None = None) -> Losses:
    """The losses when these allocations and the machine become version 1 of a checkpoint."""
    return Losses(tuple(_resizes(state)), tuple(_newer(state, facts)))


def _newer(state: State, facts: NodeFacts | None) -> Iterator[str]:
    for name, newer in NEWER.items():
        for key, record in getattr(state, name).items():
            # A container is named by the key of its allocation; a pod's own key names no container.
            shown = key if name == "pods" else named(state.pods, getattr(record, "key", key))
            yield from dict.fromkeys(
                loss.format(shown)
                for field, default, loss in newer
                if loss and getattr(record, field) != default
            )
    if facts is not None and facts.memory:
        yield "how much memory each NUMA node has: it follows from the machine and the configuration"


def losses_to_cpu(state: State, version: int, *, has_memory_file: bool) -> Losses:
    """The losses when these allocations become a `cpu_manager_state`, beside a `memory_manager_state` or alone."""
    lost = list(_resizes(state)) + list(_unsized(state))
    if not has_memory_file:
        lost += [
            f"memory of {named(state.pods, key)}" for key, one in state.allocations.items() if one.memory
        ]
    if version == 1:
        held = set(cpus_by_id(state))
        known = {record.key for number, record in state.containers.items() if number in held}
        lost += [
            f"CPUs {one.cpus} of {named(state.pods, key)}: version 1 goes by container ids, and there is no such container"
            for key, one in state.allocations.items()
            if one.cpus and key not in known
        ]
    return Losses(tuple(lost), tuple(_records(state)))


def losses_to_memory(state: State) -> Losses:
    """The losses when these allocations become a `memory_manager_state` alone."""
    lost = [
        f"CPUs {one.cpus} of {named(state.pods, key)}" for key, one in state.allocations.items() if one.cpus
    ]
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
        if nodes_of(one.memory) != one.mems:
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
