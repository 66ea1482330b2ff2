"""`nri-pin state show`: every container with its CPUs and memory nodes, and where these lie on the machine.

Three forms: a table of pods that fits the terminal, a wide table with one line for each container, and JSON, in which
sets are kernel lists and unknown values are null.
"""

import os
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import click

from nri_plugin.checkpoint.format import Checkpoint
from nri_plugin.cli.output import (
    FOR_PROGRAMS,
    columns,
    echo,
    fold_all,
    format_option,
    render,
    table,
    to_run,
)
from nri_plugin.cli.state.rows import (
    StateRow,
    Wanted,
    block_of,
    ids,
    is_placed_singly,
    kept_by_ended,
    kind_of,
    rows_of,
    shared_pool,
    waiting,
)
from nri_plugin.cli.state.source import (
    NO_RUNTIME,
    AgentNow,
    FailedError,
    Seen,
    WrongUsageError,
    agent_now,
    file_option,
    is_observed,
    load_checkpoint,
    look_closer,
    machine_option,
    path_of,
    root_option,
    runtime_facts,
    seen,
    state_dir_option,
    usage_errors,
)
from nri_plugin.core.pods import MOST_CONTAINERS
from nri_plugin.model.records import Kind, MemoryBlock, Phase, Resize, allocation_key, named, owner_of, pod_of
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.alignment import CPUAlignment


def report(
    source: str,
    checkpoint: Checkpoint,
    found: Seen,
    rows: Sequence[StateRow],
    wanted: Wanted,
    now: AgentNow | None = None,
) -> dict[str, Any]:
    """Everything `state show` knows; `now` is None where a file is shown that no agent works on."""
    state, facts = checkpoint.state, checkpoint.facts
    return {
        "file": source,
        "generation": checkpoint.generation,
        "writer": checkpoint.writer,
        "observed": is_observed(source),
        "machine": found.machine,
        "agent": None if now is None else {"answers": now.answers, "runtime": runtime_facts(now.runtime)},
        "node": None
        if facts is None
        else {
            "online": facts.online,
            "reserved": facts.reserved,
            "numa_nodes": dict(facts.numa_nodes),
            "memory_nodes": facts.memory_nodes,
        },
        "exclusive": state.exclusive,
        "shared_pool": shared_pool(found),
        "pods": [pod_facts(state, uid, now) for uid in pod_uids(state, rows, wanted)],
        "containers": [container_facts(state, row) for row in rows],
        "waiting": [] if wanted else [waiting_facts(state, key) for key in waiting(state)],
        "kept": [
            waiting_facts(state, key) | {"cpus": cpus} for key, cpus in _kept(state, rows, wanted).items()
        ],
    }


def pod_uids(state: State, rows: Sequence[StateRow], wanted: Wanted) -> list[str]:
    """The pods of the rows, and without a selection those that hold something and have no container."""
    uids = [row.record.pod_uid for row in rows]
    return list(dict.fromkeys(uids if wanted else [*uids, *map(pod_of, state.allocations)]))


def pod_facts(state: State, uid: str, now: AgentNow | None) -> dict[str, Any]:
    """One pod: what it owns as a whole, and whether it runs in part.

    `incomplete` is null where the pod is complete, and where no agent answers.
    """
    pod, block = state.pods.get(uid), block_of(state, uid)
    part = next((one for one in now.incomplete if one.pod_uid == uid), None) if now else None
    return {
        "pod_uid": uid,
        "namespace": pod.namespace if pod else None,
        "pod": pod.name if pod else None,
        "qos": pod.qos if pod else None,
        "is_admitted_as_a_whole": bool(pod and pod.is_admitted),
        "is_container_by_container": is_placed_singly(state, uid),
        "block": None
        if block is None
        else {
            "cpus": block.allocation.cpus,
            "pod_shared_pool": block.shared_pool,
            "mems": block.allocation.mems,
            "cpu_milli": block.allocation.cpu_milli,
            "memory": [_block(one) for one in block.allocation.memory],
        },
        "incomplete": part,
    }


