"""What `nri-pin state` says about a checkpoint: as a table, as JSON, as findings."""

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import HostError
from nri_plugin.host.checkpoint_format import Checkpoint
from nri_plugin.host.checkpoint_rows import NodeFacts
from nri_plugin.nodemask import NodeMask
from nri_plugin.options import Node
from nri_plugin.pod_facts import Kind
from nri_plugin.state import Allocation, ContainerRecord, Phase, State

COLUMNS = ("NAMESPACE", "POD", "CONTAINER", "PHASE", "KIND", "CPUS", "NUMA", "MEMS")
FACTS_INDENT = 13
UNKNOWN = "?"
NOTHING = "-"


def show_json(source: str, checkpoint: Checkpoint) -> str:
    """Everything `state show` knows; sets are kernel lists, unknown values null."""
    state, facts = checkpoint.state, checkpoint.facts
    pool = shared_pool(checkpoint)
    report = {
        "file": source,
        "generation": checkpoint.generation,
        "writer": checkpoint.writer,
        "node": None if facts is None else _node_facts(facts),
        "exclusive": str(state.exclusive),
        "shared_pool": None if pool is None else str(pool),
        "containers": [_container_facts(state, record, pool, facts) for record in _in_order(state)],
        "waiting": [_waiting_facts(state, key) for key in _without_container(state)],
    }
    return json.dumps(report, indent=2)


def show_text(source: str, checkpoint: Checkpoint, width: int | None = None) -> str:
    """The containers and, below them, what belongs to nobody in particular.

    Args:
        source: the name of the file.
        checkpoint: what it says.
        width: columns for the containers; where a table is wider, they are told line by line. None for no limit.
    """
    state, facts = checkpoint.state, checkpoint.facts
    pool = shared_pool(checkpoint)
    rows = [_row(state, record, pool, facts) for record in _in_order(state)]
    lines = _table([COLUMNS, *rows])
    if width is not None and max(map(len, lines)) > width:
        lines = [line for row in rows for line in _stacked(row, width)]
    lines += [
        f"unplaced: {_name(state, record)}: {record.unplaced}"
        for record in _in_order(state)
        if record.unplaced
    ]
    lines += [
        f"lost: {_name(state, record)}: of its CPUs {allocation.cpus} those offline are {lost}, they stay promised to it"
        for record in _in_order(state)
        if (allocation := state.allocation_of(record)) and (lost := _lost(allocation, facts))
    ]
    lines += [
        f"kept for a container of {key}: CPUs {state.allocations[key].cpus}"
        for key in _without_container(state)
    ]
    below = [
        f"exclusive    {str(state.exclusive) or NOTHING}",
        f"shared pool  {UNKNOWN if pool is None else str(pool) or NOTHING}",
        f"reserved     {UNKNOWN if facts is None else str(facts.reserved) or NOTHING}",
        f"checkpoint   {source}, generation {checkpoint.generation}, written by nri-pin {checkpoint.writer}",
    ]
    return "\n".join([*lines, "", *(below if width is None else [_folded(line, width) for line in below])])


def findings(checkpoint: Checkpoint, root: str | None, cgroup_root: str | None) -> list[str]:
    """What is wrong with the promises, one sentence each.

    Raises:
        HostError: the machine or the cgroup tree cannot be read.
    """
    state = checkpoint.state
    node = _judging_node(checkpoint, root)
    found = state.violations(node)
    found += [
        f"CPUs {allocation.cpus - node.topology.online} of {key} are not online"
        for key, allocation in state.allocations.items()
        if not allocation.cpus <= node.topology.online
    ]
    found += [f"{key} is promised CPUs or memory but its pod is not known" for key in _without_pod(state)]
    found = [_with_names(state, text) for text in found]
    return found + ([] if cgroup_root is None else _drift(state, node, cgroup_root))


def shared_pool(checkpoint: Checkpoint) -> CPUSet | None:
    """The shared pool at the time of the checkpoint; None when the machine was not recorded."""
    facts = checkpoint.facts
    return None if facts is None else checkpoint.state.shared_pool(facts.as_node())


