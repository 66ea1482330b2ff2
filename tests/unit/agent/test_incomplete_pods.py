"""A pod that runs in part, or without what it should own as a whole, is incomplete until it is whole or over."""

import pytest
from msgspec.structs import replace

from nri_plugin.agent.observing import status_socket
from nri_plugin.agent.observing.status_client import AgentStatus, IncompletePodRow, decode, encode
from nri_plugin.agent.observing.status_socket import IncompletePods, lacking
from nri_plugin.core.pod_news import PodFactsTold
from nri_plugin.model.options import MemoryManagerPolicy, Node, TopologyManagerPolicy
from nri_plugin.model.records import PodRecord, Regime
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Pod
from tests.agent_fakes import Bench, recording_log
from tests.builders import GIB, container, machine, node, pod
from tests.whole_pods import PodLife, part, pod_scope, whole

ON = node(machine(nodes=4, cores=8), topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)


class Kubelet:
    """Creates containers of pods one by one, as a runtime without the pods' objects shows it."""

    def __init__(self, on: Node = ON) -> None:
        self.log, self.lines = recording_log()
        self.incomplete = IncompletePods(self.log)
        self.bench = Bench(on, observe=self.incomplete)

    def runs(self, of: Pod) -> Pod:
        self.bench.ask(nri.RunPodSandbox(of))
        return of

    def creates(self, of: Pod, name: str, cpus: int, number: int = 0) -> bool:
        made = replace(container(of, name, cpu=cpus), id=f"{of.uid}-{name}-{number}")
        return not self.bench.ask(nri.CreateContainer(of, made)).refusal

    def removes(self, of: Pod, name: str, number: int = 0) -> None:
        gone = replace(container(of, name), id=f"{of.uid}-{name}-{number}")
        self.bench.ask(nri.StopContainer(of, gone))
        self.bench.ask(nri.RemoveContainer(of, gone))

    @property
    def rows(self) -> tuple[IncompletePodRow, ...]:
        return self.incomplete.rows(self.bench.handler.state)

    @property
    def said(self) -> list[str]:
        return [text for _, text, _ in self.lines.lines]


@pytest.fixture
def kubelet() -> Kubelet:
    return Kubelet()


def test_four_containers_run_and_the_fifth_is_refused(kubelet: Kubelet) -> None:
    of = kubelet.runs(pod("p", cpu=58))
    sizes = {"a": 10, "b": 12, "c": 12, "d": 12, "e": 12}
    assert [kubelet.creates(of, name, count) for name, count in sizes.items()] == [True] * 4 + [False]
    (row,) = kubelet.rows
    assert (row.namespace, row.pod, [one.container for one in row.refused]) == (of.namespace, of.name, ["e"])
    assert row.refused[0].reason == "TopologyAffinityError"
    assert [one.container for one in row.siblings] == ["a", "b", "c", "d"]
    assert all(one.cpus and one.is_created for one in row.siblings)
    assert str(row).startswith(
        "incomplete: refused: e (TopologyAffinityError); other containers of the pod: a (CPUs "
    )
    ((level, _, fields),) = kubelet.lines.lines
    assert (level, fields["refused"]) == ("WARNING", "e")


def test_the_line_of_the_status_carries_it(kubelet: Kubelet) -> None:
    of = kubelet.runs(pod("p", cpu=52))
    kubelet.creates(of, "a", 12)
    kubelet.creates(of, "b", 40)
    state = kubelet.bench.handler.state
    told = decode(encode(AgentStatus(ON, state, incomplete=kubelet.rows)))
    assert told.incomplete == kubelet.rows