def container_facts(state: State, row: StateRow) -> dict[str, Any]:
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
        "cpus": "" if row.is_ended else allocation.cpus,
        "kept_cpus": row.kept,
        "is_pod_shared": allocation.is_pod_shared,
        "mems": allocation.mems,
        "cpuset": row.cpus,
        "cores": None if at is None else ids(at.cores),
        "sockets": None if at is None else ids(at.sockets),
        "numa_nodes": row.numa_nodes,
        "uncore_caches": None if at is None else ids(at.uncore_caches),
        "aligned": at and at.aligned,
        "lost": row.lost,
        "cpu_milli": allocation.cpu_milli,
        "memory": [_block(block) for block in allocation.memory],
        "resize": _resize(allocation.resize),
        "hint": _container_hint(state, row),
        "pod_hint": _hint(pod.affinity, preferred=pod.affinity_preferred) if pod else None,
        "unplaced": record.unplaced,
        "cgroup": record.cgroup,
    }


def waiting_facts(state: State, key: str) -> dict[str, Any]:
    """An allocation without a container."""
    pod_uid, container = owner_of(key)
    allocation, pod = state.allocations[key], state.pods.get(pod_uid)
    return {
        "pod_uid": pod_uid,
        "namespace": pod.namespace if pod else None,
        "pod": pod.name if pod else None,
        "container": container,
        "kind": kind_of(pod, container),
        "cpus": allocation.cpus,
        "is_pod_shared": allocation.is_pod_shared,
        "mems": allocation.mems,
    }


def _kept(state: State, rows: Sequence[StateRow], wanted: Wanted) -> dict[str, CPUSet]:
    """The CPUs that init containers keep which are over: of all pods, or of those of the rows."""
    shown = {row.record.pod_uid for row in rows}
    return {key: cpus for key, cpus in kept_by_ended(state).items() if not wanted or pod_of(key) in shown}


def _container_hint(state: State, row: StateRow) -> dict[str, Any] | None:
    """The merged hint of the container; None where no hint provider took part."""
    allocation = state.allocation_of(row.record)
    if allocation is None:
        return _hint(row.record.affinity, preferred=row.record.affinity_preferred)
    return _hint(allocation.affinity, preferred=allocation.preferred)


def _hint(nodes: NodeMask | None, *, preferred: bool) -> dict[str, Any] | None:
    """A merged hint; no NUMA nodes are all of them."""
    return None if nodes is None else {"numa_nodes": nodes, "preferred": preferred}


def _block(block: MemoryBlock) -> dict[str, Any]:
    return {"numa_nodes": block.nodes, "resource": block.resource, "size_bytes": block.size_bytes}


def _resize(resize: Resize | None) -> dict[str, Any] | None:
    if resize is None:
        return None
    return {
        name: {
            "cpus": size.cpus,
            "cpu_milli": size.cpu_milli,
            "memory": [_block(one) for one in size.memory],
        }
        for name, size in (("before", resize.before), ("after", resize.after))
    }


HEAD = ("CONTAINER", "KIND", "COUNT", "CPUS", "CORES", "NUMA", "CACHE", "MEMS", "ALIGNED")
WIDE_HEAD = (
    "NAMESPACE",
    "POD",
    "CONTAINER",
    "ID",
    "PHASE",
    "QOS",
    "KIND",
    "REQUEST",
    "COUNT",
    "CPUS",
    "CORES",
    "SOCKET",
    "NUMA",
    "CACHE",
    "MEMS",
    "ALIGNED",
)
INDENT = 13
UNKNOWN = "?"
NOTHING = "-"
LONGEST_POOL = 14
"""A shared pool that is longer is spelled once, below the table."""
OBSERVED = "observed     nothing of this is carried out: the agent runs with --observe"

