"""Pods that two threads of a kubelet create at the same time, container by container, while facts and processes get lost.

There are no threads here: the next thread to go on is drawn, so that a seed gives the same life each time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from msgspec.structs import replace

from nri_plugin.checkpoint.format import Encoder, decode
from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.core.pod_news import PodFactsTold, could_be_completed
from nri_plugin.core.requests import lacks_its_resources, peak
from nri_plugin.model.options import (
    CPUManagerPolicy,
    MemoryManagerPolicy,
    Node,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import (
    Allocation,
    Amounts,
    ContainerFacts,
    Kind,
    Phase,
    PodFacts,
    QOSClass,
    Regime,
    allocation_key,
    is_whole_pod,
    pod_of,
)
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod
from tests.builders import GIB, container, cpu_resources, machine, node, pod

MACHINE = machine(nodes=4, cores=8, threads=2, memory=32 * GIB)
THREADS = 2
MOST_PODS = 12
"""Of one thread at a time, so that pods end and others take what they had."""
RESTARTS, AWAY, CRASHES, NEWS, RETRIES = 0.01, 0.01, 0.03, 0.05, 0.2
"""Of each step: the agent is killed, the exporter is, a container crashes, facts come between two creations; of each
refusal: the kubelet tries again."""


NOTHING = Allocation()


class Fate(StrEnum):
    """What becomes of the facts of a pod."""

    IN_TIME = "told at the first creation and not again"
    REPEATED = "told at every creation"
    DELAYED = "told from a later creation on"
    LOST = "never told"


@dataclass(slots=True)
class Tale:
    """What a life did, and what it found wrong.

    Attributes:
        order: ("admit" or "end", uid): when pods were first created and when they ended.
        informed: pods whose facts were known at their first creation.
        admitted: pods that were admitted with facts known, early or late.
        completed: pods whose facts came between two creations, and completed them.
        refused: pods of which a container was refused.
        restarts, away: how often the agent and the exporter were killed.
        wrong: broken laws, a sentence each.
    """

    order: list[tuple[str, str]] = field(default_factory=list)
    informed: set[str] = field(default_factory=set)
    admitted: set[str] = field(default_factory=set)
    completed: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    restarts: int = 0
    away: int = 0
    wrong: list[str] = field(default_factory=list)


def drawn_node(rng: Random, **options: object) -> Node:
    """A node with random policies; the managers of pods with resources of their own are on."""
    return node(
        MACHINE,
        **{
            "cpu_manager_policy": CPUManagerPolicy.STATIC,
            "topology_manager_policy": rng.choice(list(TopologyManagerPolicy)),
            "topology_manager_scope": rng.choice(list(TopologyManagerScope)),
            "memory_manager_policy": rng.choice(list(MemoryManagerPolicy)),
            "full_pcpus_only": rng.random() < 0.3,
            "pod_level_managers": True,
            **options,
        },
    )


def drawn_pods(rng: Random, count: int, *, inits: bool = True) -> list[PodFacts]:
    """Guaranteed pods of one to six containers; a third of them have resources of their own."""
    return [_drawn_pod(rng, f"p{number}", inits=inits) for number in range(count)]


def _drawn_pod(rng: Random, uid: str, *, inits: bool) -> PodFacts:
    kinds = [Kind.SIDECAR, Kind.APP, Kind.APP, *([Kind.INIT] if inits else [])]
    drawn = sorted((rng.choice(kinds) for _ in range(rng.randint(0, 5))), key=lambda kind: kind is Kind.APP)
    rows = tuple(
        ContainerFacts(f"c{number}", kind, _drawn_amounts(rng))
        for number, kind in enumerate([*drawn, Kind.APP])
    )
    if rng.random() > 1 / 3:
        return PodFacts(uid, QOSClass.GUARANTEED, rows)
    cpu = 1000 * -(-sum(one.amounts.cpu_request_milli for one in rows) // 1000) + rng.choice([0, 1000, 2000])
    memory = sum(one.amounts.memory_limit_bytes for one in rows) + rng.choice([0, GIB])
    return PodFacts(uid, QOSClass.GUARANTEED, rows, Amounts(cpu, cpu, memory, memory))


def _drawn_amounts(rng: Random) -> Amounts:
    cpu, memory = rng.choice([500, 1000, 2000, 2000, 4000, 6000, 10000]), rng.choice([1, 2, 4]) * GIB
    return Amounts(cpu, cpu, memory, memory)


class Kubelet:
    """Threads that create pods on one node, and the agent's state.

    Args:
        rng: of everything random.
        on: the node.
        pods: in the order in which the threads take them.
        fates: what becomes of their facts.
        is_calm: nothing crashes and no process is killed.

    Attributes:
        is_never_refused: pods go container by container, and what does not fit shares the pool.
        tells_totals: the runtime reports what each pod asks for in all.
    """

    def __init__(
        self, rng: Random, on: Node, pods: list[PodFacts], fates: dict[str, Fate], *, is_calm: bool = False
    ) -> None:
        self.rng, self.on, self.fates, self.is_calm = rng, on, fates, is_calm
        self.state, self.tale = State(), Tale()
        self.waiting = list(pods)
        self.facts_by_uid = {one.uid: one for one in pods}
        self.sandboxes: dict[str, Pod] = {}
        self.containers: dict[tuple[str, str], Container] = {}
        self.exporter_dies = True
        self.is_never_refused = bool(on.options.never_refuse)
        self.tells_totals = False
        self.facts_away = 0
        self._serial = 0

    # ------------------------------------------------------------------ the life

    def live(self) -> Tale:
        """All pods, to the end of the last creation."""
        threads = [self._thread() for _ in range(THREADS)]
        while threads:
            thread = self.rng.choice(threads)
            if next(thread, None) is None:
                threads.remove(thread)
            if not self.is_calm:
                self._trouble()
            self.judge_memory()
        return self.tale

    def _thread(self) -> Iterator[str]:
        there: list[str] = []
        while self.waiting:
            facts = self.waiting.pop(0)
            yield from self.created(facts)
            if facts.uid in self.tale.refused and self.rng.random() < RETRIES:
                self.end(facts.uid)
                yield "the kubelet fails the pod, and its owner makes it again"
                yield from self.created(facts)
            there.append(facts.uid)
            if len(there) > MOST_PODS or (there and self.rng.random() < 0.4):
                self.end(there.pop(self.rng.randrange(len(there))))
                yield "a pod ended"

    def created(self, facts: PodFacts) -> Iterator[str]:
        """The containers in the kubelet's order; a refused init container or sidecar ends the pod's creation."""
        of = self.sandboxes[facts.uid] = self._sandbox(facts)
        self.tell(nri.RunPodSandbox(of))
        yield "sandbox"
        for one in facts.containers:
            refused = self.create(facts, one)
            yield f"created {one.name}"
            if refused and (one.kind is not Kind.APP or facts.uid in self.tale.informed):
                return
            if refused:
                continue
            what = self.containers[of.uid, one.name]
            for kind in (nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer):
                self.tell(kind(of, what))
            yield f"started {one.name}"
            if one.kind is Kind.INIT:
                self.stop(of.uid, one.name)
                yield f"ended {one.name}"

    def _sandbox(self, facts: PodFacts) -> Pod:
        """The pod as the runtime reports it, with its total where the runtime tells that."""
        if not self.tells_totals:
            return pod(facts.uid)
        amounts = [one.amounts for one in facts.containers]
        own = facts.pod_resources
        cpu = own.cpu_limit_milli if own else peak(facts, [one.cpu_limit_milli for one in amounts])
        memory = own.memory_limit_bytes if own else peak(facts, [one.memory_limit_bytes for one in amounts])
        return replace(pod(facts.uid), resources=cpu_resources(cpu / 1000, memory))

    def create(self, facts: PodFacts, one: ContainerFacts) -> bool:
        """Create a container; returns whether it was refused."""
        uid, of = facts.uid, self.sandboxes[facts.uid]
        known = facts if self._is_told(facts, one) else None
        is_first = one is facts.containers[0]
        if is_first:
            self.tale.order.append(("admit", uid))
            self.tale.informed.discard(uid)
            self.tale.admitted.discard(uid)
            if known:
                self.tale.informed.add(uid)
        self._serial += 1
        asked = one.amounts
        message = container(
            of,
            one.name,
            cpu=asked.cpu_limit_milli / 1000,
            memory=asked.memory_limit_bytes,
            number=self._serial,
            state=ContainerState.CREATED,
        )
        before = self.state
        decision = self.tell(InformedCreate(nri.CreateContainer(of, message), facts=known))
        self._judge_creation(facts, one, known, before, decision)
        if decision.refusal is not None:
            return True
        self._stored(uid, message, decision)
        return False

    def _stored(self, uid: str, message: Container, decision: Decision) -> None:
        """The runtime creates the container with what the answer tells."""
        given = getattr(decision.response, "resources", None)
        if given is not None:
            stored = replace(message.resources, cpus=given.cpus, mems=given.mems)
            message = replace(message, resources=stored)
        self.containers[uid, message.name] = message

    def stop(self, uid: str, name: str) -> None:
        """The container ends."""
        what = self.containers[uid, name] = replace(self.containers[uid, name], state=ContainerState.STOPPED)
        self.tell(nri.StopContainer(self.sandboxes[uid], what))

    def end(self, uid: str) -> None:
        """The pod ends: everything that it had is free."""
        self.tale.order.append(("end", uid))
        of = self.sandboxes.pop(uid)
        self.tell(nri.StopPodSandbox(of))
        self.tell(nri.RemovePodSandbox(of))
        self.containers = {key: one for key, one in self.containers.items() if key[0] != uid}
        left = [key for key in self.state.allocations if pod_of(key) == uid]
        self.expect(not left, f"{uid} has ended and holds {left}")

    # ------------------------------------------------------------------ trouble

    def _trouble(self) -> None:
        self.facts_away = max(0, self.facts_away - 1)
        if self.exporter_dies and self.rng.random() < AWAY:
            self.facts_away, self.tale.away = 10, self.tale.away + 1
        if self.rng.random() < RESTARTS:
            self.restart()
        running = [key for key, one in self.containers.items() if one.state is not ContainerState.STOPPED]
        if running and self.rng.random() < CRASHES:
            self.crash(*self.rng.choice(running))
        waiting = [uid for uid in self.sandboxes if self._waits_for_facts(uid)]
        if waiting and not self.facts_away and self.rng.random() < NEWS:
            self.news(self.rng.choice(waiting))

    def _waits_for_facts(self, uid: str) -> bool:
        known = self.state.pods.get(uid)
        is_known = known is not None and self.fates[uid] is not Fate.LOST
        return is_known and could_be_completed(self.on, self.state, known)

    def news(self, uid: str) -> None:
        """Facts that come between two creations complete a pod, or leave it as it is; what runs keeps what it has."""
        live = {one.key for one in self.state.containers_of(uid) if one.phase is not Phase.STOPPED}
        held = {key: one for key, one in self.state.allocations.items() if pod_of(key) != uid or key in live}
        self.tell(PodFactsTold(self.sandboxes[uid], self.facts_by_uid[uid]))
        after = self.state.allocations
        changed = [
            key
            for key, one in held.items()
            if (one.cpus, one.mems) != (after.get(key, NOTHING).cpus, after.get(key, NOTHING).mems)
        ]
        self.expect(not changed, f"late facts of {uid} changed {changed}")
        if self.state.pods[uid].is_admitted:
            self.tale.admitted.add(uid)
            self.tale.completed.add(uid)

    def restart(self) -> None:
        """A new agent on the checkpoint of the old one, and what the runtime lists."""
        self.tale.restarts += 1
        before = self.state.allocations
        self.state = decode(b"".join(Encoder().encode(self.state, 1))).state
        self.tell(nri.Synchronize(tuple(self.sandboxes.values()), tuple(self.containers.values())))
        after = self.state.allocations
        changed = [key for key in {*before, *after} if before.get(key) != after.get(key)]
        self.expect(not changed, f"a restart changed {changed}")

    def crash(self, uid: str, name: str) -> None:
        """A running container ends by itself and is made again, with what it had."""
        key = allocation_key(uid, name)
        had = self.state.allocations.get(key, Allocation()).cpus
        self.stop(uid, name)
        of, old = self.sandboxes[uid], self.containers[uid, name]
        # A container that held nothing and is removed before it is made again cannot be told from one that never was.
        is_gone_first = key in self.state.allocations
        if is_gone_first:
            self.tell(nri.RemoveContainer(of, old))
        self._serial += 1
        again = replace(old, id=f"{uid}-{name}-{self._serial}", state=ContainerState.CREATED)
        decision = self.tell(InformedCreate(nri.CreateContainer(of, again)))
        self.expect(decision.refusal is None, f"{key} ran, ended and was refused: {decision.refusal}")
        if decision.refusal is None:
            now = self.state.allocations.get(key, Allocation()).cpus
            is_kept = now == had or (self.is_never_refused and not had)
            self.expect(is_kept, f"{key} had {had}, has {now} after it started again")
            self._stored(uid, again, decision)
            for kind in (nri.PostCreateContainer, nri.StartContainer):
                self.tell(kind(of, again))
        else:
            del self.containers[uid, name]
        if not is_gone_first:
            self.tell(nri.RemoveContainer(of, old))

    # ------------------------------------------------------------------ laws

    def tell(self, event: nri.NRIEvent | InformedCreate | PodFactsTold) -> Decision:
        decision = decide(self.on, self.state, event)
        if decision.refusal is not None:
            # The pod's facts and refusal may be remembered.
            same = decision.state.allocations == self.state.allocations
            same = same and decision.state.containers == self.state.containers
            self.expect(same, f"the refusal changed the state: {decision.refusal}")
        self.state = decision.state
        for violation in violations(self.on, self.state):
            self.expect(False, str(violation))
        return decision

    def judge_memory(self) -> None:
        """What is allocated on memory nodes is what the runtime was told: nothing moves it later."""
        for (uid, name), one in self.containers.items():
            held = self.state.allocations.get(allocation_key(uid, name))
            if held is not None and held.mems and one.state is not ContainerState.STOPPED:
                told = one.resources.mems
                self.expect(told == str(held.mems), f"{uid}/{name} was told {told!r}, has {held.mems}")

    def expect(self, holds: bool, sentence: str) -> None:
        if not holds:
            self.tale.wrong.append(sentence)

    def _is_told(self, facts: PodFacts, one: ContainerFacts) -> bool:
        if self.facts_away:
            return False
        number = facts.containers.index(one)
        match self.fates[facts.uid]:
            case Fate.IN_TIME:
                return number == 0
            case Fate.REPEATED:
                return True
            case Fate.DELAYED:
                return number > 0
        return False

    def _judge_creation(
        self, facts: PodFacts, one: ContainerFacts, known: PodFacts | None, before: State, decision: Decision
    ) -> None:
        """The first creation with facts decides about all of the pod."""
        uid = facts.uid
        if self.is_never_refused:
            self.expect(decision.refusal is None, f"{uid}/{one.name} was refused: {decision.refusal}")
            return
        if decision.refusal is not None:
            self.tale.refused.add(uid)
            self.expect(
                uid not in self.tale.admitted,
                f"{uid} was admitted, then its {one.name} was refused: {decision.refusal}",
            )
            held = [key for key in self.state.allocations if pod_of(key) == uid]
            self.expect(uid not in self.tale.informed or not held, f"{uid} was refused and holds {held}")
            return
        if known is None and uid not in self.tale.admitted:
            # Every container has limits of its own here, so none asks for more than its pod.
            count, rest = divmod(one.amounts.cpu_request_milli, 1000)
            own = self.state.allocations.get(allocation_key(uid, one.name), NOTHING)
            self.expect(bool(rest) or len(own.cpus) == count, f"{uid}/{one.name} has {own.cpus}, not {count}")
            return
        if uid in self.tale.admitted:
            later = {key: held.cpus for key, held in self.state.allocations.items() if pod_of(key) == uid}
            first = {key: held.cpus for key, held in before.allocations.items() if pod_of(key) == uid}
            self.expect(later == first, f"{uid} had {first}, has {later} after its {one.name} was created")
            return
        self.tale.admitted.add(uid)
        if uid in self.tale.informed:
            self._judge_whole(facts)

    def _judge_whole(self, facts: PodFacts) -> None:
        """Every container that is owed CPUs has them before it is created."""
        held = self.state.allocations
        if facts.pod_resources is not None:
            block = held.get(allocation_key(facts.uid, ""))
            is_pod = self.on.options.topology_manager_scope is TopologyManagerScope.POD
            if is_pod and self.on.options.topology_manager_policy is not TopologyManagerPolicy.NONE:
                count = facts.pod_resources.cpu_request_milli // 1000
                found = len(block.cpus) if block else 0
                self.expect(found == count, f"{facts.uid} owns {found} CPUs, not {count}")
        for one in facts.containers:
            count, rest = divmod(one.amounts.cpu_request_milli, 1000)
            own = held.get(allocation_key(facts.uid, one.name), Allocation())
            if not rest:
                name = f"{facts.uid}/{one.name}"
                self.expect(
                    len(own.cpus) == count and not own.is_pod_shared, f"{name} has {own.cpus}, not {count}"
                )


class ForgetfulKubelet(Kubelet):
    """A life in which each new agent starts without a checkpoint: it has what the runtime lists, and what the exporter tells.

    Attributes:
        unfit: containers that were refused and have not been created since, by pod.
        owning: pods that owned CPUs as a whole when the checkpoint was lost.
        losses: how often the checkpoint was lost while somebody held CPUs.
    """

    def __init__(self, rng: Random, on: Node, pods: list[PodFacts], fates: dict[str, Fate]) -> None:
        super().__init__(rng, on, pods, fates)
        self.unfit: dict[str, set[str]] = {}
        self.owning: set[str] = set()
        self.losses = 0

    def restart(self) -> None:
        """A new agent on nothing. Whoever runs on CPUs of its own keeps them, and no CPU gets a second owner."""
        before = self._alone()
        self.owning |= {
            pod_of(key) for key, one in self.state.allocations.items() if is_whole_pod(key) and one.cpus
        }
        # containerd does not list containers that have ended.
        listed = [one for one in self.containers.values() if one.state is not ContainerState.STOPPED]
        self.state = State()
        self.tell(nri.Synchronize(tuple(self.sandboxes.values()), tuple(listed)))
        after = self._alone()
        self.expect(before.items() <= after.items(), f"of {before} a lost checkpoint left {after}")
        self.losses += bool(before)
        self.tale.restarts += 1
        # A pod that is found running is no longer known to have been admitted as a whole.
        self.tale.admitted.clear()
        self.tale.informed.clear()

    def create(self, facts: PodFacts, one: ContainerFacts) -> bool:
        refused = super().create(facts, one)
        unfit = self.unfit.setdefault(facts.uid, set())
        (unfit.add if refused else unfit.discard)(one.name)
        if not self.state.pods[facts.uid].is_admitted:
            # It was found running, and the rest of it does not fit: its containers are placed one by one.
            self.tale.admitted.discard(facts.uid)
        return refused

    def end(self, uid: str) -> None:
        super().end(uid)
        self.unfit.pop(uid, None)
        self.owning.discard(uid)

    def tell(self, event: nri.NRIEvent | InformedCreate | PodFactsTold) -> Decision:
        decision = super().tell(event)
        for uid in self.owning & self.state.pods.keys():
            known = self.state.pods[uid]
            is_right = known.facts is None or known.regime in {None, Regime.WHOLE}
            self.expect(
                is_right or lacks_its_resources(self.on.options, known),
                f"{uid} owned CPUs, and nobody says so",
            )
        return decision

    def _alone(self) -> dict[str, CPUSet]:
        """The CPUs of live containers that share them with no other."""
        held = {
            key: self.state.allocations.get(allocation_key(*key), NOTHING)
            for key, one in self.containers.items()
            if one.state is not ContainerState.STOPPED
        }
        return {
            allocation_key(*key): one.cpus for key, one in held.items() if one.cpus and not one.is_pod_shared
        }

    def judge_whole_or_shown(self) -> None:
        """Once its facts are told, a pod has all that it is owed, or is shown as one that lacks something."""
        for uid in self.sandboxes:
            if self._waits_for_facts(uid):
                self.news(uid)
            known = self.state.pods.get(uid)
            if known is None or self.fates[uid] is Fate.LOST:
                continue
            records = self.state.containers_of(uid)
            is_shown = (
                bool(self.unfit.get(uid))
                or lacks_its_resources(self.on.options, known)
                or any(one.unplaced for one in records)
            )
            lacking = [one.name for one in self.facts_by_uid[uid].containers if self._lacks(uid, one)]
            self.expect(
                is_shown or not lacking, f"{uid} lacks what {lacking} should have, and nobody says so"
            )

    def _lacks(self, uid: str, one: ContainerFacts) -> bool:
        """Whether a container that runs, or runs again, has other CPUs than its whole number of them."""
        count, rest = divmod(one.amounts.cpu_request_milli, 1000)
        own = self.state.allocations.get(allocation_key(uid, one.name), NOTHING)
        return one.kind is not Kind.INIT and not rest and (len(own.cpus) != count or own.is_pod_shared)


def in_turn(on: Node, pods: list[PodFacts], order: list[tuple[str, str]]) -> State:
    """The state after the same pods came and ended in this order, each as a whole before anything else happens."""
    by_uid = {one.uid: one for one in pods}
    fates = dict.fromkeys(by_uid, Fate.REPEATED)
    kubelet = Kubelet(Random(0), on, [], fates, is_calm=True)
    for what, uid in order:
        if what == "end":
            kubelet.end(uid)
        else:
            for _ in kubelet.created(by_uid[uid]):
                pass
    assert kubelet.tale.wrong == []
    return kubelet.state
