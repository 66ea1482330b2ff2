"""What the exporter is asked about pods between two requests, when, and what becomes of the answers."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from nri_plugin.agent.observing.pod_news import (
    LEFT_FOR_S,
    LONGEST_PAUSE_S,
    MOST_PODS,
    PAUSE_S,
    SOON_S,
    PodNewsWatch,
)
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.agent.serving.pod_facts import NoAnswerError
from nri_plugin.core.decision import Decision, ExporterAnswer, InformedCreate
from nri_plugin.core.pod_news import PodFactsTold, PodHasEnded
from nri_plugin.model.options import CPUManagerPolicy, Node, TopologyManagerPolicy
from nri_plugin.model.records import Amounts, ContainerFacts, PodFacts, QOSClass
from nri_plugin.model.sets import NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Pod
from tests.agent_fakes import Bench, Clock, recording_log
from tests.builders import GIB, container, node, pod

A = pod("a")
ROWS = tuple(ContainerFacts(name, amounts=Amounts(2000, 2000, GIB, GIB)) for name in ("a", "b"))


def facts_of(of: Pod) -> PodFacts:
    return PodFacts(of.uid, QOSClass.GUARANTEED, ROWS)


class ByHand:
    """A loop whose timers run when told, and whose posted calls run at once or when told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self.posted: list[Callable[[], None]] = []

    def set_timer(self, name: str, when: float, action: Callable[[], None]) -> None:
        self.timers[name] = (when, action)

    def post(self, action: Callable[[], None]) -> None:
        self.posted.append(action)


class Room:
    """An agent on fakes, its watch, and the exporter's answers by uid; others are unknown."""

    def __init__(self, on: Node | None = None) -> None:
        self.bench = Bench(on or node())
        self.loop, (self.log, self.lines) = ByHand(), recording_log()
        self.answers: dict[str, ExporterAnswer] = {}
        self.is_away = False
        self.asked: list[tuple[str, bool]] = []
        self.work: list[Callable[[], None]] = []
        self.watch = PodNewsWatch(self.bench.handler, self.ask, self.loop, self.log, self.work.append)  # type: ignore[arg-type]
        self.watch.start()

    @property
    def state(self) -> State:
        return self.bench.handler.state

    @property
    def held(self) -> dict[str, str]:
        return {key: str(value.cpus) for key, value in self.state.allocations.items()}

    def ask(self, of: Pod, limit_s: float, devices: bool) -> ExporterAnswer:
        assert limit_s > 0
        self.asked.append((of.uid, devices))
        if self.is_away:
            raise NoAnswerError("/exporter.sock", "no such file or directory")
        return self.answers.get(of.uid, ExporterAnswer())

    def due(self) -> None:
        """Let the clock reach the timer, and run it."""
        when, action = self.loop.timers.pop("pod news")
        self.loop.clock.now = max(self.loop.clock.now, when)
        action()

    def answered(self) -> None:
        """Run the questions that wait, and take the answers."""
        while self.work:
            self.work.pop(0)()
        while self.loop.posted:
            self.loop.posted.pop(0)()

    def round(self) -> list[str]:
        """One round; the pods that were asked about."""
        self.asked.clear()
        self.due()
        self.answered()
        return [uid for uid, _ in self.asked]

    def create(self, of: Pod = A, name: str = "a", facts: PodFacts | None = None) -> None:
        event = nri.CreateContainer(of, container(of, name, cpu=2))
        decided = self.bench.handler._decide(
            self.bench.handler.node, self.state, InformedCreate(event, facts=facts)
        )
        self.bench.handler.state = decided.state

    def end(self, of: Pod = A, name: str = "a") -> None:
        self.bench.ask(nri.StopContainer(of, container(of, name)))

    def synchronized(self) -> None:
        event = nri.Synchronize((), ())
        decision = Decision(self.state)
        self.watch(
            RequestOutcome(
                node=node(),
                event=event,
                before=self.state,
                decision=decision,
                refusal="",
                failed=False,
                decide_s=0.0,
                total_s=0.0,
            )
        )


def test_facts_of_a_pod_that_runs_in_part_place_the_rest_of_it() -> None:
    room = Room()
    room.create()
    room.answers["a"] = ExporterAnswer(facts=facts_of(A))
    assert room.round() == ["a"]
    assert room.held == {"a/a": "2-3", "a/b": "4-5"}
    assert room.bench.checkpoint.saved == room.state
    assert room.round() == [], "it has them now"


def test_no_question_is_asked_in_the_loop_and_no_second_one_meanwhile() -> None:
    room = Room()
    room.create()
    room.due()
    assert (room.asked, len(room.work)) == ([], 1)
    room.due()
    assert len(room.work) == 1
    room.answered()
    assert room.asked == [("a", False)]