LEGEND = "N memory and CPUs on one NUMA node, S one socket, U one uncore cache, C whole cores"


def show_text(
    source: str,
    checkpoint: Checkpoint,
    found: Seen,
    rows: Sequence[StateRow],
    wanted: Wanted,
    width: int,
    now: AgentNow | None = None,
) -> str:
    """The table, each pod's own line before its containers; sentences in `width` columns."""
    head, *texts = table([HEAD, *map(_cells, rows)])
    lines = [head]
    pairs = zip(rows, texts, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[0].record.pod_uid):
        members = list(group)
        lines += [pod_line(found.state, members[0][0]), *(text for _, text in members)]
    shown = {row.record.pod_uid for row in rows}
    bare = [uid for uid in pod_uids(found.state, rows, wanted) if uid not in shown]
    lines += fold_all(block_lines(found.state, bare), width, 2)
    lines += fold_all(notes(found.state, rows, wanted, now), width, 2)
    return "\n".join([*lines, "", *fold_all(facts(source, checkpoint, found), width, INDENT)])


def show_wide(
    source: str,
    checkpoint: Checkpoint,
    found: Seen,
    rows: Sequence[StateRow],
    wanted: Wanted,
    now: AgentNow | None = None,
) -> str:
    """One line for each container, of any length."""
    lines = table([WIDE_HEAD, *map(_wide_cells, rows)])
    lines += block_lines(found.state, pod_uids(found.state, rows, wanted)) + notes(
        found.state, rows, wanted, now
    )
    return "\n".join([*lines, "", *facts(source, checkpoint, found)])


def pod_line(state: State, row: StateRow) -> str:
    """The pod of a row, and what it owns as a whole."""
    parts = [f"{row.namespace}/{row.pod_name}", str(row.pod.qos) if row.pod else "(this pod is not known)"]
    block = block_of(state, row.record.pod_uid)
    if block is not None:
        parts.append(block.text)
    if is_placed_singly(state, row.record.pod_uid):
        parts.append(f"container by container, for it has more than {MOST_CONTAINERS}")
    return "  ".join(parts)


def block_lines(state: State, uids: Sequence[str]) -> list[str]:
    """What these pods own as wholes, a line each."""
    blocks = ((uid, block) for uid in uids if (block := block_of(state, uid)) is not None)
    return [f"pod: {named(state.pods, allocation_key(uid, ''))}: {block.text}" for uid, block in blocks]


def notes(state: State, rows: Sequence[StateRow], wanted: Wanted, now: AgentNow | None = None) -> list[str]:
    """Irregularities, one line each."""
    shown = {row.record.pod_uid for row in rows}
    lines = [
        f"{one.namespace}/{one.pod}: {one}"
        for one in (now.incomplete if now else ())
        if not wanted or one.pod_uid in shown
    ]
    lines += [f"quiet: {now.quiet}"] if now and now.quiet and not wanted else []
    lines += [f"unplaced: {row.name}: {row.record.unplaced}" for row in rows if row.record.unplaced]
    lines += [
        f"lost: {row.name}: of its CPUs {row.allocation.cpus} those offline or out of reach are {row.lost}, "
        "they stay allocated to it"
        for row in rows
        if row.lost
    ]
    lines += [
        f"resize under way: {row.name}: from CPUs {row.allocation.resize.before.cpus or NOTHING} "
        f"to {row.allocation.resize.after.cpus or NOTHING}"
        for row in rows
        if row.allocation.resize
    ]
    lines += [
        f"kept: {named(state.pods, key)} has ended: CPUs {cpus} stay allocated until its pod ends, "
        "and other pods cannot have them"
        for key, cpus in _kept(state, rows, wanted).items()
    ]
    return lines + [_not_created(state, key) for key in ([] if wanted else waiting(state))]


