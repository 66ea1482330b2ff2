"""pod_lives: whole lives of a node, told to the engine as a runtime tells them, with what an exporter knows.

A kubelet admits all containers of a pod at once; the engine is asked container by container, each as it is created,
up to the first that is refused. What is held is therefore compared when the last container of a pod has started.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from msgspec.structs import replace

from nri_plugin.checkpoint.format import Encoder, decode
from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import Node
from nri_plugin.model.records import Allocation, Kind, MemoryBlock, PodFacts, allocation_key
from nri_plugin.model.refusals import AdmissionRefusal
from nri_plugin.model.sets import NO_CPUS, CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.policy.device_hints import Device, DeviceResource, device_totals
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container as RuntimeContainer
from nri_plugin.wire.nri.messages import ContainerState
from nri_plugin.wire.nri.messages import Pod as RuntimePod
from tests.builders import container, pod
from tests.oracles.recorded_pods import facts_of, node_of, resources_of
from tests.vectors.judges.admission import topology_manager_refusal
from tests.vectors.judges.managers import Pod, same_error, shown_blocks
from tests.vectors.judges.packed import tables_of
from tests.vectors.judges.static import compare_refusals, refusal_at_start
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict, compare

NOTHING = Allocation()


def judge(document: Document) -> Iterator[Judged]:
    for case in document["cases"]:
        yield judge_case(case, document["topologies"][case["topology"]])


def judge_case(case: Case, recorded: Case) -> Judged:
    expect = case["expect"]
    tables = tables_of(recorded)
    refused = topology_manager_refusal(case, tables) or refusal_at_start(case, tables)
    if refused or "steps" not in expect:
        return compare_refusals(case, refused)
    life = Life(node_of(case, recorded), case["devices"])
    at_first, told = (
        [str(life.node.reserved), str(life.default)],
        [expect["reserved"], expect["initial_default"]],
    )
    if at_first != told:
        return compare(case["id"], at_first, told, "reserved, and the shared pool at first")
    wrong = replay(life, case)
    if wrong and "inconsistent" in recorded and not life.unsound:
        return Judged(case["id"], Verdict.REPAIRED, "the recorded machine contradicts itself")
    if wrong and life.groups.are_stale and not life.unsound:
        return Judged(
            case["id"], Verdict.REPAIRED, "recorded with NUMA nodes grouped by promises that have ended"
        )
    return Judged(case["id"], Verdict.FAILED if wrong else Verdict.PASSED, wrong)


def replay(life: "Life", case: Case) -> str:
    """What differs first from the recorded life, or nothing."""
    for number, (step, expect) in enumerate(zip(case["steps"], case["expect"]["steps"], strict=True)):
        wrong = life.play(step, expect) or life.unsound
        if not wrong and not life.starting:
            wrong = life.compare(expect)
        if wrong:
            return f"step {number} {step['op']} {step.get('pod', '')}: {wrong}"
        life.groups.follow(step, expect)
    return ""


@dataclass
class Groups:
    """The NUMA nodes that the recorded kubelet takes for grouped.

    It groups a node by the last block put on it, and goes on doing so when that block has ended and others on the node
    have not. A forced hint makes this show: after a block on node 0 beside one on nodes 0-1 both nodes are barred to
    blocks on 0-1, for as long as anything is promised there. At a restart it would refuse this state. Our groups follow
    from the blocks that are there, so that our answer may be another one from then on.

    Source: kubelet v1.36.2 pkg/kubelet/cm/memorymanager/policy_static.go (updateMachineState, releaseMemory).
    """

    by_node: dict[int, tuple[int, ...]] = field(default_factory=dict)
    present: dict[int, set[tuple[int, ...]]] = field(default_factory=dict)

    @property
    def are_stale(self) -> bool:
        """Whether some node in use is grouped otherwise than by any block on it."""
        return any(self.by_node[node] not in masks for node, masks in self.present.items())

    def follow(self, step: Case, expect: Case) -> None:
        """Take over what a step put on nodes, and what is left on them after it."""
        for entry in expect.get("containers", ()) if step["op"] == "add" else ():
            for block in entry["blocks"] or ():
                self.by_node |= dict.fromkeys(block["numa"], tuple(block["numa"]))
        self.present = {}
        for block in (b for entries in expect["held"].values() for e in entries for b in e["blocks"] or ()):
            for node in block["numa"]:
                self.present.setdefault(node, set()).add(tuple(block["numa"]))


@dataclass
class Instance:
    """A container that the runtime has on record."""

    message: RuntimeContainer
    of: RuntimePod


@dataclass
class Life:
    """One node: the engine's state, and what the runtime has.

    Attributes:
        devices: by resource, all devices of the machine with their NUMA nodes.
        pods: recorded pods that were admitted.
        instances: by (pod, container, attempt), those with a record in the runtime.
        starting: containers of the pod admitted last whose first start has not been recorded yet.
        unsound: what the engine decided wrongly whatever was recorded.
    """

    node: Node
    devices: Mapping[str, list[Case]]
    state: State = field(default_factory=State)
    pods: dict[str, Case] = field(default_factory=dict)
    instances: dict[tuple[str, str, int], Instance] = field(default_factory=dict)
    starting: set[str] = field(default_factory=set)
    unsound: str = ""
    groups: Groups = field(default_factory=Groups)

    @property
    def default(self) -> CPUSet:
        """The kubelet's default set: what nobody has for itself, with the reserved CPUs where these are shared."""
        strict = self.node.reserved if self.node.options.strict_cpu_reservation else NO_CPUS
        return self.node.topology.online - self.state.exclusive - strict

    def tell(self, event: nri.NRIEvent | InformedCreate) -> Decision:
        decision = decide(self.node, self.state, event)
        self.unsound = self.unsound or "; ".join(map(str, violations(self.node, decision.state)))
        self.state = decision.state
        return decision

    def play(self, step: Case, expect: Case) -> str:
        """What differs in the answer to this step, or nothing."""
        op = step["op"]
        if op == "add":
            given, refusal = self.add(step)
            return _compare_admission(given, refusal, expect)
        if op == "restart_kubelet":
            return self.restart()
        if op == "remove_pod":
            self.remove_pod(step["pod"])
            return ""
        uid, name, attempt = step["pod"], step["container"], step["attempt"]
        if op == "start_container" and attempt == 0:
            self.starting.discard(name)  # played when the pod was added
            return ""
        if op == "start_container":
            return self.start_again(uid, name, attempt)
        if self.starting:
            return ""  # an init container's end, played when the pod was added
        if op == "exit_container":
            self.exit(uid, name, attempt)
        else:
            self.remove_container(uid, name, attempt)
        return ""

    def add(self, step: Case) -> tuple[dict[str, Allocation], AdmissionRefusal | None]:
        """All containers of a pod, each created, started, and ended where it is a plain init container.

        Returns what each was promised at its creation, up to the first that is refused; the pod is then taken away.
        """
        given: dict[str, Allocation] = {}
        for name, refusal in self.containers_of(step):
            if refusal is not None:
                return given, refusal
            given[name] = self.state.allocations.get(allocation_key(step["pod"], name), NOTHING)
        self.starting = set(given)
        return given, None

    def containers_of(self, step: Case) -> Iterator[tuple[str, AdmissionRefusal | None]]:
        """Each container of a new pod once it is created; it starts, and ends where it is to, when the next is asked for."""
        recorded = Pod.of(step)
        facts = facts_of(recorded)
        self.pods[recorded.uid] = step
        of = self._sandbox(recorded.uid, facts)
        self.tell(nri.RunPodSandbox(of))
        for one in facts.containers:
            decision = self._create(of, facts, one.name, 0)
            if decision.refusal is not None:
                self.remove_pod(of.uid)
                yield one.name, decision.refusal
                return
            yield one.name, None
            self._run(of.uid, one.name, 0)
            if one.kind is Kind.INIT:
                self.exit(of.uid, one.name, 0)

    def remove_container(self, uid: str, name: str, attempt: int) -> None:
        """The record of a container that ended is deleted."""
        instance = self.instances.pop((uid, name, attempt))
        self.tell(nri.RemoveContainer(instance.of, instance.message))

    def _sandbox(self, uid: str, facts: PodFacts) -> RuntimePod:
        return pod(uid, facts.qos)

    def _create(self, of: RuntimePod, facts: PodFacts, name: str, attempt: int) -> Decision:
        known = facts.container(name)
        assert known is not None
        message = replace(container(of, name, number=attempt), resources=resources_of(known.amounts))
        event = InformedCreate(
            nri.CreateContainer(of, message),
            devices=self._devices_of(of.uid, name),
            pod_devices=self._devices_of(of.uid),
            facts=facts,
            devices_by_container=tuple(
                (one.name, self._devices_of(of.uid, one.name)) for one in facts.containers
            ),
        )
        decision = self.tell(event)
        given = getattr(decision.response, "resources", None)
        if given is not None:
            stored = replace(message.resources, cpus=given.cpus, mems=given.mems)
            message = replace(message, resources=stored)
        if decision.refusal is None:
            self.instances[of.uid, name, attempt] = Instance(message, of)
        return decision

    def _devices_of(self, uid: str, name: str = "") -> tuple[DeviceResource, ...]:
        """The devices of one container of the pod, or of all, as PodResources lists them."""
        step, given = self.pods[uid], {}
        for one in (*step.get("init_containers", ()), *step["containers"]):
            for resource, ids in one.get("devices", {}).items() if name in ("", one["name"]) else ():
                given.setdefault(resource, {}).update(dict.fromkeys(ids))
        return tuple(self._resource(resource, ids) for resource, ids in given.items())

    def _resource(self, name: str, ids: Mapping[str, None]) -> DeviceResource:
        nodes = {one["id"]: NodeMask.from_ids(one["nodes"]) for one in self.devices[name]}
        totals = device_totals((mask, 1) for mask in nodes.values())
        return DeviceResource(name, tuple(Device(one, nodes[one]) for one in ids), totals)

    def _run(self, uid: str, name: str, attempt: int) -> None:
        instance = self.instances[uid, name, attempt]
        for kind in (nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer):
            self.tell(kind(instance.of, instance.message))

    def exit(self, uid: str, name: str, attempt: int) -> None:
        """A container ends; its record stays."""
        instance = self.instances[uid, name, attempt]
        self.tell(nri.StopContainer(instance.of, instance.message))
        instance.message = replace(instance.message, state=ContainerState.STOPPED)

    def start_again(self, uid: str, name: str, attempt: int) -> str:
        """A container that was admitted once is never refused, and nobody's CPUs or memory change."""
        before, facts = self.state.allocations, facts_of(Pod.of(self.pods[uid]))
        decision = self._create(self._sandbox(uid, facts), facts, name, attempt)
        if decision.refusal is not None:
            return f"{name} refused at its start {attempt}: {decision.refusal}"
        self._run(uid, name, attempt)
        return _moved(before, self.state.allocations)

    def restart(self) -> str:
        """A new agent on the checkpoint of the old one, told by the runtime what there is."""
        before = self.state.allocations
        self.state = decode(b"".join(Encoder().encode(self.state, 1))).state
        sandboxes = [self._sandbox(uid, facts_of(Pod.of(step))) for uid, step in self.pods.items()]
        containers = tuple(one.message for one in self.instances.values())
        self.tell(nri.Synchronize(tuple(sandboxes), containers))
        return _moved(before, self.state.allocations)

    def remove_pod(self, uid: str) -> None:
        """The end of a pod: its containers stop, then its sandbox, and the records go."""
        facts = facts_of(Pod.of(self.pods.pop(uid)))
        of, mine = self._sandbox(uid, facts), [key for key in self.instances if key[0] == uid]
        for key in mine:
            self.tell(nri.StopContainer(of, self.instances[key].message))
        self.tell(nri.StopPodSandbox(of))
        for key in mine:
            self.tell(nri.RemoveContainer(of, self.instances.pop(key).message))
        self.tell(nri.RemovePodSandbox(of))

    def compare(self, expect: Case) -> str:
        """What is held otherwise than recorded, or nothing."""
        if str(self.default) != expect["default"]:
            return f"shared pool ours {self.default} recorded {expect['default']}"
        recorded = {
            allocation_key(uid, entry["container"]): entry
            for uid, entries in expect["held"].items()
            for entry in entries
        }
        inits = {
            allocation_key(uid, one["name"])
            for uid, step in self.pods.items()
            for one in step.get("init_containers", ())
            if not one.get("restartable")
        }
        for key in {**recorded, **self.state.allocations}:
            held, entry = self.state.allocations.get(key, NOTHING), recorded.get(key, {})
            wrong = _compare_left(key, held, entry, recorded) if key in inits else _compare_held(held, entry)
            if wrong:
                return f"{key}: {wrong}"
        return ""


