"""What an HTTP server answers: pages by GET, answers by POST, and how they are sent."""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock

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
    """What answers one path.

    Attributes:
        answer: makes the answer's body, JSON, of the request's.
        body_bytes: longest request.
        advice: what to do about a longer one.
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
    """A page that is dear to make: many clients wait for each other rather than slow down the process together."""
    lock = Lock()

    def made() -> Page:
        with lock:
            return make()

    return made


def send_page(client: socket.socket, page: Page, *, keeps_alive: bool, with_body: bool = True) -> None:
    """Send the page, or with what it is announced."""
    reason = _REASONS.get(page.status, "")
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    head = (
        f"HTTP/1.1 {page.status} {reason}\r\nServer: nri-pin\r\nDate: {date}\r\n"
        f"Content-Type: {page.content_type}\r\nContent-Length: {len(page.body)}\r\n"
        f"Connection: {'keep-alive' if keeps_alive else 'close'}\r\n\r\n"
    ).encode("ascii")
    client.sendall(head + page.body if with_body else head)
