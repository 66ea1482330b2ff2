"""The TLS side of an HTTP server: certificates from files that change."""

import contextlib
import ssl
from pathlib import Path

from nri_plugin.errors import ConfigError


class Certificates:
    """A TLS context from files, made anew when one of them changes.

    Args:
        certificate: PEM file of the chain.
        key: PEM file of its key.
        client_ca: PEM file of authorities. With it, a client that posts must show a certificate of theirs. Pages are
            open to all: Prometheus has no certificate to show.

    Attributes:
        ask_clients: whether there are such authorities.

    Raises:
        ConfigError: the files do not make a context.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._files = [certificate, key] + ([client_ca] if client_ca else [])
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self.ask_clients = client_ca is not None
        self._seen = self._state()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The context for the next connection; files that are half written leave the former one in place."""
        state = self._state()
        if state != self._seen:
            with contextlib.suppress(ConfigError):  # the next connection tries again
                self._context = self._load()
                self._seen = state
        return self._context

    @property
    def is_stale(self) -> bool:
        """Whether the files have changed and could not be used."""
        return self._state() != self._seen

    def _state(self) -> list[tuple[int, int] | None]:
        return [_identity(path) for path in self._files]

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key)
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_OPTIONAL
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            files = ", ".join(map(str, self._files))
            raise ConfigError("tls", f"{files} make no TLS certificate: {error}; check the files") from None
        return context


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
