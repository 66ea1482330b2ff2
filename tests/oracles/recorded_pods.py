"""Recorded pods of a kubelet, played to the engine container by container with the facts of their objects."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.core.reuse import donors, reusable_cpus
from nri_plugin.model.options import (
    CPUManagerPolicy,
    MemoryManagerPolicy,
    Node,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.quantity import parse_bytes, parse_cpu_milli
from nri_plugin.model.records import Allocation, Amounts, ContainerFacts, Kind, PodFacts, PodRecord, QOSClass
from nri_plugin.model.refusals import AdmissionRefusal
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.model.violations import violations
from nri_plugin.policy.cpu_policy import reserved_cpus
from nri_plugin.policy.hints import Provider
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Pod as RuntimePod
from nri_plugin.wire.nri.messages import Resources
from tests.builders import container, pod
from tests.topology_rows import topology_of_rows
from tests.vectors.judges.managers import Container, Pod, options_of, same_error, shown_blocks
from tests.vectors.judges.memory import reserved_memory
from tests.vectors.judges.merging import provider_of

Case = Mapping[str, Any]


def topology_of(case: Case, recorded: Case) -> Topology:
    """The machine of the case, with its memory where that was recorded."""
    rows = {node["id"]: node for node in case.get("memory_nodes", ())}
    made = topology_of_rows(
        recorded["cpus"],
        memory_bytes={number: node["memory"] for number, node in rows.items()},
        distances={number: node["distances"] for number, node in rows.items() if node.get("distances")},
    )
    nodes = tuple(
        replace(node, hugepages=tuple(map(tuple, rows.get(node.id, {}).get("hugepages", ()))))
        for node in made.nodes
    )
    return replace(made, nodes=nodes)


def node_of(case: Case, recorded: Case) -> Node:
    """The node with the options of the case."""
    topology = topology_of(case, recorded)
    options = dataclasses.replace(
        options_of(case["options"]),
        topology_manager_policy=TopologyManagerPolicy(case["tm_policy"]),
        topology_manager_scope=TopologyManagerScope(case.get("tm_scope", "container")),
        prefer_closest_numa_nodes=case.get("tm_options", {}).get("prefer-closest-numa-nodes") == "true",
        memory_manager_policy=MemoryManagerPolicy("Static" if "memory_reserved" in case else "None"),
        reserved_memory=tuple(reserved_memory(case)) if "memory_reserved" in case else (),
    )
    listed = CPUSet.parse(case["reserved_cpus"])
    return Node(topology, options, listed or reserved_cpus(topology, options, case["num_reserved"]))


def facts_of(recorded: Pod) -> PodFacts:
    """What the API server says of the pod."""
    qos = QOSClass.GUARANTEED if recorded.guaranteed else QOSClass.BURSTABLE
    containers = tuple(ContainerFacts(one.name, _kind(one), _amounts(one)) for one in recorded.containers)
    return PodFacts(recorded.uid, qos, containers)


def _kind(one: Container) -> Kind:
    if not one.init:
        return Kind.APP
    return Kind.SIDECAR if one.restartable else Kind.INIT


def _amounts(one: Container) -> Amounts:
    return Amounts(
        cpu_request_milli=parse_cpu_milli(one.requests.get("cpu", "0")),
        cpu_limit_milli=parse_cpu_milli(one.limits.get("cpu", "0")),
        memory_request_bytes=parse_bytes(one.requests.get("memory", "0")),
        memory_limit_bytes=parse_bytes(one.limits.get("memory", "0")),
        hugepages=tuple(
            (name, parse_bytes(size)) for name, size in one.requests.items() if name.startswith("hugepages-")
        ),
    )


@dataclass
class Player:
    """Plays recorded steps; `started` also plays the life of each container, as a runtime tells it.

    The kubelet was only asked for admission in these recordings, no container of it ever started. Whole lives are in
    `tests/vectors/judges/lives.py`.
    """

    node: Node
    started: bool = False
    state: State = field(default_factory=State)
    pods: dict[str, RuntimePod] = field(default_factory=dict)

    def tell(self, event: nri.NRIEvent | InformedCreate, devices: Provider = None) -> Decision:
        node = (
            self.node
            if devices is None
            else dataclasses.replace(self.node, hint_providers=(lambda _: devices,))
        )
        decision = decide(node, self.state, event)
        assert violations(node, decision.state) == []
        self.state = decision.state
        return decision

    def add(self, step: Case) -> AdmissionRefusal | None:
        """Why the pod is refused, at its first container, which decides for all; None when it is admitted."""
        recorded = Pod.of(step)
        facts = facts_of(recorded)
        of = pod(recorded.uid, facts.qos)
        self.pods[of.uid] = of
        self.tell(nri.RunPodSandbox(of))
        devices = provider_of(step.get("device_hints")) or None
        for one in facts.containers:
            what = replace(container(of, one.name), resources=resources_of(one.amounts))
            decision = self.tell(InformedCreate(nri.CreateContainer(of, what), facts=facts), devices)
            if decision.refusal is not None:
                return decision.refusal
            if self.started:
                self._live(of, what, ends=one.kind is Kind.INIT)
        return None

    def held(self, uid: str, name: str) -> Allocation:
        return self.state.allocations.get(f"{uid}/{name}", Allocation())

    def _live(self, of: RuntimePod, what: Any, *, ends: bool) -> None:
        for kind in (nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer):
            self.tell(kind(of, what))
        if ends:
            self.tell(nri.StopContainer(of, what))

    def remove(self, uid: str) -> None:
        self.tell(nri.StopPodSandbox(self.pods[uid]))
        self.tell(nri.RemovePodSandbox(self.pods[uid]))


def resources_of(amounts: Amounts) -> Resources:
    """Source: kubelet, MilliCPUToShares."""
    shares = min(max(2, amounts.cpu_request_milli * 1024 // 1000), 262144)
    return Resources(
        cpu_shares=shares,
        memory_limit_bytes=amounts.memory_limit_bytes or None,
        hugepage_limits=tuple(
            (name.removeprefix("hugepages-").removesuffix("i") + "B", size)
            for name, size in amounts.hugepages
        ),
    )


def replay_admission(case: Case, recorded: Case, *, started: bool = False) -> str:
    """What differs first from the recorded kubelet, or nothing."""
    player = Player(node_of(case, recorded), started)
    strict = player.node.reserved if player.node.options.strict_cpu_reservation else CPUSet()
    for number, (step, expect) in enumerate(zip(case["steps"], case["expect"]["steps"], strict=True)):
        wrong = _pod(player, step, expect) if step["op"] == "add" else player.remove(step["pod"])
        default = player.node.topology.online - player.state.exclusive - strict
        if wrong or str(default) != expect["default"]:
            return f"step {number}: {wrong or f'shared pool ours {default} recorded ' + expect['default']}"
    return ""


def _pod(player: Player, step: Case, expect: Case) -> str:
    refusal = player.add(step)
    if refusal is not None:
        player.remove(step["pod"])
        same = not expect["admit"] and refusal.reason == expect["reason"]
        return "" if same else f"ours {refusal}, recorded {expect['reason']!r} {expect['message']}"
    if not expect["admit"]:
        return f"admitted, recorded {expect['reason']} {expect['message']}"
    # Memory of init containers is passed on and given back; what of it is left depends on how far the pod is.
    inits = {one["name"] for one in step.get("init_containers", ()) if not one.get("restartable")}
    for one in expect["containers"]:
        held = player.held(step["pod"], one["container"])
        ours = {"cpuset": str(held.cpus) or None, "blocks": shown_blocks(held.memory) or None}
        told = {"cpuset": one["cpuset"], "blocks": one["blocks"] or None}
        if player.started and one["container"] in inits:
            # Without facts its CPUs are passed on, too.
            ours |= {"blocks": told["blocks"]} if held.is_init else told
        if ours != told:
            return f"ours {ours} recorded {one}"
    return ""


def replay_sequence(case: Case, recorded: Case | None) -> tuple[str, int]:
    """What differs first from the recorded managers, or nothing; and how many containers were compared.

    Played until a step that no runtime tells: a container removed from a pod that goes on, or added to it again.
    """
    node = node_of(case, recorded) if recorded else _memory_node(case)
    player, compared, left = Player(node), 0, {}
    for number, (step, expect) in enumerate(zip(case["steps"], case["expect"]["steps"], strict=False)):
        if step["op"] == "pod_hints":
            continue
        names = left.setdefault(step["pod"], set())
        if step["op"] == "remove_container":
            names.discard(step["container"])
            if not names and step["pod"] in player.pods:
                player.remove(step["pod"])
            continue
        if any(names) or any(kept and kept != _names(player, uid) for uid, kept in left.items()):
            break
        if any("panic" in entry for entry in expect["containers"]):
            break
        wrong = _sequence_pod(player, step, expect)
        if wrong:
            return f"step {number}: {wrong}", compared
        compared += len(expect["containers"])
        if any(entry["error"] for entry in expect["containers"]):
            break  # nothing was rolled back there, and a pod that is refused holds nothing here
        left[step["pod"]] = _names(player, step["pod"])
    return "", compared


def _names(player: Player, uid: str) -> set[str]:
    return {record.name for record in player.state.containers_of(uid)}


def _memory_node(case: Case) -> Node:
    """A machine without a CPU Manager, as the memory recordings have it."""
    rows = {node["id"]: node["memory"] for node in case["memory_nodes"]}
    cpus = [(number, number, 0, number, number) for number in sorted(rows)]
    named = {"reserved_cpus": "", "num_reserved": 0, "options": {}, **case}
    made = node_of(named, {"cpus": cpus})
    return dataclasses.replace(
        made, options=dataclasses.replace(made.options, cpu_manager_policy=CPUManagerPolicy.NONE)
    )


def _sequence_pod(player: Player, step: Case, expect: Case) -> str:
    uid, merges = step["pod"], step["affinity"] == "merge"
    scope = TopologyManagerScope.CONTAINER if merges else TopologyManagerScope.POD
    player.node = dataclasses.replace(
        player.node, options=dataclasses.replace(player.node.options, topology_manager_scope=scope)
    )
    if not merges:
        # a pod whose first container fixed the hint: that is how a container is told where to be
        of = PodRecord(uid, f"sb-{uid}", affinity=NodeMask(step["affinity"] or 0))
        player.state = player.state.with_pod(replace(of, affinity_preferred=bool(step.get("preferred"))))
    refusal = player.add(step)
    failed = next((entry for entry in expect["containers"] if entry["error"]), None)
    if refusal is not None or failed is not None:
        same = failed is not None and same_error(refusal, failed["error"])
        return "" if same else f"ours {refusal}, recorded {failed}"
    for entry in expect["containers"]:
        held = player.held(uid, entry["container"])
        if "cpuset" in entry and (str(held.cpus) or None) != entry["cpuset"]:
            return f"{entry['container']}: ours {held.cpus}, recorded {entry['cpuset']}"
    pod_now = player.state.pods[uid]
    reusable = str(reusable_cpus(player.state, donors(player.state, pod_now, "the next")))
    recorded = expect["containers"][-1].get("reusable_after", reusable) if expect["containers"] else reusable
    if reusable != recorded:
        return f"reusable ours {reusable}, recorded {recorded}"
    after = {
        record.name: shown_blocks(player.state.allocations[record.key].memory)
        for record in player.state.containers_of(uid)
        if record.key in player.state.allocations
    }
    recorded = expect.get("pod_blocks_after", after)
    return "" if after == recorded else f"blocks ours {after}, recorded {recorded}"
