"""Says what broke: judged by what processes run on, apart from the code that made it so."""

from collections import Counter
from dataclasses import dataclass, field

from nri_plugin.host.cgroup import cgroup_path
from nri_plugin.model.options import Node
from nri_plugin.model.records import (
    CgroupRef,
    ContainerRecord,
    Phase,
    QOSClass,
    allocation_key,
    is_whole_pod,
    pod_of,
)
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from tests.chaos.whole_pods import may_run_together
from tests.lab.runtime.cgroup_tree import CgroupTree
from tests.lab.runtime.runtime import Runtime


@dataclass(slots=True)
class Judge:
    """Remembers what containers were promised and compares.

    Attributes:
        promised: exclusive CPUs by container id, of containers that run on them.
        broken: how often what was broken.
        stories: a line for each, the first few.
        resized: ids of containers whose size the kubelet asked to change since the last look: these may.
        created: allocation keys of containers that were created at some time, of pods that live.
        waiting: CPUs by allocation key, of containers of admitted pods that are not created, once they are saved.
        overlapped: ids of containers born unseen that ran on exclusive CPUs of others until Synchronize.
    """

    node: Node
    tree: CgroupTree
    runtime: Runtime
    promised: dict[str, CPUSet] = field(default_factory=dict)
    broken: Counter[str] = field(default_factory=Counter)
    stories: list[str] = field(default_factory=list)
    waiting: dict[str, CPUSet] = field(default_factory=dict)
    created: set[str] = field(default_factory=set)
    overlapped: set[str] = field(default_factory=set)
    resized: set[str] = field(default_factory=set)

    def half_admitted(self, key: str, why: str, story: str) -> None:
        """A container of a pod that was admitted as a whole was refused."""
        self._say("half", f"{key} was admitted with its pod and refused after {story}: {why}")

    def look(self, state: State | None, story: str, *, is_saved: bool = False) -> None:
        """Compare; `state` is the agent's, None while there is none. `is_saved`: it is on the disk."""
        running = self._running()
        self.promised = {
            key: cpus
            for key, cpus in self.promised.items()
            if key in running and not (key in self.resized and self._is_resized(cpus, running[key]))
        }
        self.resized.clear()
        for key, cpus in self.promised.items():
            online = cpus & self.node.topology.online
            if online and running[key] != online:
                self._say("moved", f"{key} from {online} to {running[key]} after {story}")
        if state is None:
            self._look_away(running)
            return
        for violation in violations(self.node, state):
            self._say("invariant", f"{violation} after {story}")
        for key in self.promised:
            record = state.containers.get(key)
            held = state.allocation_of(record) if record else None
            if held is None or held.in_force != self.promised[key]:
                self._say("lost", f"{key} after {story}")
        for key, record in state.containers.items():
            allocation = state.allocation_of(record)
            if key in running and allocation is not None and allocation.cpus:
                self._look_at(key, allocation.in_force, running, story)
        self._look_at_waiting(state, running, story, is_saved=is_saved)
        self._look_for_leaks(state, story)

    def _look_at_waiting(
        self, state: State, running: dict[str, CPUSet], story: str, *, is_saved: bool
    ) -> None:
        """CPUs of containers that are not created yet stay theirs: nothing of another pod runs there."""
        living = {record.sandbox.message.uid for record in self.runtime.records()}
        self.created = {key for key in self.created if pod_of(key) in living} | {
            allocation_key(record.sandbox.message.uid, record.message.name)
            for record in self.runtime.records()
        }
        created = self.created | {record.key for record in state.containers.values()}
        now = {
            key: one.cpus
            for key, one in state.allocations.items()
            if one.cpus and key not in created and not is_whole_pod(key) and self._is_admitted(state, key)
        }
        for key, cpus in self.waiting.items():
            if pod_of(key) not in living or key in created:
                continue
            if now.get(key) != cpus:
                self._say("lost", f"{key} is not created, had {cpus} and has {now.get(key)} after {story}")
        self.waiting = now if is_saved else {key: one for key, one in self.waiting.items() if key in now}
        for key, cpus in now.items():
            for other, theirs in running.items():
                if self._name(other)[0] != pod_of(key) and not theirs.isdisjoint(cpus):
                    self._say(
                        "overlap", f"{other} runs on {theirs & cpus} of {key}, not created, after {story}"
                    )

    def look_at_once(self, state: State, story: str, *, exact: bool) -> None:
        """Before anything is put right by the clock: nobody runs on more than it should.

        `exact`: nor on less, for what was refused has changed nothing. Else a pool that grew may be followed later:
        on cgroup v1 what is above a container can be narrower than the machine is now.
        """
        running = self._running()
        for key, record in state.containers.items():
            if key not in running or record.phase is not Phase.RUNNING:
                continue
            desired = state.desired_cpus(self.node, record)
            is_right = running[key] == desired if exact else running[key] <= desired
            if not is_right and not self._is_asked_for(state, record, running[key]):
                self._say(
                    "stale", f"{key} runs on {running[key]}, not on {desired}, when answered, after {story}"
                )

    def look_at_disk(self, said: State | None, state: State, story: str) -> None:
        """The agent believes that its state is on the disk."""
        if said != state:
            self._say("unsaved", f"the checkpoint says something else than the agent, after {story}")

    def say_no_previous(self, story: str) -> None:
        """The generation before the last is not what was saved then."""
        self._say("unsaved", f"there is no former generation of the checkpoint, after {story}")

    def _is_asked_for(self, state: State, record: ContainerRecord, cpus: CPUSet) -> bool:
        held = state.allocation_of(record)
        return held is not None and held.resize is not None and cpus == held.resize.after.cpus

    def _is_resized(self, before: CPUSet, now: CPUSet) -> bool:
        """Grown or shrunk, not shuffled."""
        before &= self.node.topology.online
        return before <= now or now <= before

    def _look_at(self, key: str, cpus: CPUSet, running: dict[str, CPUSet], story: str) -> None:
        online = cpus & self.node.topology.online
        if online and running[key] != online:
            self._say("lost", f"{key} was promised {cpus} and runs on {running[key]} after {story}")
            return
        self.promised[key] = cpus
        for other, theirs in running.items():
            if other == key or theirs.isdisjoint(cpus) or self._name(other) == self._name(key):
                continue
            if not (self._is_one_pool(other, key) or self._has_lost_all(other, key)):
                self._say("overlap", f"{other} runs on {theirs & cpus} of {key} after {story}")

    def _look_for_leaks(self, state: State, story: str) -> None:
        living = {record.sandbox.message.uid for record in self.runtime.records()} | {
            uid for uid, pod in state.pods.items() if self._has_cgroup(pod.cgroup_parent)
        }
        for record in self.runtime.records():
            one = record.sandbox.message
            living.add(f"{one.uid}@{one.namespace}.{one.name}")
        for key in state.allocations:
            if key.partition("/")[0] not in living:
                self._say("leak", f"{key} after {story}")
        for uid, pod in state.pods.items():
            if uid not in living and pod.cgroup_parent and not self._has_sandbox(pod.sandbox_id):
                self._say("leak", f"the record of {uid} after {story}")

    def _has_sandbox(self, sandbox_id: str) -> bool:
        return any(one.message.id == sandbox_id for one in self.runtime._sandboxes.values())

    def _look_away(self, running: dict[str, CPUSet]) -> None:
        for record in self.runtime.records():
            key = record.message.id
            if key not in running or key in self.promised:
                continue
            online = self.node.topology.online
            others = [
                cpus & online
                for other, cpus in self.promised.items()
                if other != key and not self._is_one_pool(other, key)
            ]
            if any(not running[key].isdisjoint(cpus) for cpus in others):
                qos = record.sandbox.spec.qos
                self.overlapped.add(key)
                if qos is not QOSClass.GUARANTEED and self.node.options.pool_floor:
                    self._say("overlap", f"{qos} {key} while nobody was there")

    def _running(self) -> dict[str, CPUSet]:
        return {
            record.message.id: self.tree.effective_cpus(record.names.path)
            for record in self.runtime.records()
            if record.has_cgroup and record.names.path in self.tree
        }

    def _name(self, container_id: str) -> tuple[str, str]:
        """Pod and container: two instances of one name are one to the kubelet, and one of them is dead to it."""
        record = next(each for each in self.runtime.records() if each.message.id == container_id)
        uids = {each.message.uid: each.spec.key for each in reversed(self.runtime._sandboxes.values())}
        is_first = uids.get(record.sandbox.message.uid, record.sandbox.spec.key) == record.sandbox.spec.key
        return record.sandbox.message.uid if is_first else record.sandbox.spec.key, record.message.name

    def _is_admitted(self, state: State, key: str) -> bool:
        pod = state.pods.get(pod_of(key))
        return pod is not None and pod.is_admitted and not state.allocations[key].is_init

    def _is_one_pool(self, one: str, other: str) -> bool:
        records = {record.message.id: record for record in self.runtime.records()}
        first, second = records[one], records[other]
        return first.sandbox is second.sandbox and may_run_together(
            first.sandbox.spec, first.message.name, second.message.name
        )

    def _has_lost_all(self, one: str, other: str) -> bool:
        """While all CPUs of a container are offline, it runs on those that its pod shares, perhaps with one other only."""
        records = {record.message.id: record for record in self.runtime.records()}
        had = self.promised.get(one, NO_CPUS)
        is_gone = bool(had) and had.isdisjoint(self.node.topology.online)
        return is_gone and records[one].sandbox is records[other].sandbox

    def _has_cgroup(self, parent: str) -> bool:
        return bool(parent) and cgroup_path(CgroupRef(parent)) in self.tree

    def _say(self, kind: str, story: str) -> None:
        self.broken[kind] += 1
        if len(self.stories) < 20:
            self.stories.append(f"{kind}: {story}")
