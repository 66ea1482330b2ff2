"""Stands between the exporter and the API server, and answers as an overloaded or an older server of several does.

`python -m tests.e2e.churn.proxy PORT SERVER_PORT CA ORDERS`; ORDERS is a file with one of
    {}                      pass everything on
    {"late_s": 2}           what a watch says comes later: a server that is behind
    {"status": 429}         every request is answered with 429 and Retry-After
    {"status": 410}         lists and watches that name a version are answered with 410, open watches end with it
    {"old": true}           lists and objects are those of the moment before
When the orders change, open watches are cut.
"""

import contextlib
import http.client
import json
import socket
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

_HOP = {"host", "connection", "transfer-encoding", "content-length", "accept-encoding"}
_WORDS = {429: "TooManyRequests", 410: "Expired"}


def status_object(code: int) -> dict[str, Any]:
    """What an API server answers with such a code."""
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": _WORDS[code], "code": code,
            "message": "too old resource version" if code == 410 else "please try again later"}  # fmt: skip


class Proxy(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server_port: ClassVar[int]
    orders_file: ClassVar[Path]
    context: ClassVar[ssl.SSLContext]
    open_watches: ClassVar[set[socket.socket]] = set()
    answers: ClassVar[dict[str, tuple[int, bytes]]] = {}

    def handle_one(self) -> None:
        """Pass a request on, or answer it as ordered."""
        orders = self.orders()
        query = parse_qs(urlsplit(self.path).query)
        is_watch = query.get("watch", [""])[0] in ("1", "true")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        code = orders.get("status")
        is_versioned = "continue" in query or query.get("resourceVersion", ["0"])[0] not in ("", "0")
        if code == 429 or (code == 410 and self.command == "GET" and is_versioned):
            self.answer(code, json.dumps(status_object(code)).encode())
            return
        if orders.get("old") and self.command == "GET" and not is_watch and self.path in self.answers:
            self.answer(*self.answers[self.path])
            return
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.server_port, context=self.context, timeout=3600
        )
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            connection.request(self.command, self.path, body or None, headers)
            response = connection.getresponse()
            if is_watch and response.status == 200:
                self.pass_watch(response, connection, orders)
            else:
                data = response.read()
                if self.command == "GET" and response.status == 200:
                    self.answers[self.path] = (200, data)
                self.answer(response.status, data)
        except (OSError, http.client.HTTPException):
            self.close_connection = True
        finally:
            connection.close()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one  # noqa: N815

    def answer(self, code: int, data: bytes) -> None:
        self.send_response(code)
        if code == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def pass_watch(
        self, response: http.client.HTTPResponse, connection: http.client.HTTPConnection, orders: Any
    ) -> None:
        """Pass events on, each as late as ordered, until the orders change."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        assert connection.sock is not None
        self.open_watches.add(connection.sock)
        line = b""
        try:
            while self.orders() == orders and (data := response.read1(65536)):
                *whole, line = (line + data).split(b"\n")
                for one in whole:
                    time.sleep(orders.get("late_s", 0))
                    self.chunk(one + b"\n")
        except (OSError, http.client.HTTPException):
            pass  # it was cut
        finally:
            self.open_watches.discard(connection.sock)
        if self.orders().get("status") == 410:
            self.chunk(json.dumps({"type": "ERROR", "object": status_object(410)}).encode() + b"\n")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    @classmethod
    def orders(cls) -> dict[str, Any]:
        with contextlib.suppress(OSError):
            found: dict[str, Any] = json.loads(cls.orders_file.read_text())
            return found
        return {}

    def log_message(self, *_: object) -> None:
        pass


def cut_watches() -> None:
    """Cut open watches when the orders change; a silent one would not notice."""
    before = Proxy.orders()
    while True:
        time.sleep(0.1)
        orders, was = Proxy.orders(), before
        before = orders
        for one in list(Proxy.open_watches) if orders != was else ():
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def main(port: str, server_port: str, ca: str, orders: str) -> None:
    """Serve until killed."""
    Proxy.server_port, Proxy.orders_file = int(server_port), Path(orders)
    Proxy.context = ssl.create_default_context(cafile=ca)
    ThreadingHTTPServer.daemon_threads = True
    threading.Thread(target=cut_watches, daemon=True).start()
    ThreadingHTTPServer(("127.0.0.1", int(port)), Proxy).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