def _compare_admission(
    given: Mapping[str, Allocation], refusal: AdmissionRefusal | None, expect: Case
) -> str:
    """A pod that is refused was placed alike up to the container that is refused; what came before is gone again."""
    for entry in expect["containers"]:
        wrong = _compare_given(given[entry["container"]], entry) if entry["container"] in given else ""
        if wrong:
            return f"{entry['container']}: {wrong}"
    if refusal is None and expect["admit"]:
        return ""
    same = refusal is not None and not expect["admit"] and refusal.reason == expect["reason"]
    if same and same_error(refusal, expect["message"]):
        return ""
    return f"ours {refusal or 'admits'} recorded {expect['reason'] or 'admits'} {expect['message']}".strip()


def _compare_given(held: Allocation, entry: Case) -> str:
    """Right after its admission: the CPUs, and the nodes of its memory; sizes change as later containers come."""
    ours = [str(held.cpus) or None, {(one.resource, tuple(one.nodes)) for one in held.memory}]
    told = [entry["cpuset"], {(one["type"], tuple(one["numa"])) for one in entry["blocks"] or ()}]
    return "" if ours == told else f"ours {ours} recorded {told}"


def _compare_held(held: Allocation, entry: Case) -> str:
    ours = [str(held.cpus) or None, _by_type(shown_blocks(held.memory))]
    told = [entry.get("cpuset"), _by_type(entry.get("blocks") or ())]
    return "" if ours == told else f"ours {ours} recorded {told}"


