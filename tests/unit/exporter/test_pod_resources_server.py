"""The PodResources API on our socket, as a client of the kubelet's sees it, over real gRPC on both sides."""

import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from nri_plugin.exporter.pod_resources import MOST_CLIENTS, KubeletClient, PodResourcesServer
from nri_plugin.kube._pb import podresources_pb2 as pb
from nri_plugin.model.errors import HostError, KubeletError
from nri_plugin.model.options import MemoryManagerPolicy, Node, Options
from nri_plugin.model.records import Allocation, MemoryBlock, PodRecord
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from tests.builders import GIB, machine
from tests.kubelet import SERVICE, Kubelet, devices, pod

PATIENCE_S = 60.0


class View:
    """What the agent has said."""

    def __init__(self) -> None:
        options = Options(memory_manager_policy=MemoryManagerPolicy.STATIC)
        self.node = Node(machine(), options, CPUSet.parse("0"))
        block = MemoryBlock(NodeMask(0b11), "memory", 2 * GIB)
        self.state = State(
            pods={"u": PodRecord("u", "s", "web", "default")},
            allocations={"u/app": Allocation(CPUSet.parse("2-3"), memory=(block,))},
        )
        self.has_spoken = True

    def __call__(self) -> tuple[Node, State] | None:
        return (self.node, self.state) if self.has_spoken else None


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    served = Kubelet(tmp_path)
    served.pods = [pod("web", app=[devices("vendor/gpu", "a", 1)], side=[]), pod("other", app=[])]
    served.pods[0].containers[1].cpu_ids.extend([5, 6])
    served.all_devices = [devices("vendor/gpu", "a b", 1)]
    yield served
    served.close()


@pytest.fixture
def view() -> View:
    return View()


@pytest.fixture
def client(kubelet: Kubelet, view: View, tmp_path: Path) -> Iterator[KubeletClient]:
    """Asks our server as it would the kubelet."""
    behind = KubeletClient(kubelet.path)
    server = PodResourcesServer(str(tmp_path / "ours.sock"), behind, view)
    asking = KubeletClient(str(tmp_path / "ours.sock"))
    yield asking
    asking.close()
    server.close()
    behind.close()


def test_the_list_is_the_kubelets_with_our_cpus_and_memory(client: KubeletClient, kubelet: Kubelet) -> None:
    web, other = client.list().pod_resources
    app, side = web.containers
    assert list(app.cpu_ids) == [2, 3]
    (memory,) = app.memory
    assert (memory.memory_type, memory.size) == ("memory", 2 * GIB)
    assert [node.ID for node in memory.topology.nodes] == [0, 1]
    assert list(app.devices) == list(kubelet.pods[0].containers[0].devices)
    assert (list(side.cpu_ids), other) == ([], kubelet.pods[1])


@pytest.mark.parametrize("knows_get", [True, False])
def test_one_pod_is_answered_for_by_old_and_new_kubelets(
    client: KubeletClient, kubelet: Kubelet, knows_get: bool
) -> None:
    kubelet.knows_get = knows_get
    found = client.get("default", "web").pod_resources
    assert (found.name, list(found.containers[0].cpu_ids)) == ("web", [2, 3])
    with pytest.raises(KubeletError) as caught:
        client.get("default", "nobody")
    assert caught.value.is_unknown
    assert caught.value.detail == "pod nobody in namespace default not found"


