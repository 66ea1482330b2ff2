"""What the data of request and response frames says: who is called, with what, and how it ended."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from google.protobuf.message import DecodeError

from nri_plugin.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.ttrpc._pb import ttrpc_pb2 as pb

MAX_STATUS_TEXT: Final = 64 << 10
"""Longest status message in characters: an error must always be small enough to be sent."""


class Code(IntEnum):
    """Status codes, the same numbers as in gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class Detail:
    """A google.protobuf.Any: a message we carry and do not read."""

    type_url: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Status:
    """Why a call failed. `code` is a plain number: peers may send ones `Code` does not name."""

    code: int
    message: str = ""
    details: tuple[Detail, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A call. `timeout_ns` is what was left of the caller's time when it sent, 0 = no limit."""

    service: str
    method: str
    payload: bytes = b""
    timeout_ns: int = 0
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Response:
    """The end of a call: a payload, or a status that is not OK and no payload."""

    status: Status | None = None
    payload: bytes = b""


def encode_request(request: Request) -> bytes:
    """Returns the data of a request frame.

    Raises:
        LocalProtocolError: a name or metadata is no valid text.
    """
    try:
        return pb.Request(
            service=request.service,
            method=request.method,
            payload=request.payload,
            timeout_nano=request.timeout_ns,
            metadata=[pb.KeyValue(key=key, value=value) for key, value in request.metadata],
        ).SerializeToString()
    except (UnicodeEncodeError, ValueError) as err:
        raise LocalProtocolError(f"request {request.method} cannot be encoded: {err}") from err


def decode_request(data: bytes) -> Request:
    """Reads the data of a request frame.

    Raises:
        RemoteProtocolError: it is no Request message.
    """
    message = pb.Request()
    _parse(message, data, "request")
    metadata = tuple((entry.key, entry.value) for entry in message.metadata) if message.metadata else ()
    return Request(message.service, message.method, message.payload, message.timeout_nano, metadata)


def encode_response(response: Response) -> bytes:
    """Returns the data of a response frame; success with an empty message is no bytes at all."""
    status = response.status
    if status is None or status.code == Code.OK:
        return pb.Response(payload=response.payload).SerializeToString()
    details = [{"type_url": detail.type_url, "value": detail.value} for detail in status.details]
    text = status.message[:MAX_STATUS_TEXT].encode("utf-8", "replace").decode()
    wire = pb.Status(code=status.code, message=text, details=details)
    return pb.Response(status=wire).SerializeToString()


def decode_response(data: bytes) -> Response:
    """Reads the data of a response frame; an absent status and code 0 are both success.

    Raises:
        RemoteProtocolError: it is no Response message.
    """
    message = pb.Response()
    _parse(message, data, "response")
    wire = message.status
    if not wire.code:
        return Response(None, message.payload)
    details = tuple(Detail(any_.type_url, any_.value) for any_ in wire.details)
    return Response(Status(wire.code, wire.message, details), message.payload)


def _parse(message: pb.Request | pb.Response, data: bytes, what: str) -> None:
    try:
        message.ParseFromString(data)
    except DecodeError as err:
        raise RemoteProtocolError(f"{what} of {len(data)} bytes cannot be decoded: {err}") from err