def _not_created(state: State, key: str) -> str:
    uid, container = owner_of(key)
    held, pod = state.allocations[key], state.pods.get(uid)
    kind = kind_of(pod, container)
    mark = f" ({kind})" if kind not in {None, Kind.APP} else ""
    where = "pod shared pool, CPUs" if held.is_pod_shared else "CPUs"
    return f"allocated, not created: {named(state.pods, key)}{mark}: {where} {held.cpus or NOTHING}"


def facts(source: str, checkpoint: Checkpoint, found: Seen) -> list[str]:
    """Facts about the whole node."""
    pool, known = shared_pool(found), checkpoint.facts
    return [
        f"exclusive    {str(found.state.exclusive) or NOTHING}",
        f"shared pool  {UNKNOWN if pool is None else str(pool) or NOTHING}",
        f"reserved     {UNKNOWN if known is None else str(known.reserved) or NOTHING}",
        *([f"aligned      {LEGEND}"] if found.has_parts else []),
        f"machine      {found.machine}",
        *([OBSERVED] if is_observed(source) else []),
        f"checkpoint   {source}, generation {checkpoint.generation}, written by nri-pin {checkpoint.writer}",
    ]


def aligned_letters(aligned: CPUAlignment) -> str:
    """A letter for each level, `-` where it is not aligned."""
    levels = (aligned.numa_node, aligned.socket, aligned.uncore_cache, aligned.whole_cores)
    return "".join(letter if is_so else "-" for letter, is_so in zip("NSUC", levels, strict=True))


def marked_name(row: StateRow) -> str:
    """The container's name, with its kind and phase unless it is a running app container."""
    name = row.record.name or row.record.id[:12]
    marks = [
        *([str(row.container_kind)] if row.container_kind not in {None, Kind.APP} else []),
        *([str(row.record.phase)] if row.record.phase is not Phase.RUNNING and not row.is_ended else []),
    ]
    return f"{name} ({', '.join(marks)})" if marks else name


def cells_of(row: StateRow, *, spell_pool: bool) -> tuple[str, ...]:
    """The number of CPUs, the CPUs, cores, NUMA nodes, caches, memory nodes and alignment of a row."""
    at = row.footprint
    if row.is_ended and not row.kept:
        return (NOTHING,) * 7
    mems = str(row.allocation.mems) or NOTHING
    cpus = UNKNOWN if row.cpus is None else str(row.cpus) or NOTHING
    is_pool = row.cpus is not None and not row.kept and row.cpus != row.allocation.in_force - row.lost
    numa = UNKNOWN if row.numa_nodes is None else str(row.numa_nodes) or NOTHING
    cores, caches = (UNKNOWN, UNKNOWN) if at is None else (ids(at.cores), ids(at.uncore_caches))
    if is_pool and not spell_pool and len(cpus) > LONGEST_POOL:
        cpus, cores, caches = "pool", "pool", "pool" if len(caches) > LONGEST_POOL else caches
    return (
        UNKNOWN if row.cpus is None else str(len(row.cpus)),
        cpus,
        cores or NOTHING,
        numa,
        caches or NOTHING,
        mems,
        UNKNOWN if at is None else aligned_letters(at.aligned),
    )


def _cells(row: StateRow) -> tuple[str, ...]:
    return f"  {marked_name(row)}", row.kind, *cells_of(row, spell_pool=False)


def _wide_cells(row: StateRow) -> tuple[str, ...]:
    count, cpus, cores, numa, caches, mems, aligned = cells_of(row, spell_pool=True)
    record = row.record
    kind = row.container_kind
    return (
        row.namespace,
        row.pod_name,
        record.name if kind in {None, Kind.APP} else f"{record.name} ({kind})",
        record.id[:12],
        record.phase,
        row.pod.qos if row.pod else UNKNOWN,
        row.kind,
        f"{row.allocation.cpu_milli}m" if row.allocation.cpu_milli else NOTHING,
        count,
        cpus,
        cores,
        NOTHING
        if row.is_ended and not row.kept
        else UNKNOWN
        if row.footprint is None
        else ids(row.footprint.sockets) or NOTHING,
        numa,
        caches,
        mems,
        aligned,
    )


