"""Protobuf messages to the plain values of `messages.py`: only what those hold is read.

Fields we do not know are skipped by protobuf itself; an absent message gives None or the empty value.
"""

from collections.abc import Mapping

from nri_plugin.nri._pb import nri_pb2 as pb
from nri_plugin.nri.messages import EMPTY, Container, ContainerState, ContainerUpdate, Device, Pod, Resources

NO_RESOURCES = Resources()
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
    """Reads resources. A wrapper with value 0 is 0 ("set to zero"), an absent one is None ("not set")."""
    cpu, memory = message.cpu, message.memory
    return Resources(
        cpu_shares=cpu.shares.value if cpu.HasField("shares") else None,
        cpu_quota_us=cpu.quota.value if cpu.HasField("quota") else None,
        cpu_period_us=cpu.period.value if cpu.HasField("period") else None,
        cpus=cpu.cpus,
        mems=cpu.mems,
        memory_limit_bytes=memory.limit.value if memory.HasField("limit") else None,
        hugepage_limits=tuple([(limit.page_size, limit.limit) for limit in message.hugepage_limits]),
        unified=_text_map(message.unified),
    )


def update(message: pb.ContainerUpdate) -> ContainerUpdate:
    """Reads a container update."""
    return ContainerUpdate(message.container_id, resources(message.linux.resources), message.ignore_failure)


def field_owners(message: pb.OwningPlugins) -> dict[str, dict[int, str]]:
    """Reads container id -> field number -> plugin; fields with several entries name all their plugins."""
    return {container_id: _owners(owners) for container_id, owners in message.owners.items()}


def _owners(message: pb.FieldOwners) -> dict[int, str]:
    found = dict(message.simple)
    for number, compound in message.compound.items():
        found[number] = ",".join(sorted(set(compound.owners.values())))
    return found


def _text_map(message: Mapping[str, str]) -> Mapping[str, str]:
    return dict(message) if message else EMPTY
