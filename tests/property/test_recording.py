"""Whatever a node lives through, its recording lives through again: the same states, answers and refusals, step by step."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.cli.replay.other_life import OtherLife
from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.drift import OwnEvent
from nri_plugin.core.engine import decide
from nri_plugin.model.options import (
    CPUManagerPolicy,
    Node,
    Options,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.sets import NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.recording.file import head_lines, line_of, node_line, outcome_of
from nri_plugin.recording.reader import Recording, changes, read
from nri_plugin.simulator.simulate.pods import Driver
from nri_plugin.wire.nri import events
from nri_plugin.wire.nri.events import CreateContainer
from tests.builders import container, machine, node, pod
from tests.lab.runtime.cgroup_tree import CgroupTree
from tests.property.test_node_life import MACHINE, Life
from tests.simulated_node import EngineAgent, SimulatedNode

OTHERS = (
    Options(cpu_manager_policy=CPUManagerPolicy.NONE),
    Options(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE, full_pcpus_only=True),
    Options(distribute_cpus_across_cores=True, topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT),
)
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Tape:
    """What was recorded, and what it should be read as."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.lived: list[tuple[Node, State, Decision]] = []

    def judge(self) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder, "tape")
            path.write_bytes(b"".join(self.pieces))
            recording = read(str(path))
            moments = list(recording.moments())
            self.lead_other_lives(read(str(path)))
        assert recording.problems == []
        assert len(moments) == len(self.lived)
        for moment, (known, before, decision) in zip(moments, self.lived, strict=True):
            assert moment.node.topology == known.topology
            assert (moment.node.options, moment.node.reserved) == (known.options, known.reserved)
            assert ordered(moment.state_before) == ordered(before)
            assert ordered(moment.decision.state) == ordered(decision.state)
            assert moment.decision.response == decision.response
            assert str(moment.decision.refusal) == str(decision.refusal)
            assert moment.decision.writes == decision.writes
            assert moment.decision.checks == decision.checks
            assert moment.decision.steps == decision.steps

    def lead_other_lives(self, recording: Recording) -> None:
        """The same configuration leads the same life; every other one a sound one."""
        same = OtherLife(lambda recorded, _: recorded)
        for met in same.live(recording.moments()):
            assert met.event == met.moment.event
            assert ordered(met.after) == ordered(met.moment.state_after)
            assert [*changes(met.moment, None)] == []
        for options in OTHERS:
            other = OtherLife(partial(under, options))
            known = set[str]()
            for met in other.live(recording.moments()):
                known |= set(violations(met.node, met.before)) if met.moment.begins else set()
                assert set(violations(met.node, met.after)) <= known


def under(options: Options, recorded: Node, _: Node | None) -> Node:
    """The node with other options."""
    return Node(recorded.topology, options, recorded.reserved)


def ordered(state: State) -> tuple[list[object], ...]:
    """Equal only when the order of records is, too: the oldest passes on first."""
    return list(state.pods.items()), list(state.containers.items()), list(state.allocations.items())


class RecordingAgent(EngineAgent):
    """An agent whose every decision is recorded."""

    def __init__(self, tape: Tape, known: Node, tree: CgroupTree, state: State | None = None) -> None:
        super().__init__(known, tree, state)
        self.tape = tape
        tape.pieces.append(head_lines(known, self.state, NOW))

    def machine_changes(self, node: Node) -> None:
        self.tape.pieces.append(node_line(node, NOW))
        super().machine_changes(node)

    def ask(self, event: events.NRIEvent | OwnEvent) -> events.NRIResponse | None:
        before = self.state
        try:
            return super().ask(event)
        finally:
            decision = self.decisions[-1]
            outcome = outcome_of(decision, str(decision.refusal or ""))
            self.tape.pieces.append(line_of(event, NOW, "", outcome))
            self.tape.lived.append((self.node, before, decision))


class RecordedLife(Life):
    """The life of a node, recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.tape = Tape()

    def new_node(self, runtime: str, driver: Driver, version: int) -> SimulatedNode:
        node = SimulatedNode(MACHINE, runtime, driver, version)
        node.new_agent = partial(RecordingAgent, self.tape)
        return node

    def teardown(self) -> None:
        self.tape.judge()


RecordedLife.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestRecordedLife = RecordedLife.TestCase

NAMES = st.sampled_from(["c", "side", "init"])
MILLI = st.integers(0, 4).map(lambda n: n * 1000)
AMOUNTS = st.builds(Amounts, MILLI, MILLI, st.integers(0, 1 << 30), st.integers(0, 1 << 30))
FACTS = st.builds(
    PodFacts,
    st.just("p1"),
    st.sampled_from(QOSClass),
    st.lists(
        st.builds(ContainerFacts, NAMES, st.sampled_from(Kind), AMOUNTS), unique_by=lambda c: c.name
    ).map(tuple),
    st.none() | AMOUNTS,
)
DEVICES = st.builds(
    DeviceResource,
    st.sampled_from(["nvidia.com/gpu", "vendor.example/nic"]),
    st.lists(
        st.builds(
            Device, st.sampled_from(["GPU-1", "GPU-2", "0000:3b:00.0"]), st.integers(0, 3).map(NodeMask)
        ),
        unique_by=lambda one: one.id,
        min_size=1,
    ).map(tuple),
    st.sampled_from([(), ((NodeMask.of(0), 2), (NodeMask.of(1), 2), (NodeMask.of(0, 1), 1))]),
)
KNOWN = st.builds(
    lambda cpus, devices, all_devices, facts: InformedCreate(
        CreateContainer(pod(cpu=cpus), container(pod(), cpu=cpus, memory=1 << 30)),
        tuple(devices),
        tuple(all_devices),
        facts,
    ),
    st.integers(0, 6),
    st.lists(DEVICES, max_size=2),
    st.lists(DEVICES, max_size=2),
    st.none() | FACTS,
)


@given(
    known=KNOWN,
    policy=st.sampled_from(TopologyManagerPolicy),
    scope=st.sampled_from(TopologyManagerScope),
)
def test_what_is_known_beside_the_wire_is_recorded_too(
    known: InformedCreate, policy: TopologyManagerPolicy, scope: TopologyManagerScope
) -> None:
    plain = node(machine())
    options = Options(topology_manager_policy=policy, topology_manager_scope=scope)
    chosen = Node(plain.topology, options, plain.reserved)
    tape = Tape()
    decision = decide(chosen, State(), known)
    tape.pieces = [
        head_lines(chosen, State(), NOW),
        line_of(known, NOW, "", outcome_of(decision, str(decision.refusal or ""))),
    ]
    tape.lived = [(chosen, State(), decision)]
    tape.judge()
