"""The whole way of late facts: the agent's watch and client, the exporter's socket, and objects of the cluster."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.agent.observing import pod_news
from nri_plugin.agent.observing.pod_news import LEFT_FOR_S, PAUSE_S, PodNewsWatch
from nri_plugin.agent.serving.pod_facts import PodResourcesClient
from nri_plugin.exporter.facts_socket import AnswerSource, FactsSocket
from nri_plugin.kube.pod_facts import PodsHere
from nri_plugin.model.options import Node
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri import events as nri
from tests import kube_builders
from tests.agent_fakes import Bench, Clock
from tests.builders import GIB, container, node, pod
from tests.whole_pods import pod_scope

OF = pod("uid-web", namespace="ns")
OBJECT = kube_builders.pod_object(
    kube_builders.container("a", cpu="2", memory="1Gi"),
    kube_builders.container("b", cpu="4", memory="1Gi"),
    name="uid-web",
    uid="uid-web",
)
LOG = logging.getLogger("exporter under test")


class Agent:
    """A handler on fakes, with the watch and the loop of a real agent on a clock that is moved by hand."""

    def __init__(self, path: str, on: Node | None = None) -> None:
        self.bench, self.clock = Bench(on or node()), Clock()
        self.loop = Loop(self.clock)
        client = PodResourcesClient(path, self.clock)
        PodNewsWatch(self.bench.handler, client.ask_about, self.loop, LOG).start()

    def round(self, pause_s: float = PAUSE_S) -> dict[str, str]:
        """Let the watch ask, take its answers, and return the CPUs by container."""
        self.clock.now += pause_s
        self.loop.run_once()  # the timer: a thread asks
        self.loop.run_once()  # its answers wake the loop
        return self.held

    @property
    def held(self) -> dict[str, str]:
        allocations = self.bench.handler.state.allocations
        return {key.partition("/")[2]: str(value.cpus) for key, value in allocations.items()}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "exporter.sock")


@pytest.fixture
def agent(path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setattr(pod_news, "LIMIT_S", 30.0)
    made = Agent(path)
    yield made
    made.loop.close()


class Exporters:
    """Exporters one after the other on one path."""

    def __init__(self, path: str) -> None:
        self._path, self._served = path, list[FactsSocket]()

    def start(self) -> PodsHere:
        """End the one before, and start one whose watch of the cluster has not begun."""
        self.stop()
        pods = PodsHere(lambda _: None)
        self._served.append(
            FactsSocket(self._path, AnswerSource(None, pods.facts, has_ended=pods.has_ended), LOG)
        )
        return pods

    def stop(self) -> None:
        while self._served:
            self._served.pop().close()


@pytest.fixture
def exporters(path: str) -> Iterator[Exporters]:
    made = Exporters(path)
    yield made
    made.stop()


def test_a_pod_is_completed_and_its_rest_ends_by_the_word_of_exporters_that_come_and_go(
    agent: Agent, exporters: Exporters
) -> None:
    bench = agent.bench
    bench.ask(nri.RunPodSandbox(OF))
    bench.ask(nri.CreateContainer(OF, container(OF, "a", cpu=2)))
    assert agent.round() == {"a": "2-3"}, "no exporter"
    pods = exporters.start()
    assert agent.round() == {"a": "2-3"}, "it has not read the cluster"
    pods.listed([OBJECT])
    assert agent.round() == {"a": "2-3", "b": "4-7"}
    assert bench.checkpoint.saved == bench.handler.state
    # The container ends; no further one is created, and the end of the sandbox is not reported.
    bench.ask(nri.StopContainer(OF, container(OF, "a")))
    bench.ask(nri.RemoveContainer(OF, container(OF, "a")))
    agent.clock.now += PAUSE_S
    agent.loop.run_once()
    pods = exporters.start()
    assert agent.round(LEFT_FOR_S) == {"a": "2-3", "b": "4-7"}, "it has not read the cluster"
    pods.listed([{**OBJECT, "status": {"phase": "Running"}}])
    assert agent.round(LEFT_FOR_S) == {"a": "2-3", "b": "4-7"}
    pods.deleted(OBJECT)
    assert agent.round(2 * LEFT_FOR_S) == {}


def test_a_pod_that_runs_after_the_loss_of_the_checkpoint_owns_its_resources_again(
    path: str, exporters: Exporters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_news, "LIMIT_S", 30.0)
    agent = Agent(path, pod_scope())
    total = {"cpu": "6", "memory": "2Gi"}
    obj = kube_builders.pod_object(
        kube_builders.container("a", cpu="4", memory="1Gi"),
        kube_builders.container("log"),
        name="uid-web",
        uid="uid-web",
        resources={"requests": total, "limits": total},
    )
    running = (
        container(OF, "a", cpu=4, memory=GIB, cpus="2-5", mems="0"),
        container(OF, "log", cpus="6-7", mems="0"),
    )
    agent.bench.ask(nri.Synchronize((OF,), running))
    has = {"": "2-7", "a": "2-5", "log": "6-7"}
    assert agent.round() == has
    assert not agent.bench.handler.state.pods["uid-web"].is_admitted
    exporters.start().listed([obj])
    assert agent.round() == has
    assert agent.bench.handler.state.pods["uid-web"].is_admitted
    assert agent.bench.handler.state.allocations["uid-web/"].memory[0].size_bytes == 2 * GIB
    agent.loop.close()
