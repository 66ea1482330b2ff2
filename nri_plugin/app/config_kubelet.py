"""How the sections that the kubelet defines are read, by the kubelet's rules for each.

What a later version brings is known by name and refused, never ignored.
"""

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction

from nri_plugin.app import config_yaml as source
from nri_plugin.app.config_values import amount, check_option_flag, either, unknown, whole_bytes
from nri_plugin.ids import NUMANodeID
from nri_plugin.options import ReservedMemory
from nri_plugin.policy.option_checks import CPU_OPTIONS, GATES, TOPOLOGY_OPTIONS

# Source: the gates of kubelet 1.36 that touch these managers. True: may be set either way.
FEATURE_GATES: Mapping[str, bool] = dict.fromkeys(GATES, True) | {
    "MemoryManager": True,
    "DisableCPUQuotaWithExclusiveCPUs": True,
    "PodLevelResources": True,
    "PodLevelResourceManagers": False,
}

RESERVABLE = ("cpu", "memory", "ephemeral-storage", "pid")
"""What kubeReserved and systemReserved may hold. Source: kubelet, parseResourceList."""

EVICTION_SIGNALS = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "allocatableMemory.available",
    "pid.available",
)

_PERCENTAGE = re.compile(r"[0-9]{1,3}(?:\.[0-9]+)?%\Z")


def reserved(value: source.Value) -> Mapping[str, Fraction]:
    """Amounts by resource. Source: kubelet, parseResourceList."""
    found = source.section(value)
    for name, place in found.keys.items():
        if name not in RESERVABLE:
            raise place.error(f"cannot be reserved here; expected {either(*RESERVABLE)}")
    return {name: amount(entry) for name, entry in found.entries.items()}


def eviction(value: source.Value) -> str | int | None:
    """The hard threshold of free memory: bytes, or the percentage as written; None when it is not among the signals.

    Source: kubelet; a list of thresholds replaces the default ones altogether.
    """
    found = source.section(value)
    for name, place in found.keys.items():
        if name not in EVICTION_SIGNALS:
            raise unknown(place, name, EVICTION_SIGNALS)
    memory = found.entries.get("memory.available")
    if memory is None:
        return None
    written = source.text_or_number(memory)
    return written if _PERCENTAGE.match(written) else whole_bytes(memory)


def cpu_options(value: source.Value) -> Mapping[str, str]:
    """The CPU Manager's options as written, each of them a boolean."""
    found = _options("CPU Manager", value, tuple(CPU_OPTIONS))
    for name, entry in found.entries.items():
        check_option_flag(name, entry)
    return _texts(found)


def topology_options(value: source.Value) -> Mapping[str, str]:
    """The Topology Manager's options as written; its policy none never looks at their values."""
    return _texts(_options("Topology Manager", value, tuple(TOPOLOGY_OPTIONS)))


def _options(manager: str, value: source.Value, known: tuple[str, ...]) -> source.Section:
    found = source.section(value)
    for name, place in found.keys.items():
        if name not in known:
            raise unknown(place, name, known, f'unknown {manager} Policy option: "{name}"')
    return found


def _texts(found: source.Section) -> Mapping[str, str]:
    return {name: source.scalar(entry).text for name, entry in found.entries.items()}


def feature_gates(value: source.Value) -> Mapping[str, bool]:
    """The gates by name; only those that touch CPUs, memory and topology are known."""
    found = source.section(value)
    gates = {}
    for name, entry in found.entries.items():
        if name not in FEATURE_GATES:
            raise unknown(found.keys[name], name, tuple(FEATURE_GATES))
        gates[name] = source.flag(entry)
        if gates[name] and not FEATURE_GATES[name]:
            raise found.keys[name].error("not yet supported by this version; set it to false or remove it")
    return gates


def reserved_memory(value: source.Value) -> tuple[ReservedMemory, ...]:
    """Memory kept for the system, node by node; no node and type twice, no amount of zero."""
    rows: list[ReservedMemory] = []
    for item in source.items(value):
        for row, place in _memory_rows(source.section(item)):
            if any((old.node, old.resource) == (row.node, row.resource) for old in rows):
                raise place.error(
                    f"numaNode {row.node} has {row.resource} twice; add the amounts up in one place"
                )
            rows.append(row)
    return tuple(rows)


def _memory_rows(item: source.Section) -> Iterator[tuple[ReservedMemory, source.Place]]:
    for name, place in item.keys.items():
        if name not in ("numaNode", "limits"):
            raise unknown(place, name, ("numaNode", "limits"))
    if not {"numaNode", "limits"} <= set(item.entries):
        raise item.place.error("needs both numaNode and limits")
    node = NUMANodeID(source.number(item.entries["numaNode"]))
    limits = source.section(item.entries["limits"])
    for resource, entry in limits.entries.items():
        place = limits.keys[resource]
        if resource != "memory" and not resource.startswith("hugepages-"):
            raise place.error("expected memory or hugepages-SIZE")
        size_bytes = whole_bytes(entry)
        if size_bytes == 0:
            raise entry.place.error("zero is nothing to reserve; remove the line")
        yield ReservedMemory(node, resource, size_bytes), place


def memory_node_place(tree: source.Section, node: NUMANodeID) -> source.Place | None:
    """Where reservedMemory of a configuration that has been read names the node."""
    rows = (source.section(item) for item in source.items(tree.entries["reservedMemory"]))
    numbers = (row.entries["numaNode"] for row in rows)
    return next((value.place for value in numbers if source.number(value) == node), None)
