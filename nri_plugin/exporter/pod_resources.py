"""The PodResources API: a client of the kubelet, and a server that answers with our placements.

Invariant: devices, dynamic resources and the order of pods and containers are the kubelet's. CPUs and memory of a
container are the agent's, even if it has none: the kubelet's own managers are off, or would report CPUs that the
container does not run on. Pods that only the agent knows are left out, as the kubelet leaves out pods that have ended.

Only this module uses gRPC.

Source: kubelet v1.36 pkg/kubelet/apis/podresources; its API version 1.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import grpc

from nri_plugin.exporter.publication import DeviceCount, Devices
from nri_plugin.kube._pb import podresources_pb2 as pb
from nri_plugin.model.errors import HostError, KubeletError
from nri_plugin.model.options import MemoryManagerPolicy, Node
from nri_plugin.model.state import Allocation, State, owner_of
from nri_plugin.policy.memory_state import memory_machine

KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
SERVICE = "v1.PodResourcesLister"
LONGEST_BYTES = 16 << 20
"""Longest answer, as in node feature discovery."""

LONGEST_PATH = 107
"""Bytes of a socket's path. Source: unix(7), `sun_path`."""

ASK_S = 10.0
ANSWERERS = 4
"""Threads that answer. More do not help, because all wait for the kubelet."""

NO_ANSWER = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)

Message = TypeVar("Message")
View = Callable[[], tuple[Node, State] | None]

PodResources = pb.PodResources
ContainerDevices = pb.ContainerDevices
Allocatable = pb.AllocatableResourcesResponse
Keyed = Mapping[tuple[str, str, str], Allocation]


# Messages


def merged_list(answer: pb.ListPodResourcesResponse, state: State) -> pb.ListPodResourcesResponse:
    """Return the kubelet's list with the agent's allocations."""
    mine, result = _by_name(state), pb.ListPodResourcesResponse()
    result.CopyFrom(answer)
    for pod in result.pod_resources:
        _place(pod, mine)
    return result


def merged_pod(answer: pb.GetPodResourcesResponse, state: State) -> pb.GetPodResourcesResponse:
    """Return the kubelet's answer for one pod with the agent's allocations."""
    result = pb.GetPodResourcesResponse()
    result.CopyFrom(answer)
    _place(result.pod_resources, _by_name(state))
    return result


def merged_allocatable(
    answer: pb.AllocatableResourcesResponse, node: Node
) -> pb.AllocatableResourcesResponse:
    """Return the kubelet's devices and the agent's CPUs and memory. As in the kubelet, memory only if it is managed."""
    result = pb.AllocatableResourcesResponse(devices=answer.devices, cpu_ids=list(map(int, node.allocatable)))
    if node.options.memory_manager_policy is MemoryManagerPolicy.STATIC:
        machine = memory_machine(node.topology, node.options.reserved_memory)
        for resource in sorted(machine.allocatable):
            for number, size in machine.allocatable[resource].items():
                if size:
                    result.memory.append(_memory(resource, size, (number,)))
    return result


def pod_of(answer: pb.ListPodResourcesResponse, namespace: str, name: str) -> pb.PodResources | None:
    """Return one pod of a list; None if it is not in it."""
    return next((pod for pod in answer.pod_resources if (pod.namespace, pod.name) == (namespace, name)), None)


def devices_of(allocatable: pb.AllocatableResourcesResponse, listed: pb.ListPodResourcesResponse) -> Devices:
    """Count devices by resource and NUMA node, in total and available, and list the pods that have devices.

    A device near several NUMA nodes counts on each of them, allocated or not. A device near none counts on no zone. A pod
    is listed if it has devices of a resource that a zone lists, on any node: the scheduler plugin sees only names.
    """
    totals = _tally(allocatable.devices)
    held = [
        (pod, device)
        for pod in listed.pod_resources
        for container in pod.containers
        for device in container.devices
    ]
    taken = _tally(device for _, device in held)
    counts = tuple(
        DeviceCount(number, resource, total, max(0, total - taken[resource, number]))
        for (resource, number), total in sorted(totals.items())
    )
    zoned = {resource for resource, _ in totals}
    return Devices(
        counts, frozenset((pod.namespace, pod.name) for pod, device in held if device.resource_name in zoned)
    )


