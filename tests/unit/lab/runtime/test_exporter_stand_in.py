"""What stands in for the exporter says what the real one would, to the agent's own client."""

import time
from pathlib import Path

import pytest

from nri_plugin.agent.serving.pod_facts import PodResourcesClient
from nri_plugin.exporter.facts_socket import answer as real_answer
from nri_plugin.exporter.facts_socket import totals_of
from nri_plugin.kube._pb import podresources_pb2 as pb
from nri_plugin.simulator.machine.machine import parse
from nri_plugin.simulator.simulate.device_manager import DeviceManager, Given
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec
from nri_plugin.wire.nri.events import CreateContainer
from nri_plugin.wire.nri.messages import Container, Pod
from tests.lab.runtime.exporter_stand_in import ExporterStandIn, answer

TEXT = 'topology: pack:2 numa:1 l3:1 core:2 pu:1\ndevices:\n  - {resource: a/b, count: 2, nodes: 0}\n  - {resource: a/b, count: 2, nodes: 1}\n  - {resource: a/b, count: 1, nodes: "0,1"}\n  - {resource: a/c, count: 2}'
POD = PodSpec(
    "p",
    containers=(
        ContainerSpec("one", devices_asked=(("a/b", 3), ("a/c", 1))),
        ContainerSpec("two", devices_asked=(("a/b", 2),)),
        ContainerSpec("none"),
    ),
)


@pytest.fixture
def manager() -> DeviceManager:
    found = DeviceManager(parse(TEXT).devices)
    found.admit(POD)
    return found


def listed(manager: DeviceManager, given: Given) -> list[pb.ContainerDevices]:
    """As the kubelet lists them: an entry for each device."""
    return [
        pb.ContainerDevices(
            resource_name=device.resource,
            device_ids=[device.id],
            topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=int(number)) for number in device.nodes]),
        )
        for device in manager.placed(given)
    ]


@pytest.mark.parametrize("container", ["one", "two", "none", "unknown", ""])
def test_it_answers_as_the_exporter_would_from_the_kubelets_lists(
    manager: DeviceManager, container: str
) -> None:
    kubelet = pb.PodResources(
        name="p",
        namespace="default",
        containers=[
            pb.ContainerResources(name=name, devices=listed(manager, given))
            for name, given in manager.containers("default/p").items()
        ],
    )
    every = {
        name: tuple(each.id for each in manager.devices if each.resource == name) for name in ("a/b", "a/c")
    }
    totals = totals_of(pb.AllocatableResourcesResponse(devices=listed(manager, every)))
    assert answer(manager, "default/p", container) == real_answer(kubelet, container, totals)


def test_an_unknown_pod_is_not_known(manager: DeviceManager) -> None:
    assert answer(manager, "default/q", "one") == {}


def test_the_agents_client_hears_it(manager: DeviceManager, tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    stand_in = ExporterStandIn(path, manager)
    try:
        pod = Pod(id="p", name="p", uid="u", namespace="default")
        event = CreateContainer(pod, Container(id="c", pod_id="p", name="two"))
        found = PodResourcesClient(str(path), time.monotonic).ask(event, 5.0)
        unknown = PodResourcesClient(str(path), time.monotonic).ask(
            CreateContainer(pod, Container(id="c", pod_id="p", name="?")), 5.0
        )
    finally:
        stand_in.close()
    assert [(each.name, [device.id for device in each.devices]) for each in found.devices or ()] == [
        ("a/b", ["2", "3"])
    ]
    assert {each.name for each in found.pod_devices} == {"a/b", "a/c"}
    assert unknown.devices is None
