"""Protobuf messages to the plain values of `messages.py`: only what those hold is read.

Fields we do not know are skipped by protobuf itself; an absent message gives None or the empty value.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from nri_plugin.nri import tables
from nri_plugin.nri._pb import nri_pb2 as pb
from nri_plugin.nri.adjustment import Adjustment
from nri_plugin.nri.messages import (
    EMPTY,
    Container,
    ContainerState,
    ContainerUpdate,
    Device,
    Field,
    FieldOwners,
    Pod,
    Resources,
)

NO_RESOURCES = Resources()
NO_MEMORY: Final[dict[str, Any]] = {}
_MEMORY: Final = {
    column.path[1]: column.name for column in tables.RESOURCES.columns if column.path[0] == "memory"
}
_FIELDS: Final[Mapping[int, int]] = {field.value: field for field in Field}
_STATES = {state.value: state for state in ContainerState}


def pod(message: pb.PodSandbox) -> Pod:
    """Reads a pod; near its end a runtime may send one with nothing in it."""
    linux = message.linux
    return Pod(
        id=message.id,
        name=message.name,
        uid=message.uid,
        namespace=message.namespace,
        labels=_text_map(message.labels),
        annotations=_text_map(message.annotations),
        runtime_handler=message.runtime_handler,
        cgroup_parent=linux.cgroup_parent,
        cgroups_path=linux.cgroups_path,
        resources=resources(linux.pod_resources) if linux.HasField("pod_resources") else None,
        overhead=resources(linux.pod_overhead) if linux.HasField("pod_overhead") else None,
        pid=message.pid,
    )


def container(message: pb.Container) -> Container:
    """Reads a container; a state we do not know counts as unknown."""
    linux = message.linux
    return Container(
        id=message.id,
        pod_id=message.pod_sandbox_id,
        name=message.name,
        state=_STATES.get(message.state, ContainerState.UNKNOWN),
        labels=_text_map(message.labels),
        annotations=_text_map(message.annotations),
        env=tuple(message.env),
        devices=tuple([Device(d.path, d.type, d.major, d.minor) for d in linux.devices]),
        cdi_devices=tuple([device.name for device in message.CDI_devices]),
        net_devices=tuple(sorted(linux.net_devices)),
        resources=resources(linux.resources) if linux.HasField("resources") else NO_RESOURCES,
        oom_score_adj=linux.oom_score_adj.value if linux.HasField("oom_score_adj") else None,
        cgroups_path=linux.cgroups_path,
        pid=message.pid,
    )


def resources(message: pb.LinuxResources) -> Resources:
    """Reads resources but for device rules, of which a container has a dozen that placement never asks about.

    A wrapper with value 0 is 0 ("set to zero"), an absent one is None ("not set").
    """
    cpu = message.cpu
    return Resources(
        cpu_shares=cpu.shares.value if cpu.HasField("shares") else None,
        cpu_quota_us=cpu.quota.value if cpu.HasField("quota") else None,
        cpu_period_us=cpu.period.value if cpu.HasField("period") else None,
        cpus=cpu.cpus,
        mems=cpu.mems,
        hugepage_limits=tuple([(limit.page_size, limit.limit) for limit in message.hugepage_limits]),
        unified=_text_map(message.unified),
        cpu_realtime_runtime_us=cpu.realtime_runtime.value if cpu.HasField("realtime_runtime") else None,
        cpu_realtime_period_us=cpu.realtime_period.value if cpu.HasField("realtime_period") else None,
        pids_limit=message.pids.limit if message.HasField("pids") else None,
        blockio_class=message.blockio_class.value if message.HasField("blockio_class") else None,
        rdt_class=message.rdt_class.value if message.HasField("rdt_class") else None,
        **(_memory(message.memory) if message.HasField("memory") else NO_MEMORY),
    )


def _memory(memory: pb.LinuxMemory) -> dict[str, Any]:
    """Reads what is there, one entry of ListFields each: mostly it is a limit and little else."""
    return {_MEMORY[field.name]: wrapper.value for field, wrapper in memory.ListFields()}


def update(message: pb.ContainerUpdate) -> ContainerUpdate:
    """Reads a container update, device rules too: a plugin wrote it, so what is there is meant."""
    return ContainerUpdate(
        message.container_id, detailed_resources(message.linux.resources), message.ignore_failure
    )


def field_owners(message: pb.OwningPlugins) -> dict[str, FieldOwners]:
    """Reads container id -> which plugin set what."""
    return {container_id: _owners(owners) for container_id, owners in message.owners.items()}


def _owners(message: pb.FieldOwners) -> FieldOwners:
    return FieldOwners(
        simple={_FIELDS.get(number, number): plugin for number, plugin in message.simple.items()},
        compound={
            _FIELDS.get(number, number): dict(entries.owners) for number, entries in message.compound.items()
        },
    )


def adjustment(message: pb.ContainerAdjustment) -> Adjustment:
    """Reads an adjustment, all of it."""
    return cast("Adjustment", tables.ADJUSTMENT.read(message))


# --------------------------------------------------------------------- details


def detailed_pod(message: pb.PodSandbox) -> Pod:
    """Reads all of a pod."""
    linux = message.linux
    return replace(
        pod(message),
        resources=detailed_resources(linux.pod_resources) if linux.HasField("pod_resources") else None,
        overhead=detailed_resources(linux.pod_overhead) if linux.HasField("pod_overhead") else None,
        details=tables.POD_DETAILS.read(message),
    )


def detailed_container(message: pb.Container) -> Container:
    """Reads all of a container."""
    return replace(
        container(message),
        devices=tuple(tables.DEVICE.read(device) for device in message.linux.devices),
        resources=detailed_resources(message.linux.resources),
        details=tables.CONTAINER_DETAILS.read(message),
    )


def detailed_resources(message: pb.LinuxResources) -> Resources:
    """Reads all of resources, device rules too."""
    return cast("Resources", tables.RESOURCES.read(message))


@dataclass(frozen=True, slots=True)
class Reading:
    """How much of pods, containers and their resources is read."""

    pod: Callable[[pb.PodSandbox], Pod]
    container: Callable[[pb.Container], Container]
    resources: Callable[[pb.LinuxResources], Resources]


PLACEMENT: Final = Reading(pod, container, resources)
"""What placement needs; tens of microseconds for a container."""
DETAILS: Final = Reading(detailed_pod, detailed_container, detailed_resources)
"""Everything; several times as long."""


def _text_map(message: Mapping[str, str]) -> Mapping[str, str]:
    return dict(message) if message else EMPTY
