"""HTTP messages: the head of a request, and the answers to it, pages by GET and results by POST.

Source: RFC 9110 and RFC 9112; the sections are named at each step.
"""

import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

# The head of a request: its first line and the headers that the server uses. A body must have a Content-Length: no client
# of this server sends chunks, and only a length can be bounded before the body is read.


HEAD_BYTES = 16 << 10
"""The longest head that is read. kube-scheduler, kubelet and Prometheus send less than 1 KiB."""

_FIRST_LINE = re.compile(rb"([A-Z]{1,16}) (\S{1,8192}) HTTP/1\.([01])\Z")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")  # RFC 9110, 5.6.2: a token
_LENGTH = re.compile(rb"[0-9]{1,15}\Z")


class RequestError(Exception):
    """A request that the server refuses.

    Attributes:
        status: the HTTP status of the answer.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """The parts of a head that the server uses.

    Attributes:
        method: in capitals, such as `GET`.
        path: without the query.
        body_bytes: length of the body; None without a Content-Length.
        keeps_alive: the client may send another request on this connection.
        expects_continue: the client waits for `100 Continue` before it sends the body.
    """

    method: str
    path: str
    body_bytes: int | None = None
    keeps_alive: bool = True
    expects_continue: bool = False


def parse_head(lines: Sequence[bytes]) -> Head:
    """Return the head in `lines`, which have no line ends.

    Raises:
        RequestError: the lines are no valid head, or ask for something that this server does not support.
    """
    first = _FIRST_LINE.match(lines[0])
    if first is None:
        raise RequestError(400, "the first line is not METHOD PATH HTTP/1.1")
    headers = _headers(lines[1:])
    if b"transfer-encoding" in headers:
        raise RequestError(411, "a body needs a Content-Length")
    options = {option.strip().lower() for option in headers.get(b"connection", b"").split(b",")}
    is_new = first[3] == b"1"
    return Head(
        method=first[1].decode("ascii"),
        path=first[2].partition(b"?")[0].decode("latin-1"),
        body_bytes=_body_bytes(headers.get(b"content-length")),
        # RFC 9112, 9.3: HTTP/1.0 closes by default, HTTP/1.1 keeps the connection by default.
        keeps_alive=b"close" not in options and (is_new or b"keep-alive" in options),
        expects_continue=is_new and headers.get(b"expect", b"").lower() == b"100-continue",
    )


def _headers(lines: Sequence[bytes]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        # RFC 9112, 5.1 and 5.2: no space before the colon, no folded lines.
        if not colon or not _NAME.match(name):
            raise RequestError(400, "a header is not NAME: VALUE")
        key, text = name.lower(), value.strip(b" \t")
        if key == b"content-length" and found.get(key, text) != text:
            raise RequestError(400, "two lengths of one body")  # RFC 9112, 6.3
        found[key] = text
    return found


def _body_bytes(text: bytes | None) -> int | None:
    if text is None:
        return None
    if not _LENGTH.match(text):
        raise RequestError(400, "Content-Length is no number of bytes")
    return int(text)


# Answers to a request


TEXT = "text/plain; charset=utf-8"
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"

_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: bytes
    status: int = 200
    content_type: str = TEXT


@dataclass(frozen=True, slots=True)
class Post:
    """The handler of posts to one path.

    Attributes:
        answer: returns the body of the answer, JSON, for the body of the request.
        body_bytes: the longest body that is read.
        advice: the remedy for a longer one.
    """

    answer: Callable[[bytes], bytes]
    body_bytes: int
    advice: str = "is this kube-scheduler?"


@dataclass(frozen=True, slots=True)
class Routes:
    """Answers by path."""

    pages: Mapping[str, Callable[[], Page]]
    posts: Mapping[str, Post] = field(default_factory=dict)


def probe(name: str, find_trouble: Callable[[], str]) -> Callable[[], Page]:
    """Return a page for a probe: 200 with the name, or 503 with the trouble that `find_trouble` returns."""

    def page() -> Page:
        trouble = find_trouble()
        return Page(f"{trouble}\n".encode(), 503) if trouble else Page(f"{name} ok\n".encode())

    return page


def one_at_a_time(make: Callable[[], Page]) -> Callable[[], Page]:
    """Return a page that is made for one client at a time, so that many clients do not slow the process down."""
    lock = Lock()

    def made() -> Page:
        with lock:
            return make()

    return made


def send_page(client: socket.socket, page: Page, *, keeps_alive: bool, with_body: bool = True) -> None:
    """Send the page; without a body, for HEAD, only its head."""
    reason = _REASONS.get(page.status, "")
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    head = (
        f"HTTP/1.1 {page.status} {reason}\r\nServer: nri-pin\r\nDate: {date}\r\n"
        f"Content-Type: {page.content_type}\r\nContent-Length: {len(page.body)}\r\n"
        f"Connection: {'keep-alive' if keeps_alive else 'close'}\r\n\r\n"
    ).encode("ascii")
    client.sendall(head + page.body if with_body else head)
