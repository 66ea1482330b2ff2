"""Our answers of the kubelet's PodResources API: the kubelet's, with our CPUs and memory in place of its own.

Invariant: devices, dynamic resources and the order of pods and containers are the kubelet's. CPUs and memory of a
container are ours, also where we gave none: the kubelet's own managers are off or would tell of what is not so.
Pods that only we know are left out, as the kubelet leaves out what has ended.

Source: kubelet v1.36 pkg/kubelet/apis/podresources; its API version 1.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from nri_plugin.exporter.publication import DeviceCount, Devices
from nri_plugin.kube._pb import podresources_pb2 as pb
from nri_plugin.model.options import MemoryManagerPolicy, Node
from nri_plugin.model.state import Allocation, State, owner_of
from nri_plugin.policy.memory_state import memory_machine

PodResources = pb.PodResources
ContainerDevices = pb.ContainerDevices
Allocatable = pb.AllocatableResourcesResponse
Keyed = Mapping[tuple[str, str, str], Allocation]


def merged_list(answer: pb.ListPodResourcesResponse, state: State) -> pb.ListPodResourcesResponse:
    """The kubelet's list with our placements."""
    mine, result = _by_name(state), pb.ListPodResourcesResponse()
    result.CopyFrom(answer)
    for pod in result.pod_resources:
        _place(pod, mine)
    return result


def merged_pod(answer: pb.GetPodResourcesResponse, state: State) -> pb.GetPodResourcesResponse:
    """The kubelet's answer for one pod with our placements."""
    result = pb.GetPodResourcesResponse()
    result.CopyFrom(answer)
    _place(result.pod_resources, _by_name(state))
    return result


def merged_allocatable(
    answer: pb.AllocatableResourcesResponse, node: Node
) -> pb.AllocatableResourcesResponse:
    """The kubelet's devices, our CPUs and memory; memory only where it is managed, as in the kubelet."""
    result = pb.AllocatableResourcesResponse(devices=answer.devices, cpu_ids=list(map(int, node.allocatable)))
    if node.options.memory_manager_policy is MemoryManagerPolicy.STATIC:
        machine = memory_machine(node.topology, node.options.reserved_memory)
        for resource in sorted(machine.allocatable):
            for number, size in machine.allocatable[resource].items():
                if size:
                    result.memory.append(_memory(resource, size, (number,)))
    return result


def pod_of(answer: pb.ListPodResourcesResponse, namespace: str, name: str) -> pb.PodResources | None:
    """One pod of a list, None when it is not there."""
    return next((pod for pod in answer.pod_resources if (pod.namespace, pod.name) == (namespace, name)), None)


def devices_of(allocatable: pb.AllocatableResourcesResponse, listed: pb.ListPodResourcesResponse) -> Devices:
    """Devices by resource and NUMA node, all there are and those nobody has; and who has some.

    A device near several NUMA nodes counts on each, given or not; one near none on no zone. A pod counts that has some
    of a resource which a zone lists, wherever its own are: so does the scheduler plugin, which sees only names.
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
    """NUMA nodes a device is near, ascending; empty for none in particular."""
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