def test_a_pod_is_complete_again_when_the_container_is_created() -> None:
    kubelet = Kubelet(node(machine(nodes=1, cores=8)))  # 14 CPUs are allocatable
    big, of = kubelet.runs(pod("big")), kubelet.runs(pod("p"))
    assert kubelet.creates(big, "x", 8)
    assert kubelet.creates(of, "a", 2)
    assert not kubelet.creates(of, "b", 8)
    assert not kubelet.creates(of, "b", 8, number=1)
    assert len(kubelet.rows) == 1
    kubelet.bench.ask(nri.StopPodSandbox(big))
    kubelet.bench.ask(nri.RemovePodSandbox(big))
    assert kubelet.creates(of, "b", 8, number=2)
    assert kubelet.rows == ()
    assert [text.partition(":")[0] for text in kubelet.said] == [
        "the pod is incomplete",
        "the pod is complete again",
    ]


def test_a_container_that_is_refused_first_makes_the_pod_incomplete_with_the_second(kubelet: Kubelet) -> None:
    of = kubelet.runs(pod("p", cpu=48))
    assert not kubelet.creates(of, "a", 40)
    assert kubelet.rows == ()
    assert kubelet.said == []
    assert kubelet.creates(of, "b", 0)
    (row,) = kubelet.rows
    assert [str(one) for one in row.siblings] == ["b (shared pool)"]


def test_a_pod_that_is_refused_as_a_whole_is_not_incomplete(kubelet: Kubelet) -> None:
    of = kubelet.runs(pod("p", cpu=40))
    assert not kubelet.creates(of, "a", 40)
    assert not kubelet.creates(of, "b", 40)
    assert (kubelet.rows, kubelet.said) == ((), [])


def test_a_crash_loop_of_a_sibling_is_said_once(kubelet: Kubelet) -> None:
    of = kubelet.runs(pod("p", cpu=40))
    assert kubelet.creates(of, "web", 0)
    assert not kubelet.creates(of, "big", 40)
    for number in range(3):
        kubelet.removes(of, "web", number)
        assert kubelet.creates(of, "web", 0, number + 1)
    assert len(kubelet.rows) == len(kubelet.said) == 1


@pytest.mark.parametrize("end", [nri.StopPodSandbox, nri.RemovePodSandbox])
def test_the_record_ends_with_the_pod(kubelet: Kubelet, end: type[nri.StopPodSandbox]) -> None:
    of = kubelet.runs(pod("p", cpu=42))
    kubelet.creates(of, "a", 2)
    kubelet.creates(of, "b", 40)
    kubelet.bench.ask(end(of))
    assert kubelet.rows == ()


def test_a_pod_that_is_gone_at_the_next_synchronize_is_forgotten(kubelet: Kubelet) -> None:
    kept, gone = kubelet.runs(pod("kept", cpu=42)), kubelet.runs(pod("gone", cpu=42))
    for of in (kept, gone):
        kubelet.creates(of, "a", 2)
        kubelet.creates(of, "b", 40)
    assert len(kubelet.rows) == 2
    there = replace(container(kept, "a", cpu=2), id=f"{kept.uid}-a-0")
    kubelet.bench.ask(nri.Synchronize((kept,), (there,)))
    assert [row.pod_uid for row in kubelet.rows] == [kept.uid]


def test_the_record_is_bounded(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_socket, "MOST_PODS", 2)
    monkeypatch.setattr(status_socket, "MOST_CONTAINERS", 3)
    for name in ("p1", "p2", "p3"):
        of = kubelet.runs(pod(name, cpu=40))
        kubelet.creates(of, "web", 0)
        for number in range(5):
            kubelet.creates(of, f"big{number}", 40)
    assert [row.pod_uid for row in kubelet.rows] == [pod("p2").uid, pod("p3").uid]
    assert [len(row.refused) for row in kubelet.rows] == [3, 3]


