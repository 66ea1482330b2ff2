"""admission: whole pods through device hints, CPU and Memory Manager, and the merge, in both scopes."""

from collections.abc import Iterator

from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.cpu_assignment import CPUTables
from nri_plugin.policy.hints import Provider
from nri_plugin.policy.merge import MergedHint, admit
from tests.oracles.kubelet_start import topology_manager_refusals
from tests.vectors.judges.managers import Container, CPUManager, MemoryManager, Pod, same_error, shown_blocks
from tests.vectors.judges.memory import machine_of
from tests.vectors.judges.merging import KUBELET_LIMIT, as_pair, preferring, provider_of
from tests.vectors.judges.packed import tables_of
from tests.vectors.judges.static import compare_refusals, gives_twice, is_uneven, refusal_at_start
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict, compare

ANYWHERE = MergedHint(None, preferred=False)


def judge(document: Document) -> Iterator[Judged]:
    tables = {name: tables_of(recorded) for name, recorded in document["topologies"].items()}
    for case in document["cases"]:
        malformed = "inconsistent" in document["topologies"][case["topology"]]
        yield judge_case(case, tables[case["topology"]], malformed=malformed)


def judge_case(case: Case, tables: CPUTables, *, malformed: bool = False) -> Judged:
    refused = topology_manager_refusal(case, tables) or refusal_at_start(case, tables)
    if refused or "steps" not in case["expect"]:
        return compare_refusals(case, refused)
    node = _Node(case, tables)
    at_first = [str(node.cpu.reserved), str(node.cpu.default)]
    if at_first != [case["expect"]["reserved"], case["expect"]["initial_default"]]:
        told = [case["expect"]["reserved"], case["expect"]["initial_default"]]
        return compare(case["id"], at_first, told, "reserved, and the shared pool at first")
    for number, (step, expect) in enumerate(zip(case["steps"], case["expect"]["steps"], strict=True)):
        on_offer = node.cpu.available
        wrong = node.step(step, expect)
        if wrong and malformed:
            return Judged(case["id"], Verdict.REPAIRED, "the recorded machine contradicts itself")
        if wrong and is_uneven(tables) and _is_unsound(step, expect, on_offer):
            return Judged(case["id"], Verdict.REPAIRED, "recorded CPUs that were not on offer")
        wrong = wrong or node.cpu.given_twice
        if wrong:
            return Judged(case["id"], Verdict.FAILED, f"step {number}: {wrong}")
    return Judged(case["id"], Verdict.PASSED)


def topology_manager_refusal(case: Case, tables: CPUTables) -> str:
    """Why the Topology Manager is not made, which is first; empty when it is.

    Without `memory_nodes` the machine has as many NUMA nodes as its CPUs are on, and no distances.
    """
    nodes = case.get("memory_nodes") or [{} for _ in tables.nodes]
    refusals = topology_manager_refusals(
        case["tm_policy"],
        case["tm_scope"],
        case.get("tm_options") or {},
        len(nodes),
        distances_known=all(node.get("distances") for node in nodes),
        limit=KUBELET_LIMIT,
    )
    return next(refusals, "")


def _is_unsound(step: Case, expect: Case, on_offer: CPUSet) -> bool:
    sets = [CPUSet.parse(entry["cpuset"]) for entry in expect.get("containers", ()) if entry["cpuset"]]
    return any(not cpus <= on_offer for cpus in sets) or gives_twice(step, expect)


class _Node:
    """Both managers of one recorded node."""

    def __init__(self, case: Case, tables: CPUTables) -> None:
        self.policy = TopologyManagerPolicy(case["tm_policy"])
        self.pod_scope = case["tm_scope"] == "pod"
        told = case.get("memory_nodes") or [{"id": node} for node, _ in tables.nodes]
        self.nodes = NodeMask.from_ids(node["id"] for node in told)
        rows = {str(node["id"]): node.get("distances") for node in told}
        self.distances = preferring({**case, "distances": rows})
        self.cpu = CPUManager.of(case, tables)
        self.memory = MemoryManager(machine_of(case)) if "memory_reserved" in case else None

    def step(self, step: Case, expect: Case) -> str:
        """What differs, or nothing."""
        if step["op"] == "remove_pod":
            self.remove(step["pod"])
            return self.compare(expect)
        pod = Pod.of(step)
        hints: dict[str, MergedHint] = {}
        error = self.add(pod, provider_of(step.get("device_hints")), hints)
        reason = "" if error is None else error.reason
        if (error is None) is not expect["admit"]:
            return f"ours {error or 'admits'} recorded {expect['admit']}"
        if reason != expect["reason"] or not same_error(error, expect["message"]):
            return f"ours {error} recorded {expect['reason']} {expect['message']}"
        wrong = self.compare_containers(pod, hints, expect)
        if error is not None:
            self.remove(pod.uid)
        return wrong or self.compare(expect)

    def add(self, pod: Pod, devices: Provider, hints: dict[str, MergedHint]) -> AdmissionError | None:
        try:
            of_pod = self.admit(self.pod_hint_sets(pod, devices)) if self.pod_scope else None
            for container in pod.containers:
                merged = of_pod or self.admit(self.hint_sets(pod, container, devices))
                hints[container.name] = merged
                self.allocate(pod, container, merged)
        except AdmissionError as error:
            return error
        return None

    def admit(self, hint_sets: list[Provider]) -> MergedHint:
        return admit(self.policy, self.nodes, hint_sets, distances=self.distances)

    def pod_hint_sets(self, pod: Pod, devices: Provider) -> list[Provider]:
        memory = [self.memory.pod_hint_sets(pod)] if self.memory else []
        return [devices, self.cpu.pod_hint_sets(pod), *memory]

    def hint_sets(self, pod: Pod, container: Container, devices: Provider) -> list[Provider]:
        memory = [self.memory.hint_sets(pod, container)] if self.memory else []
        return [devices, self.cpu.hint_sets(pod, container), *memory]

    def allocate(self, pod: Pod, container: Container, merged: MergedHint) -> None:
        self.cpu.allocate(pod, container, merged)
        if self.memory:
            self.memory.allocate(pod, container, merged)

    def remove(self, uid: str) -> None:
        for manager in (self.cpu.held, self.memory.blocks if self.memory else {}):
            for pod, name in [key for key in manager if key[0] == uid]:
                self.cpu.remove(pod, name)
                if self.memory:
                    self.memory.remove(pod, name)

    def compare(self, expect: Case) -> str:
        if str(self.cpu.default) != expect["default"]:
            return f"shared pool ours {self.cpu.default} recorded {expect['default']}"
        if self.memory and self.memory.shown() != expect["machine"]:
            return f"machine ours {self.memory.shown()} recorded {expect['machine']}"
        return ""

    def compare_containers(self, pod: Pod, hints: dict[str, MergedHint], expect: Case) -> str:
        names = [container.name for container in pod.containers]
        if [entry["container"] for entry in expect["containers"]] != names:
            return f"containers {names} recorded {expect['containers']}"
        for entry in expect["containers"]:
            name = entry["container"]
            cpus = self.cpu.held.get((pod.uid, name))
            blocks = self.memory.blocks.get((pod.uid, name)) if self.memory else None
            ours = {
                "affinity": as_pair(hints.get(name, ANYWHERE)),
                "blocks": None if blocks is None else shown_blocks(blocks),
                "container": name,
                "cpuset": None if cpus is None else str(cpus),
            }
            if ours != entry:
                return f"ours {ours} recorded {entry}"
        return ""