def numa_ids(device: pb.ContainerDevices) -> list[int]:
    """Return the NUMA nodes that a device is near, ascending; empty if none is known."""
    return sorted({node.ID for node in device.topology.nodes if node.ID >= 0})


def _tally(devices: Iterable[pb.ContainerDevices]) -> Counter[tuple[str, int]]:
    count: Counter[tuple[str, int]] = Counter()
    for device in devices:
        for number in numa_ids(device):
            count[device.resource_name, number] += len(device.device_ids)
    return count


def _by_name(state: State) -> Keyed:
    rows = {}
    for key, allocation in state.allocations.items():
        uid, container = owner_of(key)
        pod = state.pods.get(uid)
        if pod is not None:
            rows[pod.namespace, pod.name, container] = allocation
    return rows


def _place(pod: pb.PodResources, mine: Keyed) -> None:
    for container in pod.containers:
        allocation = mine.get((pod.namespace, pod.name, container.name), Allocation())
        del container.cpu_ids[:]
        container.cpu_ids.extend(map(int, allocation.cpus))
        del container.memory[:]
        container.memory.extend(
            _memory(block.resource, block.size_bytes, map(int, block.nodes)) for block in allocation.memory
        )


def _memory(resource: str, size_bytes: int, numbers: Iterable[int]) -> pb.ContainerMemory:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=number) for number in numbers])
    return pb.ContainerMemory(memory_type=resource, size=size_bytes, topology=topology)


# The client


class KubeletClient:
    """A client of the kubelet.

    Args:
        path: of its socket; it need not exist yet.
    """

    def __init__(self, path: str = KUBELET_SOCKET) -> None:
        self.path = path
        self._channel = grpc.insecure_channel(
            f"unix://{os.path.abspath(path)}",
            options=[
                ("grpc.max_receive_message_length", LONGEST_BYTES),
                ("grpc.max_reconnect_backoff_ms", 2000),
                ("grpc.enable_http_proxy", 0),
            ],
        )
        self._list: Callable[..., pb.ListPodResourcesResponse] = self._method(
            "List", pb.ListPodResourcesResponse
        )
        self._allocatable: Callable[..., pb.AllocatableResourcesResponse] = self._method(
            "GetAllocatableResources", pb.AllocatableResourcesResponse
        )
        self._get: Callable[..., pb.GetPodResourcesResponse] = self._method("Get", pb.GetPodResourcesResponse)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def list(self, timeout_s: float = ASK_S) -> pb.ListPodResourcesResponse:
        """Return the resources of each container.

        Raises:
            KubeletError: no answer.
        """
        return self._asked(self._list, pb.ListPodResourcesRequest(), timeout_s)

    def allocatable(self, timeout_s: float = ASK_S) -> pb.AllocatableResourcesResponse:
        """Return allocatable devices.

        Raises:
            KubeletError: no answer.
        """
        return self._asked(self._allocatable, pb.AllocatableResourcesRequest(), timeout_s)

    def get(self, namespace: str, name: str, timeout_s: float = ASK_S) -> pb.GetPodResourcesResponse:
        """Return the resources of one pod; from the list if the kubelet is too old for this call.

        Raises:
            KubeletError: no answer, or the kubelet does not know the pod (`is_unknown`).
        """
        request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        try:
            return self._asked(self._get, request, timeout_s)
        except KubeletError as error:
            if not error.is_unsupported:
                raise
        pod = pod_of(self.list(timeout_s), namespace, name)
        if pod is None:
            raise KubeletError(self.path, f"pod {name} in namespace {namespace} not found", is_unknown=True)
        return pb.GetPodResourcesResponse(pod_resources=pod)

    def _method(self, name: str, answer: Any) -> Any:
        return self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )

    def _asked(self, method: Callable[..., Message], request: object, timeout_s: float) -> Message:
        try:
            return method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _refusal(self.path, error.code(), error.details()) from None  # a call, which has both


