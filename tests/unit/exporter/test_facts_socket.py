"""The agent's own client asks the exporter's socket, and the exporter a kubelet: the whole way of a question."""

import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.agent.pod_facts import NoAnswerError, PodResourcesClient
from nri_plugin.core.decision import LINE_BYTES, ExporterAnswer
from nri_plugin.exporter.facts_socket import AnswerSource, FactsSocket
from nri_plugin.exporter.pod_resources import KubeletClient
from nri_plugin.model.errors import HostError
from nri_plugin.model.state import PodFacts, QOSClass
from nri_plugin.wire.nri.events import CreateContainer
from nri_plugin.wire.nri.messages import Container, Pod
from tests.kubelet import Kubelet, devices, pod

LOG = logging.getLogger("facts under test")
PATIENCE_S = 30.0


class Known:
    """The facts of one pod."""

    def get(self, namespace: str, name: str, uid: str) -> dict[str, object] | None:
        is_known = (namespace, name, uid) == ("default", "known", "u")
        return {"uid": uid, "qos": "Burstable"} if is_known else None


FACTS = Known()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    served = Kubelet(tmp_path)
    served.pods = [
        pod(
            "web",
            app=[devices("v/nic", "n", -1), devices("v/gpu", "a b", 0), devices("v/gpu", "c", 1)],
            side=[],
        ),
        pod("known", app=[]),
    ]
    served.all_devices = [devices("v/gpu", "a b", 0), devices("v/gpu", "c d e", 1)]
    yield served
    served.close()


@pytest.fixture
def facts(kubelet: Kubelet, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("nri_plugin.exporter.facts_socket.KUBELET_S", PATIENCE_S)
    client = KubeletClient(kubelet.path)
    source = AnswerSource(client, FACTS.get, clock)
    served = FactsSocket(str(tmp_path / "exporter.sock"), source, LOG)
    yield str(tmp_path / "exporter.sock")
    served.close()
    client.close()


def ask(path: str, container: str = "app", name: str = "web", *, devices: bool = True) -> ExporterAnswer:
    event = CreateContainer(Pod("s", uid="u", name=name, namespace="default"), Container("c", name=container))
    return PodResourcesClient(path, time.monotonic).ask(event, PATIENCE_S, devices=devices)


def test_facts_come_beside_devices_and_without(facts: str, kubelet: Kubelet) -> None:
    everything = ask(facts, name="known")
    assert everything.devices == ()
    assert everything.facts == PodFacts("u", QOSClass.BURSTABLE)
    assert ask(facts, "nobody", "known") == ExporterAnswer(facts=everything.facts)
    kubelet.close()
    assert ask(facts, name="known") == ExporterAnswer(facts=everything.facts)


def test_a_question_about_facts_alone_does_not_reach_the_kubelet(facts: str, kubelet: Kubelet) -> None:
    assert ask(facts, name="known", devices=False) == ExporterAnswer(facts=PodFacts("u", QOSClass.BURSTABLE))
    assert ask(facts, devices=False) == ExporterAnswer()
    assert kubelet.asked == []


def test_the_agent_learns_where_devices_are(facts: str) -> None:
    informed = ask(facts)
    assert informed.devices is not None
    nic, gpu = informed.devices
    assert (nic.name, [str(device.nodes) for device in nic.devices]) == ("v/nic", [""])
    assert [(device.id, str(device.nodes)) for device in gpu.devices] == [("a", "0"), ("b", "0"), ("c", "1")]


def test_a_container_without_devices_has_none_and_its_pod_has(facts: str) -> None:
    informed = ask(facts, "side")
    assert informed.devices == ()
    assert [resource.name for resource in informed.pod_devices] == ["v/nic", "v/gpu"]


def test_who_is_unknown_to_the_kubelet_is_unknown_here(facts: str) -> None:
    assert ask(facts, "nobody") == ExporterAnswer()
    assert ask(facts, name="nobody") == ExporterAnswer()


def test_totals_are_asked_for_now_and_then_only(facts: str, kubelet: Kubelet, clock: Clock) -> None:
    for _ in range(3):
        ask(facts)
    clock.now += 60
    ask(facts)
    assert kubelet.asked.count("GetAllocatableResources") == 2


def test_a_kubelet_that_is_away_is_no_answer(facts: str, kubelet: Kubelet) -> None:
    kubelet.close()
    with pytest.raises(NoAnswerError):
        ask(facts)


def test_nonsense_is_hung_up_on(facts: str) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(PATIENCE_S)
        peer.connect(facts)
        peer.sendall(b"what?\n")
        assert peer.recv(100) == b""


def test_a_place_that_takes_no_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot be listened on"):
        FactsSocket(str(tmp_path / "missing" / "exporter.sock"), lambda _question: {}, LOG)


@pytest.mark.parametrize("too_long", ["facts", "devices"])
def test_an_answer_that_is_too_long_goes_without_facts_and_else_without_anything(
    tmp_path: Path, too_long: str
) -> None:
    answer = {"devices": [], "facts": {"uid": "u", "qos": "Burstable"}}
    served = FactsSocket(
        str(tmp_path / "exporter.sock"), lambda _question: {**answer, too_long: ["x" * LINE_BYTES]}, LOG
    )
    known = ask(str(tmp_path / "exporter.sock"))
    served.close()
    assert known == (ExporterAnswer(devices=()) if too_long == "facts" else ExporterAnswer())
