"""What `nri-pin state verify` finds wrong, one sentence each."""

import re

from nri_plugin.cli.state_live import Found, look, need_visible
from nri_plugin.cli.state_source import Seen, node_on
from nri_plugin.cpuset import CPUSet
from nri_plugin.host.checkpoint_format import Checkpoint
from nri_plugin.host.checkpoint_rows import NodeFacts
from nri_plugin.nodemask import NodeMask
from nri_plugin.options import Node
from nri_plugin.state import State
from nri_plugin.topology import Topology


def contradictions(state: State, node: Node) -> list[str]:
    """What cannot be true of these promises on that machine."""
    found = state.violations(node)
    found += [
        f"CPUs {allocation.cpus - node.topology.online} of {key} are not online"
        for key, allocation in state.allocations.items()
        if not allocation.cpus <= node.topology.online
    ]
    if not awaiting_agent(state):
        found += [f"{key} is promised CPUs or memory but its pod is not known" for key in _without_pod(state)]
    return [with_names(state, text) for text in found]


def awaiting_agent(state: State) -> int:
    """How many promises were imported and never met by an agent: it would know pods, an import knows none."""
    return 0 if state.pods or state.containers else len(state.allocations)


def live_findings(state: State, node: Node, root: str, *, is_own_tree: bool = False) -> tuple[str, list[str]]:
    """How many cgroups were compared, and what differs.

    Args:
        state: the promises.
        node: the machine.
        root: of the cgroup tree.
        is_own_tree: whether it is known that this is their tree; else one without a single one of the containers
            is taken for another one's.

    Raises:
        HostError: there is no cpuset tree, or it is another one's.
    """
    looked = look(Seen(state, node, has_parts=False, machine=""), root)
    if not is_own_tree:
        need_visible(looked, root)
    if not looked:
        return "nothing to compare, no container runs", []
    found = [text for one in looked for text in differences(one)]
    return f"{len(looked)} of running containers compared below {root}", found


def findings(checkpoint: Checkpoint, topology: Topology, cgroup_root: str) -> list[str]:
    """All of it, judged by that machine and these cgroups.

    Raises:
        HostError: there is no cpuset tree.
    """
    node = node_on(topology, checkpoint.facts)
    _, live = live_findings(checkpoint.state, node, cgroup_root, is_own_tree=True)
    return contradictions(checkpoint.state, node) + live


def differences(one: Found) -> list[str]:
    """What is otherwise in a cgroup than promised."""
    name = one.row.name
    if one.problem:
        return [f"{name}: {one.problem}"]
    found = []
    if one.has_other_cpus:
        found.append(f"{name} runs on CPUs {one.cpus or 'none'} and should run on {one.wanted_cpus}")
    if one.has_other_mems:
        found.append(
            f"{name} has its memory on NUMA nodes {one.mems or 'none'} and should have it on {one.wanted_mems}"
        )
    return found


def judging_node(checkpoint: Checkpoint) -> Node:
    """The machine as the checkpoint knows it."""
    return (checkpoint.facts or anything_goes(checkpoint.state)).as_node()


def anything_goes(state: State) -> NodeFacts:
    """A machine that has whatever was promised and one CPU more: only contradictions are left to find."""
    mems = 0
    for allocation in state.allocations.values():
        mems |= allocation.mems.mask
    online = CPUSet(state.exclusive.mask | 1 << state.exclusive.mask.bit_length())
    memory = NodeMask(mems)
    return NodeFacts(online, CPUSet(), tuple((number, CPUSet()) for number in memory), memory)


def with_names(state: State, text: str) -> str:
    """The text with namespace and pod in place of the uids of pods that are known."""

    def name(match: re.Match[str]) -> str:
        pod = state.pods.get(match[1])
        return f"{pod.namespace}/{pod.name}/" if pod else match[0]

    return re.sub(r"(?<![^\s])([^\s/]+)/", name, text)


def _without_pod(state: State) -> list[str]:
    return [key for key in state.allocations if key.partition("/")[0] not in state.pods]
