"""The messages of the protocol with only those fields that placement reads.

A pod may bring 200,000 environment variables or 80,000 annotations; making values of them takes several times as long as
everything else about its request. Here the parser steps over the bytes of all fields that nobody reads. An annotation
stays the bytes of its entry, and a variable its bytes.

The messages are the generated ones with fields left out, made when this is imported, so they cannot differ otherwise.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from nri_plugin.nri._pb import nri_pb2 as pb

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
            "ValidateContainerAdjustmentRequest",
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
        if (message.name, field.name) in _AS_BYTES:
            field.type = FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")
    del message.field[:]
    message.field.extend(kept)


WITH_ENVIRONMENT: Final = Messages()
WITHOUT_ENVIRONMENT: Final = Messages({("Container", "env")})
