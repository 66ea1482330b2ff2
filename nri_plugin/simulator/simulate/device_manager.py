"""The kubelet's device manager, simulated: allocation of devices, their delivery to containers, and their report.

Devices are allocated when a pod is admitted, before the runtime hears of it. The simulated kubelet has the Topology
Manager policy `none`, as on a node where nri-pin places: no hint limits the choice, and device plugins choose by
preference. `ExporterStandIn` reports the devices on `exporter.sock`, as the real exporter does; tests compare both. It
tells facts of pods where a scenario asks for them (`told_facts`).

Invariant: a device belongs to at most one pod, and within it to one container, or to init containers that end
one after the other and then to one more; sidecars keep theirs.

Source: kubelet v1.36 pkg/kubelet/cm/devicemanager/manager.go; KEP-693 for what device plugins prefer.

A container gets device nodes, a `PCIDEVICE_*` variable or CDI names. Source: kubelet device plugin API v1beta1,
    ContainerAllocateResponse; the SR-IOV network device plugin.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nri_plugin.model.errors import NriPinError
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.device_allocation import preferred_devices
from nri_plugin.policy.device_hints import device_totals
from nri_plugin.simulator.machine.devices import DeviceLink, PlacedDevice
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec

Given = Mapping[str, tuple[str, ...]]
"""Ids by resource, both in the order of the machine."""


class NotAdmittedError(NriPinError):
    """The kubelet does not admit a pod; no runtime hears of it.

    Attributes:
        reason: the kubelet's reason word.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Resource:
    """All devices of one resource, in order, and their links."""

    nodes_by_id: Mapping[str, NodeMask]
    links: Mapping[tuple[str, str], int]

    def preferred(self, available: Iterable[str], must_include: Iterable[str], count: int) -> tuple[str, ...]:
        """The device plugin's answer to GetPreferredAllocation."""
        return preferred_devices(
            self._in_order(available), self._in_order(must_include), count, self.nodes_by_id, self.links
        )

    def aligned(self, available: Iterable[str], affinity: NodeMask | None) -> tuple[str, ...]:
        """The devices that are attached to a NUMA node of the affinity; none without an affinity."""
        mask = affinity.mask if affinity is not None else 0
        return tuple(name for name in available if self.nodes_by_id[name].mask & mask)

    def _in_order(self, some: Iterable[str]) -> tuple[str, ...]:
        chosen = frozenset(some)
        return tuple(name for name in self.nodes_by_id if name in chosen)


