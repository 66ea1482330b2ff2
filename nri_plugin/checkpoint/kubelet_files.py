"""The state files of the kubelet's CPU and Memory Managers: read, and judged as the kubelet does when it starts.

A file carries the 32-bit FNV-1a hash of a one-line rendering of itself. The rendering depends on the version of the file:
the kubelet tries the newest that it knows first, and its final error is about the oldest.

Versions of `cpu_manager_state`: 1 by container id; 2 by pod and container; 3 (PodLevelResourceManagers, Kubernetes 1.36)
also has `podEntries`, the CPUs of pods as wholes; 4 (Kubernetes 1.37) has the fields and the hash of version 2, and the
whole state as JSON text in `data`, with a hash of its own. Versions 1, 2 and 3 of `memory_manager_state` are the same
without containers' ids.

The kubelet refuses to start when one of these checks fails. This agent never refuses to start; the checks tell an operator
who goes back to the kubelet's managers what the kubelet will say.

Source: kubelet v1.36 cpumanager/state/checkpoint.go, memorymanager/state/checkpoint.go, checkpointmanager/checksum;
    cpumanager/policy_static.go (validateState), memorymanager/policy_static.go (validateState, areMachineStatesEqual).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from nri_plugin.model import bits
from nri_plugin.model.bounds import values_in
from nri_plugin.model.errors import NriPinError
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.memory_state import MemoryMachine, memory_state

CPUAssignments = Mapping[str, Mapping[str, CPUSet]]
"""Exclusive CPUs by pod uid, then by container name."""

MemoryAssignments = Mapping[str, Mapping[str, Sequence[MemoryBlock]]]
"""Memory blocks by pod uid, then by container name, in the order they were made."""

NO_PODS: Mapping[str, Any] = MappingProxyType({})


def cpu_state_refusal(
    default: CPUSet,
    assignments: CPUAssignments,
    *,
    online: CPUSet,
    reserved: CPUSet,
    strict: bool,
    pods: Mapping[str, CPUSet] = NO_PODS,
) -> str:
    """Why a static CPU Manager would not start on this state; empty when it would.

    Args:
        default: the shared pool as stored.
        assignments: exclusive CPUs as stored.
        online: all CPUs of the machine.
        reserved: CPUs for the system.
        strict: whether strict-cpu-reservation is on.
        pods: CPUs of pods as wholes, by pod uid. Only their number of CPUs is checked, not where they are.
    """
    # The kubelet takes a file without any CPUs for that of a first start.
    if not default:
        return "default cpuset cannot be empty" if assignments else ""
    shown = f'"{default}"'
    # 1. The reserved CPUs may have changed since.
    both = reserved & default
    if strict and both:
        return f'some of strictly reserved cpus: "{both}" are present in defaultCpuSet: {shown}'
    if not strict and both != reserved:
        return f'not all reserved cpus: "{reserved}" are present in defaultCpuSet: {shown}'
    # 2. No CPU is both exclusive and shared. 3. CPUs may have come or gone since.
    known, expected = default, online - reserved if strict else online
    for pod, by_name in assignments.items():
        for name, cpus in by_name.items():
            if not cpus.isdisjoint(default):
                return f'pod: {pod}, container: {name} cpuset: "{cpus}" overlaps with default cpuset {shown}'
            known |= cpus
    for cpus in pods.values():
        known |= cpus
    if known != expected:
        return f'current set of available CPUs "{expected}" doesn\'t match with CPUs in state "{known}"'
    return ""


StoredMachine = Mapping[str, Mapping[str, Any]]
"""The `machineState` of a file: by NUMA node how many blocks count on it, its group of nodes, and bytes by resource."""


def memory_state_refusal(
    stored: StoredMachine,
    assignments: MemoryAssignments,
    machine: MemoryMachine,
    pods: Mapping[str, Sequence[MemoryBlock]] = NO_PODS,
) -> str:
    """Why a static Memory Manager would not start on this state; empty when it would.

    Totals, group and number of blocks of each node must follow from `machine` and the blocks. Free and allocated
    memory must do so only in sum over the nodes of a group. The blocks of a pod as a whole (`pods`, by pod uid) count
    instead of those of its containers.
    """
    if not stored:
        return "machine state can not be empty when it has memory assignments" if assignments else ""
    wrong = next(_unknown_blocks(stored, assignments), "")
    if wrong:
        return wrong
    blocks = [
        blocks for pod, by_name in assignments.items() if pod not in pods for blocks in by_name.values()
    ] + list(pods.values())
    if _comparable(stored) != _comparable(machine_state(machine, blocks)):
        return "the expected machine state is different from the real one"
    return ""


def order_dependent_nodes(assignments: MemoryAssignments) -> Mapping[int, Sequence[int]]:
    """NUMA nodes on which the kubelet's verdict depends on chance, each with the masks of the blocks on it.

    The kubelet rebuilds the groups of nodes from the blocks, and the last block that it meets decides the group of a
    node. It iterates over a map, so the last one differs from start to start. If all blocks on a node have the same
    mask, the order does not matter.

    Source: kubelet v1.36.2 pkg/kubelet/cm/memorymanager/policy_static.go (validateState).
    """
    masks: dict[int, set[int]] = {}
    for block in (
        block for by_name in assignments.values() for blocks in by_name.values() for block in blocks
    ):
        for node in bits.iterate(block.nodes.mask):
            masks.setdefault(node, set()).add(block.nodes.mask)
    return {node: sorted(several) for node, several in sorted(masks.items()) if len(several) > 1}


def _unknown_blocks(stored: StoredMachine, assignments: MemoryAssignments) -> Iterator[str]:
    for pod, by_name in assignments.items():
        for name, blocks in by_name.items():
            for block in blocks:
                for node in bits.iterate(block.nodes.mask):
                    where = f"(pod: {pod}, container: {name}) the memory assignment uses"
                    if str(node) not in stored:
                        yield f"{where} the NUMA that does not exist"
                    elif block.resource not in stored[str(node)]["memoryMap"]:
                        yield f"{where} memory resource that does not exist"


def machine_state(machine: MemoryMachine, containers: Sequence[Sequence[MemoryBlock]]) -> StoredMachine:
    """The machine as a kubelet would store it with these blocks."""
    state = memory_state(machine, containers)
    free = {name: state.free(name) for name in machine.total}
    return {
        str(node): {
            "numberOfAssignments": state.assignments[node],
            "memoryMap": {
                name: {
                    "total": machine.total[name][node],
                    "systemReserved": machine.reserved[name][node],
                    "allocatable": machine.allocatable[name][node],
                    "reserved": state.allocated.get((node, name), 0),
                    "free": free[name][node],
                }
                for name in sorted(machine.total)
            },
            "cells": list(bits.iterate(state.group[node])),
        }
        for node in sorted(machine.nodes, key=str)
    }


def _comparable(stored: StoredMachine) -> object:
    """A value that is equal for two machine states that the kubelet considers equal."""
    return {
        node: (
            one.get("numberOfAssignments", 0),
            set(one["cells"]),
            {
                name: [amounts.get(key, 0) for key in ("total", "systemReserved", "allocatable")]
                + [_sum(stored, one["cells"], name, key) for key in ("reserved", "free")]
                for name, amounts in one["memoryMap"].items()
            },
        )
        for node, one in stored.items()
    }


def _sum(stored: StoredMachine, cells: Iterable[int], name: str, key: str) -> int:
    """An amount of a resource over the nodes of a group."""
    maps = [stored[str(cell)]["memoryMap"] for cell in cells if str(cell) in stored]
    return sum(amounts[name].get(key, 0) for amounts in maps if name in amounts)


Record = Mapping[str, Any]
"""A state file as parsed, keys in the spelling of the kubelet."""

MOST_VALUES = 1 << 20
"""Of a file that is read; a container has ten."""
CORRUPTED = "checkpoint is corrupted"
CUT_OFF = "unexpected end of JSON input"
OTHER_TYPE = "json: a value is of another type than in any state file"

_KEYS = (
    "policyName",
    "defaultCpuSet",
    "machineState",
    "entries",
    "podEntries",
    "checksum",
    "data",
    "dataChecksum",
)


class UnreadableError(NriPinError):
    """The file does not have this form; the text is the kubelet's."""