def _judging_node(checkpoint: Checkpoint, root: str | None) -> Node:
    facts = checkpoint.facts or _anything_goes(checkpoint.state)
    node = facts.as_node()
    if root is None:
        return node
    from nri_plugin.host.sysfs import discover

    return Node(topology=discover(root), options=node.options, reserved=node.reserved)


def _anything_goes(state: State) -> NodeFacts:
    """A machine that has whatever was promised and one CPU more: only contradictions are left to find."""
    mems = 0
    for allocation in state.allocations.values():
        mems |= allocation.mems.mask
    online = CPUSet(state.exclusive.mask | 1 << state.exclusive.mask.bit_length())
    memory = NodeMask(mems)
    return NodeFacts(online, CPUSet(), tuple((number, CPUSet()) for number in memory), memory)


def _drift(state: State, node: Node, cgroup_root: str) -> list[str]:
    from nri_plugin.host.cgroup import Cgroups

    cgroups = Cgroups.open(cgroup_root)
    found = []
    for record in _in_order(state):
        if record.phase is not Phase.RUNNING:
            continue
        wanted = state.desired_cpus(node, record) & node.topology.online
        try:
            actual = cgroups.read_effective(record.cgroup)
        except HostError as error:
            found.append(f"{_name(state, record)}: {error}")
            continue
        if actual is None:
            found.append(f"{_name(state, record)}: {cgroups.missing_error(record.cgroup)}")
        elif actual != wanted:
            found.append(f"{_name(state, record)} runs on CPUs {actual} and should run on {wanted}")
    return found


def _node_facts(facts: NodeFacts) -> dict[str, Any]:
    return {
        "online": str(facts.online),
        "reserved": str(facts.reserved),
        "numa_nodes": {str(number): str(cpus) for number, cpus in facts.numa_nodes},
        "memory_nodes": str(facts.memory_nodes),
    }


def _container_facts(
    state: State, record: ContainerRecord, pool: CPUSet | None, facts: NodeFacts | None
) -> dict[str, Any]:
    pod = state.pods.get(record.pod_uid)
    allocation = state.allocation_of(record) or Allocation()
    lost = _lost(allocation, facts)
    cpuset = allocation.cpus - lost or pool
    return {
        "pod_uid": record.pod_uid,
        "namespace": pod.namespace if pod else None,
        "pod": pod.name if pod else None,
        "qos": pod.qos if pod else None,
        "container": record.name,
        "id": record.id,
        "phase": record.phase,
        "kind": _kind(allocation),
        "container_kind": _container_kind(state, record),
        "cpus": str(allocation.cpus),
        "mems": str(allocation.mems),
        "cpuset": None if cpuset is None else str(cpuset),
        "lost": str(lost),
        "cpu_milli": allocation.cpu_milli,
        "hint": _container_hint(state, record),
        "pod_hint": _hint(pod.affinity, preferred=pod.affinity_preferred) if pod else None,
        "unplaced": record.unplaced,
        "cgroup": {"parent": record.cgroup.parent, "path": record.cgroup.path},
    }


def _container_kind(state: State, record: ContainerRecord) -> Kind | None:
    """What it is in its pod; None where the pod's facts are not known or not kept."""
    pod = state.pods.get(record.pod_uid)
    known = pod.facts.container(record.name) if pod and pod.facts else None
    return known.kind if known else None


def _with_kind(state: State, record: ContainerRecord) -> str:
    """Its name, and what it is where that is no app container."""
    kind = _container_kind(state, record)
    return record.name if kind in {None, Kind.APP} else f"{record.name} ({kind})"


def _container_hint(state: State, record: ContainerRecord) -> dict[str, Any] | None:
    """The merged hint that the container was placed by; None where nobody had a say."""
    allocation = state.allocation_of(record)
    if allocation is None:
        return _hint(record.affinity, preferred=record.affinity_preferred)
    return _hint(allocation.affinity, preferred=allocation.preferred)


