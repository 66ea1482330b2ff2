"""`/metrics`, `/healthz` and `/readyz` over HTTP, in threads of their own; nothing here can delay the runtime."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from nri_plugin.errors import ConfigError

IDLE_S = 10.0
"""A client that says nothing for so long is hung up on."""

TEXT = "text/plain; charset=utf-8"
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """What a path answers."""

    body: bytes
    status: int = 200
    content_type: str = TEXT


Pages = Mapping[str, Callable[[], Page]]


def verdict(name: str, is_well: Callable[[], bool], advice: str) -> Callable[[], Page]:
    """A page for a probe: 200 with the name, or 503 and what is wrong."""
    return lambda: Page(f"{name} ok\n".encode()) if is_well() else Page(f"{advice}\n".encode(), 503)


class StatusServer:
    """Serves `pages` from the moment it is made until `close`.

    Args:
        address: (host, port); an empty host is every address of the machine, port 0 any free one.
        pages: by path.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, address: tuple[str, int], pages: Pages) -> None:
        host, port = address
        try:
            self._server = _Server(host, port, pages)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            detail = f"cannot listen on {shown}: {why.lower()}; choose another address or port"
            raise ConfigError("metricsBindAddress", detail) from None
        self.port: int = self._server.server_address[1]
        Thread(target=self._server.serve_forever, name="status", daemon=True).start()

    def close(self) -> None:
        """Stop listening; requests that are being answered are not waited for."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        self.pages = pages
        self.address_family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server for our own name."""
        if self.address_family is socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    wbufsize = -1  # headers and body leave together
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        """Answer with a page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer with what a page would be announced by."""
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        make = self.server.pages.get(self.path.partition("?")[0])
        paths = " ".join(sorted(self.server.pages))
        page = make() if make else Page(f"not found; there are {paths}\n".encode(), 404)
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)

    def version_string(self) -> str:
        """Say no more than needed."""
        return "nri-pin"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Keep probes out of the log."""