def test_an_unknown_pod_is_an_answer_of_the_kubelet_in_its_words(client: KubeletClient) -> None:
    channel = grpc.insecure_channel(f"unix://{client.path}")
    get = channel.unary_unary(
        f"/{SERVICE}/Get", request_serializer=lambda message: message.SerializeToString()
    )
    with pytest.raises(grpc.RpcError) as caught:
        get(pb.GetPodResourcesRequest(pod_name="nobody", pod_namespace="default"), timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "pod nobody in namespace default not found"
    channel.close()


def test_what_the_kubelet_refuses_is_not_called_silence(client: KubeletClient, kubelet: Kubelet) -> None:
    kubelet.refuses = "rate limit exceeded"
    with pytest.raises(
        KubeletError, match="the kubelet answers RESOURCE_EXHAUSTED: rate limit exceeded"
    ) as caught:
        client.list()
    assert not caught.value.is_unknown


def test_allocatable_is_ours_but_for_devices(client: KubeletClient, kubelet: Kubelet) -> None:
    answer = client.allocatable()
    assert list(answer.cpu_ids) == list(range(1, 16))
    assert list(answer.devices) == kubelet.all_devices
    rows = [(row.memory_type, row.size, [node.ID for node in row.topology.nodes]) for row in answer.memory]
    assert rows == [("memory", 16 * GIB, [0]), ("memory", 16 * GIB, [1])]


def test_memory_that_is_not_managed_is_not_listed(client: KubeletClient, view: View) -> None:
    view.node = replace(view.node, options=Options())
    assert not client.allocatable().memory


def test_fields_of_newer_kubelets_pass_through(client: KubeletClient, kubelet: Kubelet) -> None:
    kubelet.pods[0].containers[0].MergeFromString(b"\xa2\x06\x03new")
    app = client.list().pod_resources[0].containers[0]
    assert b"new" in app.SerializeToString()


def test_the_list_of_v1alpha1_has_what_that_knows(client: KubeletClient, kubelet: Kubelet) -> None:
    channel = grpc.insecure_channel(f"unix:{client.path}")
    ask = channel.unary_unary("/v1alpha1.PodResourcesLister/List")
    expected = pb.ListPodResourcesResponse()
    for known in kubelet.pods:
        row = expected.pod_resources.add(name=known.name, namespace=known.namespace)
        for one in known.containers:
            container = row.containers.add(name=one.name)
            for device in one.devices:
                container.devices.add(resource_name=device.resource_name, device_ids=device.device_ids)
    assert any(one.devices for row in expected.pod_resources for one in row.containers)
    assert pb.ListPodResourcesResponse.FromString(ask(b"", timeout=30)) == expected
    kubelet.close()
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        ask(b"", timeout=30)
    channel.close()


def test_without_the_kubelet_nothing_is_made_up(client: KubeletClient, kubelet: Kubelet) -> None:
    kubelet.close()
    with pytest.raises(KubeletError, match="the kubelet does not answer"):
        client.list()


def test_before_the_agent_has_spoken_nothing_is_made_up(client: KubeletClient, view: View) -> None:
    view.has_spoken = False
    with pytest.raises(KubeletError, match="there is no status of the agent yet"):
        client.list()


def test_only_the_owner_may_connect(client: KubeletClient) -> None:
    assert stat.S_IMODE(os.stat(client.path).st_mode) == 0o600


def test_a_place_that_takes_no_socket_is_named(tmp_path: Path) -> None:
    kubelet = KubeletClient(str(tmp_path / "kubelet.sock"))
    with pytest.raises(HostError, match="cannot be listened on"):
        PodResourcesServer(str(tmp_path / "missing" / "ours.sock"), kubelet, View())
    kubelet.close()


def test_a_path_too_long_for_a_socket_is_refused_with_the_length(tmp_path: Path) -> None:
    long = str(tmp_path / ("x" * 100) / "ours.sock")
    with pytest.raises(HostError, match=r"longer than 107 bytes, use a shorter path$"):
        PodResourcesServer(long, KubeletClient("/x"), lambda: None)


def test_messages_have_the_kubelets_field_numbers() -> None:
    device = pb.ContainerDevices(resource_name="r", device_ids=["i"])
    device.topology.nodes.add(ID=1)
    assert device.SerializeToString() == b"\x0a\x01r\x12\x01i\x1a\x04\x0a\x02\x08\x01"


def test_silent_connections_are_bounded(client: KubeletClient) -> None:
    connected = []
    for _ in range(3 * MOST_CLIENTS):
        connected.append(socket.socket(socket.AF_UNIX))
        connected[-1].connect(client.path)
        connected[-1].setblocking(False)
    until = time.monotonic() + PATIENCE_S
    while sum(map(has_been_closed, connected)) < 2 * MOST_CLIENTS:
        assert time.monotonic() < until
        time.sleep(0.01)
    for one in connected:
        one.close()


def has_been_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1 << 16, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
