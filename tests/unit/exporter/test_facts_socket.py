"""The agent's own client asks the exporter's socket, and the exporter a kubelet: the whole way of a question."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.agent.serving.pod_facts import NoAnswerError, PodResourcesClient
from nri_plugin.core.decision import LINE_BYTES, ExporterAnswer
from nri_plugin.exporter.facts_socket import KUBELET_S, MOST_CLIENTS, AnswerSource, FactsRequest, FactsSocket
from nri_plugin.exporter.pod_resources import KubeletClient
from nri_plugin.kube._pb import podresources_pb2 as pb
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import PodFacts, QOSClass
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


@pytest.mark.parametrize("too_long", ["devices_by_container", "facts", "devices"])
def test_an_answer_that_is_too_long_leaves_out_other_containers_then_facts_then_everything(
    tmp_path: Path, too_long: str
) -> None:
    words = {"uid": "u", "qos": "Burstable"}
    answer = {"devices": [], "facts": words, "devices_by_container": {"side": []}}
    filled = {**answer, too_long: {"x": "x" * LINE_BYTES}}
    served = FactsSocket(str(tmp_path / "exporter.sock"), lambda _question: filled, LOG)
    known = ask(str(tmp_path / "exporter.sock"))
    served.close()
    expected = {
        "devices_by_container": ExporterAnswer(devices=(), facts=PodFacts("u", QOSClass.BURSTABLE)),
        "facts": ExporterAnswer(devices=()),
        "devices": ExporterAnswer(),
    }
    assert known == expected[too_long]


def test_the_devices_of_the_other_containers_have_the_totals_of_the_pod(facts: str) -> None:
    informed = ask(facts, "side")
    assert [name for name, _ in informed.devices_by_container] == ["app"]
    ((_, (nic, gpu)),) = informed.devices_by_container
    assert (nic.name, [device.id for device in gpu.devices]) == ("v/nic", ["a", "b", "c"])
    assert gpu.totals == informed.pod_devices[1].totals != ()


def test_a_question_about_the_pod_alone_has_no_container(facts: str) -> None:
    client = PodResourcesClient(facts, time.monotonic)
    of = Pod("s", uid="u", name="web", namespace="default")
    known = client.ask_about(of, PATIENCE_S, True)
    assert known.devices is None
    assert [name for name, _ in known.devices_by_container] == ["app"]
    assert client.ask_about(of, PATIENCE_S, False) == ExporterAnswer()


def test_the_end_of_a_pod_is_told_with_facts_and_without(tmp_path: Path) -> None:
    source = AnswerSource(None, FACTS.get, has_ended=lambda *one: one[1] in ("known", "gone"))
    served = FactsSocket(str(tmp_path / "exporter.sock"), source, LOG)
    answers = [ask(str(tmp_path / "exporter.sock"), name=name) for name in ("known", "gone", "other")]
    served.close()
    assert [one.has_ended for one in answers] == [True, True, False]
    assert [one.facts is not None for one in answers] == [True, False, False]


def test_a_static_pod_is_created_again_whatever_its_mirror_shows() -> None:
    source = AnswerSource(
        None, FACTS.get, has_ended=lambda *_: True, is_static=lambda *one: one[1] == "known"
    )
    asked = [FactsRequest("u", "default", name, of) for name in ("known", "web") for of in ("app", "")]
    assert ["has_ended" in source(one) for one in asked] == [False, True, True, True]


LARGE = "c" * 59
NAMES = [f"{LARGE}{number:04}" for number in range(128)]
AMOUNTS = {
    "cpu_request_milli": 128000,
    "cpu_limit_milli": 128000,
    "memory_request_bytes": 1 << 40,
    "memory_limit_bytes": 1 << 40,
    "hugepages": {"hugepages-2Mi": 1 << 30, "hugepages-1Gi": 1 << 40},
}


@pytest.fixture
def large(kubelet: Kubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Knows a pod of 128 containers with long names and all amounts, each with a GPU and a NIC."""
    monkeypatch.setattr("nri_plugin.exporter.facts_socket.KUBELET_S", PATIENCE_S)
    given = {
        name: [
            devices("nvidia.com/gpu", f"GPU-{n:036}", n % 8),
            devices("v/nic", f"0000:{n:04x}:00.0", n % 8),
        ]
        for n, name in enumerate(NAMES)
    }
    kubelet.pods = [pod("web", **given)]
    words = {"uid": "u", "qos": "Guaranteed", "containers": [{"name": name, **AMOUNTS} for name in NAMES]}
    client = KubeletClient(kubelet.path)
    served = FactsSocket(str(tmp_path / "exporter.sock"), AnswerSource(client, lambda *_: words), LOG)
    yield str(tmp_path / "exporter.sock")
    served.close()
    client.close()


def test_an_answer_has_room_for_128_containers_with_their_facts_and_devices(large: str) -> None:
    known = ask(large, NAMES[0])
    assert known.facts is not None
    assert len(known.facts.containers) == 128
    assert [name for name, _ in known.devices_by_container] == NAMES[1:]


class SlowKubelet:
    """Answers the first question late; `limits_s` are the limits that it was given."""

    def __init__(self, clock: Clock, takes_s: float) -> None:
        self.clock, self.takes_s, self.limits_s = clock, takes_s, []

    def get(self, _namespace: str, _name: str, limit_s: float) -> pb.GetPodResourcesResponse:
        self.limits_s.append(limit_s)
        self.clock.now += self.takes_s
        given = pb.ContainerDevices(resource_name="v/gpu", device_ids=["a"])
        container = pb.ContainerResources(name="app", devices=[given])
        return pb.GetPodResourcesResponse(pod_resources=pb.PodResources(name="web", containers=[container]))

    def allocatable(self, limit_s: float) -> pb.AllocatableResourcesResponse:
        self.limits_s.append(limit_s)
        return pb.AllocatableResourcesResponse()


@pytest.mark.parametrize(("takes_s", "asked"), [(0.07, 2), (0.09, 1)])
def test_all_questions_of_an_answer_share_the_time_of_the_agent(
    clock: Clock, takes_s: float, asked: int
) -> None:
    kubelet = SlowKubelet(clock, takes_s)
    source = AnswerSource(kubelet, FACTS.get, clock)  # type: ignore[arg-type]
    told = source(FactsRequest("u", "default", "known", "app"))
    assert told["facts"]
    assert len(kubelet.limits_s) == asked
    assert takes_s + sum(kubelet.limits_s[1:]) <= max(takes_s, KUBELET_S) + 1e-9


def test_silent_clients_take_few_threads_and_the_agent_is_answered_at_once(facts: str) -> None:
    silent = []
    for _ in range(3 * MOST_CLIENTS):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE_S)
        client.connect(facts)
        silent.append(client)
        assert threading.active_count() < MOST_CLIENTS + 30
        assert ask(facts, name="known", devices=False).facts is not None
    for client in silent:
        client.close()
