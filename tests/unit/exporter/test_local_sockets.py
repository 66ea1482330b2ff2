"""What the exporter serves on its node, put together."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.agent.serving.pod_facts import PodResourcesClient
from nri_plugin.core.decision import ExporterAnswer
from nri_plugin.exporter.pod_resources import KubeletClient
from nri_plugin.exporter.process import LocalSockets
from nri_plugin.exporter.publication import DeviceCount, Devices
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import PodFacts, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.logs import fields_of
from nri_plugin.wire.nri.events import CreateContainer
from nri_plugin.wire.nri.messages import Container, Pod
from tests.builders import machine
from tests.exporter import PATIENCE_S
from tests.kubelet import Kubelet, devices, pod

NODE = Node(machine(), Options(), CPUSet.parse("0"))


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    served = Kubelet(tmp_path)
    served.pods = [pod("web", app=[devices("v/gpu", "a", 1)])]
    served.all_devices = [devices("v/gpu", "a b", 1)]
    yield served
    served.close()


@pytest.fixture
def sockets(kubelet: Kubelet, tmp_path: Path) -> Iterator[LocalSockets]:
    made = LocalSockets(kubelet.path, str(tmp_path / "agent.sock"), logging.getLogger("sockets under test"))
    yield made
    made.close()


def test_both_sockets_lie_in_a_folder_of_their_own_beside_the_agents(
    sockets: LocalSockets, tmp_path: Path
) -> None:
    sockets.open(lambda: (NODE, State()), lambda *_: None)
    assert (tmp_path / "exporter" / "exporter.sock").is_socket()
    client = KubeletClient(str(tmp_path / "exporter" / "pod-resources.sock"))
    assert [one.name for one in client.list().pod_resources] == ["web"]
    client.close()


def test_devices_stay_known_while_the_kubelet_is_away(
    sockets: LocalSockets, kubelet: Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    known = sockets.devices()
    assert known.counts == (DeviceCount(1, "v/gpu", 2, 1),)
    kubelet.close()
    with caplog.at_level(logging.WARNING):
        assert all(sockets.devices() == known for _ in range(4))
    assert {record.message for record in caplog.records} == {"devices are not updated"}
    reasons = [
        str(fields_of(record)["err"]) for record in caplog.records
    ]  # of the call that was cut off, and of later ones
    assert len(set(reasons)) == len(reasons) <= 2


def test_a_place_that_takes_no_socket_is_said_and_passed_over(
    kubelet: Kubelet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = LocalSockets(kubelet.path, str(tmp_path / "missing" / "agent.sock"), logging.getLogger("x"))
    made.open(lambda: (NODE, State()), lambda *_: None)
    assert [record.message for record in caplog.records] == ["a local socket is missing"]
    made.close()


def test_without_a_kubelet_facts_are_served_and_nothing_else(tmp_path: Path) -> None:
    made = LocalSockets("", str(tmp_path / "agent.sock"), logging.getLogger("x"))
    asked: list[tuple[str, str, str]] = []

    def facts(*names: str) -> dict[str, object]:
        asked.append(names)  # type: ignore[arg-type]
        return {"uid": "u", "qos": "Guaranteed"}

    made.open(lambda: (NODE, State()), facts)
    assert made.devices() == Devices()
    event = CreateContainer(Pod("s", uid="u", name="web", namespace="shop"), Container("c", name="app"))
    answer = PodResourcesClient(str(tmp_path / "exporter" / "exporter.sock"), time.monotonic).ask(
        event, PATIENCE_S
    )
    made.close()
    assert answer == ExporterAnswer(facts=PodFacts("u", QOSClass.GUARANTEED))
    assert asked == [("shop", "web", "u")]
    assert [path.name for path in tmp_path.rglob("*")] == ["exporter"]
