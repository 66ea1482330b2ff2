"""Plays a scenario, and checks every step by the contents of cgroups, not by the output of the agent.

After every step, besides the expectations of the scenario: exclusive CPUs are shared with no other container, containers
keep the exclusive CPUs that they were given, and the kernel would have accepted every write.
"""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from nri_plugin.model.options import SMTOddCounts
from nri_plugin.model.records import QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_policy import whole_core_count
from nri_plugin.simulator.simulate.device_manager import Given, NotAdmittedError
from nri_plugin.simulator.simulate.pods import PERIOD_US, ContainerSpec, PodSpec
from nri_plugin.simulator.simulate.steps import Expect, Held, Remove, Run, Start, Stop, Update, unmet
from tests.lab.runtime.cgroup_tree import CgroupWriteError
from tests.lab.runtime.exporter_stand_in import delivered
from tests.lab.runtime.runtime import ContainerPlacement, PluginRefusedError
from tests.lab.scenario.faults import (
    foreign_partition,
    foreign_write,
    give_kubepods,
    has_logged,
    reachable,
    release_node,
    second_agent,
    settled_writes,
    switch_cpus,
    write_times,
)
from tests.lab.scenario.stage import ScenarioNode
from tests.lab.scenario.steps import (
    DriftStep,
    Foreign,
    Kubepods,
    Logged,
    Online,
    Part,
    Release,
    Restart,
    Second,
    Step,
)

# Results


@dataclass(frozen=True, slots=True)
class CPUChange:
    """A running container whose effective CPUs changed in the step."""

    key: str
    before: CPUSet
    after: CPUSet


LATE_S = 3.0
"""Seconds within which an expectation has to come true; the agent needs milliseconds on an idle machine."""
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class ContainerRefusal:
    """A refused container, with the agent's message."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The result of a step.

    Attributes:
        arrived: containers that exist since this step.
        refused: containers that were refused in it.
        changed: running containers whose effective CPUs changed.
        left: keys of containers that no longer run.
        compared: how many running containers were compared.
        problems: failed checks, a sentence each.
        took_s: the whole step, seconds.
        updates: how many containers the agent had updated when it came back.
    """

    step: Step
    arrived: tuple[ContainerPlacement, ...] = ()
    refused: tuple[ContainerRefusal, ...] = ()
    changed: tuple[CPUChange, ...] = ()
    left: tuple[str, ...] = ()
    compared: int = 0
    problems: tuple[str, ...] = ()
    took_s: float = 0.0
    updates: int = 0


@dataclass(slots=True)
class Notes:
    """Notes taken while a step runs."""

    arrived: list[str] = field(default_factory=list)
    refused: list[ContainerRefusal] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    updates: int = 0


# The player


Placements = dict[str, ContainerPlacement]

__all__ = ["CPUChange", "ContainerRefusal", "Player", "StepOutcome"]


