"""A random life of one node: pods come and go, agent and runtime go and come, and things fail on the way."""

import dataclasses
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from nri_plugin.model.options import Node, Options, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.records import Kind, Phase, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.simulate.pods import (
    ContainerSpec,
    Driver,
    PodSpec,
    RuntimeIdentity,
    Telling,
    ToldFacts,
    shares_from_milli,
)
from nri_plugin.wire.nri import events
from nri_plugin.wire.nri.messages import ContainerState, Resources
from tests.bounds_judge import CONTAINER_KEPT, POD_KEPT, deep_size
from tests.chaos.agent import Agent
from tests.chaos.disk import Disk, Inode, Names
from tests.chaos.faults import Fault, Faults, Killed
from tests.chaos.interrupts import PlayedInterrupts
from tests.chaos.judge import Judge
from tests.chaos.whole_pods import TELLINGS, is_plain_init, whole_pod
from tests.lab.runtime.cgroup_tree import CgroupTree, CgroupWriteError, CpusetFile
from tests.lab.runtime.profile import BEHAVIOURS
from tests.lab.runtime.runtime import PluginRefusedError, Record, Runtime
from tests.largest_pods import SPEC_KINDS, enlarged
from tests.simulated_node import MEMORY_BYTES, NoMirror, created_in
from tests.topology_rows import topology_of_rows

