"""The version of a container runtime, asked for on its CRI socket: one unary call of gRPC.

gRPC belongs to the programs of the cluster, which a node need not have. A call on a connection of its own takes a
preface and three frames, and of the answer only the DATA frames of its stream are read.

Source: RFC 9113 4.1 (frames), RFC 7541 6.2.2 (a header field that is not indexed), grpc PROTOCOL-HTTP2 (the prefix of a
    message), CRI api.proto (VersionResponse).
"""

import os
import socket
import struct
from typing import BinaryIO

HEADERS = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/runtime.v1.RuntimeService/Version",
    ":authority": "localhost",
    "content-type": "application/grpc",
    "te": "trailers",
}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA_FRAME, HEADERS_FRAME, SETTINGS_FRAME = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
STREAM = 1
PREFIX = struct.Struct(">BI")
"""Of a message: whether it is compressed, and its length."""

RUNTIME_VERSION = 3
"""The field of VersionResponse."""

ANSWER_S = 2.0
MOST_FRAMES = 32
_CREDENTIALS = struct.Struct("iII")


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process id and user of the listener; the id is 0 where its process cannot be seen from here."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return pid, uid


def runtime_version(path: str) -> str:
    """The version that the runtime behind a CRI socket gives; empty when none answers, or a stranger listens."""
    headers = b"".join(b"\0" + _string(name) + _string(value) for name, value in HEADERS.items())
    request = (
        PREFACE
        + _frame(SETTINGS_FRAME, 0, 0, b"")
        + _frame(HEADERS_FRAME, END_HEADERS, STREAM, headers)
        + _frame(DATA_FRAME, END_STREAM, STREAM, PREFIX.pack(0, 0))
    )
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(path)
            if peer_of(connection)[1] not in (0, os.geteuid()):
                return ""
            connection.sendall(request)
            with connection.makefile("rb") as answer:
                return _field(_message(answer), RUNTIME_VERSION).decode("utf-8", "replace")
    except (OSError, struct.error, IndexError):
        return ""


def _string(text: str) -> bytes:
    """A string of HPACK that is shorter than 127 bytes."""
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _message(answer: BinaryIO) -> bytes:
    """The message of the stream; struct.error where the answer ends before it, or never has one."""
    body = b""
    for _ in range(MOST_FRAMES):
        high, low, kind, _, stream = struct.unpack(">BHBBI", answer.read(9))
        payload = answer.read(high << 16 | low)
        if kind == DATA_FRAME and stream == STREAM:
            body += payload
            end = PREFIX.size + (PREFIX.unpack_from(body)[1] if len(body) >= PREFIX.size else 0)
            if len(body) >= end:
                return body[PREFIX.size : end]
    raise struct.error("no message")


def _field(message: bytes, number: int) -> bytes:
    """A field of a message that holds strings alone; empty where it is not set. IndexError for another message."""
    place = 0
    while place < len(message):
        tag, length = message[place], message[place + 1]
        place += 2
        if tag == number << 3 | 2:
            return message[place : place + length]
        place += length
    return b""
