"""What a node has for pods as a whole, and what the pods on it request: where the scheduler sends no more.

Invariant: what is requested never exceeds what is allocatable.

Amounts are thousandths of CPUs and bytes. Huge pages are no part of the memory for pods, as on a node. Devices are
counted by the device manager.

Source: kubelet v1.36, node allocatable and GeneralPredicates; kube-scheduler NodeResourcesFit. Differs: the number of
    pods (`maxPods`) and ephemeral storage are not counted.
"""

from collections.abc import Mapping

from nri_plugin.app.config import Config
from nri_plugin.options import Node
from nri_plugin.policy.pod_totals import pod_total
from nri_plugin.quantity import format_bytes
from nri_plugin.simulator.device_manager import NotAdmittedError
from nri_plugin.simulator.pods import ContainerSpec, PodSpec, hugepages_resource

CPU, MEMORY = "cpu", "memory"

Amounts = Mapping[str, int]


class NodeRoom:
    """Counts requests.

    Attributes:
        allocatable: by resource; a resource that is not in it is not counted.
        used: by resource.
    """

    def __init__(self, allocatable: Amounts) -> None:
        self.allocatable = dict(allocatable)
        self.used: dict[str, int] = dict.fromkeys(allocatable, 0)
        self._pods: dict[str, Amounts] = {}

    def copy(self) -> "NodeRoom":
        """Another with the same amounts, for trials."""
        made = NodeRoom(self.allocatable)
        made.used, made._pods = dict(self.used), dict(self._pods)
        return made

    def check(self, pod: PodSpec) -> None:
        """See that a pod fits; a second one of that name takes the place of the first.

        Raises:
            NotAdmittedError: it does not; says in the kubelet's words what is requested and what is left.
        """
        before = self._pods.get(pod.key, {})
        for name, amount in pod_requests(pod).items():
            used = self.used.get(name, 0) - before.get(name, 0)
            capacity = self.allocatable.get(name)
            if capacity is None and name.startswith("hugepages-"):
                capacity = 0
            if capacity is not None and used + amount > capacity:
                raise NotAdmittedError(
                    f"OutOf{name}: Node didn't have enough resource: {name}, "
                    f"requested: {amount}, used: {used}, capacity: {capacity}"
                )

    def take(self, pod: PodSpec) -> None:
        """The pod is here."""
        self.give_back(pod.key)
        self._pods[pod.key] = pod_requests(pod)
        self._add(self._pods[pod.key], 1)

    def give_back(self, key: str) -> None:
        """The pod is gone."""
        self._add(self._pods.pop(key, {}), -1)

    def _add(self, amounts: Amounts, sign: int) -> None:
        for name, amount in amounts.items():
            self.used[name] = self.used.get(name, 0) + sign * amount


def node_room(node: Node, config: Config) -> NodeRoom:
    """An empty node's; memory of unknown size is not counted."""
    topology = node.topology
    reserved = len(node.reserved) or config.reserved_cpu_count
    amounts = {CPU: max(0, len(topology.online) - reserved) * 1000}
    pages: dict[str, int] = {}
    for one in topology.nodes:
        for size_kb, count in one.hugepages:
            name = hugepages_name(size_kb)
            pages[name] = pages.get(name, 0) + size_kb * count * 1024
    sizes = [one.memory_bytes for one in topology.nodes]
    if None not in sizes:
        total = sum(size or 0 for size in sizes)
        amounts[MEMORY] = max(0, total - sum(pages.values()) - config.options.kept_memory_bytes)
    return NodeRoom(amounts | pages)


def hugepages_name(size_kb: int) -> str:
    """The resource of a page size."""
    return f"hugepages-{format_bytes(size_kb * 1024)}"


def pod_requests(pod: PodSpec) -> dict[str, int]:
    """What the scheduler counts of a pod: what it says of itself as a whole, else its containers at their peak.

    Source: Kubernetes component-helpers/resource PodRequests.
    """
    names = dict.fromkeys(
        name for spec in (*pod.init_containers, *pod.containers) for name in _requests(spec)
    )
    amounts = {name: _peak(pod, name) for name in names}
    if pod.whole is not None:
        said = {
            CPU: pod.whole.cpu_request_milli,
            MEMORY: pod.whole.memory_request_bytes,
            **dict(pod.whole.hugepages),
        }
        amounts |= {name: amount for name, amount in said.items() if amount}
    for name, amount in pod.overhead:
        amounts[name] = amounts.get(name, 0) + amount
    return {name: amount for name, amount in amounts.items() if amount}


def _peak(pod: PodSpec, name: str) -> int:
    inits = [(_requests(spec).get(name, 0), spec.is_sidecar) for spec in pod.init_containers]
    return pod_total(inits, [_requests(spec).get(name, 0) for spec in pod.containers])


def _requests(spec: ContainerSpec) -> dict[str, int]:
    pages = {hugepages_resource(size): amount for size, amount in spec.hugepages}
    return {CPU: spec.cpu_request_milli, MEMORY: spec.memory_request_bytes, **pages}
