"""pod_level_sequences and pod_level_memory: one manager alone, with pods that have resources of their own.

Ordinary pods on the same node are treated as before, so the managers of `managers` are extended by what belongs to a pod.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nri_plugin.checkpoint.kubelet_files import (
    cpu_state_refusal,
    memory_state_refusal,
    parse,
)
from nri_plugin.checkpoint.kubelet_import import CPU_FILE, MEMORY_FILE, File, allocations_in
from nri_plugin.model.errors import AdmissionError, EmptyPodSharedPoolError
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.quantity import parse_bytes, parse_cpu_milli
from nri_plugin.model.records import (
    Amounts,
    ContainerFacts,
    Kind,
    MemoryBlock,
    PodFacts,
    QOSClass,
    allocation_key,
)
from nri_plugin.model.refusals import RefusalKind
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.cpu_assignment import CPUTables
from nri_plugin.policy.cpu_policy import cpu_hint_sets, exclusive_count
from nri_plugin.policy.hints import HintSet, Provider
from nri_plugin.policy.memory_assignment import allocate_memory, memory_hint_sets
from nri_plugin.policy.merge import MergedHint, admit, admits, merge
from nri_plugin.policy.pod_level import (
    cpu_claim,
    has_own_resources,
    memory_claim,
    memory_of,
    pod_cpus,
    pod_memory,
    refuse_empty_cpu_pool,
    refuse_empty_memory_pool,
    sets_of,
    take_block,
)
from tests.oracles.manager_steps import reuse_after, without_blocks
from tests.vectors.judges.managers import (
    Container,
    CPUManager,
    MemoryManager,
    Pod,
    same_error,
    shown_blocks,
    shown_hint_sets,
)
from tests.vectors.judges.memory import machine_of
from tests.vectors.judges.merging import as_pair
from tests.vectors.judges.packed import tables_of
from tests.vectors.judges.static import compare_refusals, is_uneven, refusal_at_start
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict

MEMORY = "memory"


def amounts_of(requests: Mapping[str, str], limits: Mapping[str, str]) -> Amounts:
    return Amounts(
        parse_cpu_milli(requests.get("cpu", "0")),
        parse_cpu_milli(limits.get("cpu", "0")),
        parse_bytes(requests.get(MEMORY, "0")),
        parse_bytes(limits.get(MEMORY, "0")),
        tuple((name, parse_bytes(text)) for name, text in requests.items() if name.startswith("hugepages-")),
    )


NO_FACTS = PodFacts("", QOSClass.BEST_EFFORT)


@dataclass(frozen=True)
class LevelPod(Pod):
    """A pod of these recordings; `facts` as the exporter would tell them."""

    facts: PodFacts = NO_FACTS

    @classmethod
    def of(cls, step: Mapping[str, Any]) -> "LevelPod":
        plain, told = Pod.of(step), step.get("resources")
        # Null or absent: the pod has no amounts of its own. An empty field is one that is set.
        own = None if told is None else [told.get(kind) or {} for kind in ("requests", "limits")]
        facts = PodFacts(
            plain.uid,
            _qos(plain, own),
            tuple(
                ContainerFacts(one.name, _kind(one), amounts_of(one.requests, one.limits))
                for one in plain.containers
            ),
            None if own is None else amounts_of(*own),
        )
        return cls(plain.uid, plain.containers, facts=facts)

    @property
    def is_level(self) -> bool:
        return has_own_resources(self.facts)

    def told(self, container: Container) -> ContainerFacts:
        return next(one for one in self.facts.containers if one.name == container.name)


def _kind(one: Container) -> Kind:
    if not one.init:
        return Kind.APP
    return Kind.SIDECAR if one.restartable else Kind.INIT


def _qos(pod: Pod, own: Sequence[Mapping[str, str]] | None) -> QOSClass:
    """By the amounts of the pod where it has the field, even an empty one."""
    told = [(one.requests, one.limits) for one in pod.containers] if own is None else [own]
    amounts = [amounts_of(*one) for one in told]
    is_guaranteed = all(
        0 < one.cpu_request_milli == one.cpu_limit_milli
        and 0 < one.memory_request_bytes == one.memory_limit_bytes
        for one in amounts
    )
    return QOSClass.GUARANTEED if is_guaranteed else QOSClass.BURSTABLE


@dataclass
class PodCPUManager(CPUManager):
    """With the CPUs of pods; a container that shares them has an entry, too."""

    blocks: dict[str, CPUSet] = field(default_factory=dict)

    @property
    def default(self) -> CPUSet:
        taken = 0
        for cpus in self.blocks.values():
            taken |= cpus.mask
        return super().default - CPUSet(taken)

    def count(self, pod: LevelPod, container: Container) -> int:  # type: ignore[override]
        if pod.is_level:
            return cpu_claim(pod.facts, pod.told(container))
        milli = parse_cpu_milli(container.requests.get("cpu", "0"))
        return exclusive_count(milli, guaranteed=pod.facts.qos is QOSClass.GUARANTEED)

    def pod_hint_sets(self, pod: LevelPod) -> Provider:  # type: ignore[override]
        if not pod.is_level:
            return super().pod_hint_sets(pod)
        count = pod_cpus(pod.facts)
        if not count:
            return None
        stored = {c: self.held[pod.uid, c.name] for c in pod.containers if (pod.uid, c.name) in self.held}
        if _is_refused(refuse_empty_cpu_pool, pod) or any(
            len(cpus) != self.count(pod, c) for c, cpus in stored.items()
        ):
            return (HintSet("cpu", ()),)
        union = CPUSet()
        for cpus in stored.values():
            union |= cpus
        return cpu_hint_sets(
            self.tables,
            count,
            self.available,
            reusable=self.reusable.get(pod.uid, CPUSet()) | union,
            held=union if len(union) == count else CPUSet(),
            align_by_socket=self.options.align_by_socket,
        )

    def allocate_pod(self, pod: LevelPod, merged: MergedHint) -> None:
        block = take_block(
            self.tables,
            pod.facts,
            self.available,
            merged.affinity,
            reserved=self.reserved,
            options=self.options,
        )
        if not block:
            return
        # As in the product, a pod that cannot be divided among its containers gets nothing.
        parts = sets_of(self.tables, pod.facts, block, self.options)
        self.blocks[pod.uid] = block
        self.held |= {(pod.uid, name): part.cpus for name, part in parts.items()}

    def remove(self, uid: str, name: str) -> None:
        super().remove(uid, name)
        if all(pod != uid for pod, _ in self.held):
            self.blocks.pop(uid, None)


@dataclass
class PodMemoryManager(MemoryManager):
    """With the memory of pods, which is taken once for all their containers."""

    pod_blocks: dict[str, tuple[MemoryBlock, ...]] = field(default_factory=dict)

    def _request(self, pod: LevelPod, container: Container) -> Mapping[str, int]:
        if pod.is_level:
            return memory_claim(pod.facts, pod.told(container))
        return container.memory if pod.facts.qos is QOSClass.GUARANTEED else {}

    def hint_sets(self, pod: LevelPod, container: Container) -> Provider:  # type: ignore[override]
        request = self._request(pod, container)
        held = self.blocks.get((pod.uid, container.name), ())
        if not request and not (held and pod.facts.qos is QOSClass.GUARANTEED):
            return None
        return memory_hint_sets(self.state, request, held=held, reuse=self.reuse.get(pod.uid, {}))

    def pod_hint_sets(self, pod: LevelPod) -> Provider:  # type: ignore[override]
        if not pod.is_level:
            return super().pod_hint_sets(pod) if pod.facts.qos is QOSClass.GUARANTEED else None
        request = pod_memory(pod.facts)
        if not request:
            return None
        if _is_refused(refuse_empty_memory_pool, pod):
            return tuple(HintSet(name, ()) for name in sorted(request))
        held = next((b for c in pod.containers if (b := self.blocks.get((pod.uid, c.name)))), ())
        return memory_hint_sets(self.state, request, held=held)

    def allocate(self, pod: LevelPod, container: Container, merged: MergedHint) -> None:  # type: ignore[override]
        key, request = (pod.uid, container.name), self._request(pod, container)
        if not request:
            return
        before = self.reuse.get(pod.uid, {})
        if key not in self.blocks:
            grant = allocate_memory(self.state, request, merged, reuse=before)
            self.state = grant.state
            self._shrink(pod, container, grant.blocks)
            self.blocks[key] = grant.blocks
        self.reuse = {pod.uid: reuse_after(before, self.blocks[key], init=container.plain_init)}

    def allocate_pod(self, pod: LevelPod, merged: MergedHint) -> None:
        request = pod_memory(pod.facts)
        if not request:
            return
        refuse_empty_memory_pool(pod.facts)
        grant = allocate_memory(self.state, request, merged)
        self.state = grant.state
        self.pod_blocks[pod.uid] = grant.blocks
        for name, blocks in memory_of(pod.facts, grant.blocks).items():
            self.blocks[pod.uid, name] = blocks

    def remove(self, uid: str, name: str) -> None:
        if uid not in self.pod_blocks:
            super().remove(uid, name)
            return
        self.blocks.pop((uid, name), None)
        if all(pod != uid for pod, _ in self.blocks):
            self.state = without_blocks(self.state, self.pod_blocks.pop(uid))


def _is_refused(check: Callable[[PodFacts], None], pod: LevelPod) -> bool:
    try:
        check(pod.facts)
    except EmptyPodSharedPoolError:
        return True
    return False


# ----------------------------------------------------------------------------------------------------


def judge_cpus(document: Document) -> Iterator[Judged]:
    tables = {name: tables_of(recorded) for name, recorded in document["topologies"].items()}
    for case in document["cases"]:
        yield _judge_cpus(case, tables[case["topology"]])


def _judge_cpus(case: Case, tables: CPUTables) -> Judged:
    refused = refusal_at_start(case, tables)
    if refused or "steps" not in case["expect"]:
        return compare_refusals(case, refused)
    manager = PodCPUManager.of(case, tables)
    if str(manager.default) != case["expect"]["initial_default"]:
        return Judged(case["id"], Verdict.FAILED, f"at first ours {manager.default}")

    def shown(pod: LevelPod, name: str) -> Mapping[str, Any]:
        cpus = manager.held.get((pod.uid, name))
        return {
            "cpuset": None if cpus is None else str(cpus),
            "cpus": str(manager.default if cpus is None else cpus),
        }

    def after(uid: str) -> Mapping[str, Any]:
        block = manager.blocks.get(uid)
        return {"default": str(manager.default), "pod_cpuset": None if block is None else str(block)}

    nodes = NodeMask.from_ids(node for node, _ in tables.nodes)
    return _play(case, _Manager(manager, shown, after, nodes))


def judge_memory(document: Document) -> Iterator[Judged]:
    for case in document["cases"]:
        yield _judge_memory(case)


def _judge_memory(case: Case) -> Judged:
    manager = PodMemoryManager(machine_of(case))
    if manager.shown() != case["expect"]["initial"]:
        return Judged(case["id"], Verdict.FAILED, f"at first ours {manager.shown()}")

    def shown(pod: LevelPod, name: str) -> Mapping[str, Any]:
        return {"blocks": shown_blocks(manager.blocks.get((pod.uid, name), ()))}

    def after(uid: str) -> Mapping[str, Any]:
        blocks = manager.pod_blocks.get(uid)
        return {
            "machine": manager.shown(),
            "pod_blocks": None if blocks is None else shown_blocks(blocks),
        }

    return _play(case, _Manager(manager, shown, after, NodeMask.from_ids(manager.machine.nodes)))


@dataclass
class _Manager:
    """One manager, and how the recordings show a container of it and the node after a step."""

    of: PodCPUManager | PodMemoryManager
    shown: Callable[[LevelPod, str], Mapping[str, Any]]
    after: Callable[[str], Mapping[str, Any]]
    nodes: NodeMask


def _play(case: Case, manager: _Manager) -> Judged:
    for number, (step, expect) in enumerate(zip(case["steps"], case["expect"]["steps"], strict=True)):
        wrong = _step(manager, case, step, expect)
        if not wrong and "pod" in step:
            ours = manager.after(step["pod"])
            told = {
                key: expect.get(key) or None if key == "pod_blocks" else expect.get(key)
                for key in ours
                if key in expect
            }
            ours = {key: value for key, value in ours.items() if key in expect}
            wrong = "" if ours == told else f"ours {ours} recorded {told}"
        if wrong and case.get("fault"):
            return Judged(case["id"], Verdict.REPAIRED, f"{' '.join(case['fault'])}: step {number}: {wrong}")
        if wrong:
            return Judged(case["id"], Verdict.FAILED, f"step {number}: {wrong}")
    wrong = _other_file(manager.of, case["expect"])
    if wrong and case.get("fault"):
        return Judged(case["id"], Verdict.REPAIRED, f"{' '.join(case['fault'])}: {wrong}")
    return Judged(case["id"], Verdict.FAILED if wrong else Verdict.PASSED, wrong)


def _other_file(manager: PodCPUManager | PodMemoryManager, expect: Case) -> str:
    """What we read otherwise out of the file that the kubelet left, or nothing; a restart on it is one on ours."""
    if expect.get(CPU_FILE) and isinstance(manager, PodCPUManager):
        read = allocations_in(File(CPU_FILE, expect[CPU_FILE].encode()), None).cpus
        whole = {allocation_key(uid, ""): cpus for uid, cpus in manager.blocks.items()}
        ours = {allocation_key(uid, name): cpus for (uid, name), cpus in manager.held.items()} | whole
        return "" if read == ours else f"{CPU_FILE}: ours {ours} recorded {read}"
    if expect.get(MEMORY_FILE) and isinstance(manager, PodMemoryManager):
        data = expect[MEMORY_FILE].encode()
        read = _held(allocations_in(None, File(MEMORY_FILE, data)).memory)
        whole = {allocation_key(uid, ""): blocks for uid, blocks in manager.pod_blocks.items()}
        ours = _held(
            {allocation_key(uid, name): blocks for (uid, name), blocks in manager.blocks.items()} | whole
        )
        if read != ours:
            return f"{MEMORY_FILE}: ours {ours} recorded {read}"
        return _memory_refusal(manager, parse(data))
    return ""


def _held(by_key: Mapping[str, tuple[MemoryBlock, ...]]) -> dict[str, set[MemoryBlock]]:
    """Blocks without their order; containers that hold nothing left out."""
    sized = {key: {one for one in blocks if one.size_bytes} for key, blocks in by_key.items()}
    return {key: blocks for key, blocks in sized.items() if blocks}


def _memory_refusal(manager: PodMemoryManager, record: Case) -> str:
    """What a fresh Memory Manager of the kubelet says of the machine in its file."""
    return memory_state_refusal(
        record["machineState"], _nested(manager.blocks), manager.machine, manager.pod_blocks
    )


def _nested(by_owner: Mapping[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for (uid, name), value in by_owner.items():
        nested.setdefault(uid, {})[name] = value
    return nested


def _start_refusal(manager: PodCPUManager) -> str:
    return cpu_state_refusal(
        manager.default,
        _nested(manager.held),
        online=CPUSet(manager.tables.online),
        reserved=manager.reserved,
        strict=manager.options.strict_cpu_reservation,
        pods=manager.blocks,
    )


def _step(manager: _Manager, case: Case, step: Case, expect: Case) -> str:
    if step["op"] == "restart":
        manager.of.reusable = {} if isinstance(manager.of, PodCPUManager) else manager.of.reuse  # type: ignore[union-attr]
        if isinstance(manager.of, PodMemoryManager):
            manager.of.reuse = {}
        ours = _start_refusal(manager.of) if isinstance(manager.of, PodCPUManager) else ""
        return "" if ours == expect["error"] else f"restart ours {ours!r} recorded {expect['error']!r}"
    if step["op"] == "remove_container":
        manager.of.remove(step["pod"], step["container"])
        return f"recorded {expect['error']}" if expect.get("error") else ""
    pod = LevelPod.of(step)
    if step["op"] == "pod_hints":
        return _other_hints(manager.of.pod_hint_sets(pod), expect)
    return (_add_pod if step["scope"] == "pod" else _add_containers)(manager, case, step, pod, expect)


def _other_hints(ours: Provider, expect: Case) -> str:
    shown, told = shown_hint_sets(ours), expect["hints"]
    if isinstance(told, list):
        told = {"cpu": told}
    # A container without a claim is no preference of the kubelet either, in other words.
    told = None if expect["no_preference"] or (ours is None and told == {}) else told
    return "" if shown == told else f"hints ours {shown} recorded {told}"


def _merged(
    manager: _Manager, case: Case, step: Case, hint_sets: Provider, expect: Case
) -> tuple[MergedHint, str]:
    """The hint to allocate under, and what differs.

    Raises:
        AdmissionError: the policy does not admit it.
    """
    if step["affinity"] != "merge":
        mask = step["affinity"]
        return MergedHint(None if mask is None else NodeMask(mask), bool(step.get("preferred"))), ""
    policy = TopologyManagerPolicy(case["tm_policy"])
    merged = merge(policy, manager.nodes, [hint_sets])
    ours = [*as_pair(merged), admits(policy, merged)]
    if ours != [*expect["merged"], expect["admit"]]:
        return merged, f"merged ours {ours} recorded {expect['merged']} {expect['admit']}"
    admit(policy, manager.nodes, [hint_sets])
    return merged, ""


def _add_pod(manager: _Manager, case: Case, step: Case, pod: LevelPod, expect: Case) -> str:
    hint_sets = manager.of.pod_hint_sets(pod)
    error: AdmissionError | None = None
    wrong = _other_hints(hint_sets, expect)
    if wrong:
        return wrong
    try:
        merged, wrong = _merged(manager, case, step, hint_sets, expect)
        if wrong:
            return wrong
        if pod.is_level:
            manager.of.allocate_pod(pod, merged)
        else:
            for container in pod.containers:
                manager.of.allocate(pod, container, merged)
    except AdmissionError as refusal:
        error = refusal
    if not _same_error(manager, error, expect):
        return f"error ours {error} recorded {expect['error']}"
    return next((w for one in expect["containers"] if (w := _compare(manager, pod, one))), "")


def _add_containers(manager: _Manager, case: Case, step: Case, pod: LevelPod, expect: Case) -> str:
    for container, told in zip(pod.containers, expect["containers"], strict=False):
        hint_sets = manager.of.hint_sets(pod, container)
        wrong = _other_hints(hint_sets, told)
        if wrong:
            return f"{container.name} {wrong}"
        error: AdmissionError | None = None
        try:
            merged, wrong = _merged(manager, case, step, hint_sets, told)
            if wrong:
                return f"{container.name} {wrong}"
            manager.of.allocate(pod, container, merged)
        except AdmissionError as refusal:
            error = refusal
        if not _same_error(manager, error, told):
            return f"{container.name} error ours {error} recorded {told['error']}"
        wrong = _compare(manager, pod, told)
        if wrong or error:
            return wrong
    return ""


def _same_error(manager: _Manager, ours: AdmissionError | None, told: Case) -> bool:
    texts = told.get("error_any") or [told["error"]]
    if ours is not None and ours.refusal.kind is RefusalKind.EMPTY_POD_SHARED_POOL:
        return str(ours.refusal.detail) in texts
    # On uneven cores the kubelet divides another number of CPUs than it counts, so others are left when it refuses.
    is_even = isinstance(manager.of, PodMemoryManager) or not is_uneven(manager.of.tables)
    return any(same_error(ours, text, compares_numbers=is_even) for text in texts)


def _compare(manager: _Manager, pod: LevelPod, told: Case) -> str:
    ours = manager.shown(pod, told["container"])
    recorded = {key: (told[key] or []) if key == "blocks" else told[key] for key in ours if key in told}
    ours = {key: value for key, value in ours.items() if key in recorded}
    return "" if ours == recorded else f"{told['container']} ours {ours} recorded {recorded}"
