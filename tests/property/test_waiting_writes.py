"""Files that wait until the answer is out, on a tree with the kernel's rules, judged after every single write.

The agent's own handler and writer work on the tree. They are killed between any two writes, and a slice or a file may
refuse a write. Exclusive CPUs are those of the state that was saved last.
"""

from collections.abc import Iterator
from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nri_plugin.agent.cpusets import CpusetWriter
from nri_plugin.agent.serving.checkpoint_saver import CheckpointSaver
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.core.drift import Drift, drifts, targets
from nri_plugin.core.engine import decide
from nri_plugin.host.cgroup import WriteOutcome, cgroup_path
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.simulator.simulate.pods import ContainerSpec, Driver, PodSpec
from nri_plugin.wire.nri import events
from tests.agent_fakes import Clock, FakeCheckpoint, recording_log
from tests.chaos.agent import TreeCgroups
from tests.chaos.faults import Killed
from tests.lab.runtime.cgroup_tree import CgroupWriteError
from tests.lab.runtime.runtime import PluginRefusedError
from tests.simulated_node import SimulatedNode, created_in
from tests.topology_rows import topology_of_rows

GIB = 1 << 30
SLICES = ("burstable", "besteffort", "burstable.slice", "besteffort.slice")
ROWS = [(cpu, cpu, cpu // 8, cpu // 8, cpu // 8) for cpu in range(16)]
MACHINE = topology_of_rows(ROWS, memory_bytes={0: 32 * GIB, 1: 32 * GIB})
EXCLUSIVE = st.sampled_from([1, 2, 4]).map(lambda n: ContainerSpec("c", n * 1000, n * 1000, GIB, GIB))
SHARED = st.sampled_from(
    [ContainerSpec("c"), ContainerSpec("c", 500), ContainerSpec("c", 500, 500, GIB, GIB)]
)
"""Of a BestEffort, a Burstable and a Guaranteed pod; no slice bounds the last."""


class Trouble:
    """Ends the agent, or refuses a write, at one of the next steps."""

    def __init__(self) -> None:
        self.kill_at = self.refuse_at = -1
        self.has_refused = False

    def at_cgroup(self, name: str) -> None:
        self.kill_at -= 1
        if self.kill_at == 0:
            raise Killed
        if name == "cgroup write":
            self.refuse_at -= 1
            if self.refuse_at == 0:
                self.has_refused = True  # the file is left to the sweep
                raise OSError(16, "injected")


class JudgedCgroups(TreeCgroups):
    """Compares what containers share before and after each write."""

    def __init__(self, life: "Life") -> None:
        super().__init__(life.node.tree, life.trouble)  # type: ignore[arg-type]
        self.life = life

    def write_cpus(self, ref: CgroupRef, cpus: CPUSet, *, compare: bool = True) -> WriteOutcome:
        before = set(self.life.shared_cpus())
        if cgroup_path(ref) in self.life.refusing:
            self.life.trouble.has_refused = True
            raise HostError(ref.parent, "this slice takes no value")
        outcome = super().write_cpus(ref, cpus, compare=compare)
        assert set(self.life.shared_cpus()) <= before, (ref, cpus)
        return outcome

    def make_room(self, ref: CgroupRef, cpus: CPUSet) -> None:
        before = set(self.life.shared_cpus())
        super().make_room(ref, cpus)
        assert set(self.life.shared_cpus()) <= before, (ref, cpus)


class Agent:
    """One process: the handler, whose loop comes round when it is told to."""

    def __init__(self, life: "Life") -> None:
        log, self.lines = recording_log()
        self.handler = Handler(
            life.machine,
            life.checkpoint.saved or State(),
            decide=decide,
            cpusets=CpusetWriter(JudgedCgroups(life)),  # type: ignore[arg-type]
            checkpoint=CheckpointSaver(life.checkpoint, life.checkpoint.saved or State(), log),
            log=log,
            clock=Clock(),
        )
        self.is_alive = True

    def ask(self, event: events.NRIEvent) -> events.NRIResponse | None:
        """The answer; None from an agent that died over it, or is dead."""
        if not self.is_alive:
            return None
        try:
            reply = self.handler.handle(events.Request(0, None, event))
        except Killed:
            self.is_alive = False
            return None
        if reply.refusal:
            raise PluginRefusedError(reply.refusal)
        return reply.response


class Life(RuleBasedStateMachine):
    """Pods come and go while files wait."""

    @initialize(driver=st.sampled_from(list(Driver)), floor=st.sampled_from([True, True, True, False]))
    def boot(self, driver: Driver, floor: bool) -> None:
        self.serial, self.pods, self.refusing = 0, list[str](), set[str]()
        self.machine = Node(MACHINE, Options(pool_floor=floor), CPUSet.of(0, 1))
        self.node = SimulatedNode(MACHINE, driver=driver)
        self.trouble, self.checkpoint = Trouble(), FakeCheckpoint([])
        self.begin()

    def begin(self) -> None:
        """A new process and its Synchronize, in which it may be killed again."""
        self.agent, self.trouble.has_refused = Agent(self), False
        truth = self.node.runtime.truth()
        answer = self.agent.ask(events.Synchronize(truth.pods, truth.containers))
        if not self.agent.is_alive:
            self.trouble.kill_at = -1
            self.begin()
            return
        assert isinstance(answer, events.SynchronizeResponse)
        self.node.runtime.plugin = self.agent
        self.node.runtime.apply(answer.updates)

    def running(self) -> dict[str, CPUSet]:
        return {
            record.message.id: self.node.tree.effective_cpus(record.names.path)
            for record in self.node.runtime.records()
            if record.has_cgroup and record.names.path in self.node.tree
        }

    def shared_cpus(self) -> Iterator[tuple[str, str, int]]:
        """Each exclusive CPU of a container on which another one runs."""
        state = self.checkpoint.saved or State()
        running = self.running()
        for key in running:
            record = state.containers.get(key)
            held = state.allocation_of(record) if record else None
            for other, cpus in running.items() if held else ():
                if other != key:
                    yield from ((key, other, cpu) for cpu in held.cpus & cpus)

    def after_a_kill(self) -> None:
        if not self.agent.is_alive:
            self.node.runtime.disconnect()
            self.trouble.kill_at = self.trouble.refuse_at = -1
            self.begin()

    @rule(spec=EXCLUSIVE | SHARED, start=st.booleans())
    def run_pod(self, spec: ContainerSpec, start: bool) -> None:
        self.serial += 1
        pod = PodSpec(f"p{self.serial}", containers=(spec,))
        with suppress(PluginRefusedError, CgroupWriteError):
            self.node.runtime.run_pod(pod)
            self.pods.append(pod.key)
            self.node.runtime.create(pod.key, spec)
            if start:
                self.node.runtime.start(f"{pod.key}/c")
        self.after_a_kill()

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        with suppress(PluginRefusedError):
            for record in created_in(self.node.runtime, data.draw(st.sampled_from(self.pods))):
                self.node.runtime.start(record.key)
        self.after_a_kill()

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def remove_pod(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.pods))
        self.pods.remove(key)
        self.node.runtime.remove_pod(key)
        self.after_a_kill()

    @rule(most=st.integers(1, 3))
    def portion(self, most: int) -> None:
        try:
            self.agent.handler.write_waiting(most)
        except Killed:
            self.agent.is_alive = False
        self.after_a_kill()

    @rule(steps=st.integers(1, 12))
    def will_be_killed(self, steps: int) -> None:
        self.trouble.kill_at = steps

    @rule(steps=st.integers(1, 5))
    def a_write_will_be_refused(self, steps: int) -> None:
        self.trouble.refuse_at = steps

    @rule(data=st.data(), refuses=st.booleans())
    def a_slice_takes_no_value(self, data: st.DataObject, refuses: bool) -> None:
        """Or takes them all again."""
        slices = sorted(path for path in self.node.tree if path.endswith(SLICES))
        self.refusing = {data.draw(st.sampled_from(slices))} if refuses and slices else set()

    @rule()
    def restart(self) -> None:
        """At any moment; nothing that waits is finished."""
        self.node.runtime.disconnect()
        self.begin()

    @invariant()
    def nobody_runs_on_exclusive_cpus_of_others(self) -> None:
        """Also where a slice bounds nothing; only a file that the kernel refused may be late."""
        if not any(write.container_id for write in self.agent.handler.cpusets.unwritten):
            assert set(self.shared_cpus()) == set()

    @invariant()
    def what_waits_is_no_drift(self) -> None:
        if not self.trouble.has_refused and not self.refusing:
            assert self.drifts(is_settled=self.agent.handler.is_settled) == ()

    @rule()
    def the_loop_settles_everything(self) -> None:
        handler = self.agent.handler
        with suppress(Killed):
            while handler.write_waiting(2):
                pass
            if not self.trouble.has_refused and not self.refusing:
                assert self.drifts(is_settled=True) == ()
            return
        self.agent.is_alive = False
        self.after_a_kill()

    def drifts(self, *, is_settled: bool) -> tuple[Drift, ...]:
        handler = self.agent.handler
        seen = map(handler.cpusets.observe, targets(handler.node, handler.state))
        return drifts(handler.node, handler.state, filter(None, seen), is_settled=is_settled)


Life.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