class DeviceManager:
    """Gives devices to the containers of pods.

    Args:
        devices: all devices of the machine.
        links: between devices. The heaviest link of a pair counts.
    """

    def __init__(self, devices: Iterable[PlacedDevice], links: Iterable[DeviceLink] = ()) -> None:
        self.devices = tuple(devices)
        names = dict.fromkeys(device.resource for device in self.devices)
        links = tuple(links)
        self._resources = {name: _resource(name, self.devices, links) for name in names}
        self._given: dict[str, dict[str, Given]] = {}

    def copy(self) -> "DeviceManager":
        """A copy in the same state, for trials."""
        made = DeviceManager(())
        made.devices, made._resources, made._given = self.devices, self._resources, dict(self._given)
        return made

    @property
    def given_count(self) -> int:
        """How many containers of admitted pods hold devices."""
        return sum(1 for pod in self._given.values() for given in pod.values() if given)

    def admit(self, pod: PodSpec, affinity: NodeMask | None = None) -> None:
        """Give all containers of a pod their devices, or none of them.

        Args:
            pod: its init containers come first, and their devices pass on to later containers.
            affinity: the merged hint of a Topology Manager that has one; None for anywhere.

        Raises:
            NotAdmittedError: there are not enough; the text has both amounts.
        """
        self.free(pod.key)
        reusable: dict[str, tuple[str, ...]] = {}
        try:
            for spec in (*pod.init_containers, *pod.containers):
                self._give(pod, spec, affinity, reusable)
        except NotAdmittedError:
            self.free(pod.key)
            raise

    def free(self, pod: str) -> None:
        """The pod `NAMESPACE/NAME` has ended; its devices are available again."""
        self._given = {key: each for key, each in self._given.items() if key != pod}

    def given(self, pod: str, container: str) -> Given:
        """Devices of a container; none if it is unknown."""
        return self._given.get(pod, {}).get(container, {})

    def containers(self, pod: str) -> Mapping[str, Given]:
        """Devices of a pod's containers."""
        return self._given.get(pod, {})

    def available(self, resource: str) -> tuple[str, ...]:
        """The ids that no pod has."""
        taken = {
            name
            for containers in self._given.values()
            for given in containers.values()
            for name in given.get(resource, ())
        }
        return tuple(name for name in self._resources[resource].nodes_by_id if name not in taken)

    def placed(self, given: Given) -> tuple[PlacedDevice, ...]:
        """The devices behind the ids."""
        return tuple(device for device in self.devices if device.id in given.get(device.resource, ()))

    def totals(self, resource: str) -> tuple[tuple[NodeMask, int], ...]:
        """How many devices of a resource are attached to which NUMA nodes, given or not."""
        return device_totals((nodes, 1) for nodes in self._resources[resource].nodes_by_id.values())

    def _give(
        self,
        pod: PodSpec,
        spec: ContainerSpec,
        affinity: NodeMask | None,
        reusable: dict[str, tuple[str, ...]],
    ) -> None:
        given: dict[str, tuple[str, ...]] = {}
        for resource, count in spec.devices_asked:
            if resource not in self._resources:
                raise NotAdmittedError(
                    f"OutOf{resource}",
                    f"Node didn't have enough resource: {resource}, requested: {count}, used: 0, capacity: 0",
                )
            given[resource] = self._chosen(resource, count, affinity, reusable.get(resource, ()))
        self._given = {**self._given, pod.key: {**self.containers(pod.key), spec.name: given}}
        is_init = spec in pod.init_containers and not spec.is_sidecar
        for resource, ids in given.items():
            before = reusable.get(resource, ())
            kept = tuple(dict.fromkeys((*before, *ids))) if is_init else _without(before, ids)
            reusable[resource] = kept

    def _chosen(
        self, resource: str, count: int, affinity: NodeMask | None, reusable: Sequence[str]
    ) -> tuple[str, ...]:
        """The devices to give; those of the pod's ended init containers come first.

        Differs: the kubelet takes any of the reusable devices where there are more than are needed; here: the
            preferred ones are taken. Why: equal runs have to give equal results. Option: none.
        """
        kind = self._resources[resource]
        if len(reusable) >= count:
            return kind.preferred(reusable, (), count)
        available = self.available(resource)
        needed = count - len(reusable)
        if len(available) < needed:
            raise NotAdmittedError(
                "UnexpectedAdmissionError",
                f"Allocate failed due to requested number of devices unavailable for "
                f"{resource}. Requested: {needed}, Available: {len(available)}, which is unexpected",
            )
        aligned = kind.aligned(available, affinity)
        if needed < len(aligned):
            return kind.preferred((*aligned, *reusable), reusable, count)
        return kind.preferred((*available, *reusable), (*aligned, *reusable), count)


def _resource(name: str, devices: Sequence[PlacedDevice], links: Iterable[DeviceLink]) -> _Resource:
    weights: dict[tuple[str, str], int] = {}
    for link in links:
        if link.resource == name:
            pair = (min(link.one, link.other), max(link.one, link.other))
            weights[pair] = max(link.weight, weights.get(pair, 0))
    nodes = {device.id: device.nodes for device in devices if device.resource == name}
    return _Resource(nodes, weights)


def _without(ids: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    gone = frozenset(others)
    return tuple(name for name in ids if name not in gone)
