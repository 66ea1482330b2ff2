"""Protobuf messages to the plain values of `messages`.

Only the fields that placement needs are read. Protobuf steps over fields that we do not know. An absent message gives None
or the empty value. The author of a pod writes names, annotations, environment and devices: they are bounded before values
are made of them, see `nri_plugin.model.bounds`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from nri_plugin.model import bounds
from nri_plugin.model.bounds import Cut
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.messages import (
    EMPTY,
    Container,
    ContainerState,
    DeviceNode,
    Pod,
    Resources,
)

# Messages with only the fields that placement reads
#
# A pod may bring 200,000 environment variables or 80,000 annotations. Making values of them takes several times as long
# as everything else about its request. These messages make the parser step over the bytes of unread fields. An
# annotation stays the bytes of its entry, and a variable its bytes.
#
# They are made at import from the generated messages by leaving fields out, so they cannot differ in other ways.


_PACKAGE: Final = pb.DESCRIPTOR.package

_READ: Final[Mapping[str, Collection[str]]] = {
    "PodSandbox": {
        "id", "name", "uid", "namespace", "annotations", "runtime_handler", "linux", "pid",
    },
    "LinuxPodSandbox": {"pod_overhead", "pod_resources", "cgroup_parent", "cgroups_path"},
    "Container": {"id", "pod_sandbox_id", "name", "state", "env", "linux", "pid", "CDI_devices"},
    "LinuxContainer": {"devices", "resources", "oom_score_adj", "cgroups_path", "net_devices"},
}  # fmt: skip
_AS_BYTES: Final = {("PodSandbox", "annotations"), ("Container", "env")}


class Messages:
    """Classes of messages by name.

    Args:
        leaves_out: (message, field) that is not read either.
    """

    def __init__(self, leaves_out: Collection[tuple[str, str]] = ()) -> None:
        # A copy of the generated file in a pool of its own: two files of one name cannot share a pool.
        file = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
        del file.service[:]
        for message in file.message_type:
            _thin(message, leaves_out)
        pool = DescriptorPool()
        pool.AddSerializedFile(file.SerializeToString())
        for name in (
            "Container",
            "CreateContainerRequest",
            "RunPodSandboxRequest",
            "StateChangeEvent",
            "SynchronizeRequest",
            "UpdateContainerRequest",
            "UpdatePodSandboxRequest",
        ):
            setattr(self, name, GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def _thin(message: DescriptorProto, leaves_out: Collection[tuple[str, str]]) -> None:
    read = _READ.get(message.name)
    if read is None:
        return
    kept = [
        each for each in message.field if each.name in read and (message.name, each.name) not in leaves_out
    ]
    for field in kept:
        # On the wire a message, a string and bytes look alike, so the parser copies them as bytes without a look inside.
        # Bytes need not be UTF-8: a variable in another encoding does not fail the request.
        if (message.name, field.name) in _AS_BYTES:
            field.type = FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")
    del message.field[:]
    message.field.extend(kept)


WITH_ENVIRONMENT: Final = Messages()
WITHOUT_ENVIRONMENT: Final = Messages({("Container", "env")})


# Fields that placement needs


NO_RESOURCES = Resources()
_HEARD: Final = tuple(prefix.encode() for prefix in bounds.HEARD_ANNOTATIONS)
TELLING_VARIABLES: Final = (bounds.LISTS_DEVICES.encode(), bounds.CLAIMS_CPUS.encode())
"""How the variables begin that are read."""
_STATES = {state.value: state for state in ContainerState}

Hears: TypeAlias = Callable[[str], bool]
"""Whether annotations of the pods of a namespace are obeyed."""


def deaf(_namespace: str) -> bool:
    """Obeys no namespace."""
    return False


def pod(message: Any, hears: Hears = deaf) -> Pod:
    """Reads the fields of a pod that placement needs. Labels are not read.

    Annotations are read if `hears` says that the namespace is trusted. At the end of a pod's life containerd may send a
    nearly empty pod.
    """
    linux, annotations = message.linux, EMPTY
    cut = _cut_amounts(linux.pod_resources, message.name, message.uid, message.namespace)
    if message.annotations and hears(message.namespace):
        annotations, is_cut = _own_annotations(message)
        cut = (*cut, Cut.ANNOTATIONS) if is_cut else cut
    return Pod(
        id=message.id,
        name=bounds.name(message.name),
        uid=bounds.name(message.uid),
        namespace=bounds.name(message.namespace),
        annotations=annotations,
        runtime_handler=message.runtime_handler,
        cgroup_parent=linux.cgroup_parent,
        cgroups_path=linux.cgroups_path,
        resources=resources(linux.pod_resources) if linux.HasField("pod_resources") else None,
        overhead=resources(linux.pod_overhead) if linux.HasField("pod_overhead") else None,
        pid=message.pid,
        cut=cut,
    )


def _cut_amounts(resources: pb.LinuxResources, *names: str) -> tuple[Cut, ...]:
    """The kinds of fields that exceed a bound: names, sizes of huge pages."""
    is_long = max(map(len, names)) > bounds.NAME_CHARS
    limits = iter(resources.hugepage_limits)
    kept = {limit.page_size for limit in islice(limits, bounds.PAGE_SIZES)}
    # containerd appends to the limits at every update, so sizes repeat.
    has_many = any(limit.page_size not in kept for limit in limits)
    if not is_long and not has_many:
        return ()
    return (*((Cut.NAMES,) if is_long else ()), *((Cut.PAGE_SIZES,) if has_many else ()))


def _own_annotations(message: Any) -> tuple[Mapping[str, str], bool]:
    """The annotations with our prefix, and whether some were left out; see `bounds`."""
    entries = message.annotations
    if len(entries) > bounds.ANNOTATIONS_SEEN:
        return EMPTY, True
    # Search the bytes before parsing: nearly all annotations are meant for other programs, and CRI-O adds large JSON.
    own = [
        pb.PodSandbox.AnnotationsEntry.FromString(entry)
        for entry in entries
        if any(prefix in entry for prefix in _HEARD)
    ]
    return bounds.own_annotations({entry.key: entry.value for entry in own})


def container(message: Any) -> Container:
    """Reads the fields of a container that placement needs; a state that we do not know counts as unknown.

    Labels and annotations are not read, and of the environment only variables that list devices or CPUs of claims.

    Runtimes send different fields: CDI devices come from containerd 2.3 on, a pid from CRI-O only from 1.36 on, net
    devices from NRI 0.11 on. An absent field reads as empty, so no case depends on the runtime.
    """
    linux = message.linux
    devices, cdi, nets = linux.devices, message.CDI_devices, linux.net_devices
    # Past the bound all devices are left out: a part of them would give wrong hints. A privileged container lists all
    # devices of the host without having chosen any, so nothing is lost there and no cut is reported.
    has_too_many = max(len(devices), len(cdi), len(nets)) > bounds.DEVICES
    cut = _cut_amounts(linux.resources, message.name)
    if has_too_many and not _is_privileged(devices):
        cut = (*cut, Cut.DEVICES)
    env: tuple[str, ...] = ()
    if isinstance(message, WITH_ENVIRONMENT.Container):
        env, is_cut = _telling_variables(message.env)
        cut = (*cut, Cut.ENVIRONMENT) if is_cut else cut
    return Container(
        id=message.id,
        pod_id=message.pod_sandbox_id,
        name=bounds.name(message.name),
        state=_STATES.get(message.state, ContainerState.UNKNOWN),
        env=env,
        devices=tuple([_device(each) for each in devices]) if devices and not has_too_many else (),
        cdi_devices=tuple([each.name for each in cdi if len(each.name) <= bounds.CDI_NAME_CHARS])
        if cdi and not has_too_many
        else (),
        net_devices=tuple(sorted(nets)) if nets and not has_too_many else (),
        resources=resources(linux.resources) if linux.HasField("resources") else NO_RESOURCES,
        oom_score_adj=linux.oom_score_adj.value if linux.HasField("oom_score_adj") else None,
        cgroups_path=linux.cgroups_path,
        pid=message.pid,
        cut=cut,
    )


def _is_privileged(devices: Sequence[Any]) -> bool:
    """Whether the list has devices that only a container with all devices of the host gets."""
    # A privileged container lists all devices of the host, and so /dev/mem and /dev/kmsg.
    seen = devices[: bounds.DEVICE_LOOKUPS]
    return any((each.major, each.minor) in bounds.HOST_ONLY_DEVICES and each.type == "c" for each in seen)


def _device(message: Any) -> DeviceNode:
    return DeviceNode(message.path[: bounds.PATH_CHARS], message.type, message.major, message.minor)


def _telling_variables(lines: Sequence[bytes]) -> tuple[tuple[str, ...], bool]:
    """The variables that list devices or CPUs, and whether some were left out; see `bounds`."""
    listing = [line for line in lines[: bounds.VARIABLES_SEEN] if line.startswith(TELLING_VARIABLES)]
    # A variable that is too long is left out as a whole: half a list of devices would give a wrong hint.
    kept, room = [], bounds.ENVIRONMENT_CHARS
    for line in listing[: bounds.VARIABLES]:
        if len(line) <= room:
            kept.append(line.decode("utf-8", "replace"))
            room -= len(line)
    return tuple(kept), len(kept) < len(listing)


def resources(message: pb.LinuxResources) -> Resources:
    """Reads the resources that placement needs.

    A wrapper with value 0 is 0 ("set to zero"), an absent one is None ("not set").
    """
    # In UpdateContainer containerd sends absent values as wrappers with 0: there 0 does not tell the two apart.
    cpu, memory, pages = message.cpu, message.memory, message.hugepage_limits
    return Resources(
        cpu_shares=cpu.shares.value if cpu.HasField("shares") else None,
        cpu_quota_us=cpu.quota.value if cpu.HasField("quota") else None,
        cpu_period_us=cpu.period.value if cpu.HasField("period") else None,
        cpus=cpu.cpus,
        mems=cpu.mems,
        hugepage_limits=bounds.page_sizes(
            [(limit.page_size, limit.limit) for limit in pages[: bounds.PAGE_SIZES]]
        )
        if pages
        else (),
        memory_limit_bytes=memory.limit.value if memory.HasField("limit") else None,
    )
