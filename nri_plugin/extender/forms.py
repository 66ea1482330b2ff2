"""The JSON of kube-scheduler and its HTTP extenders.

Names are written exactly as kube-scheduler writes them, and read in any case, as Go reads them. Node objects are
returned byte for byte.

Source: k8s.io/kube-scheduler/extender/v1, v0.36.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from nri_plugin.model.errors import KubeObjectError

NEEDS_NAMES = (
    "the request carries whole Node objects; set nodeCacheCapable: true in kube-scheduler's configuration, "
    "or start the extender with --node-objects"
)

_Fields = dict[str, msgspec.Raw]
_decode_fields = msgspec.json.Decoder(_Fields).decode
_encode = msgspec.json.Encoder().encode


class _Metadata(msgspec.Struct):
    name: str = ""


class _NodeHead(msgspec.Struct):
    metadata: _Metadata


class _HostPriority(msgspec.Struct):
    """A struct instead of a dict, because a request may name hundreds of thousands of hosts."""

    Host: str
    Score: int


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


_decode_head = msgspec.json.Decoder(_NodeHead).decode
_decode_list = msgspec.json.Decoder(_NodeList).decode
_decode_names = msgspec.json.Decoder(list[str] | None).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_text = msgspec.json.Decoder(str | None).decode


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """A request of filter or prioritize.

    Attributes:
        pod: the v1 Pod.
        names: of the candidate nodes, in their order.
        nodes: the node objects, undecoded; None if the request has only names (`nodeCacheCapable: true`).
    """

    pod: Mapping[str, Any]
    names: Sequence[str]
    nodes: Sequence[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class BindingArgs:
    """A request of bind."""

    pod_name: str
    pod_namespace: str
    pod_uid: str
    node: str


def read_args(body: bytes, *, takes_node_objects: bool = True) -> ExtenderArgs:
    """Read a request of filter or prioritize.

    Raises:
        KubeObjectError: not JSON, or not of this form, or with Node objects where they are not taken.
    """
    with _refused_unless_read():
        fields = _fields(body)
        pod = _decode_object(fields["pod"])
        names = _decode_names(fields["nodenames"]) if "nodenames" in fields else None
        if names is not None:
            return ExtenderArgs(pod, names)
        items = _items(fields.get("nodes"))
        if items and not takes_node_objects:
            raise KubeObjectError(NEEDS_NAMES)
        return ExtenderArgs(pod, [_decode_head(item).metadata.name for item in items or ()], items or [])


def read_binding(body: bytes) -> BindingArgs:
    """Read a request of bind.

    Raises:
        KubeObjectError: not JSON, or not of this form.
    """
    with _refused_unless_read():
        fields = _fields(body)
        names = ("podname", "podnamespace", "poduid", "node")
        return BindingArgs(*(_decode_text(fields[name]) or "" for name in names))


@contextmanager
def _refused_unless_read() -> Iterator[None]:
    """Turn errors of decoding into `KubeObjectError`."""
    try:
        yield
    except KeyError as error:
        raise KubeObjectError(f"the request has no field {error}; is this kube-scheduler?") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KubeObjectError(f"the request does not have the form of kube-scheduler's: {error}") from None


def filter_result(args: ExtenderArgs, passed: Sequence[bool], failed: Mapping[str, str]) -> bytes:
    """Return the answer of filter, with names or Node objects as in the request."""
    if args.nodes is None:
        names = [name for name, is_in in zip(args.names, passed, strict=True) if is_in]
        return _filter_answer(names=names, failed=failed)
    items = [node for node, is_in in zip(args.nodes, passed, strict=True) if is_in]
    return _filter_answer(nodes={"metadata": {}, "items": items}, failed=failed)


def filter_error(detail: str) -> bytes:
    """Return the answer of filter to an invalid request: the scheduling attempt fails with this text."""
    return _filter_answer(error=detail)


def _filter_answer(
    *,
    nodes: Mapping[str, object] | None = None,
    names: Sequence[str] | None = None,
    failed: Mapping[str, str] | None = None,
    error: str = "",
) -> bytes:
    return _encode(
        {
            "Nodes": nodes,
            "NodeNames": names,
            "FailedNodes": failed or {},
            "FailedAndUnresolvableNodes": {},
            "Error": error,
        }
    )


def priorities(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """Return the answer of prioritize."""
    rows = zip(names, scores, strict=True)
    return _encode([_HostPriority(name, score) for name, score in rows])


def binding_result(detail: str = "") -> bytes:
    """Return the answer of bind; an empty text means bound."""
    return _encode({"Error": detail})


def _fields(body: bytes) -> _Fields:
    return {name.lower(): value for name, value in _decode_fields(body).items()}


def _items(raw: msgspec.Raw | None) -> list[msgspec.Raw] | None:
    return None if raw is None or bytes(raw) == b"null" else _decode_list(raw).items