def _compare_left(key: str, held: Allocation, entry: Case, recorded: Mapping[str, Case]) -> str:
    """An ended init container: its CPUs but for those that others of its pod have, and the same bytes in all."""
    prefix = key.rpartition("/")[0] + "/"
    others = [one["cpuset"] for name, one in recorded.items() if name.startswith(prefix) and name != key]
    ours, told = (
        sum(one.size_bytes for one in held.memory),
        sum(one["size"] for one in entry.get("blocks") or ()),
    )
    if ours != told:
        return f"memory left ours {ours} recorded {told}"
    listed = CPUSet.parse(entry.get("cpuset") or "")
    passed_on = reduce(or_, (CPUSet.parse(text) for text in others if text), NO_CPUS)
    if not listed - passed_on <= held.cpus <= listed:
        return f"CPUs left ours {held.cpus} recorded {listed}, passed on {passed_on}"
    return ""


def _by_type(blocks: list[Case]) -> list[Case]:
    return sorted(blocks, key=lambda block: block["type"])


def _moved(before: Mapping[str, Allocation], after: Mapping[str, Allocation]) -> str:
    def held(one: Allocation | None) -> tuple[CPUSet, tuple[MemoryBlock, ...]]:
        return (one.cpus, one.memory) if one else (NO_CPUS, ())

    changed = [key for key in {**before, **after} if held(before.get(key)) != held(after.get(key))]
    return f"holds something else now: {', '.join(changed)}" if changed else ""
