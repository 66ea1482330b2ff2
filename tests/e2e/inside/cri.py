"""A CRI client: what the kubelet says to a container runtime, with messages built from the table at start.

Values are plain dicts in and out, named as in the API.
"""

from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from .cri_schema import PACKAGE, messages
from .waiting import tell_if_slow

_CALL_LIMIT_S = 120
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in ("string", "bool", "int32", "int64", "uint32", "uint64")
}


class CRIError(Exception):
    """The runtime refused a call; `reason` is what the kubelet would show in the pod's events."""

    def __init__(self, call: str, reason: str) -> None:
        super().__init__(f"{call}: {reason}")
        self.reason = reason


class CRIClient:
    """One connection to a runtime."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")
        self._pool = _pool()

    def call(self, method: str, **request: Any) -> dict[str, Any]:
        """Make one call of the RuntimeService.

        Raises:
            CRIError: the runtime answered with an error.
        """
        ask, answer = (self._class(method + kind) for kind in ("Request", "Response"))
        invoke = self._channel.unary_unary(
            f"/{PACKAGE}.RuntimeService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        message = json_format.ParseDict(request, ask())
        try:
            reply = invoke(message, timeout=_CALL_LIMIT_S, wait_for_ready=True)
        except grpc.RpcError as error:
            if "deadline exceeded" in str(error.details()).lower():
                tell_if_slow(f"{method}: {error.details()}")
            raise CRIError(method, error.details()) from error
        return json_format.MessageToDict(reply, preserving_proto_field_name=True)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _class(self, name: str) -> Any:
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="cri.proto", package=PACKAGE, syntax="proto3")
    for name, fields in messages().items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            _add_field(message, number, field, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _add_field(message: descriptor_pb2.DescriptorProto, number: int, name: str, kind: str) -> None:
    repeated = kind == "map" or kind.startswith("repeated ")
    label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    kind = kind.removeprefix("repeated ")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = _Field.TYPE_MESSAGE
    if kind == "map":
        kind = f"{message.name}.{_add_map_entry(message, name)}"
    field.type_name = f".{PACKAGE}.{kind}"


def _add_map_entry(message: descriptor_pb2.DescriptorProto, field: str) -> str:
    entry = message.nested_type.add(name=field.title().replace("_", "") + "Entry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    return entry.name