EXAMPLES = """\b
Examples:
  nri-pin state show
  nri-pin state show 'shop/db-*'
  nri-pin state show -o wide
  nri-pin state show -o json | jq '.containers[] | {container, cpus, aligned}'
  nri-pin state show --state ./state.json --machine ./topology-of-that-node.json
"""


@click.command(name="show", epilog=EXAMPLES)
@click.argument("name", default="", metavar="[[NAMESPACE/]POD[/CONTAINER]]")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Only pods of this namespace.")
@click.option(
    "-A",
    "--all-namespaces",
    "_all",
    is_flag=True,
    expose_value=False,
    help="Pods of all namespaces, the default.",
)
@click.option("--pod", default="", metavar="NAME", help="Only this pod, by its name or uid.")
@click.option("-c", "--container", default="", metavar="NAME", help="Only this container, by its name or id.")
@click.option(
    "-w",
    "--wide",
    is_flag=True,
    help="The same as -o wide: one line for each container, with ids, phases, sockets and requests; never folded.",
)
@machine_option
@root_option
@state_dir_option
@file_option
@format_option("text", "wide", "json", "name")
def command(
    name: str,
    namespace: str,
    pod: str,
    container: str,
    *,
    wide: bool,
    machine: str | None,
    root: str | None,
    state_dir: str,
    path: str | None,
    output_format: str,
) -> None:
    """List every container with its CPUs, cores, NUMA nodes, uncore caches and memory nodes, and how they are aligned.

    NAME may hold * and ?. Cores and caches are those of this machine if the checkpoint is about it; for a checkpoint
    from another machine name that with --machine.

    Exit code: 0; 1 when the checkpoint is damaged or no container has such a name; 2 when there is no checkpoint
    or the options are wrong.
    """
    if name:
        parts = name.split("/")
        if len(parts) > 3 or pod or container:
            raise WrongUsageError(f"expected POD, NAMESPACE/POD or NAMESPACE/POD/CONTAINER, found {name}")
        # A name alone is that of a pod; the options name it, too.
        namespace, pod, container = (namespace, name, "") if len(parts) == 1 else (*parts, "")[:3]
    source = path_of(state_dir, path)
    now = agent_now(state_dir) if path is None else None
    if now is not None and now.has_no_runtime and not os.path.exists(source):
        raise WrongUsageError(f"{source}: there is no checkpoint yet, for {NO_RUNTIME}; {look_closer()}")
    checkpoint = load_checkpoint(source)
    with usage_errors():
        found = seen(checkpoint, machine, root, source)
    wanted = Wanted(namespace, pod, container)
    rows = rows_of(found, wanted)
    if output_format in FOR_PROGRAMS:
        echo(render(report(source, checkpoint, found, rows, wanted, now), output_format))
    if wanted and not rows:
        raise FailedError(_no_match(source, len(found.state.containers)))
    if output_format in FOR_PROGRAMS:
        return
    if output_format == "name":
        known = (found.state.pods.get(uid) for uid in pod_uids(found.state, rows, wanted))
        echo("\n".join(f"pod/{record.name}" for record in known if record is not None))
        return
    if wide or output_format == "wide":
        echo(show_wide(source, checkpoint, found, rows, wanted, now))
    else:
        echo(show_text(source, checkpoint, found, rows, wanted, columns(), now))
    if now is not None and now.has_no_runtime:
        echo(f"agent        {NO_RUNTIME}; {look_closer()}")


def _no_match(source: str, count: int) -> str:
    return (
        f"{source}: none of its {count} containers has such a name; "
        f"{to_run('state show')} lists them, and names may hold * and ?"
    )