def _refusal(path: str, code: grpc.StatusCode, text: str) -> KubeletError:
    """Return the error for a failed call.

    Source: kubelet v1.35 pkg/kubelet/apis/podresources/server_v1.go. The status is UNKNOWN both for a disabled feature
    gate and for an unknown pod; only the text distinguishes them.
    """
    if code in NO_ANSWER:
        return KubeletError(path, f"the kubelet does not answer: {text}")
    if code is grpc.StatusCode.NOT_FOUND or text.endswith("not found"):
        return KubeletError(path, text, is_unknown=True)
    is_unsupported = code is grpc.StatusCode.UNIMPLEMENTED or "disabled" in text
    return KubeletError(path, f"the kubelet answers {code.name}: {text}", is_unsupported=is_unsupported)


# The server


class PodResourcesServer:
    """Serves from its creation until `close`.

    Args:
        path: of our socket; a socket that exists there is replaced.
        kubelet: is asked first.
        view: returns the agent's allocations; None before the first status of the agent.

    Raises:
        HostError: the socket cannot be made there.
    """

    def __init__(self, path: str, kubelet: KubeletClient, view: View) -> None:
        self._kubelet, self._view = kubelet, view
        self._server = grpc.server(
            ThreadPoolExecutor(ANSWERERS, "pod resources"),
            options=[("grpc.max_send_message_length", LONGEST_BYTES), ("grpc.so_reuseport", 0)],
        )
        handlers = {
            "List": _handler(self._on_list, pb.ListPodResourcesRequest),
            "GetAllocatableResources": _handler(self._on_allocatable, pb.AllocatableResourcesRequest),
            "Get": _handler(self._on_get, pb.GetPodResourcesRequest),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        with suppress(FileNotFoundError):
            os.unlink(path)
        address = os.path.abspath(path)
        if len(os.fsencode(address)) > LONGEST_PATH:
            raise HostError(
                path, f"cannot be listened on: longer than {LONGEST_PATH} bytes, use a shorter path"
            )
        before = os.umask(0o177)
        try:
            self._server.add_insecure_port(f"unix://{address}")
        except RuntimeError as error:
            raise HostError(path, f"cannot be listened on: {error}") from None
        finally:
            os.umask(before)
        self._server.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.stop(None).wait()

    def _on_list(self, _request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        _, state = self._known(context)
        return merged_list(_kubelets(context, self._kubelet.list), state)

    def _on_get(self, request: pb.GetPodResourcesRequest, context: Any) -> pb.GetPodResourcesResponse:
        _, state = self._known(context)
        answer = _kubelets(context, lambda: self._kubelet.get(request.pod_namespace, request.pod_name))
        return merged_pod(answer, state)

    def _on_allocatable(
        self, _request: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        node, _ = self._known(context)
        return merged_allocatable(_kubelets(context, self._kubelet.allocatable), node)

    def _known(self, context: Any) -> tuple[Node, State]:
        known = self._view()
        if known is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "there is no status of the agent yet; ask again")
        assert known is not None
        return known


def _kubelets(context: Any, ask: Callable[[], Any]) -> Any:
    """Return the kubelet's answer, or fail: an empty list would look like a valid answer.

    "Unknown pod" is a valid answer, and is forwarded with the kubelet's text.
    """
    try:
        return ask()
    except KubeletError as error:
        if error.is_unknown:
            context.abort(grpc.StatusCode.NOT_FOUND, error.detail)
        context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


def _handler(answer: Callable[[Any, Any], Any], request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
