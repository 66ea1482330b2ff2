"""A pod of which one container was refused, while others of it exist, is incomplete until it is whole or over."""

from dataclasses import replace

import pytest

from nri_plugin.agent import incomplete_pods
from nri_plugin.agent.incomplete_pods import IncompletePods
from nri_plugin.agent.status_client import AgentStatus, IncompletePodRow, decode, encode
from nri_plugin.model.options import Node, TopologyManagerPolicy
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Pod
from tests.agent_fakes import Bench, recording_log
from tests.builders import container, machine, node, pod

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
    of = kubelet.runs(pod("p", cpu=24))
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
    of = kubelet.runs(pod("p", cpu=40))
    kubelet.creates(of, "a", 2)
    kubelet.creates(of, "b", 40)
    kubelet.bench.ask(end(of))
    assert kubelet.rows == ()


def test_a_pod_that_is_gone_at_the_next_synchronize_is_forgotten(kubelet: Kubelet) -> None:
    kept, gone = kubelet.runs(pod("kept", cpu=40)), kubelet.runs(pod("gone", cpu=40))
    for of in (kept, gone):
        kubelet.creates(of, "a", 2)
        kubelet.creates(of, "b", 40)
    assert len(kubelet.rows) == 2
    there = replace(container(kept, "a", cpu=2), id=f"{kept.uid}-a-0")
    kubelet.bench.ask(nri.Synchronize((kept,), (there,)))
    assert [row.pod_uid for row in kubelet.rows] == [kept.uid]


def test_the_record_is_bounded(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incomplete_pods, "MOST_PODS", 2)
    monkeypatch.setattr(incomplete_pods, "MOST_CONTAINERS", 3)
    for name in ("p1", "p2", "p3"):
        of = kubelet.runs(pod(name, cpu=40))
        kubelet.creates(of, "web", 0)
        for number in range(5):
            kubelet.creates(of, f"big{number}", 40)
    assert [row.pod_uid for row in kubelet.rows] == [pod("p2").uid, pod("p3").uid]
    assert [len(row.refused) for row in kubelet.rows] == [3, 3]
