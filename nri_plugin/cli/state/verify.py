"""`nri-pin state verify`: whether allocations contradict each other, and whether the cgroups hold them.

Nothing is written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import click

from nri_plugin.checkpoint.format import Checkpoint
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.cli.output import FOR_PROGRAMS, echo, format_option, render
from nri_plugin.cli.state.rows import StateRow, Wanted, rows_of
from nri_plugin.cli.state.source import (
    EXIT_FAILED,
    HERE,
    Seen,
    awaiting_agent,
    cgroup_root_here,
    cgroup_root_option,
    file_option,
    is_observed,
    load_checkpoint,
    machine_option,
    named_topology,
    need_same_machine,
    next_start,
    node_on,
    path_of,
    root_option,
    state_dir_option,
    usage_errors,
)
from nri_plugin.core.drift import disturbed
from nri_plugin.core.outdated import overcommitted
from nri_plugin.host.cgroup import Cgroups, ContainerCgroup, container_cgroups, is_empty, is_told, runs_on
from nri_plugin.host.task_affinity import InheritedAffinity, inherited
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import Node
from nri_plugin.model.records import CgroupRef, Phase, named, pod_of
from nri_plugin.model.sets import NO_CPUS, CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.model.violations import violations
from nri_plugin.policy.memory_state import memory_machine


@dataclass(frozen=True, slots=True)
class ObservedCpuset:
    """The cgroup of a running container, and its processes.

    Attributes:
        row: the container.
        cpus: of its processes; None when there is no such cgroup or it cannot be read.
        mems: memory nodes of its processes; None when not known.
        problem: why it could not be read; empty when it could.
        affinity: the CPU affinity of the runtime, where it keeps the processes off some of these CPUs.
    """

    row: StateRow
    cpus: CPUSet | None
    mems: NodeMask | None
    problem: str = ""
    affinity: InheritedAffinity | None = None

    @property
    def wanted_cpus(self) -> CPUSet:
        """The desired CPUs."""
        return self.row.cpus or CPUSet()

    @property
    def wanted_mems(self) -> NodeMask:
        """The desired memory nodes; empty where none were allocated."""
        return self.row.allocation.mems

    @property
    def has_other_cpus(self) -> bool:
        """Whether its CPUs differ from the desired ones."""
        return self.cpus is not None and self.cpus != self.wanted_cpus

    @property
    def has_other_mems(self) -> bool:
        """Whether its memory nodes differ from the desired ones."""
        return bool(self.wanted_mems) and self.mems is not None and self.mems != self.wanted_mems


def look(found: Seen, root: str, wanted: Wanted | None = None) -> list[ObservedCpuset]:
    """The cgroups of all running containers.

    Raises:
        HostError: there is no cpuset tree at `root`.
    """
    cgroups = Cgroups.open(root)
    running = (row for row in rows_of(found, wanted) if row.record.phase is Phase.RUNNING)
    return [_look_at(cgroups, row) for row in running]


def need_visible(looked: Iterable[ObservedCpuset], root: str) -> None:
    """Check that this is the tree of these containers.

    Raises:
        HostError: none of them has its cgroup here.
    """
    looked = list(looked)
    if looked and all(one.cpus is None for one in looked):
        raise HostError(
            root,
            f"none of the {len(looked)} running containers has its cgroup here; mount the host's cgroup tree "
            "and name it with --cgroup-root",
        )


def _look_at(cgroups: Cgroups, row: StateRow) -> ObservedCpuset:
    ref = row.record.cgroup
    try:
        cpus = _cpus(cgroups, ref)
        if cpus is None:
            return ObservedCpuset(row, None, None, str(cgroups.missing_error(ref)))
        return ObservedCpuset(row, cpus, _mems(cgroups, ref), affinity=inherited(cgroups, ref))
    except HostError as error:
        return ObservedCpuset(row, None, None, str(error))


def _cpus(cgroups: Cgroups, ref: CgroupRef) -> CPUSet | None:
    """The CPUs of its processes; in a stand-in, which has no kernel to compute effective sets, those that were written."""
    own = None if cgroups.tree.is_kernel else cgroups.read_cpus(ref)
    return cgroups.read_effective(ref) if own is None else own


def _mems(cgroups: Cgroups, ref: CgroupRef) -> NodeMask | None:
    own = None if cgroups.tree.is_kernel else cgroups.read_mems(ref)
    return cgroups.read_effective_mems(ref) if own is None else own


MOST_NAMED = 4
"""Holders of exclusive CPUs in one sentence."""

NO_FACTS = NodeFacts(CPUSet(), CPUSet(), (), NodeMask())


def contradictions(
    state: State,
    node: Node,
    memory: Mapping[tuple[int, str], int] = MappingProxyType({}),
    *,
    with_lost: bool = True,
) -> list[str]:
    """Contradictions of a state, by itself and on that machine.

    Args:
        state: the allocations and containers.
        node: the machine.
        memory: its allocatable bytes by (NUMA node, resource); empty where that is not known.
        with_lost: also CPUs that their containers have lost, as they are offline or out of reach.
    """
    pods = state.pods
    found = [
        str(replace(one, key=named(pods, one.key), other=named(pods, one.other)))
        for one in violations(node, state)
    ]
    for key, allocation in state.allocations.items():
        lost = allocation.cpus - node.topology.online if with_lost else NO_CPUS
        if offline := lost - node.topology.unreachable:
            found.append(f"CPUs {offline} of {named(pods, key)} are not online")
        if unreachable := lost & node.topology.unreachable:
            found.append(f"CPUs {unreachable} of {named(pods, key)} are not in the cgroup above the pods")
    found += map(str, overcommitted(state, memory))
    if not awaiting_agent(state):
        unknown = (key for key in state.allocations if pod_of(key) not in pods)
        found += [f"{key} has CPUs or memory but its pod is not known" for key in unknown]
    return found


def unplaced(state: State) -> list[tuple[str, str]]:
    """Each living container that does not have what policy would give it, by name, and why."""
    return [
        (named(state.pods, record.key), record.unplaced)
        for record in state.containers.values()
        if record.unplaced and record.phase is not Phase.STOPPED
    ]


def live_findings(state: State, node: Node, root: str, *, is_own_tree: bool = False) -> tuple[str, list[str]]:
    """The number of cgroups that were read, and the differences, also of containers that the checkpoint does not know.

    Args:
        state: the allocations and containers.
        node: the machine.
        root: of the cgroup tree.
        is_own_tree: whether it is known that this is their tree; else one without a single one of the containers
            is taken for another one's.

    Raises:
        HostError: there is no cpuset tree, or it is another one's.
    """
    looked = look(Seen(state, node), root)
    if not is_own_tree:
        need_visible(looked, root)
    found = [text for one in looked for text in differences(one)]
    count, unknown = (0, []) if awaiting_agent(state) else _of_unknown(state, Cgroups.open(root))
    others = f"{count} that the checkpoint does not know looked at" if count else ""
    if not looked and not count:
        return "nothing to compare, no container runs", []
    compared = f"{len(looked)} of running containers compared"
    return f"{', '.join(filter(None, (compared, others)))} below {root}", found + unknown


def _of_unknown(state: State, cgroups: Cgroups) -> tuple[int, list[str]]:
    """How many container cgroups the checkpoint does not know, and those that may run on exclusive CPUs.

    Such a container was created while no agent ran, or the runtime did not report it.
    """
    count, found = 0, []
    for one in container_cgroups(cgroups):
        if is_told(state, one) or is_empty(cgroups, one.path):
            continue
        count += 1
        try:
            cpus = runs_on(cgroups, one.path)
        except HostError as error:
            found.append(str(error))
            continue
        if cpus and (holders := disturbed(state, one.pod_uid, cpus)):
            found.append(_unknown_on(state, one, cpus, holders))
    return count, found


def _unknown_on(state: State, one: ContainerCgroup, cpus: CPUSet, holders: list[str]) -> str:
    pod = state.pods.get(one.pod_uid)
    name = f" ({pod.namespace}/{pod.name})" if pod else ""
    exclusive = ", ".join(
        f"{state.allocations[key].cpus & cpus} of {named(state.pods, key)}" for key in holders[:MOST_NAMED]
    )
    more = f" and {len(holders) - MOST_NAMED} more" if len(holders) > MOST_NAMED else ""
    return (
        f"container {one.container_id} of pod {one.pod_uid}{name} is not in the checkpoint and may run on CPUs {cpus}, "
        f"among them exclusive ones: {exclusive}{more}; a running agent moves it off them"
    )


def findings(checkpoint: Checkpoint, topology: Topology, cgroup_root: str) -> list[str]:
    """All findings but lost CPUs, by that machine and these cgroups.

    Raises:
        HostError: there is no cpuset tree.
    """
    node = node_on(topology, checkpoint.facts)
    _, live = live_findings(checkpoint.state, node, cgroup_root, is_own_tree=True)
    return contradictions(checkpoint.state, node, memory_of(checkpoint, topology), with_lost=False) + live


def differences(one: ObservedCpuset) -> list[str]:
    """The differences between a cgroup and the allocation."""
    name = one.row.name
    if one.problem:
        return [f"{name}: {one.problem}"]
    found = []
    if one.has_other_cpus:
        found.append(f"{name} runs on CPUs {one.cpus or 'none'} and should run on {one.wanted_cpus}")
    if one.affinity is not None and one.affinity.is_narrow:
        found.append(
            f"{name} runs on CPUs {one.affinity.cpus} of {one.affinity.granted}: it has the CPU affinity of the runtime that "
            "started it"
        )
    if one.has_other_mems:
        found.append(
            f"{name} has its memory on NUMA nodes {one.mems or 'none'} and should have it on {one.wanted_mems}"
        )
    return found


def judging_node(checkpoint: Checkpoint) -> Node:
    """The machine as the checkpoint knows it."""
    return (checkpoint.facts or anything_goes(checkpoint.state)).as_node()


def memory_of(checkpoint: Checkpoint, topology: Topology | None) -> Mapping[tuple[int, str], int]:
    """Allocatable bytes by (NUMA node, resource).

    Of another machine than the checkpoint's own it is not known how much is reserved, so all of it counts.
    """
    known = {(number, resource): size for number, resource, size in (checkpoint.facts or NO_FACTS).memory}
    if topology is None or not known:
        return known
    return {
        (number, resource): size
        for resource, by_node in memory_machine(topology).allocatable.items()
        for number, size in by_node.items()
    }


def anything_goes(state: State) -> NodeFacts:
    """A machine that has all allocated CPUs and one more, so that only contradictions are found."""
    mems = 0
    for allocation in state.allocations.values():
        mems |= allocation.mems.mask
    online = CPUSet(state.exclusive.mask | 1 << state.exclusive.mask.bit_length())
    memory = NodeMask(mems)
    return NodeFacts(online, CPUSet(), tuple((number, CPUSet()) for number in memory), memory)


EXAMPLES = """\b
Examples:
  nri-pin state verify
  nri-pin state verify --live || echo see above
  nri-pin state verify --root /host --cgroup-root /host/sys/fs/cgroup
  nri-pin state verify --state ./checkpoint-of-another-node
  nri-pin state verify --as-kubelet /etc/nri-pin/config.yaml
  nri-pin state verify --config ./tomorrow.yaml