class Player:
    """Plays steps on a stage.

    Attributes:
        refusals: why a container was refused, by `NAMESPACE/POD/CONTAINER`.
        exclusive: the exclusive set of each container as first seen, by the same key.
    """

    def __init__(
        self,
        stage: ScenarioNode,
        *,
        gives_exclusive: bool = True,
        odd_counts: SMTOddCounts = SMTOddCounts.KUBELET,
        has_pod_managers: bool = False,
        never_refused: Collection[str] = (),
    ) -> None:
        self.stage = stage
        self.refusals: dict[str, str] = {}
        self.exclusive: dict[str, CPUSet] = {}
        self._gives_exclusive, self._has_pod_managers = gives_exclusive, has_pod_managers
        self._odd_counts, self._never_refused = odd_counts, never_refused
        self._unplaced: set[str] = set()  # of namespaces that are never refused, created in the shared pool
        self._specs: dict[str, tuple[PodSpec, ContainerSpec]] = {}
        self._not_admitted: set[str] = set()
        self._waits = True
        self._heard = 0  # bytes of the agent's log that earlier `logged` steps have matched
        self._disturbed: set[str] = set()  # created, or given other CPUs, while no agent ran

    def play(self, step: Step) -> StepOutcome:
        """Play one step and check the result."""
        began = time.monotonic()
        before = self._running()
        notes = Notes()
        try:
            self._act(step, notes)
        except (CgroupWriteError, LookupError) as error:
            notes.problems.append(str(error))
        self.stage.server.settle()
        after = self._running()
        self._unplaced |= set(self._not_placed(after))
        changed = tuple(
            CPUChange(key, before[key].effective, after[key].effective)
            for key in before
            if key in after and before[key].effective != after[key].effective
        )
        placements = self.stage.runtime.placements()
        return StepOutcome(
            step=step,
            arrived=tuple(placements[key] for key in notes.arrived if key in placements),
            refused=tuple(notes.refused),
            changed=changed,
            left=tuple(key for key in before if key not in after),
            compared=len([key for key in before if key in after]),
            problems=(*notes.problems, *self._first_instructions(notes), *self._judge(step, after, changed)),
            took_s=time.monotonic() - began,
            updates=notes.updates,
        )

    def _not_placed(self, running: Placements) -> Iterator[str]:
        """New containers that would have been refused elsewhere, and so have other CPUs than they asked for."""
        for key, placement in running.items():
            is_new = key not in self.exclusive and self._specs[key][0].namespace in self._never_refused
            if is_new and len(placement.effective) != self.wants_own(key):
                yield key

    def wants_own(self, key: str) -> int:
        """How many exclusive CPUs a container should get: whole CPUs of a Guaranteed pod, rounded up to cores if configured."""
        pod, spec = self._specs[key]
        is_whole = spec.cpu_request_milli % 1000 == 0
        if pod.whole is not None and not (self._has_pod_managers and _is_claim(spec)):
            return 0
        if not self._gives_exclusive or pod.qos is not QOSClass.GUARANTEED or not is_whole:
            return 0
        if key in self._unplaced:
            return 0
        count = spec.cpu_request_milli // 1000
        if self._odd_counts is not SMTOddCounts.ROUND_UP:
            return count
        topology = self.stage.topology
        return whole_core_count(self._odd_counts, count, len(topology.online) // len(topology.cores))

    def pod_with_resources(self, key: str) -> str:
        """The pod of a container, where it has resources of its own (`spec.resources`); empty otherwise."""
        pod, _ = self._specs[key]
        return pod.key if pod.whole is not None else ""

    def qos(self, key: str) -> QOSClass:
        """The container's class."""
        return self._specs[key][0].qos

    def _act(self, step: Step, notes: Notes) -> None:
        """Do what a step says; `Say`, `Spin`, `Measure` and log lines of a real kernel are nothing to do here."""
        match step:
            case Run():
                self._run(step, notes)
            case Start():
                self._start(step, notes)
            case Stop() | Remove():
                self._end(step)
            case Update():
                self._update(step, notes)
            case Restart():
                self._restart(step, notes)
            case DriftStep() | Second() | Release() | Online() | Foreign() | Kubepods():
                self._fault(step, notes)
            case Expect():
                self._expect(step, notes)
            case Logged(only=""):
                self._logged(step, notes)

    def _run(self, step: Run, notes: Notes) -> None:
        pod = step.pod
        everyone = {f"{pod.key}/{spec.name}": spec for spec, _ in pod.members}
        for key, spec in everyone.items():
            self._specs[key] = (pod, spec)
            self.refusals.pop(key, None)
        try:
            self.stage.devices.admit(pod)
        except NotAdmittedError as error:
            self._not_admitted.add(pod.key)
            for key in everyone:
                self._refused(key, error, notes)
            return
        self._not_admitted.discard(pod.key)
        self.stage.facts.tell(pod, step.facts)
        self.stage.runtime.run_pod(pod)
        if all(self._create(pod, spec, notes) for spec in self._ended_first(pod, notes)):
            for spec in pod.containers:
                key = f"{pod.key}/{spec.name}"
                if self._create(pod, spec, notes):
                    self._arrived(key, notes)
                    if step.start:
                        self.stage.runtime.start(key)

    def _ended_first(self, pod: PodSpec, notes: Notes) -> Iterator[ContainerSpec]:
        """Yield each init container to be created, then start it and, unless it is a sidecar, end it."""
        for spec in pod.init_containers:
            yield spec
            key = f"{pod.key}/{spec.name}"
            if key not in self.refusals:
                self.stage.runtime.start(key)
                if spec.is_sidecar:
                    self._arrived(key, notes)
                else:
                    self.stage.runtime.stop(key)

    def _arrived(self, key: str, notes: Notes) -> None:
        notes.arrived.append(key)
        if not self.stage.agent_pid:
            self._disturbed.add(key)

    def _create(self, pod: PodSpec, spec: ContainerSpec, notes: Notes) -> bool:
        """Create a container with its devices; returns whether it was created."""
        key, manager = f"{pod.key}/{spec.name}", self.stage.devices
        try:
            self.stage.runtime.create(
                pod.key, delivered(spec, manager.placed(manager.given(pod.key, spec.name)))
            )
        except PluginRefusedError as error:
            self._refused(key, error, notes)
            return False
        return True

    def _refused(self, key: str, error: Exception, notes: Notes) -> None:
        self.refusals[key] = str(error)
        notes.refused.append(ContainerRefusal(key, str(error)))

    def _start(self, step: Start, notes: Notes) -> None:
        for key in self.stage.runtime.containers_of(step.target):
            self.stage.runtime.start(key)
            notes.arrived.append(key)

    def _end(self, step: Stop | Remove) -> None:
        runtime = self.stage.runtime
        is_pod = step.target not in self._specs
        pod = step.target if is_pod else self._specs[step.target][0].key
        if is_pod:
            self.stage.devices.free(pod)
            self.stage.facts.forget(pod)
        if pod in self._not_admitted:  # the kubelet only marks the pod as failed; no runtime has it
            return
        if isinstance(step, Stop):
            (runtime.stop_pod if is_pod else runtime.stop)(step.target)
            return
        if not self.stage.agent_pid:  # the next agent gives CPUs of ended containers to the shared pool
            self._disturbed |= {key for key in self._running() if not self.wants_own(key)}
        for key in runtime.containers_of(step.target):
            self.exclusive.pop(key, None)
        (runtime.remove_pod if is_pod else runtime.remove)(step.target)

    def _update(self, step: Update, notes: Notes) -> None:
        if step.resources.cpus and not self.stage.agent_pid:
            self._disturbed.add(step.target)
        before = self._running().get(step.target)
        try:
            self.stage.runtime.update(step.target, step.resources)
        except PluginRefusedError as error:
            self._refused(step.target, error, notes)
            return
        if before is not None and step.resources.cpu_quota_us:
            self._resize(step, before.effective, notes)

    def _resize(self, step: Update, before: CPUSet, notes: Notes) -> None:
        """Expect as many exclusive CPUs as it was resized to. The CPUs that it keeps are a subset or a superset."""
        pod, spec = self._specs[step.target]
        milli = (step.resources.cpu_quota_us or 0) * 1000 // (step.resources.cpu_period_us or PERIOD_US)
        had_own = self.wants_own(step.target)
        self._specs[step.target] = pod, replace(spec, cpu_request_milli=milli, cpu_limit_milli=milli)
        if not had_own or not self.wants_own(step.target):
            return
        self.exclusive.pop(step.target, None)
        after = self._running()[step.target].effective
        if not (before <= after or after <= before):
            notes.problems.append(f"{step.target} was moved from {before} to {after} by a resize")

    def _restart(self, step: Restart, notes: Notes) -> None:
        folder = self.stage.places.cgroups
        before = write_times(folder) if step.writes is None else settled_writes(self.stage)
        if step.part is Part.RUNTIME:
            self.stage.server.restart()
            if not step.is_down:
                notes.updates = len(self.stage.server.wait_for_plugin())
        else:
            self.stage.kill_agent()
            self.stage.reconfigure(step.config)
            if not step.is_down:
                notes.updates = len(self.stage.start_agent())
        after = write_times(folder) if step.writes is None else settled_writes(self.stage)
        written = [path for path, when in after.items() if before.get(path) != when]
        if step.writes is not None and len(written) > step.writes:
            notes.problems.append(f"{len(written)} cpuset files were written, at most {step.writes} expected")

    def _fault(self, step: DriftStep | Second | Release | Online | Foreign | Kubepods, notes: Notes) -> None:
        if isinstance(step, Release | Foreign) or (isinstance(step, DriftStep) and not self.stage.agent_pid):
            self._disturbed |= set(self._running())
        match step:
            case DriftStep():
                notes.problems += filter(None, [foreign_write(self.stage, step.target, step.cpus)])
            case Second():
                notes.problems += filter(None, [second_agent(self.stage)])
            case Release():
                notes.problems += filter(None, [release_node(self.stage)])
            case Online():
                switch_cpus(self.stage, step.cpus)
            case Foreign():
                foreign_partition(self.stage, step.kind, step.cpus)
            case Kubepods():
                give_kubepods(self.stage, step.cpus)

    def _logged(self, step: Logged, notes: Notes) -> None:
        end = has_logged(self.stage, step.text, self._heard)
        self._heard = end or self._heard
        if not end:
            notes.problems.append(f"the agent should have logged {step.text}, it did not")

    def _expect(self, step: Expect, notes: Notes) -> None:
        """Compare now, or soon: the agent widens the shared pool after its answer."""
        deadline = time.monotonic() + LATE_S
        problems = self._unmet(step)
        while problems and self._waits and self.stage.agent_pid and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            problems = self._unmet(step)
        # One that stays wrong makes the scenario fail; the others need no patience any more.
        self._waits = self._waits and not problems
        notes.problems += problems

    def _unmet(self, step: Expect) -> list[str]:
        placement = self._running().get(step.target)
        held = None
        if placement is not None:
            held = Held(
                str(placement.effective),
                str(placement.mems),
                exclusive=len(self.exclusive.get(step.target, CPUSet())),
                numa_nodes=len(self.stage.topology.nodes_of(placement.effective)),
                caches=self.caches_of(placement.effective),
                devices=self.devices_of(step.target),
            )
        return list(unmet(step, self.refusals.get(step.target), held))

    def devices_of(self, key: str) -> Given:
        """The devices of a container, by resource."""
        pod, spec = self._specs[key]
        return self.stage.devices.given(pod.key, spec.name)

    def caches_of(self, cpus: CPUSet) -> int:
        """Over how many uncore caches these CPUs are spread."""
        return sum(not group.isdisjoint(cpus) for _, group in self.stage.topology.caches)

    def _running(self) -> Placements:
        return {key: each for key, each in self.stage.runtime.placements().items() if each.effective}

    def _judge(self, step: Step, running: Placements, changed: tuple[CPUChange, ...]) -> Iterator[str]:
        yield from (f"a kernel would reject: {error}" for error in self.stage.runtime.take_rejections())
        disturbed = self._disturbed
        if isinstance(step, Restart) and self.stage.agent_pid:
            self._disturbed = set()  # the agent is back, so exclusive sets must hold again
        if self.stage.agent_death is not None:
            yield f"the agent ended by itself with code {self.stage.agent_death}"
        yield from self._overlaps(running)
        yield from self._moves(running)
        if isinstance(step, Restart):
            for change in (each for each in changed if each.key not in disturbed):
                # The agent widens the shared pool after its answers: it may have ended before it came to that.
                if self.wants_own(change.key) or not change.before <= change.after:
                    yield f"the restart changed {change.key} from {change.before} to {change.after}"

    def _first_instructions(self, notes: Notes) -> Iterator[str]:
        """The first instruction of a container ran on the container's own CPUs."""
        for key in notes.arrived:
            record = self.stage.runtime.record(key)
            now = self.stage.runtime.cgroups.placement(record).effective
            if record.started_on is not None and record.started_on != now:
                yield f"{key} began on {record.started_on} before it was put on {now}"

    def _overlaps(self, running: Placements) -> Iterator[str]:
        """Exclusive sets are disjoint and nothing else runs on them."""
        judged = {key: each for key, each in running.items() if key not in self._disturbed}
        own = {key: each for key, each in judged.items() if self.wants_own(key) and self._left(key)}
        for key, placement in own.items():
            for other, its in judged.items():
                common = placement.effective & its.effective
                if other != key and common and not (other in own and other < key):
                    yield f"{key} and {other} share CPUs {common}"

    def _moves(self, running: Placements) -> Iterator[str]:
        """A container keeps the exclusive set that it was given first, as far as the kernel has these CPUs."""
        for key, placement in running.items():
            wanted = self.wants_own(key)
            if not wanted or key in self._disturbed:
                continue
            first = self.exclusive.setdefault(key, placement.effective)
            left = self._left(key)
            if left == first and len(placement.effective) != wanted:
                yield f"{key} should have {wanted} CPUs of its own, it runs on {placement.effective}"
            if left and left != placement.effective:
                yield f"{key} was moved from {left} to {placement.effective}"

    def _left(self, key: str) -> CPUSet:
        """The CPUs of its own that a container can run on now; all CPUs for one that has run nowhere yet."""
        usable = reachable(self.stage)
        return self.exclusive.get(key, usable) & usable


def _is_claim(spec: ContainerSpec) -> bool:
    """Whether a container of a pod with resources of its own may own a part of them: requests and limits are equal."""
    amounts = spec.amounts
    return (
        0 < amounts.cpu_request_milli == amounts.cpu_limit_milli
        and 0 < amounts.memory_request_bytes == amounts.memory_limit_bytes
    )