class DataError(UnreadableError):
    """`data` of a file is not what its checksum says, or no state."""


def checksum(text: str) -> int:
    """FNV-1a, 32 bits, over the UTF-8 of `text`."""
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a state file.

    Attributes:
        render: the text that is hashed.
        zero_is_valid: whether a checksum of 0 is accepted without a check.
        has_pods: whether the text covers `podEntries`.
    """

    render: Callable[[Record], str]
    zero_is_valid: bool = True
    has_pods: bool = False


def parse(data: bytes) -> Record:
    """The record in a state file. The case of known keys does not matter; other keys are left out.

    Raises:
        UnreadableError: not JSON, or not an object.
    """
    if values_in(data) > MOST_VALUES:
        raise UnreadableError(f"more than {MOST_VALUES} values")
    try:
        text = data.decode()
        found = json.loads(text)
    except json.JSONDecodeError as error:
        ended = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        raise UnreadableError(CUT_OFF if ended else f"not JSON: {error.msg.lower()}") from None
    except RecursionError:
        raise UnreadableError("not JSON: nested too deeply") from None
    except ValueError:
        raise UnreadableError("not UTF-8 text") from None
    if not isinstance(found, dict):
        raise UnreadableError("not a JSON object")
    spelled = {key.lower(): key for key in _KEYS}
    return {spelled[key.lower()]: value for key, value in found.items() if key.lower() in spelled}


def load_refusal(data: bytes, manager: str, policy: str, *, pod_level: bool = False) -> str:
    """Why a kubelet would not start on a state file; empty when it would.

    Args:
        data: the file.
        manager: `cpu` or `memory`.
        policy: the policy the kubelet is configured with.
        pod_level: its feature gate PodLevelResourceManagers.
    """
    try:
        record = verified(parse(data), manager, pod_level=pod_level)
    except UnreadableError as error:
        return str(error)
    return policy_refusal(record, policy)


def policy_refusal(record: Record, policy: str) -> str:
    """Why a kubelet with this policy would not start on a record; empty when it would."""
    stored = record.get("policyName", "")
    if stored != policy:
        return f'configured policy "{policy}" differs from state checkpoint policy "{stored}"'
    return ""


def verified(record: Record, manager: str, *, pod_level: bool) -> Record:
    """The fields that a kubelet of Kubernetes 1.36 uses.

    Args:
        record: a file as parsed.
        manager: `cpu` or `memory`.
        pod_level: the feature gate PodLevelResourceManagers.

    Raises:
        UnreadableError: the record has no form that this kubelet knows; the text is the kubelet's.

    Differs: the kubelet uses podEntries that no checksum covers, where the checksum is that of an older form, or 0; here: they
        are left out. Why: an unverified set could contain CPUs of other pods. Option: none.
    """
    refusal = CORRUPTED
    # From the newest form to the oldest: if none fits, the error about the oldest stays.
    for form in FORMS[manager, pod_level]:
        refusal = _form_refusal(record, form)
        if not refusal:
            return {
                key: value
                for key, value in record.items()
                if key not in _OF_DATA and (form.has_pods or key != "podEntries")
            }
    raise UnreadableError(refusal)


_OF_DATA = ("data", "dataChecksum")


def data_of(record: Record) -> Record | None:
    """The whole state that a kubelet of Kubernetes 1.37 wrote into `data`; None where the record has none.

    Raises:
        DataError: its checksum is wrong, or it is no JSON object. The kubelet falls back to nothing, too.
    """
    text = record.get("data")
    if not text:
        return None
    try:
        # A text that is not Unicode has no hash.
        if record.get("dataChecksum", 0) != data_checksum(text):
            raise DataError(CORRUPTED)
        return parse(text.encode())
    except (AttributeError, ValueError):
        raise DataError(OTHER_TYPE) from None
    except UnreadableError as error:
        raise DataError(str(error)) from None


def data_checksum(text: str) -> int:
    """The hash of `data`."""
    return checksum(f"(string){text}")


def expected_checksum(record: Record, manager: str) -> int | None:
    """The checksum of the newest form that the record has; None if a checksum is right or it has no form."""
    expected = []
    for form in FORMS[manager, bool(record.get("podEntries"))]:
        if not _form_refusal(record, form):
            return None
        try:
            expected.append(checksum(form.render(record)))
        except (UnreadableError, AttributeError, LookupError, TypeError, ValueError):
            continue
    return expected[0] if expected else None


def _form_refusal(record: Record, form: Form) -> str:
    try:
        text = form.render(record)
    except UnreadableError as error:
        return str(error)
    except (AttributeError, LookupError, TypeError, ValueError):
        return OTHER_TYPE
    stored = record.get("checksum", 0)
    if (form.zero_is_valid and stored == 0) or stored == checksum(text):
        return ""
    return CORRUPTED


# The renderings. They have the form of Go's spew: `(*type){Field:(type)value Field:(type)value}`, maps with sorted keys.


def _struct(*fields: tuple[str, str, object]) -> str:
    """A struct of (name, Go type, rendered value)."""
    return f"{{{' '.join(f'{name}:({kind}){value}' for name, kind, value in fields)}}}"


def _map(entries: Mapping[str, Any], show: Callable[[Any], str]) -> str:
    keys = sorted(entries, key=lambda key: key.encode())
    return f"map[{' '.join(f'{key}:{show(entries[key])}' for key in keys)}]"


def _document(name: str, record: Record, *fields: tuple[str, str, object]) -> str:
    head = ("PolicyName", "string", record.get("policyName", ""))
    return f"(*state.{name}){_struct(head, *fields, ('Checksum', 'checksum.Checksum', 0))}"


def _cpu_document(record: Record, name: str, *fields: tuple[str, str, object]) -> str:
    return _document(name, record, ("DefaultCPUSet", "string", record.get("defaultCpuSet", "")), *fields)


def _cpu_entries(record: Record) -> tuple[str, str, str]:
    entries = record.get("entries") or {}
    for pod, containers in entries.items():
        if not isinstance(containers, dict):
            raise UnreadableError(
                "json: cannot unmarshal string into Go struct field CPUManagerCheckpoint.entries."
                f"{pod} of type map[string]string"
            )
    shown = _map(entries, lambda containers: _map(containers, str))
    return "Entries", "map[string]map[string]string", shown


def cpu_v1(record: Record) -> str:
    """The oldest form: CPUs by container id."""
    entries = record.get("entries") or {}
    for pod, cpus in entries.items():
        if not isinstance(cpus, str):
            raise UnreadableError(
                "json: cannot unmarshal object into Go struct field CPUManagerCheckpointV1.entries."
                f"{pod} of type string"
            )
    return _cpu_document(record, "CPUManagerCheckpoint", ("Entries", "map[string]string", _map(entries, str)))


def cpu_v2(record: Record, name: str = "CPUManagerCheckpoint") -> str:
    """The form in use: CPUs by pod and container."""
    return _cpu_document(record, name, _cpu_entries(record))


def _cpu_v2_by_name(record: Record) -> str:
    """The same under the name of its type in a kubelet that knows a newer form."""
    return cpu_v2(record, "CPUManagerCheckpointV2")


def cpu_v3(record: Record) -> str:
    """The form of a kubelet with PodLevelResourceManagers: also CPUs of whole pods."""
    pods = ("PodEntries", "state.PodCPUAssignments", _map(record.get("podEntries") or {}, _pod_cpus))
    return _cpu_document(record, "CPUManagerCheckpoint", _cpu_entries(record), pods)


def _pod_cpus(entry: Mapping[str, str]) -> str:
    members = " ".join(f"{cpu}:{{}}" for cpu in CPUSet.parse(entry.get("cpuSet", "")))
    return _struct(("CPUSet", "cpuset.CPUSet", _struct(("elems", "map[int]struct {}", f"map[{members}]"))))


def memory_v1(record: Record, *pods: tuple[str, str, str]) -> str:
    """The form in use: the machine, and blocks by pod and container."""
    machine = record.get("machineState") or {}
    nodes = " ".join(f"{node}:<*>{_memory_node(machine[node])}" for node in sorted(machine, key=int))
    entries = _map(record.get("entries") or {}, lambda containers: _map(containers, _blocks))
    return _document(
        "MemoryManagerCheckpoint",
        record,
        ("MachineState", "state.NUMANodeMap", f"map[{nodes}]"),
        ("Entries", "state.ContainerMemoryAssignments", entries),
        *pods,
    )


def memory_v2(record: Record) -> str:
    """The form of a kubelet with PodLevelResourceManagers: also blocks of whole pods."""
    pods = _map(
        record.get("podEntries") or {},
        lambda entry: _struct(("MemoryBlocks", "[]state.Block", _blocks(entry.get("memoryBlocks") or []))),
    )
    return memory_v1(record, ("PodEntries", "state.PodMemoryAssignments", pods))


_AMOUNTS = (
    ("TotalMemSize", "total"),
    ("SystemReserved", "systemReserved"),
    ("Allocatable", "allocatable"),
    ("Reserved", "reserved"),
    ("Free", "free"),
)


def _memory_node(node: Mapping[str, Any]) -> str:
    table = _map(node.get("memoryMap") or {}, _memory_amounts)
    return _struct(
        ("NumberOfAssignments", "int", node.get("numberOfAssignments", 0)),
        ("MemoryMap", "map[v1.ResourceName]*state.MemoryTable", table),
        ("Cells", "[]int", _list(node.get("cells") or ())),
    )


def _memory_amounts(amounts: Mapping[str, int]) -> str:
    return f"<*>{_struct(*((name, 'uint64', amounts.get(key, 0)) for name, key in _AMOUNTS))}"


def _blocks(blocks: list[Mapping[str, Any]]) -> str:
    return _list(
        _struct(
            ("NUMAAffinity", "[]int", _list(block.get("numaAffinity") or ())),
            ("Type", "v1.ResourceName", block.get("type", "")),
            ("Size", "uint64", block.get("size", 0)),
        )
        for block in blocks
    )


def _list(values: Iterable[object]) -> str:
    return f"[{' '.join(map(str, values))}]"


FORMS: Mapping[tuple[str, bool], tuple[Form, ...]] = {
    ("cpu", False): (Form(cpu_v2), Form(_cpu_v2_by_name), Form(cpu_v1)),
    ("cpu", True): (Form(cpu_v3, zero_is_valid=False, has_pods=True), Form(cpu_v2), Form(cpu_v1)),
    ("memory", False): (Form(memory_v1),),
    ("memory", True): (Form(memory_v2, zero_is_valid=False, has_pods=True), Form(memory_v1)),
}
"""By manager and PodLevelResourceManagers: the forms that the kubelet tries, in order."""
