"""What a step expects of a container, judged by the kernel, the container's own process and the agent's checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .kernel_side import judge
from .looking import caches_of
from .observe import format_list, node_cpus
from .promises import promises

if TYPE_CHECKING:
    from .player import Player

Json = dict[str, Any]


def expect(player: "Player", step: Json) -> None:
    """Judge an expectation by what the kernel says."""
    where, target = f"line {step['line']}", step["target"]
    if "refused" in step:
        reason = player.refused.get(target, "")
        player.node.expect(
            f"{where}: the CRI error says {step['refused']}", step["refused"] in reason, reason
        )
        return
    identity = player.running().get(target)
    player.node.expect(f"{where}: {target} runs", identity is not None, player.refused.get(target, ""))
    if identity is None:
        return
    seen = player.node.observe(identity)
    cpus = seen.allowed_cpus
    nodes = [number for number, own in node_cpus().items() if own & cpus]
    found = {
        "cpus": format_list(cpus),
        "mems": format_list(seen.allowed_mems),
        "numa_nodes": len(nodes),
        "caches": caches_of(cpus),
    }
    for name, value in found.items():
        if name in step:
            player.node.equal(f"{where}: {name} of {target}", value, step[name])
    player.node.equal(
        f"{where}: cpuset.cpus.effective of {target} says what /proc says", seen.effective_cpus, cpus
    )
    pod, (name,) = player.named(target)
    if "kernel" in step:
        judge(player.node, where, pod, name, step["kernel"])
    if "exclusive" in step:
        _judge_own(player, where, target, step["exclusive"])
    if "devices" in step:
        _judge_devices(player, where, target, step["devices"])


def _judge_own(player: "Player", where: str, target: str, wanted: int) -> None:
    """How many CPUs it has to itself; one with none shares its CPUs with all others that share."""
    node, running = player.node, player.running()
    cpus = {key: node.observe(identity).allowed_cpus for key, identity in running.items()}
    if wanted:
        node.equal(f"{where}: {target} has CPUs to itself", len(cpus[target]), wanted)
        others = {key for key, its in cpus.items() if key != target and its & cpus[target]}
        node.equal(f"{where}: nobody shares the CPUs of {target}", others, set())
        return
    promised = promises(node.agent.state())
    node.expect(f"{where}: {target} was promised none", not promised[running[target]].exclusive)
    own = {key for key, identity in running.items() if identity in promised and promised[identity].exclusive}
    shared = {key: its for key, its in cpus.items() if key not in own}
    differ = {key: format_list(its) for key, its in shared.items() if its != cpus[target]}
    node.equal(f"{where}: all that share have the CPUs of {target}", differ, {})


def _judge_devices(player: "Player", where: str, target: str, wanted: dict[str, list[str]]) -> None:
    """All it has, by its own process; under single-numa-node on one node with its CPUs and memory."""
    node, pid = player.node, player.node.pid(player.running()[target])
    environment, files = player.finder.delivered(wanted)
    has = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    given = sorted(each for each in has if each.startswith("PCIDEVICE_"))
    node.equal(f"{where}: {target} is told of its devices", given, sorted(environment))
    absent = [each for each in files if not Path(f"/proc/{pid}/root{each}").exists()]
    node.equal(f"{where}: {target} has its device files", absent, [])
    if player.plan["config"].get("topologyManagerPolicy") == "single-numa-node":
        seen = node.observe(player.running()[target])
        nodes = {number for number, own in node_cpus().items() if own & seen.allowed_cpus}
        places = player.finder.nodes(wanted)
        node.expect(f"{where}: CPUs and devices of {target} are on one node", places in (set(), nodes),
                    f"CPUs on {format_list(nodes)}, devices on {format_list(places)}")  # fmt: skip
