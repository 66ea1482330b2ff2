"""pod_level_admission: whole pods with resources of their own, played through the engine.

The first container of a pod is created when the pod is added; that places all of them. The others are created when the
recording starts them. After an answer that the recordings mark as a fault of the kubelet, the two nodes differ: up to
there answers and hints are compared, then ours have to be sound to the end.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from nri_plugin.checkpoint.format import Encoder, decode
from nri_plugin.checkpoint.kubelet_export import cpu_file, memory_file
from nri_plugin.checkpoint.kubelet_files import load_refusal, parse
from nri_plugin.checkpoint.kubelet_import import CPU_FILE, MEMORY_FILE
from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import creation_context, decide
from nri_plugin.core.hint_providers import OWN, cpus, memory, memory_state_of
from nri_plugin.core.placement import in_scope, question_of, terms_of
from nri_plugin.core.pods import pod_question, pod_terms
from nri_plugin.core.requests import regime_of
from nri_plugin.model.options import Node
from nri_plugin.model.records import Allocation, Amounts, Kind, PodFacts, Regime, allocation_key
from nri_plugin.model.refusals import AdmissionRefusal, RefusalKind
from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.policy.pod_level import has_own_resources, memory_of
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerState
from nri_plugin.wire.nri.messages import Pod as RuntimePod
from tests.builders import container, pod
from tests.oracles.recorded_pods import node_of, resources_of
from tests.vectors.judges.managers import same_error, shown_blocks, shown_hint_sets
from tests.vectors.judges.pod_level import LevelPod
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict

NOTHING = Allocation()
MANAGERS_GATE = "PodLevelResourceManagers"


def judge(document: Document) -> Iterator[Judged]:
    for case in document["cases"]:
        yield judge_case(case, document["topologies"][case["topology"]])


def judge_case(case: Case, recorded: Case) -> Judged:
    if "panic" in case["expect"]:
        return Judged(case["id"], Verdict.REPAIRED, "the reference crashes")
    player = Player(_with_gates(node_of(case, recorded), case.get("gates", {})))
    if str(player.default) != case["expect"]["initial_default"]:
        return Judged(case["id"], Verdict.FAILED, f"at first ours {player.default}")
    repaired = ""
    for number, (step, expect) in enumerate(zip(case["steps"], case["expect"]["steps"], strict=False)):
        wrong = player.play(step, expect)
        wrong = wrong or ("" if repaired else player.compare(step, expect))
        if player.unsound:
            return Judged(case["id"], Verdict.FAILED, f"step {number}: {player.unsound}")
        if not wrong or repaired:
            continue
        repaired = _fault(case, number, expect)
        if not repaired:
            return Judged(
                case["id"], Verdict.FAILED, f"step {number} {step['op']} {step.get('pod', '')}: {wrong}"
            )
        repaired = f"{repaired}: step {number}: {wrong}"
    if repaired:
        return Judged(case["id"], Verdict.REPAIRED, repaired)
    wrong = next(filter(None, map(player.other_file, (CPU_FILE, MEMORY_FILE), (case, case))), "")
    return Judged(case["id"], Verdict.FAILED if wrong else Verdict.PASSED, wrong)


SINCE = {"readmission": {"restart"}, "resize_moves": {"resize"}, "pod_size": {"resize", "restart"}}
"""These faults show in such a step, or after one; others may show in any."""


def _fault(case: Case, number: int, expect: Case) -> str:
    """The fault of the kubelet that explains a difference in this step; empty for none."""
    step = case["steps"][number]
    if _is_lost_in_go(step):
        return "the reference loses an amount that is written as a fraction"
    if "could not restore state" in expect.get("error", ""):
        return "the reference cannot read its state without the gate"
    faults = case.get("fault") or ()
    if "refused_for_nothing" in faults and step["op"] == "add" and expect.get("admit"):
        return ""
    done = {one["op"] for one in case["steps"][: number + 1]}
    is_possible = any(not done.isdisjoint(SINCE.get(fault, done)) for fault in faults)
    return " ".join(faults) if is_possible else ""


def _is_lost_in_go(step: Case) -> bool:
    """Whether an amount of memory is written as a fraction, `1.5Gi`: Go has no whole number for it."""
    told = [step.get("resources") or {}, *step.get("init_containers", ()), *step.get("containers", ())]
    amounts = (
        amount for one in told for kind in ("requests", "limits") for amount in one.get(kind, {}).items()
    )
    return any("." in text for name, text in amounts if name != "cpu")


def _with_gates(node: Node, gates: Mapping[str, bool]) -> Node:
    options = dataclasses.replace(node.options, pod_level_managers=gates.get(MANAGERS_GATE, True))
    return dataclasses.replace(node, options=options)


@dataclass
class Player:
    """Our engine on the recorded node."""

    node: Node
    state: State = field(default_factory=State)
    pods: dict[str, LevelPod] = field(default_factory=dict)
    sandboxes: dict[str, RuntimePod] = field(default_factory=dict)
    messages: dict[tuple[str, str], Container] = field(default_factory=dict)
    unsound: str = ""

    @property
    def default(self) -> CPUSet:
        strict = self.node.reserved if self.node.options.strict_cpu_reservation else NO_CPUS
        return self.node.topology.online - self.state.exclusive - strict

    def tell(self, event: nri.NRIEvent | InformedCreate) -> Decision:
        decision = decide(self.node, self.state, event)
        self.unsound = self.unsound or "; ".join(map(str, violations(self.node, decision.state)))
        self.state = decision.state
        return decision

    def play(self, step: Case, expect: Case) -> str:
        """What differs in the answer to this step, or nothing."""
        uid = step.get("pod", "")
        if step["op"] not in ("add", "restart") and uid not in self.pods:
            return ""  # it was refused
        match step["op"]:
            case "add":
                return self.add(LevelPod.of(step), expect)
            case "remove_pod":
                self.remove(uid)
            case "remove_container":
                self.forget(uid, step["container"])
            case "start":
                self.start(uid, step["container"])
            case "restart":
                return self.restart(step, expect)
            case "resize":
                self.resize(LevelPod.of(step))
        return ""

    def add(self, recorded: LevelPod, expect: Case) -> str:
        of = pod(recorded.uid, recorded.facts.qos)
        self.pods[of.uid], self.sandboxes[of.uid] = recorded, of
        self.tell(nri.RunPodSandbox(of))
        first = recorded.containers[0].name
        hints = self.other_hints(of.uid, first, expect["pod_hints"]) if "pod_hints" in expect else ""
        refusal = self.create(of.uid, first).refusal
        if refusal is not None:
            self.remove(of.uid)
        if (refusal is None) is not expect["admit"]:
            return f"ours {refusal or 'admits'} recorded {expect['reason'] or 'admits'} {expect['message']}"
        return hints or _other_refusal(refusal, expect)

    def resize(self, recorded: LevelPod) -> None:
        """The kubelet asks the runtime for the pod's new size; what the pod has stays, whatever the answer."""
        self.pods[recorded.uid] = recorded
        total = recorded.facts.pod_resources
        asked = resources_of(total) if total else None
        self.tell(nri.UpdatePodSandbox(self.sandboxes[recorded.uid], resources=asked))

    def other_hints(self, uid: str, name: str, told: Mapping[str, Any]) -> str:
        """What the managers hint at for the pod otherwise than recorded, or nothing; asked before it is admitted."""
        facts, of = self.pods[uid].facts, self.sandboxes[uid]
        message = replace(container(of, name), resources=resources_of(_amounts_of(facts, name)))
        known = InformedCreate(nri.CreateContainer(of, message), facts=facts)
        state, record, request = creation_context(self.node, self.state, known)
        if regime_of(self.node.options, record) is Regime.WHOLE:
            terms = pod_terms(pod_question(self.node, state, record, facts, request), facts)
        else:
            _, question = in_scope(question_of(self.node, state, record, request))
            assert question is not None, "no container of the pod was placed before"
            terms = terms_of(question)
        ours = {
            manager: shown_hint_sets(terms.providers[OWN.index(provider)])
            for manager, provider in (("cpu", cpus), ("memory", memory))
        }
        # No preference is told as null, or for memory as an empty map, which also tells that it fits nowhere.
        ours = {manager: ours[manager] or None for manager in told}
        recorded = {manager: hints or None for manager, hints in told.items()}
        return "" if ours == recorded else f"hints ours {ours} recorded {recorded}"

    def create(self, uid: str, name: str) -> Decision:
        facts, of = self.pods[uid].facts, self.sandboxes[uid]
        message = replace(container(of, name), resources=resources_of(_amounts_of(facts, name)))
        decision = self.tell(InformedCreate(nri.CreateContainer(of, message), facts=facts))
        given = getattr(decision.response, "resources", None)
        if given is not None:
            stored = replace(message.resources, cpus=given.cpus, mems=given.mems)
            message = replace(message, resources=stored)
        if decision.refusal is None:
            self.messages[uid, name] = message
        return decision

    def start(self, uid: str, name: str) -> None:
        """The container is created where it is not, starts, and ends at once where it is a plain init container."""
        if (uid, name) not in self.messages and self.pods[uid].facts.container(name):
            self.create(uid, name)
        of, message = self.sandboxes[uid], self.messages[uid, name]
        for kind in (nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer):
            self.tell(kind(of, message))
        known = self.pods[uid].facts.container(name)
        if known is not None and known.kind is Kind.INIT:
            self.tell(nri.StopContainer(of, message))
            self.messages[uid, name] = replace(message, state=ContainerState.STOPPED)

    def remove(self, uid: str) -> None:
        self.tell(nri.StopPodSandbox(self.sandboxes[uid]))
        self.tell(nri.RemovePodSandbox(self.sandboxes[uid]))
        for kept in (self.pods, self.sandboxes):
            kept.pop(uid)
        self.messages = {key: one for key, one in self.messages.items() if key[0] != uid}

    def forget(self, uid: str, name: str) -> None:
        """What the kubelet does when the runtime deletes a container; here an allocation lives as long as its pod.

        Each manager keeps what the pod has as a whole until the last of its own entries is gone.
        """
        self.state = self.state.without_allocation(allocation_key(uid, name))
        whole = allocation_key(uid, "")
        block = self.state.allocations.get(whole)
        if block is None:
            return
        left = [one for key, one in self.state.allocations_of(uid).items() if key != whole]
        if not any(one.mems for one in left):
            block = replace(block, mems=NO_NODES, memory=())
        self.state = self.state.with_allocation(whole, block) if left else self.state.released(uid)

    def restart(self, step: Case, expect: Case) -> str:
        """A new agent on the checkpoint of the old one; it admits no running pod anew."""
        if "gates" in step:
            self.node = _with_gates(self.node, step["gates"])
        before = self.state.allocations
        self.state = decode(b"".join(Encoder().encode(self.state, 1))).state
        running = [one for (uid, _), one in self.messages.items() if uid in self.pods]
        self.tell(nri.Synchronize(tuple(self.sandboxes.values()), tuple(running)))
        if self.state.allocations != before:
            self.unsound = f"a restart made {self.state.allocations} of {before}"
        refused = [one["pod"] for one in expect.get("pods", ()) if not one["admit"]]
        return f"recorded {expect.get('error') or refused}" if expect.get("error") or refused else ""

    def other_file(self, name: str, case: Case) -> str:
        """What our export writes otherwise than the kubelet wrote, or nothing."""
        told = case["expect"].get(name)
        if told is None:
            return ""
        manager, policy, export = {
            CPU_FILE: ("cpu", "static", cpu_file),
            MEMORY_FILE: ("memory", "Static", memory_file),
        }[name]
        data = export(self.node, self.state)
        refusal = load_refusal(data, manager, policy, pod_level=self.node.options.pod_level_managers)
        ours, theirs = _comparable(data), _comparable(told.encode())
        return refusal or ("" if ours == theirs else f"{name}: ours {ours} recorded {theirs}")

    def compare(self, step: Case, expect: Case) -> str:
        """What is held otherwise than recorded, or nothing."""
        if "default" in expect and str(self.default) != expect["default"]:
            return f"shared pool ours {self.default} recorded {expect['default']}"
        if "machine" in expect and _by_group(self.machine()) != _by_group(expect["machine"]):
            return f"machine ours {self.machine()} recorded {expect['machine']}"
        if "pods" in expect:
            found = (self.compare_pod(one["pod"], one) for one in expect["pods"] if one["pod"] in self.pods)
            return next(filter(None, found), "")
        return self.compare_pod(step["pod"], expect) if step.get("pod") in self.pods else ""

    def compare_pod(self, uid: str, expect: Case) -> str:
        facts = self.pods[uid].facts
        block = self.state.allocations.get(allocation_key(uid, ""))
        ours: dict[str, Any] = {
            "pod_cpuset": str(block.cpus) if block and block.cpus else None,
            "pod_blocks": shown_blocks(block.memory) if block and block.memory else None,
            "pod_quota_off": self.is_quota_off(uid),
        }
        told = {key: expect.get(key) or (False if key == "pod_quota_off" else None) for key in ours}
        if "pod_quota_off" not in expect:  # it is told of pods with resources of their own only
            ours["pod_quota_off"] = told["pod_quota_off"]
        if ours != told:
            return f"ours {ours} recorded {told}"
        parts = memory_of(facts, block.memory) if block else {}
        for entry in expect.get("containers", ()):
            wrong = self.compare_container(uid, entry, parts.get(entry["container"]))
            if wrong:
                return f"{entry['container']}: {wrong}"
        return ""

    def compare_container(self, uid: str, entry: Case, part: Any) -> str:
        name = entry["container"]
        held = self.state.allocations.get(allocation_key(uid, name), NOTHING)
        # A container of a pod as a whole has its part of the pod's memory as long as it has the pod's NUMA nodes.
        blocks = held.memory if part is None else part * bool(held.mems)
        ours = {
            "cpuset": str(held.cpus) or None,
            "cpus": str(held.cpus or self.default),
            "blocks": sorted(shown_blocks(blocks), key=lambda one: one["type"]) or None,
            "mems": list(held.mems),
            "isolation": self.isolation(uid, name),
        }
        told = {key: entry.get(key) for key in ours}
        told["mems"] = told["mems"] or []
        told["blocks"] = sorted(told["blocks"] or (), key=lambda one: one["type"]) or None
        return "" if ours == told else f"ours {ours} recorded {told}"

    def isolation(self, uid: str, name: str) -> str:
        held = self.state.allocations.get(allocation_key(uid, name), NOTHING)
        if not held.cpus:
            return "host"
        return "pod" if held.is_pod_shared else "container"

    def is_quota_off(self, uid: str) -> bool:
        """Whether the pod's cgroup loses its quota: all containers are exclusive, or one of an ordinary pod is."""
        facts = self.pods[uid].facts
        levels = [self.isolation(uid, one.name) == "container" for one in facts.containers]
        return all(levels) if has_own_resources(facts) else any(levels)

    def machine(self) -> dict[str, list]:
        state = memory_state_of(self.node, self.state)
        return {
            str(node): [
                state.assignments[node],
                [other for other in state.machine.nodes if state.group[node] >> other & 1],
                {
                    name: [state.allocated.get((node, name), 0), state.free(name)[node]]
                    for name in state.machine.allocatable
                },
            ]
            for node in state.machine.nodes
        }


