"""The agent as the pod of deploy/daemonset.yaml, created by the very runtime that it serves."""

from pathlib import Path

from .laws import check_exclusive, check_laws
from .manifest import AGENT_POD, agent_pod
from .node import Node
from .observe import capabilities
from .pods import burstable, guaranteed


def the_daemonset_s_pod_serves_the_node(node: Node, cpus: int) -> None:
    """It starts with the manifest's mounts and privileges, places pods, and is replaced; needs a node without pods."""
    node.agent.stop()
    joined = node.agent.times_joined()
    agent = node.run(agent_pod(reservedSystemCPUs="0"))
    node.agent.wait_until_joined(joined)
    held = capabilities(node.pid(agent.id))
    node.equal("its pod holds no capability", [held["CapEff"], held["CapPrm"], held["CapBnd"]], [0, 0, 0])
    node.equal("no_new_privs is set", held["NoNewPrivs"], 1)
    shared = node.run(burstable("beside-pod"))
    exclusive = node.run(guaranteed("by-pod", cpus))
    check_exclusive(node, "by-pod/main", cpus)
    check_laws(node)
    own = node.observe(exclusive.id).allowed_cpus
    node.remove(agent)
    joined = node.agent.times_joined()
    agent = node.run(agent_pod(reservedSystemCPUs="0"))
    node.agent.wait_until_joined(joined)
    node.equal(
        "its replacement leaves the exclusive CPUs where they are",
        node.observe(exclusive.id).allowed_cpus,
        own,
    )
    check_laws(node)
    node.equal("neither of them logged a warning", _complaints(), [])
    for pod in (exclusive, shared, agent):
        node.remove(pod)
    node.agent.start()


def _complaints() -> list[str]:
    """What the agent wrote to its pod's log above the level of information."""
    text = Path(f"/out/pods/{AGENT_POD}/agent.log").read_text()
    return [line for line in text.splitlines() if '"level":"info"' not in line]