GIB = 1 << 30
ROWS = [(cpu, cpu % 16, cpu % 16 // 8, cpu % 16 // 8, cpu % 16 // 4) for cpu in range(32)]
MACHINE = topology_of_rows(ROWS, memory_bytes={0: 64 * GIB, 1: 64 * GIB})
MOST_PODS = 14
LARGE_PODS = 0.03
"""How many pods are as large as the API server allows."""
WEIGHED = 32
"""So many looks lie between two at which the state is weighed."""

IN_A_SAVE = (Fault.KILL, Fault.TORN, Fault.NO_SPACE, Fault.IO_ERROR, Fault.CGROUP_ERROR, Fault.REPLY_LOST)
IN_A_THREAD = (
    Fault.NO_THREAD,
    Fault.STALL,
    Fault.NO_SPACE,
    Fault.IO_ERROR,
    Fault.CGROUP_ERROR,
    Fault.REPLY_LOST,
)
DIRECTORY = (
    Fault.DIRECTORY_LOST,
    Fault.DIRECTORY_REPLACED,
    Fault.DIRECTORY_FULL,
    Fault.DIRECTORY_READ_ONLY,
)
BETWEEN = (
    Fault.AGENT_RESTART,
    Fault.RUNTIME_RESTART,
    Fault.BOTH_RESTART,
    Fault.LAUNCHED_KILLED,
    Fault.BORN_AWAY,
    Fault.BORN_DURING_SYNC,
    Fault.NEVER_TOLD,
    Fault.SAME_NAME,
    Fault.FAILED_CREATION,
    Fault.FAILED_UNTOLD,
    Fault.FAILED_RESIZE,
    Fault.FOREIGN_WRITE,
    Fault.CPUS_OFFLINE,
    Fault.SAME_UID,
    Fault.LOST_REMOVAL,
    Fault.LOST_REMOVAL,
    Fault.ROOT_SHRANK,
    Fault.LOST_CHECKPOINT,
    Fault.DAMAGED_CHECKPOINT,
    *DIRECTORY,
    *DIRECTORY,
)

WHILE_THE_DIRECTORY_FAILS = (
    *(Fault.AGENT_RESTART,) * 6,
    Fault.RUNTIME_RESTART,
    Fault.BOTH_RESTART,
    Fault.BORN_AWAY,
    Fault.BORN_DURING_SYNC,
    Fault.NEVER_TOLD,
    Fault.SAME_NAME,
    Fault.FAILED_CREATION,
    Fault.FAILED_UNTOLD,
    Fault.FAILED_RESIZE,
    Fault.FOREIGN_WRITE,
)
"""Restarts above all, which show what a restart finds; any fault not named would take the last record of something."""

PUT_RIGHT_BY_THE_CLOCK = (Fault.FOREIGN_WRITE, Fault.BORN_AWAY, Fault.NEVER_TOLD, Fault.SAME_NAME)
"""Nobody tells the agent of these: it finds out when it looks."""


@dataclass(slots=True)
class Tally:
    """What all lives together had.

    Attributes:
        admitted: pods that were admitted as a whole, with their facts.
        unsaved: exclusive CPUs of running containers that only the memory held when an agent ended.
        interrupts: what happened to the played interrupts, by kind.
        recovery_s: worst time from a start of the agent to its answer to Synchronize, by what it recovered from.
    """

    events: int = 0
    admitted: int = 0
    injected: Counter[Fault] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    broken_by: Counter[tuple[Fault, str]] = field(default_factory=Counter)
    stories: list[str] = field(default_factory=list)
    recovery_s: dict[Fault, float] = field(default_factory=dict)
    overlapped: int = 0
    unsaved: int = 0
    lives: int = 0
    interrupts: Counter[str] = field(default_factory=Counter)


REMOVALS = (
    events.StopContainer,
    events.RemoveContainer,
    events.StopPodSandbox,
    events.RemovePodSandbox,
)


class CreationFailedError(PluginRefusedError):
    """The runtime could not create what the plugin had placed."""


class UnluckyRuntime(Runtime):
    """A runtime whose next creation fails after the plugin's answer, when it is told so."""

    fails: Fault | None = None
    fails_update = False
    loses = 0.0
    lost = 0
    chance = Random(0)

    def _tell(self, event):  # type: ignore[no-untyped-def]
        if isinstance(event, REMOVALS) and self.chance.random() < self.loses:
            self.lost += 1
        else:
            super()._tell(event)

    def _drop_cgroups(self, sandbox):  # type: ignore[no-untyped-def]
        if any(one.names.path == sandbox.names.path for one in self._sandboxes.values()):
            self.cgroups.leave(sandbox.pause)  # a pod of the same uid lives there, too
        else:
            super()._drop_cgroups(sandbox)

    def _apply(self, record, change):  # type: ignore[no-untyped-def]
        if self.fails_update:
            raise CreationFailedError("the runtime cannot write a cgroup")
        super()._apply(record, change)

    def _with_adjustment(self, sandbox, message):  # type: ignore[no-untyped-def]
        message = super()._with_adjustment(sandbox, message)
        fault, self.fails = self.fails, None
        if fault is None:
            return message
        if fault is Fault.FAILED_CREATION:
            self._tell(events.StopContainer(sandbox.message, message))
            self._tell(events.RemoveContainer(sandbox.message, message))
        raise CreationFailedError("another plugin claims the same field")


class Life:
    """One node from boot to the end.

    Args:
        seed: of everything random in it.
        tally: where it is counted.
        record: a file to which its agents record.
        forgets: for showing that the judge can see: an agent that starts without its checkpoint and its runtime's list.
    """

    def __init__(self, seed: int, tally: Tally, *, record: str = "", forgets: bool = False) -> None:
        self.record = record
        self.random = Random(seed)
        self.seed = seed
        self.tally = tally
        self.forgets = forgets
        self.faults = Faults(self.random, tally.injected)
        self.threaded = self.random.random() < 0.2
        self.durable = self.threaded or self.random.random() < 0.5
        self.serves = self.random.random() < 0.5
        version = self.random.choice([1, 2, 2, 2])
        options = Options(
            topology_manager_policy=self.random.choice(list(TopologyManagerPolicy)),
            topology_manager_scope=self.random.choice(list(TopologyManagerScope)),
            full_pcpus_only=self.random.random() < 0.3,
            pod_level_managers=self.random.random() < 0.7,
            pool_floor=version == 2,
        )
        self.node = Node(MACHINE, options, CPUSet.of(0, 16))
        self.tree = CgroupTree.of(MACHINE, version=version)
        behaviour = BEHAVIOURS[self.random.choice(sorted(BEHAVIOURS))]
        driver = self.random.choice(list(Driver))
        self.runtime = UnluckyRuntime(RuntimeIdentity(behaviour, driver, MEMORY_BYTES), NoMirror(self.tree))
        self.runtime.chance = Random(seed)
        self.facts = ToldFacts()
        # Without them the runtime knows all allocations, so that the checkpoint can be lost.
        self.has_whole_pods = self.random.random() < 0.6
        self.admitted: set[str] = set()
        self.disk = Disk(self.faults, self.random)
        self.judge = Judge(self.node, self.tree, self.runtime)
        self.interrupts = PlayedInterrupts(seed, len(MACHINE.online))
        self.serial = self.looks = 0
        self.sizes: dict[str, int] = {}
        self.agent: Agent | None = None
        self.copy: Names | None = None
        self.cause = Fault.AGENT_RESTART
        self.story = ""
        self.come_back(Fault.AGENT_RESTART)
        tally.lives += 1

    # ------------------------------------------------------------------ playing

    def play(self, events_wanted: int) -> None:
        """Go on until the agents of this life were told so many events."""
        until = self.tally.events + events_wanted
        before = 0
        while self.tally.events < until:
            self.step()
            told = self.agent.events if self.agent else 0
            self.tally.events += max(0, told - before)
            before = told
        if self.agent is not None:
            self.agent.end()
        self.interrupts.end()
        self.tally.interrupts += self.interrupts.events
        self.tally.broken["interrupts"] += len(self.interrupts.broken)
        self.tally.broken += Counter()  # without zeros
        self.tally.stories += [f"seed {self.seed}: {one}" for one in self.interrupts.broken[:5]]
        self.tally.overlapped += len(self.judge.overlapped)

    def step(self) -> None:
        """One thing happens; what dies over it comes back, and everything is looked at."""
        if self.disk.condition and self.random.random() < 0.08:
            self.disk.bring_back()
        if self.random.random() < 0.25:
            kinds = IN_A_THREAD if self.threaded else IN_A_SAVE
            if self.durable and not self.threaded:
                kinds = (*kinds, Fault.KILL_LOSING)
            fault = self.random.choice(kinds)
            self.plan(fault)
        elif self.random.random() < 0.15:
            fault = self.random.choice(WHILE_THE_DIRECTORY_FAILS if self.disk.condition else BETWEEN)
            self.note(fault.value)
            self.bring(fault)
        else:
            fault = None
        if self.copy is None or self.random.random() < 0.02:
            self.copy = {name: Inode(bytearray(one.data)) for name, one in self.disk.names.items()}
        refused = self.something()
        self.faults.plan(None)
        if self.agent is None or not self.agent.is_alive:
            self.look(fault, is_away=True)
            self.while_away()
            self.come_back(fault or Fault.AGENT_RESTART)
        elif fault not in PUT_RIGHT_BY_THE_CLOCK:
            self.look_at_once(fault, exact=refused)
        assert self.agent is not None
        self.agent.look()
        self.look(fault)

    def plan(self, fault: Fault) -> None:
        self.cause = fault
        self.faults.plan(fault)
        self.note(fault.value)

    def note(self, text: str) -> None:
        self.story = f"seed {self.seed}: {text}"

    def look(self, fault: Fault | None, *, is_away: bool = False) -> None:
        self.looks += 1
        alive = self.agent is not None and self.agent.is_alive and not is_away
        before = self.judge.broken.copy()
        is_saved = alive and self.agent is not None and self.agent.believes_saved
        self.judge.look(
            self.agent.handler.state if alive and self.agent else None, self.story, is_saved=is_saved
        )
        if alive and self.agent and self.looks % WEIGHED == 0:
            state = self.agent.handler.state
            most = len(state.pods) * POD_KEPT + len(state.containers) * CONTAINER_KEPT
            if deep_size(*state.pods.values(), *state.containers.values()) > most:
                self.judge._say("kept", f"more than {most} bytes after {self.story}")
        if alive and self.agent:
            self.interrupts.follow(self.agent.handler.node, self.agent.handler.state)
        self._count(fault, before)

    def look_at_once(self, fault: Fault | None, *, exact: bool) -> None:
        """Before the agent looks by the clock, which would put right what an answer left wrong."""
        assert self.agent is not None
        before = self.judge.broken.copy()
        self.judge.look_at_once(self.agent.handler.state, self.story, exact=False)
        if exact:
            self.agent.settle()
            # The sweep repairs a file whose late write was refused; the slice above bounds it until then.
            if not self.agent.handler.cpusets.unwritten:
                self.judge.look_at_once(self.agent.handler.state, self.story, exact=True)
        if self.agent.believes_saved and not self.threaded:
            self.judge.look_at_disk(self.agent.on_disk(), self.agent.handler.state, self.story)
        if self.agent.has_lost_previous:
            self.judge.say_no_previous(self.story)
        self._count(fault, before)

    def _count(self, fault: Fault | None, before: Counter[str]) -> None:
        for kind, count in (self.judge.broken - before).items():
            self.tally.broken[kind] += count
            self.tally.broken_by[fault or self.cause, kind] += count
        self.tally.stories += self.judge.stories[: 20 - len(self.tally.stories)]
        self.judge.stories.clear()

    # ------------------------------------------------------------------ what happens to pods

    def something(self) -> bool:
        """What a kubelet does next; returns whether some of it was refused."""
        pods = self.keys()
        doings = [self.run_pod, self.run_pod, *([self.run_whole_pod] * 2 if self.has_whole_pods else [])]
        if pods:
            doings += [self.restart_container, self.resize, self.end_container, self.start_created]
            doings += [self.renew_sandbox]
            doings += [self.remove_pod] * (1 + 2 * (len(pods) > MOST_PODS))
        if len(pods) > MOST_PODS + 6:
            doings = [self.remove_pod]
        try:
            self.random.choice(doings)()
        except (PluginRefusedError, CgroupWriteError):
            self.runtime.take_rejections()
            return True
        return False

    def keys(self) -> list[str]:
        """The pods there are."""
        return list(self.runtime._sandboxes)

    def spec(self, name: str = "c") -> ContainerSpec:
        milli = self.random.choice([1000, 2000, 2000, 3000, 4000, 6000])
        return self.random.choice(
            [
                ContainerSpec(name, milli, milli, GIB, GIB),
                ContainerSpec(name, milli, milli, GIB, GIB),
                ContainerSpec(name),
                ContainerSpec(name, 500),
                ContainerSpec(name, 500, 500, GIB, GIB),
            ]
        )

    def run_pod(self, *, uid: str = "") -> None:
        self.serial += 1
        if self.random.random() < 0.3:
            names = ("init", "c", "side")
            specs = tuple(self.spec(name) for name in names)
            pod = PodSpec(f"p{self.serial}", containers=specs, forced_qos=QOSClass.GUARANTEED)
        else:
            pod = PodSpec(f"p{self.serial}", containers=(self.spec(),))
        if self.random.random() < LARGE_PODS:
            pod = enlarged(pod, self.random.choice(SPEC_KINDS))
        self.runtime.run_pod(pod, uid)
        for spec in pod.containers:
            self.runtime.create(pod.key, spec)
            if self.random.random() < 0.9:
                self.runtime.start(f"{pod.key}/{spec.name}")
            if spec.name == "init":
                self.runtime.stop(f"{pod.key}/init")

    def run_whole_pod(self) -> None:
        """A pod whose object is known, in time or late, or not; where it was admitted with it, none of it is refused."""
        self.serial += 1
        pod = whole_pod(self.random, f"p{self.serial}")
        tellings = TELLINGS
        if pod.whole is not None and not self.node.options.pod_level_managers:
            # Facts that come late say that its containers get nothing, and one that starts again loses its CPUs.
            tellings = (Telling.KNOWN, Telling.LOST)
        self.facts.tell(pod, self.random.choice(tellings))
        self.runtime.run_pod(pod)
        self._create_all(pod, is_new=True)

    def _create_all(self, pod: PodSpec, *, is_new: bool = False) -> None:
        """The containers in the kubelet's order: each starts, and plain init containers end, before the next comes."""
        is_known, agent = is_new and self.facts.is_known_in_time(pod.key), self.agent
        for number, (spec, kind) in enumerate(pod.members):
            heard = agent.events if agent is not None else 0
            try:
                self.runtime.create(pod.key, spec)
            except PluginRefusedError as error:
                if pod.key in self.admitted and not isinstance(error, CreationFailedError):
                    before = self.judge.broken.copy()
                    self.judge.half_admitted(f"{pod.key}/{spec.name}", str(error), self.story)
                    self._count(None, before)
                raise
            was_asked = agent is not None and agent is self.agent and agent.is_alive and agent.events > heard
            # A pod whose admission is not on the disk may be lost with the agent.
            if number == 0 and is_known and was_asked and agent is not None and agent.believes_saved:
                self.admitted.add(pod.key)
                self.tally.admitted += 1
            if kind is not Kind.APP or self.random.random() < 0.9:
                self.runtime.start(f"{pod.key}/{spec.name}")
            if kind is Kind.INIT:
                self.runtime.stop(f"{pod.key}/{spec.name}")
            elif self.random.random() < 0.05:
                return  # the kubelet is restarted, or an image is pulled: the others come later, or never

    def start_created(self) -> None:
        for record in created_in(self.runtime, self.random.choice(self.keys())):
            self.runtime.start(record.key)

    def restart_container(self) -> None:
        record = self._any_record()
        if record is None:
            return
        self.runtime.stop(record.key)
        self._create_again(record)

    def resize(self) -> None:
        """More or fewer CPUs of any container that runs; half of them have exclusive ones."""
        record = self._any_record()
        if record is None or record.message.state is not ContainerState.RUNNING:
            return
        if record.sandbox.spec.init_containers or record.sandbox.spec.whole is not None:
            return  # these keep their sizes here
        is_shared = self._spec_of(record).cpu_limit_milli < 1000
        milli = self.random.choice([100, 700] if is_shared else [1000, 2000, 3000, 4000, 6000, 8000])
        self.judge.resized |= {each.message.id for each in self.runtime.records() if each.key == record.key}
        self.runtime.update(record.key, Resources(cpu_shares=shares_from_milli(milli)))
        self.sizes[record.key] = milli

    def end_container(self) -> None:
        record = self._any_record()
        if record is not None:
            self.random.choice([self.runtime.stop, self.runtime.remove])(record.key)

    def remove_pod(self) -> None:
        key = self.random.choice(self.keys())
        self.runtime.remove_pod(key)
        self.facts.forget(key)
        self.admitted.discard(key)

    def renew_sandbox(self) -> None:
        """The pod in a new sandbox under its uid, as after a node's network broke; some containers come later."""
        key = self.random.choice(self.keys())
        sandbox = self.runtime._sandboxes[key]
        self.runtime.remove_pod(key)
        self.admitted.discard(key)
        self.judge.waiting.clear()  # the allocations of the pod ended with its sandbox
        self.runtime.run_pod(sandbox.spec, sandbox.message.uid)
        if sandbox.spec.init_containers:
            self._create_all(sandbox.spec)
            return
        for spec in sandbox.spec.containers:
            if self.random.random() < 0.5:
                milli = self.sizes.get(f"{key}/{spec.name}", spec.cpu_request_milli)
                limit = milli if spec.cpu_limit_milli else 0
                self.runtime.create(
                    key, dataclasses.replace(spec, cpu_request_milli=milli, cpu_limit_milli=limit)
                )
                self.runtime.start(f"{key}/{spec.name}")

    def _create_again(self, record: Record) -> None:
        key = record.sandbox.spec.key
        self.runtime.create(key, self._spec_of(record))
        self.runtime.start(record.key)

    def _spec_of(self, record: Record) -> ContainerSpec:
        """What a kubelet would make the container with now, after all resizes."""
        spec = next(each for each, _ in record.sandbox.spec.members if each.name == record.message.name)
        milli = self.sizes.get(record.key, spec.cpu_request_milli)
        return dataclasses.replace(
            spec, cpu_request_milli=milli, cpu_limit_milli=milli if spec.cpu_limit_milli else 0
        )

    def _any_record(self) -> Record | None:
        """Any container that a kubelet would restart; a plain init container has ended for good."""
        records = [
            record
            for record in self.runtime.records()
            if not is_plain_init(record.sandbox.spec, record.message.name)
        ]
        return self.random.choice(records) if records else None

    # ------------------------------------------------------------------ what happens to processes

    def bring(self, fault: Fault) -> None:
        """Faults between events."""
        self.cause = fault
        if self._is_more_than_one_fault(fault):
            return
        self.faults.struck(fault)
        aside = {
            Fault.FAILED_CREATION: self.failed_creation,
            Fault.FAILED_UNTOLD: self.failed_creation,
            Fault.FAILED_RESIZE: self.failed_resize,
            Fault.NEVER_TOLD: self.never_told,
            Fault.SAME_NAME: self.same_name,
            Fault.LAUNCHED_KILLED: self.launched_killed,
            Fault.FOREIGN_WRITE: self.foreign_write,
            Fault.CPUS_OFFLINE: self.other_cpus,
            Fault.SAME_UID: self.same_uid,
            Fault.LOST_REMOVAL: self.lost_removal,
            Fault.ROOT_SHRANK: self.other_root,
            Fault.DIRECTORY_LOST: self.other_directory,
            Fault.DIRECTORY_REPLACED: self.other_directory,
            Fault.DIRECTORY_FULL: self.other_directory,
            Fault.DIRECTORY_READ_ONLY: self.other_directory,
        }.get(fault, self.restarts)
        aside()

    def restarts(self) -> None:
        """Agent, runtime or both end and come back, and find what the fault has left them."""
        fault = self.cause
        if fault is not Fault.RUNTIME_RESTART:
            self.go_away()
        if fault in (Fault.RUNTIME_RESTART, Fault.BOTH_RESTART):
            self.runtime.restart()
        if fault is Fault.LOST_CHECKPOINT:
            self.disk.names.clear()
        if fault is Fault.DAMAGED_CHECKPOINT:
            self._damage()
        if fault is Fault.BORN_AWAY:
            self.born_unseen()
        self.come_back(fault, unlisted=fault is Fault.BORN_DURING_SYNC)

    def launched_killed(self) -> None:
        """A restarted runtime starts an agent, the one before yields; the new one is killed, an ordinary one comes back.

        NRI before 0.7 does not synchronize a plugin that it starts: this agent knows its checkpoint only.
        """
        self.go_away()
        self.runtime.restart()
        if self.runtime.behaviour.profile.release < (0, 7):
            self._started(None)
            self.runtime.plugin = self.agent
        else:
            self.come_back(self.cause)
        for _ in range(self.random.randrange(3)):
            self.something()
        if not self.threaded and self.random.random() < 0.5:
            self.faults.plan(Fault.KILL)  # in the middle of an event, otherwise between two
            self.something()
            self.faults.plan(None)
        assert self.agent is not None
        if self.agent.is_alive:
            self.agent.end()
        self.while_away()
        self.come_back(Fault.LAUNCHED_KILLED)

    def same_uid(self) -> None:
        """A pod with the uid of one that lives, as `crictl` makes it."""
        keys = self.keys()
        if keys:
            with suppress(PluginRefusedError, CgroupWriteError):
                self.run_pod(uid=self.runtime._sandboxes[self.random.choice(keys)].message.uid)

    def lost_removal(self) -> None:
        """A pod ends, or a container starts anew, and the runtime does not report what ended."""
        self.runtime.loses = 1.0
        with suppress(PluginRefusedError, CgroupWriteError):
            self.random.choice([self.remove_pod, self.restart_container])() if self.keys() else None
        self.runtime.loses = 0.0

    def failed_creation(self) -> None:
        self.runtime.fails = self.cause
        with suppress(PluginRefusedError, CgroupWriteError):
            self.run_pod()
        self.runtime.fails = None

    def failed_resize(self) -> None:
        self.runtime.fails_update = True
        with suppress(PluginRefusedError, CgroupWriteError):
            self.resize()
        self.runtime.fails_update = False

    def _is_more_than_one_fault(self, fault: Fault) -> bool:
        """Whether the last one that knows of a promise would forget it: nobody could help that.

        A promise that is in the checkpoint alone is lost with it; so is, with CRI-O's restart, one that a failed
        save left in CRI-O's memory alone.
        """
        if self.disk.condition and fault not in WHILE_THE_DIRECTORY_FAILS:
            return True
        if fault in DIRECTORY:
            is_whole = not self.node.topology.offline and self.agent is not None and self.agent.believes_saved
            return not is_whole or (fault is Fault.DIRECTORY_LOST and not self._runtime_knows_all())
        if fault is Fault.DAMAGED_CHECKPOINT and self.agent is not None and self.agent.is_damage_harmless:
            return False  # whatever is left of it holds the same promises
        if fault in (Fault.LOST_CHECKPOINT, Fault.DAMAGED_CHECKPOINT):
            return not self._runtime_knows_all()
        if fault is Fault.LAUNCHED_KILLED:
            return self.agent is None or not self.agent.believes_saved
        return fault in (Fault.RUNTIME_RESTART, Fault.BOTH_RESTART, Fault.SAME_NAME) and self._is_unsaved()

    def other_directory(self) -> None:
        """Something becomes of the directory; the agent looks by the clock before anything else happens."""
        assert self.agent is not None
        if self.cause is Fault.DIRECTORY_LOST:
            self.disk.lose_directory(is_mounted=self.random.random() < 0.5)
        elif self.cause is Fault.DIRECTORY_REPLACED:
            self.disk.replace_directory(self.copy or {})
        else:
            self.disk.condition = self.cause
        self.agent.forget_generations()
        self.agent.look()

    def go_away(self) -> None:
        """The agent is told to stop, or killed between two events."""
        agent = self.agent
        if agent is not None and agent.is_alive and self.random.random() < 0.5:
            state, before = agent.handler.state, self.judge.broken.copy()
            # A thread looks every 2 s whether its file is still there, which is longer than a life.
            is_known = not (self.threaded and self.disk.condition)
            is_saved = is_known and agent.believes_saved and state != State()
            if not self.threaded and self.random.random() < 0.5:
                self.faults.plan(self.random.choice(IN_A_SAVE))
            agent.stop()
            self.faults.plan(None)
            if is_saved:
                self.judge.look_at_disk(agent.on_disk(), state, self.story)
            self._count(None, before)
        elif agent is not None:
            agent.end()
        self.runtime.disconnect()

    def while_away(self) -> None:
        """Between the death of the agent and its return."""
        self.runtime.disconnect()
        if self.random.random() < 0.3:
            self.born_unseen()

    def born_unseen(self) -> None:
        self.faults.struck(Fault.BORN_AWAY)
        try:
            self.run_pod()
        except CgroupWriteError:
            self.runtime.take_rejections()
        self.look(Fault.BORN_AWAY, is_away=True)

    def never_told(self) -> None:
        """A pod of which the agent, which is there, hears nothing."""
        plugin, self.runtime.plugin = self.runtime.plugin, None
        try:
            self.run_pod()
        except CgroupWriteError:
            self.runtime.take_rejections()
        finally:
            self.runtime.plugin = plugin

    def foreign_write(self) -> None:
        """Any CPUs into the cgroup of any container that runs."""
        running = [each for each in self.runtime.records() if each.has_cgroup]
        if running:
            record = self.random.choice(running)
            cpus = CPUSet.from_ids(
                self.random.sample(list(self.node.topology.online), self.random.randint(1, 8))
            )
            with suppress(CgroupWriteError):
                self.tree.write(record.names.path, CpusetFile.CPUS, str(cpus))

    def other_cpus(self) -> None:
        """A few CPUs go away, or all are there again; reserved ones stay. The kernel is there before the agent."""
        gone = set() if self.node.topology.offline else set(self.random.sample(range(1, 16), 3))
        rows = [row for row in ROWS if row[0] not in gone]
        topology = topology_of_rows(rows, memory_bytes={0: 64 * GIB, 1: 64 * GIB})
        self._follow(replace(topology, offline=CPUSet.from_ids(gone)))

    def other_root(self) -> None:
        """The cgroup above the pods loses any CPUs, reserved ones too, or has all again; one is left to the shared pool."""
        online, exclusive = MACHINE.online, self.agent.handler.state.exclusive if self.agent else CPUSet()
        gone = set(self.random.sample(list(online), self.random.randint(1, 24)))
        kept = online - CPUSet.from_ids(gone)
        spare = online - exclusive
        is_whole = not self.node.topology.offline
        self._follow(MACHINE.within(kept | CPUSet.of(min(spare))) if is_whole and spare else MACHINE)

    def _follow(self, topology: Topology) -> None:
        self.node = dataclasses.replace(self.node, topology=topology)
        self.tree.set_online(topology.online)
        self.judge.node = self.node
        if self.agent is not None:
            self.agent.follow(self.node)

    def same_name(self) -> None:
        """The runtime crashes, loses sight of a container, and the kubelet makes it anew, or the whole pod.

        The lost container may be alive; the lost pod is not.
        """
        self.runtime.restart()
        record = self._any_record()
        if record is not None and record.sandbox.is_running:
            again = self.random.choice([self._create_again, self._run_again])
            try:
                again(record)
            except (PluginRefusedError, CgroupWriteError):
                self.runtime.take_rejections()
        self.look(Fault.SAME_NAME, is_away=True)
        self.come_back(Fault.SAME_NAME)

    def _run_again(self, record: Record) -> None:
        """The pod in a new sandbox, all containers anew; nobody tells of the end of the old ones."""
        sandbox = record.sandbox
        for old in [each for each in self.runtime.records() if each.sandbox is sandbox]:
            self.runtime.cgroups.leave(old.names.path)
            del self.runtime._records[old.message.id]
        self.runtime.cgroups.leave(sandbox.pause)
        self.runtime.run_pod(sandbox.spec, sandbox.message.uid)
        if sandbox.spec.init_containers:
            self._create_all(sandbox.spec)
            return
        for spec in sandbox.spec.containers:
            key = f"{sandbox.spec.key}/{spec.name}"
            milli = self.sizes.get(key, spec.cpu_request_milli)
            limit = milli if spec.cpu_limit_milli else 0
            self.runtime.create(
                sandbox.spec.key, dataclasses.replace(spec, cpu_request_milli=milli, cpu_limit_milli=limit)
            )
            self.runtime.start(key)

    def come_back(self, cause: Fault, *, unlisted: bool = False) -> None:
        """A new process, a new Synchronize; what fails on the way fails once."""
        knows_all = self._runtime_knows_all()
        if self.agent is not None:
            unsaved = self.agent.handler.checkpoint.unsaved(self.agent.handler.state)
            running = {
                record.key
                for record in self.agent.handler.state.containers.values()
                if record.phase is Phase.RUNNING
            }
            self.tally.unsaved += sum(1 for key, held in unsaved.items() if held.cpus and key in running)
        if self.agent is not None and self.agent.is_alive:
            self.agent.end()
        losing = cause is Fault.KILL_LOSING
        self.disk.restart(is_losing=losing)
        if self.forgets:
            self.disk.names.clear()
        late = self._created_unlisted() if unlisted else None
        truth = self.runtime.truth()
        if late is not None:
            truth = dataclasses.replace(
                truth, containers=tuple(c for c in truth.containers if c.id != late.message.id)
            )
        if self.forgets:
            truth = dataclasses.replace(truth, pods=(), containers=())
        event = events.Synchronize(truth.pods, truth.containers)
        if self.random.random() < 0.3:
            kinds = IN_A_THREAD if self.threaded else IN_A_SAVE
            # An unreadable checkpoint is one generation lost: as good as none where the runtime knows less.
            readable = [kind for kind in kinds if knows_all or kind is not Fault.IO_ERROR]
            self.plan(self.random.choice(readable))
        began = time.perf_counter()
        answer = self._started(event)
        if answer is None:
            self.faults.plan(None)
            self.disk.restart()
            began = time.perf_counter()
            answer = self._started(event)
        took_s = time.perf_counter() - began
        self.tally.recovery_s[cause] = max(self.tally.recovery_s.get(cause, 0.0), took_s)
        self.faults.plan(None)
        assert isinstance(answer, events.SynchronizeResponse)
        self.runtime.plugin = self.agent
        self.runtime.apply(answer.updates)
        self.runtime.take_rejections()
        if late is not None:
            try:
                self.runtime.start(late.key)
            except (PluginRefusedError, CgroupWriteError):
                self.runtime.take_rejections()

    def _started(self, event: events.Synchronize | None) -> events.NRIResponse | None:
        """A new process and its answer to Synchronize; None when it died before, or is not synchronized."""
        try:
            self.agent = Agent(
                self.node,
                self.tree,
                self.disk,
                self.faults,
                durable=self.durable,
                threaded=self.threaded,
                serves=self.serves,
                record=self.record,
                facts=self.facts,
            )
        except Killed:
            return None
        return None if event is None else self.agent.ask(event)

    def _created_unlisted(self) -> Record | None:
        """A container on its way through the runtime: not listed yet, and later started."""
        self.serial += 1
        pod = PodSpec(f"p{self.serial}", containers=(self.spec(),))
        try:
            self.runtime.run_pod(pod)
            return self.runtime.create(pod.key, pod.containers[0])
        except CgroupWriteError:
            return None

    def _damage(self) -> None:
        inode = self.disk.names.get("state.json")
        if inode is None or not inode.data:
            return
        where = self.random.randrange(len(inode.data))
        if self.random.random() < 0.5:
            inode.data[where] ^= 1 << self.random.randrange(8)
        else:
            del inode.data[where:]

    def _is_unsaved(self) -> bool:
        """The last save failed, and this runtime would forget at its restart what the checkpoint does not know yet."""
        handler = self.agent.handler if self.agent else None
        return (
            handler is not None
            and not self.runtime.behaviour.stores_updates
            and not handler.checkpoint.is_saved(handler.state)
        )

    def _runtime_knows_all(self) -> bool:
        """Whether the runtime could tell each promise, by cpuset and request: else a lost checkpoint is a lost promise.

        CRI-O forgets at its own restart what it was told by updates.
        """
        agent = self.agent
        if agent is None:
            return False
        state = agent.handler.state
        created = {record.key for record in state.containers.values()}
        if any(key not in created or one.is_pod_shared for key, one in state.allocations.items()):
            return (
                False  # no message of the runtime tells of containers that are not created, or share in a pod
            )
        stored = {record.message.id: record.message.resources for record in self.runtime.records()}
        return all(
            key in stored
            and stored[key].cpus == str(allocation.cpus)
            and stored[key].cpu_shares == shares_from_milli(1000 * len(allocation.cpus))
            for key, record in state.containers.items()
            if (allocation := state.allocation_of(record)) and allocation.cpus
        )
