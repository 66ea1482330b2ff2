"""`nri-pin extender`: the cluster's watches on one side, kube-scheduler's questions on the other."""

import gc
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from nri_plugin.app.extender_server import Answer, Certificates, ExtenderServer, Limits, Routes
from nri_plugin.app.logs import say
from nri_plugin.kube.cluster import Cluster
from nri_plugin.kube.extender_answers import Binder, Extender, ScoreScale
from nri_plugin.kube.extender_cache import Accounting, ExtenderCache
from nri_plugin.kube.extender_feed import LockedCache
from nri_plugin.kube.scores import Scoring

SWITCH_INTERVAL_S = 0.001
"""A question waits this long at most for a thread that reads an object; the interpreter's default is five times that."""

YOUNG_ONLY = (50_000, 20, 10_000)
"""A thousand nodes are a million objects without cycles: looking through all of them would stop every answer."""


@dataclass(frozen=True, slots=True)
class ExtenderOptions:
    """What an administrator chose; see `nri-pin extender --help`."""

    address: tuple[str, int] = ("", 8888)
    scoring: Scoring = field(default_factory=Scoring)
    scale: ScoreScale = ScoreScale.RANK
    accounting: Accounting = field(default_factory=Accounting)
    sidecars_stay: bool = True
    offers_bind: bool = False
    sends_to_numa_node: bool = False
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    limits: Limits = field(default_factory=Limits)


class Feed(Protocol):
    """What brings objects: a client that lists, watches and reconnects, in threads of its own."""

    def start(self, cache: LockedCache) -> None:
        """Begin; from now on `cache` is told."""

    def stop(self) -> None:
        """End."""


class ExtenderProcess:
    """The parts, put together; `serve` answers until `stop`.

    Raises:
        ConfigError: the address or the certificates are wrong.
    """

    def __init__(
        self,
        options: ExtenderOptions,
        feed: Feed,
        binder: Binder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.Lock()
        cluster = Cluster(options.scoring, sidecars_stay=options.sidecars_stay)
        self._cache = ExtenderCache(cluster, options.accounting, clock)
        self._extender = Extender(
            self._cache,
            options.scale,
            binder if options.offers_bind else None,
            sends_to_numa_node=options.sends_to_numa_node,
        )
        self.cache = LockedCache(self._cache, self._lock)
        self._feed = feed
        self._is_stopping = False
        self.server = ExtenderServer(options.address, self._routes(), _certificates(options), options.limits)

    @property
    def lets_anybody_bind(self) -> bool:
        """Whether whoever reaches the port may have pods bound."""
        certificates = self.server.certificates
        return self._extender.binder is not None and not (certificates and certificates.ask_clients)

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.server.certificates is not None

    def serve(self) -> None:
        """Answer until `stop`."""
        self._feed.start(self.cache)
        self.server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """Say not ready, answer what is asked, end."""
        self._is_stopping = True
        self.server.stop()
        self._feed.stop()

    def _routes(self) -> Routes:
        posts = {
            "/filter": self._locked(self._extender.filter),
            "/prioritize": self._locked(self._extender.prioritize),
            "/bind": lambda body: self._extender.bind(body, self._lock),
        }
        gets = {"/healthz": lambda: Answer(b"ok\n"), "/readyz": self._ready, "/metrics": self._metrics}
        return Routes(posts, gets)

    def _locked(self, answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        def locked(body: bytes) -> bytes:
            with self._lock:
                return answer(body)

        return locked

    def _ready(self) -> Answer:
        if self._is_stopping:
            return Answer(b"stopping\n", 503)
        if not self._cache.is_ready:
            return Answer(b"waiting for the first list of the API server\n", 503)
        return Answer(b"ok\n")

    def _metrics(self) -> Answer:
        with self._lock:
            counters, charged = self._cache.counters, self._cache.charged_pods()
            nodes = len(self._cache.cluster.table.row_by_node)
        certificates = self.server.certificates
        lines = [
            (
                "nri_pin_extender_certificate_stale",
                "gauge",
                int(bool(certificates and certificates.is_stale)),
            ),
            ("nri_pin_extender_nodes", "gauge", nodes),
            ("nri_pin_extender_charged_pods", "gauge", charged),
            ("nri_pin_extender_expired_charges_total", "counter", counters.expired_charges),
            ("nri_pin_extender_rejected_objects_total", "counter", counters.rejected_objects),
        ]
        text = "".join(f"# TYPE {name} {kind}\n{name} {value}\n" for name, kind, value in lines)
        return Answer(text.encode(), content_type="text/plain; version=0.0.4; charset=utf-8")


def run(process: ExtenderProcess, log: logging.Logger) -> int:
    """Serve until SIGTERM or SIGINT."""

    def end(*_: object) -> None:
        threading.Thread(target=process.stop, name="stop").start()

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*YOUNG_ONLY)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    host, port = process.server.server_address[:2]
    say(log, logging.INFO, "extender listens", address=f"{host!s}:{port}", tls=process.has_tls)
    if process.lets_anybody_bind:
        say(log, logging.WARNING, "whoever reaches this port can bind pods to nodes; give --tls-client-ca")
    process.serve()
    return 0


def _certificates(options: ExtenderOptions) -> Certificates | None:
    if options.certificate is None or options.key is None:
        return None
    return Certificates(options.certificate, options.key, options.client_ca)
