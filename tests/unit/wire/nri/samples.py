"""Messages filled by their descriptors, so that a new field is filled without anybody thinking of it."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

SAMPLES = {
    FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_INT32: -7,
    FieldDescriptor.CPPTYPE_INT64: -(1 << 40),
    FieldDescriptor.CPPTYPE_UINT32: 7,
    FieldDescriptor.CPPTYPE_UINT64: 1 << 63,
    FieldDescriptor.CPPTYPE_ENUM: 1,
}


def is_map(field: FieldDescriptor) -> bool:
    inner = field.message_type
    return inner is not None and inner.GetOptions().map_entry


def fill(message: Message, field: FieldDescriptor) -> Message:
    """Puts something into one field, whatever it is; sub-messages are filled completely."""
    content = getattr(message, field.name)
    if is_map(field):
        value = field.message_type.fields_by_name["value"]
        if value.message_type is None:
            content["key"] = "text"
        else:
            fill_all(content["key"])
    elif field.message_type is not None:
        fill_all(content.add() if field.is_repeated else content)
    elif field.is_repeated:
        content.append(SAMPLES[field.cpp_type])
    else:
        setattr(message, field.name, SAMPLES[field.cpp_type])
    return message


def fill_all(message: Any) -> Any:
    """Puts something into every field."""
    if not message.DESCRIPTOR.fields:
        message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        fill(message, field)
    return message


def reachable(descriptor: Descriptor, seen: dict[str, Descriptor] | None = None) -> dict[str, Descriptor]:
    """Returns every message a message can hold, by name, itself included; entries of maps are looked through."""
    seen = {} if seen is None else seen
    for inner in _inner(descriptor):
        if inner.name not in seen:
            seen[inner.name] = inner
            reachable(inner, seen)
    return {descriptor.name: descriptor, **seen}


def _inner(descriptor: Descriptor) -> Iterator[Descriptor]:
    for field in descriptor.fields:
        if is_map(field):
            value = field.message_type.fields_by_name["value"].message_type
            if value is not None:
                yield value
        elif field.message_type is not None:
            yield field.message_type