def test_devices_are_asked_for_where_hints_count_and_passed_on_within_the_bounds() -> None:
    gpu = DeviceResource("x/gpu", (Device("g", NodeMask.of(1)),))
    many = DeviceResource("x/nic", tuple(Device(f"n{number}", NodeMask.of(1)) for number in range(300)))
    for given, expected in ((gpu, "8-9"), (many, "4-5")):
        room = Room(node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE))
        room.create()
        room.answers["a"] = ExporterAnswer(facts=facts_of(A), devices_by_container=(("b", (given,)),))
        room.round()
        assert room.asked == [("a", True)]
        assert room.held["a/b"] == expected


def test_a_pod_that_is_unknown_is_asked_about_ever_less_often() -> None:
    room = Room()
    room.create()
    times = []
    while room.loop.clock.now < 1000 + 4 * LONGEST_PAUSE_S:
        if room.round():
            times.append(room.loop.clock.now)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (PAUSE_S, LONGEST_PAUSE_S)


def test_an_exporter_that_comes_back_is_asked_about_all_pods_again() -> None:
    room = Room()
    room.create()
    room.create(pod("b"))
    for _ in range(4):
        room.round()
    assert room.round() == []
    room.is_away = True
    while not (asked := room.round()):
        pass
    assert asked == ["a"], "the first failure ends the round"
    assert room.round() == ["a"]
    room.is_away = False
    room.answers = {uid: ExporterAnswer(facts=facts_of(pod(uid))) for uid in ("a", "b")}
    assert room.round() == ["a", "b"]
    assert len(room.held) == 4
    assert room.lines.lines[0][0] == "DEBUG"


def test_after_synchronize_all_pods_are_asked_about_soon() -> None:
    room = Room()
    room.create()
    for _ in range(4):
        room.round()
    now = room.loop.clock.now
    room.synchronized()
    assert room.round() == ["a"]
    assert room.loop.clock.now == now + SOON_S


def test_pods_are_asked_about_in_rounds_of_a_bounded_size() -> None:
    room = Room()
    uids = [f"p{number}" for number in range(MOST_PODS + 2)]
    for uid in uids:
        of = pod(uid)
        event = nri.CreateContainer(of, container(of, cpu=0.5))
        room.bench.handler.state = room.bench.handler._decide(
            room.bench.handler.node, room.state, event
        ).state
    assert room.round() == uids[:MOST_PODS]
    assert room.round()[:2] == uids[MOST_PODS:], "the others come first then"


@pytest.mark.parametrize(
    ("of", "on"),
    [
        (pod("a", qos="Burstable"), node()),
        (A, node(cpu_manager_policy=CPUManagerPolicy.NONE)),
    ],
    ids=["a pod that is not Guaranteed", "policies that allocate nothing"],
)
def test_pods_whose_facts_change_nothing_are_not_asked_about(of: Pod, on: Node) -> None:
    room = Room(on)
    room.create(of)
    assert room.round() == []


def test_what_a_pod_never_created_is_free_once_the_exporter_says_that_it_is_over() -> None:
    room = Room()
    room.create(facts=facts_of(A))
    room.end()
    assert room.held == {"a/a": "2-3", "a/b": "4-5"}
    room.answers["a"] = ExporterAnswer(has_ended=True)
    began = room.loop.clock.now
    while not room.round():
        assert room.loop.clock.now < began + 10 * LEFT_FOR_S
    assert room.loop.clock.now >= began + LEFT_FOR_S
    assert room.held == {"a/a": "2-3"}, "the runtime still has that one"


def test_while_one_of_its_containers_lives_nothing_is_asked() -> None:
    room = Room()
    room.create(facts=facts_of(A))
    room.answers["a"] = ExporterAnswer(has_ended=True)
    for _ in range(10):
        assert room.round() == []


def test_without_the_exporters_word_everything_stays() -> None:
    room = Room()
    room.create(facts=facts_of(A))
    room.end()
    for _ in range(10):
        room.round()
    assert room.held == {"a/a": "2-3", "a/b": "4-5"}


def test_an_answer_that_a_new_container_overtook_ends_nothing() -> None:
    room = Room()
    room.create(facts=facts_of(A))
    room.end()
    room.answers["a"] = ExporterAnswer(has_ended=True)
    while not room.work:
        room.due()
    room.create(name="b")
    room.answered()
    assert room.held == {"a/a": "2-3", "a/b": "4-5"}


def test_allocations_of_late_facts_that_cannot_be_saved_are_not_made() -> None:
    room = Room()
    room.create()
    room.bench.checkpoint.failures = 1
    room.bench.handler.take(PodFactsTold(A, facts_of(A)))
    assert room.held == {"a/a": "2-3"}


def test_a_release_counts_also_where_it_cannot_be_saved() -> None:
    room = Room()
    room.create(facts=facts_of(A))
    room.end()
    room.bench.checkpoint.failures = 1
    room.bench.handler.take(PodHasEnded(A))
    assert room.held == {"a/a": "2-3"}