class Found:
    """A pod that should own 6 CPUs as a whole, found running after the loss of the checkpoint, and another one."""

    def __init__(self, **options: object) -> None:
        self.on = pod_scope(**options)
        self.log, self.lines = recording_log()
        self.incomplete = IncompletePods(self.log)
        self.bench = Bench(self.on, observe=self.incomplete)
        parts = part("app", 4), part("log", 0.5)
        self.life = PodLife(self.on, *parts, resources=whole(6))
        self.other = pod("other")

    def start(self, app: str = "2-5", log: str = "0-1,12-15", other: str = "6-11") -> None:
        listed = [
            replace(message, resources=replace(message.resources, cpus=text, mems="0"))
            for name, text in (("app", app), ("log", log))
            for message in (self.life.message(name),)
        ]
        beside = container(self.other, cpu=6, memory=GIB, cpus=other, mems="0")
        self.bench.ask(nri.Synchronize((self.life.of, self.other), (*listed, beside)))

    def facts_come(self) -> None:
        self.bench.handler.take(PodFactsTold(self.life.of, self.life.facts))

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(one.pod, one.lacks) for one in self.incomplete.rows(self.bench.handler.state)]


def test_a_pod_that_was_found_without_what_it_should_own_is_incomplete_until_it_ends() -> None:
    node = Found()
    node.start()
    assert node.told == [], "nobody knows what it should own"
    node.facts_come()
    (row,) = node.incomplete.rows(node.bench.handler.state)
    assert str(row) == (
        "incomplete: it should own 6 CPUs, memory 8Gi as a whole, and these could not be rebuilt; delete the pod, so "
        "that it is made anew; other containers of the pod: app (CPUs 2-5), log (shared pool)"
    )
    assert decode(encode(AgentStatus(node.on, State(), incomplete=(row,)))).incomplete == (row,)
    node.facts_come()
    ((level, text, fields),) = node.lines.lines
    assert (level, fields["lacks"]) == ("WARNING", "6 CPUs, memory 8Gi")
    assert text == "the pod is incomplete: it runs without what it should own as a whole"
    node.bench.ask(nri.StopPodSandbox(node.life.of))
    assert node.told == []


def test_an_agent_that_starts_again_knows_it_from_its_checkpoint() -> None:
    node = Found()
    node.start()
    node.facts_come()
    told = node.told
    node.incomplete = IncompletePods(node.log)
    node.bench = Bench(node.on, node.bench.handler.state, observe=node.incomplete)
    node.start()
    assert node.told == told == [("p1", "6 CPUs, memory 8Gi")]
    assert len(node.lines.lines) == 2, "each agent says it once"


def test_a_pod_is_complete_once_it_could_be_rebuilt() -> None:
    node = Found(memory_manager_policy=MemoryManagerPolicy.NONE, reserved="0")
    node.start(log="6-7")
    node.facts_come()
    assert node.told == [("p1", "6 CPUs")], "another pod runs on CPUs 6-11"
    node.bench.ask(nri.StopPodSandbox(node.other))
    node.facts_come()
    assert node.told == []
    assert [text for _, text, _ in node.lines.lines][-1] == "the pod is complete again"


@pytest.mark.parametrize("cpu", [1, 5.5])
def test_what_a_pod_lacks_is_what_policies_allocate(cpu: float) -> None:
    node = Found(memory_manager_policy=MemoryManagerPolicy.NONE)
    facts = replace(node.life.facts, pod_resources=whole(cpu))
    found = PodRecord("p", "s", facts=facts, regime=Regime.FOUND)
    assert lacking(node.on, found) == ("1 CPU" if cpu == 1 else "")
    assert lacking(node.on, replace(found, regime=Regime.EACH)) == ""
    assert lacking(node.on, replace(found, facts=None)) == ""


def test_pods_that_lack_something_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_socket, "MOST_PODS", 1)
    node = Found()
    node.start()
    node.facts_come()
    state = node.bench.handler.state
    twin = replace(state.pods["p1"], uid="p2", sandbox_id="sb-p2", name="p2")
    node.bench.handler.state = state.with_pod(twin).with_container(
        replace(state.containers["p1-app-0"], id="p2-app-0", pod_uid="p2")
    )
    running = container(pod("p2"), "app", cpu=4)
    node.bench.ask(
        nri.Synchronize((pod("p2"), node.life.of), (running, container(node.life.of, "app", cpu=4)))
    )
    assert len(node.told) == 1