"""
OBSERVED = "not compared: the agent runs with --observe and carries nothing out; --live compares all the same"


@click.command(name="verify", epilog=EXAMPLES)
@state_dir_option
@file_option
@root_option
@machine_option
@click.option(
    "--live/--no-live",
    default=None,
    help="Compare the cgroup of every container with its allocation. By default where the cgroups can be seen and the "
    "checkpoint is named by its directory; with --live it is an error when they cannot.",
)
@cgroup_root_option
@click.option(
    "--as-kubelet",
    metavar="CONFIG",
    help="Also list the errors that a kubelet with the options of this configuration would report at its start.",
)
@click.option(
    "--config",
    "config_path",
    metavar="CONFIG",
    help="Also list running placements that this configuration would not have made.",
)
@format_option()
@click.pass_context
def command(
    context: click.Context,
    state_dir: str,
    path: str | None,
    root: str | None,
    machine: str | None,
    live: bool | None,
    cgroup_root: str | None,
    as_kubelet: str | None,
    config_path: str | None,
    output_format: str,
) -> None:
    """Check the checksum, that no allocation contradicts another, and that the cgroups hold the allocations.

    Allocations are judged by the machine as the checkpoint knows it, or by the one of --root or --machine; the options
    of --config and --as-kubelet on that machine, else on this one.

    It says what the agent does with the file at its next start.

    Exit code: 0 sound; 1 something was found, or the checkpoint is damaged; 2 there is no checkpoint, or the
    machine or the cgroups cannot be read.
    """
    source = path_of(state_dir, path)
    checkpoint = load_checkpoint(source)
    wants_live = live if live is not None else None if path is None or cgroup_root else False
    is_only_observed = is_observed(source) and wants_live is None and cgroup_root is None
    with usage_errors():
        found, told = _checked(
            checkpoint, machine, root, cgroup_root, False if is_only_observed else wants_live
        )
        found += _by_configurations(checkpoint, as_kubelet, config_path, machine, root)
    _report(source, checkpoint, found, OBSERVED if is_only_observed else told, output_format)
    context.exit(EXIT_FAILED if found else 0)


def _checked(
    checkpoint: Checkpoint, machine: str | None, root: str | None, cgroup_root: str | None, live: bool | None
) -> tuple[list[str], str]:
    """The findings, and a sentence on how the cgroups were read.

    Args:
        checkpoint: is checked.
        machine: a named one.
        root: of the machine.
        cgroup_root: a named one.
        live: look at the cgroups; None where they can be seen.
    """
    topology, _ = named_topology(machine, root)
    node = judging_node(checkpoint) if topology is None else node_on(topology, checkpoint.facts)
    state = checkpoint.state
    found = contradictions(state, node, memory_of(checkpoint, topology))
    if live is False:
        return found, "not compared"
    is_asked = bool(live or cgroup_root)
    try:
        told, lines = live_findings(state, node, cgroup_root or cgroup_root_here())
    except HostError as error:
        if is_asked:
            raise
        return found, f"not visible, so not compared: {error}"
    return found + lines, told


def _by_configurations(
    checkpoint: Checkpoint,
    as_kubelet: str | None,
    config_path: str | None,
    machine: str | None,
    root: str | None,
) -> list[str]:
    """The findings under other options, on the machine that is named, else on this one.

    Raises:
        WrongUsageError: the checkpoint is about another machine.
    """
    if as_kubelet is None and config_path is None:
        return []
    from nri_plugin.checkpoint.kubelet_export import kubelet_refusals
    from nri_plugin.cli.state.import_export import configured_on
    from nri_plugin.core.outdated import outdated

    topology, name = named_topology(machine, root)
    found: list[str] = []
    for path, judge in ((as_kubelet, kubelet_refusals), (config_path, outdated)):
        if path is not None:
            node = configured_on(path, topology)
            need_same_machine(checkpoint.facts, node.topology, name or HERE)
            found += map(str, judge(node, checkpoint.state))
    return found


def _report(source: str, checkpoint: Checkpoint, found: list[str], cgroups: str, output_format: str) -> None:
    if output_format in FOR_PROGRAMS:
        report = {
            "file": source,
            "generation": checkpoint.generation,
            "cgroups": cgroups,
            "next_start": next_start(source),
            "imported": awaiting_agent(checkpoint.state),
            "findings": found,
            "unplaced": dict(unplaced(checkpoint.state)),
        }
        echo(render(report, output_format))
        return
    state = checkpoint.state
    for line in found:
        echo(line)
    for name, why in unplaced(state):
        echo(f"note: {name} does not have what it asks for: {why}")
    if count := awaiting_agent(state):
        echo(_imported(count))
    verdict = f"{len(found)} finding{'s' * (len(found) != 1)}" if found else "sound"
    echo(
        f"{source}: {verdict}; generation {checkpoint.generation}, {len(state.pods)} pods, "
        f"{len(state.containers)} containers, {len(state.allocations)} allocations"
    )
    echo(next_start(source))
    echo(f"cgroups: {cgroups}")


def _imported(count: int) -> str:
    if count == 1:
        return "1 allocation is imported and waits for the first start of the agent"
    return f"{count} allocations are imported and wait for the first start of the agent"
