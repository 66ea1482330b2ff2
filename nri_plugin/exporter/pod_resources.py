"""The PodResources API: a client of the kubelet, and a server that answers with our placements.

Invariant: devices, dynamic resources and the order of pods and containers are the kubelet's. CPUs and memory of a
container are the agent's, even if it has none: the kubelet's own managers are off, or would report CPUs that the
container does not run on. Pods that only the agent knows are left out, as the kubelet leaves out pods that have ended.

Invariant: the CPUs and memory of a pod's containers add up to no more than the pod holds. So three ways to read the
answer agree: the sum over the containers, their union, and the fields of the pod first. Plain init containers have none,
because their CPUs are also those of later containers.

A pod with resources of its own has them in its own fields, as in Kubernetes 1.37. Its containers list what they own, and
the first container that shares the rest lists the rest. CPUs of the block on which no container runs are only in the
fields of the pod.

Only this module uses gRPC.

Source: kubelet v1.36 pkg/kubelet/apis/podresources; its API version 1. resource-topology-exporter
    pkg/resourcemonitor (GetAllContainerDevices) adds up containers.
Differs: the kubelet 1.36 lists the pod shared pool for every container that shares it, and 1.37 for none; here: the first
    container that shares lists it. Why: exporters that add up containers (NFD, resource-topology-exporter) count each
    CPU once. Option: none.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any, TypeVar

import grpc

from nri_plugin.exporter.publication import DeviceCount, Devices
from nri_plugin.kube._pb import podresources_pb2 as pb
from nri_plugin.model.errors import HostError, KubeletError
from nri_plugin.model.options import MemoryManagerPolicy, Node
from nri_plugin.model.records import Allocation, MemoryBlock, PodFacts, is_whole_pod, owner_of
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.policy.memory_state import memory_machine
from nri_plugin.policy.pod_level import memory_claim, memory_of

KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
SERVICE, OLDER_SERVICE = "v1.PodResourcesLister", "v1alpha1.PodResourcesLister"
LONGEST_BYTES = 16 << 20
"""Longest answer, as in node feature discovery."""

LONGEST_PATH = 107
"""Bytes of a socket's path. Source: unix(7), `sun_path`."""

ASK_S = 10.0
ANSWERERS = 4
"""Threads that answer. More do not help, because all wait for the kubelet."""

MOST_CLIENTS = 32
IDLE_MS, HANDSHAKE_MS = 60_000, 5_000
"""Connections at a time, and how long one may ask nothing: each takes a descriptor, and clients connect again by themselves."""

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
Keyed = Mapping[tuple[str, str], "_Placed"]


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


@dataclass(slots=True)
class _Placed:
    """The allocations of one pod.

    Attributes:
        facts: of the pod; None if they are not known.
        whole: of the pod itself; None for a pod without resources of its own.
        by_container: of its containers.
    """

    facts: PodFacts | None
    whole: Allocation | None = None
    by_container: dict[str, Allocation] = field(default_factory=dict)

    def memory_parts(self) -> Mapping[str, tuple[MemoryBlock, ...]]:
        """Return the parts of the pod's memory by container; empty if they are not known."""
        return memory_of(self.facts, self.whole.memory) if self.facts and self.whole else {}

    def has_memory_claim(self, name: str) -> bool:
        """Whether the container owns memory of the pod."""
        one = self.facts.container(name) if self.facts else None
        return one is not None and self.facts is not None and bool(memory_claim(self.facts, one))


def _by_name(state: State) -> Keyed:
    placed: dict[tuple[str, str], _Placed] = {}
    for key, allocation in state.allocations.items():
        uid, container = owner_of(key)
        pod = state.pods.get(uid)
        if pod is None:
            continue
        one = placed.setdefault((pod.namespace, pod.name), _Placed(pod.facts))
        if is_whole_pod(key):
            one.whole = allocation
        else:
            one.by_container[container] = allocation
    return placed


def _place(pod: pb.PodResources, mine: Keyed) -> None:
    placed = mine.get((pod.namespace, pod.name), _Placed(None))
    whole = placed.whole or Allocation()
    _fill(pod, whole.cpus, whole.memory)
    parts, has_pool, has_rest = placed.memory_parts(), False, False
    for container in pod.containers:
        allocation = placed.by_container.get(container.name, Allocation())
        cpus, memory = allocation.cpus, parts.get(container.name, allocation.memory)
        if allocation.is_init:
            cpus, memory = CPUSet(), ()
        elif allocation.is_pod_shared:
            # Shared CPUs are listed once, and so is shared memory.
            cpus, has_pool = (CPUSet() if has_pool else cpus), True
        if placed.whole and memory and not placed.has_memory_claim(container.name):
            memory, has_rest = (() if has_rest else memory), True
        _fill(container, cpus, memory)


def _fill(
    message: pb.PodResources | pb.ContainerResources, cpus: CPUSet, memory: Iterable[MemoryBlock]
) -> None:
    del message.cpu_ids[:]
    message.cpu_ids.extend(map(int, cpus))
    del message.memory[:]
    message.memory.extend(
        _memory(block.resource, block.size_bytes, map(int, block.nodes)) for block in memory
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
            _started(ThreadPoolExecutor(ANSWERERS, "pod resources")),
            options=[
                ("grpc.max_send_message_length", LONGEST_BYTES),
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", MOST_CLIENTS),
                ("grpc.max_connection_idle_ms", IDLE_MS),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ],
        )
        handlers = {
            "List": _handler(self._on_list, pb.ListPodResourcesRequest),
            "GetAllocatableResources": _handler(self._on_allocatable, pb.AllocatableResourcesRequest),
            "Get": _handler(self._on_get, pb.GetPodResourcesRequest),
        }
        older = {"List": _handler(self._on_older_list, pb.ListPodResourcesRequest)}
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, handlers),
                grpc.method_handlers_generic_handler(OLDER_SERVICE, older),
            )
        )
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

    def _on_older_list(
        self, _request: pb.ListPodResourcesRequest, context: Any
    ) -> pb.ListPodResourcesResponse:
        """The same list with what v1alpha1 knows: devices without topology, no CPUs and no memory.

        Its messages have the numbers of v1's. Source: kubelet v1.37.2
        pkg/kubelet/apis/podresources/server_v1alpha1.go, which like this answers pods without devices too.
        """
        answer = pb.ListPodResourcesResponse()
        for pod in _kubelets(context, self._kubelet.list).pod_resources:
            row = answer.pod_resources.add(name=pod.name, namespace=pod.namespace)
            for one in pod.containers:
                devices = row.containers.add(name=one.name).devices
                for device in one.devices:
                    devices.add(resource_name=device.resource_name, device_ids=device.device_ids)
        return answer

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


def _started(pool: ThreadPoolExecutor) -> ThreadPoolExecutor:
    """Start all threads of the pool: one that cannot be started later would end the server's own thread."""
    together = Barrier(ANSWERERS)
    for _ in range(ANSWERERS):
        pool.submit(together.wait)
    return pool


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
