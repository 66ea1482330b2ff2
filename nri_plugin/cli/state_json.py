"""`nri-pin state show -o json`: sets are kernel lists, what is not known is null."""

import json
from collections.abc import Sequence
from typing import Any

from nri_plugin.cli.state_agent import AgentNow
from nri_plugin.cli.state_rows import Row, Wanted, ids, shared_pool, waiting
from nri_plugin.cli.state_source import Seen, is_observed
from nri_plugin.host.checkpoint_format import Checkpoint
from nri_plugin.host.checkpoint_rows import NodeFacts
from nri_plugin.nodemask import NodeMask
from nri_plugin.policy.alignment import Alignment
from nri_plugin.state import MemoryBlock, Resize, State, owner_of


def show_json(
    source: str,
    checkpoint: Checkpoint,
    found: Seen,
    rows: Sequence[Row],
    wanted: Wanted,
    now: AgentNow | None = None,
) -> str:
    """Everything `state show` knows; `now` is None where a file is shown that no agent works on."""
    state, facts = checkpoint.state, checkpoint.facts
    pool = shared_pool(found)
    report = {
        "file": source,
        "generation": checkpoint.generation,
        "writer": checkpoint.writer,
        "observed": is_observed(source),
        "machine": found.machine,
        "agent": None if now is None else now.facts(),
        "node": None if facts is None else node_facts(facts),
        "exclusive": str(state.exclusive),
        "shared_pool": None if pool is None else str(pool),
        "containers": [container_facts(state, row) for row in rows],
        "waiting": [] if wanted else [waiting_facts(state, key) for key in waiting(state)],
    }
    return json.dumps(report, indent=2)


def node_facts(facts: NodeFacts) -> dict[str, Any]:
    """What the checkpoint says of its machine."""
    return {
        "online": str(facts.online),
        "reserved": str(facts.reserved),
        "numa_nodes": {str(number): str(cpus) for number, cpus in facts.numa_nodes},
        "memory_nodes": str(facts.memory_nodes),
    }


def container_facts(state: State, row: Row) -> dict[str, Any]:
    """One container."""
    record, pod, allocation, at = row.record, row.pod, row.allocation, row.footprint
    return {
        "pod_uid": record.pod_uid,
        "namespace": pod.namespace if pod else None,
        "pod": pod.name if pod else None,
        "qos": pod.qos if pod else None,
        "container": record.name,
        "id": record.id,
        "phase": record.phase,
        "kind": row.kind,
        "container_kind": row.container_kind,
        "cpus": str(allocation.cpus),
        "mems": str(allocation.mems),
        "cpuset": None if row.cpus is None else str(row.cpus),
        "cores": None if at is None else ids(at.cores),
        "sockets": None if at is None else ids(at.sockets),
        "numa_nodes": None if row.numa_nodes is None else str(row.numa_nodes),
        "uncore_caches": None if at is None else ids(at.uncore_caches),
        "aligned": None if at is None else aligned_facts(at.aligned),
        "lost": str(row.lost),
        "cpu_milli": allocation.cpu_milli,
        "memory": [_block(block) for block in allocation.memory],
        "resize": _resize(allocation.resize),
        "hint": _container_hint(state, row),
        "pod_hint": _hint(pod.affinity, preferred=pod.affinity_preferred) if pod else None,
        "unplaced": record.unplaced,
        "cgroup": {"parent": record.cgroup.parent, "path": record.cgroup.path},
    }


def aligned_facts(aligned: Alignment) -> dict[str, bool]:
    """The four levels."""
    return {
        "numa_node": aligned.numa_node,
        "socket": aligned.socket,
        "uncore_cache": aligned.uncore_cache,
        "whole_cores": aligned.whole_cores,
    }


def waiting_facts(state: State, key: str) -> dict[str, Any]:
    """A promise without a container."""
    pod_uid, container = owner_of(key)
    allocation = state.allocations[key]
    return {
        "pod_uid": pod_uid,
        "container": container,
        "cpus": str(allocation.cpus),
        "mems": str(allocation.mems),
    }


def _container_hint(state: State, row: Row) -> dict[str, Any] | None:
    """The merged hint that the container was placed by; None where nobody had a say."""
    allocation = state.allocation_of(row.record)
    if allocation is None:
        return _hint(row.record.affinity, preferred=row.record.affinity_preferred)
    return _hint(allocation.affinity, preferred=allocation.preferred)


def _hint(nodes: NodeMask | None, *, preferred: bool) -> dict[str, Any] | None:
    """A merged hint; no NUMA nodes are all of them."""
    return None if nodes is None else {"numa_nodes": str(nodes), "preferred": preferred}


def _block(block: MemoryBlock) -> dict[str, Any]:
    return {"numa_nodes": str(block.nodes), "resource": block.resource, "size_bytes": block.size_bytes}


def _resize(resize: Resize | None) -> dict[str, Any] | None:
    if resize is None:
        return None
    return {
        name: {
            "cpus": str(size.cpus),
            "cpu_milli": size.cpu_milli,
            "memory": [_block(one) for one in size.memory],
        }
        for name, size in (("before", resize.before), ("after", resize.after))
    }
