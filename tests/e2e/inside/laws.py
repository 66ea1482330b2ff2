"""What must be true whenever nothing is under way: told as facts, for every running container."""

from itertools import combinations

from .manifest import AGENT_POD
from .node import Node
from .observe import Observed, format_list, node_cpus
from .promises import Promise, promises


def check_laws(node: Node) -> None:
    """Kernel and checkpoint agree about every running container, and nobody runs on another's exclusive CPUs."""
    promised = promises(node.agent.state())
    seen = {name: node.observe(identity) for name, identity in node.running().items()}
    for name, identity in node.running().items():
        _kernel_agrees(node, name, seen[name], promised.get(identity))
    exclusive = {
        name
        for name, identity in node.running().items()
        if identity in promised and promised[identity].exclusive
    }
    _nobody_overlaps(node, seen, exclusive)


def check_memory_follows_cpus(node: Node, names: list[str]) -> None:
    """The memory of containers with exclusive CPUs is on the NUMA nodes of these CPUs."""
    for name in names:
        seen = node.observe(node.running()[name])
        nodes = {number for number, cpus in node_cpus().items() if cpus & seen.allowed_cpus}
        node.equal(f"the memory of {name} is on the NUMA nodes of its CPUs", seen.allowed_mems, nodes)
        node.equal(f"cpuset.mems.effective of {name} says the same", seen.effective_mems, nodes)


def check_exclusive(node: Node, name: str, count: int) -> None:
    """A container runs on exactly `count` CPUs and no other container on any of them."""
    everybody = {other: node.observe(identity).allowed_cpus for other, identity in node.running().items()}
    own = everybody.pop(name)
    node.equal(f"{name} runs on {count} CPUs", len(own), count)
    for other, cpus in everybody.items():
        node.equal(f"{other} runs on none of the CPUs of {name}", format_list(own & cpus), "")


def _kernel_agrees(node: Node, name: str, seen: Observed, promise: Promise | None) -> None:
    node.expect(f"{name} is in the checkpoint", promise is not None)
    if promise is None:
        return
    wanted = format_list(promise.cpus)
    if not name.startswith(AGENT_POD):  # it may not write its own cgroup, only the one above
        node.equal(f"cpuset.cpus of {name} equals the checkpoint", format_list(seen.file_cpus), wanted)
    node.equal(
        f"cpuset.cpus.effective of {name} equals the checkpoint", format_list(seen.effective_cpus), wanted
    )
    node.equal(f"/proc/PID/status of {name} equals the checkpoint", format_list(seen.allowed_cpus), wanted)
    if promise.mems:
        node.equal(f"memory nodes of {name} equal the checkpoint", seen.allowed_mems, promise.mems)


def _nobody_overlaps(node: Node, seen: dict[str, Observed], exclusive: set[str]) -> None:
    for one, other in combinations(sorted(seen), 2):
        if one in exclusive or other in exclusive:
            both = seen[one].allowed_cpus & seen[other].allowed_cpus
            node.equal(f"{one} and {other} have no CPU in common", format_list(both), "")