def _hint(nodes: NodeMask | None, *, preferred: bool) -> dict[str, Any] | None:
    """A merged hint; no NUMA nodes are all of them."""
    return None if nodes is None else {"numa_nodes": str(nodes), "preferred": preferred}


def _waiting_facts(state: State, key: str) -> dict[str, Any]:
    pod_uid, _, container = key.partition("/")
    allocation = state.allocations[key]
    return {
        "pod_uid": pod_uid,
        "container": container,
        "cpus": str(allocation.cpus),
        "mems": str(allocation.mems),
    }


def _row(
    state: State, record: ContainerRecord, pool: CPUSet | None, facts: NodeFacts | None
) -> tuple[str, ...]:
    pod = state.pods.get(record.pod_uid)
    allocation = state.allocation_of(record) or Allocation()
    cpus = allocation.cpus - _lost(allocation, facts) or pool
    return (
        (pod and pod.namespace) or UNKNOWN,
        (pod and pod.name) or record.pod_uid or UNKNOWN,
        _with_kind(state, record) or record.id[:12],
        record.phase,
        _kind(allocation),
        UNKNOWN if cpus is None else str(cpus) or NOTHING,
        UNKNOWN if cpus is None or facts is None else str(_numa_nodes_of(facts, cpus)) or NOTHING,
        str(allocation.mems) or NOTHING,
    )


def _lost(allocation: Allocation, facts: NodeFacts | None) -> CPUSet:
    """Exclusive CPUs that are offline by what the checkpoint knows of the machine."""
    return CPUSet() if facts is None else allocation.cpus - facts.online


def _kind(allocation: Allocation) -> str:
    return "exclusive" if allocation.cpus else "shared"


def _numa_nodes_of(facts: NodeFacts, cpus: CPUSet) -> NodeMask:
    return NodeMask.from_ids(number for number, members in facts.numa_nodes if members & cpus)


def _in_order(state: State) -> list[ContainerRecord]:
    """Exclusive containers first, then by namespace, pod and container."""

    def place(record: ContainerRecord) -> tuple[bool, str, str, str]:
        pod = state.pods.get(record.pod_uid)
        shared = not (state.allocation_of(record) or Allocation()).cpus
        return shared, pod.namespace if pod else "", pod.name if pod else record.pod_uid, record.name

    return sorted(state.containers.values(), key=place)


def _without_container(state: State) -> list[str]:
    """Allocations that wait for a container to be created again."""
    used = {record.key for record in state.containers.values()}
    return [key for key in state.allocations if key not in used]


def _without_pod(state: State) -> list[str]:
    return [key for key in state.allocations if key.partition("/")[0] not in state.pods]


def _name(state: State, record: ContainerRecord) -> str:
    pod = state.pods.get(record.pod_uid)
    return f"{pod.namespace}/{pod.name}/{record.name}" if pod else f"{record.pod_uid}/{record.name}"


def _with_names(state: State, text: str) -> str:
    """The text with namespace and pod in place of the uids of pods that are known."""

    def name(match: re.Match[str]) -> str:
        pod = state.pods.get(match[1])
        return f"{pod.namespace}/{pod.name}/" if pod else match[0]

    return re.sub(r"(?<![^\s])([^\s/]+)/", name, text)


def _stacked(row: Sequence[str], width: int) -> list[str]:
    """One container on lines of its own, for narrow terminals; a word that is wider than the terminal stays whole."""
    facts = "  ".join(f"{head.lower()} {cell}" for head, cell in zip(COLUMNS[3:], row[3:], strict=True))
    indent = "  "
    lines = textwrap.wrap(
        facts,
        max(width, 20),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return ["/".join(row[:3]), *lines]


def _folded(fact: str, width: int) -> str:
    indent = " " * FACTS_INDENT
    width = max(width, 2 * FACTS_INDENT)
    return textwrap.fill(
        fact, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _table(rows: Sequence[Iterable[str]]) -> list[str]:
    cells = [tuple(row) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