def _amounts_of(facts: PodFacts, name: str) -> Amounts:
    known = facts.container(name)
    assert known is not None
    return known.amounts


def _by_group(machine: Mapping[str, list]) -> dict[str, tuple]:
    """A machine with the amounts of each group of nodes, as a kubelet compares them when it starts.

    The kubelet gives memory back on the lowest nodes of a group, not where it was taken. The sums agree.
    """
    shown = {}
    for node, (assignments, group, amounts) in machine.items():
        members = [machine[str(other)][2] for other in group]
        sums = {
            name: [sum(one[name][at] for one in members if name in one) for at in range(2)]
            for name in amounts
        }
        shown[node] = (assignments, group, sums)
    return shown


def _shown_machine(stored: Mapping[str, Any]) -> dict[str, list]:
    """The machine of a state file, in the form of the steps."""
    return {
        node: [
            one["numberOfAssignments"],
            one["cells"],
            {name: [memory["reserved"], memory["free"]] for name, memory in one["memoryMap"].items()},
        ]
        for node, one in stored.items()
    }


def _comparable(data: bytes) -> dict[str, Any]:
    """A state file without what does not matter: the order of blocks, and containers that hold nothing."""
    record = {key: value for key, value in parse(data).items() if key != "checksum"}
    entries = {
        pod: {name: _sorted_blocks(held) for name, held in by_name.items() if _sorted_blocks(held)}
        for pod, by_name in record.get("entries", {}).items()
    }
    record["entries"] = {pod: by_name for pod, by_name in entries.items() if by_name}
    record["podEntries"] = {
        pod: {key: _sorted_blocks(value) for key, value in entry.items()}
        for pod, entry in record.get("podEntries", {}).items()
    }
    if "machineState" in record:
        stored = record["machineState"]
        record["machineState"] = _by_group(_shown_machine(stored))
        record["sizes"] = {
            (node, name): [memory[key] for key in ("total", "systemReserved", "allocatable")]
            for node, one in stored.items()
            for name, memory in one["memoryMap"].items()
        }
    return record


def _sorted_blocks(held: Any) -> Any:
    if isinstance(held, str):
        return held
    return sorted((block for block in held if block["size"]), key=lambda block: block["type"])


def _other_refusal(refusal: AdmissionRefusal | None, expect: Case) -> str:
    if refusal is None:
        return ""
    texts = expect.get("message_any") or [expect["message"]]
    if refusal.reason == expect["reason"]:
        if refusal.kind is RefusalKind.EMPTY_POD_SHARED_POOL and str(refusal.detail) in texts:
            return ""
        if refusal.kind is RefusalKind.TOPOLOGY_AFFINITY:
            # Errors of ours begin in lower case, and go on.
            return (
                "" if str(refusal.detail).startswith(texts[0].lower()) else f"ours {refusal} recorded {texts}"
            )
        if any(same_error(refusal, one) for one in texts):
            return ""
    return f"ours {refusal} recorded {expect['reason']} {texts}"
