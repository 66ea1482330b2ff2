"""The cluster's own certificate authority, made by openssl: certificates, kubeconfigs, and tokens of service accounts."""

import base64
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.lab.shell import run

ISSUER = "https://kubernetes.default.svc"
SERVER_NAMES = ("IP:127.0.0.1", "IP:10.0.2.2", "IP:10.96.0.1", "DNS:localhost", "DNS:kubernetes.default.svc")
"""The second is this machine as a guest of QEMU sees it, the third the service of the API server in pods."""

LEEWAY_S = 60
"""An API server takes a token for so long after its end. Source: go-jose, jwt.DefaultLeeway."""

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30")


class Authority:
    """Keys and certificates in a folder, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self._ca_key = folder / "ca.crt", folder / "ca.key"
        self.accounts_key = folder / "accounts.key"

    def make(self) -> None:
        """Make the authority and the key that signs tokens."""
        self.folder.mkdir(mode=0o700)
        self._openssl(
            "req", "-x509", *_NEW_KEY, "-subj", "/CN=cluster", "-keyout", self._ca_key, "-out", self.ca
        )
        self._openssl("genrsa", "-out", self.accounts_key, "2048")

    def certificate(
        self, name: str, *, user: str = "", group: str = "", hosts: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """A certificate and its key, of a client or, with hosts, of a server.

        Args:
            name: of the files.
            user: the common name; the files' if empty.
            group: the organization.
            hosts: as openssl names them, `IP:127.0.0.1`.
        """
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        if not certificate.exists():
            subject = (f"/O={group}" if group else "") + f"/CN={user or name}"
            words = ["req", "-x509", "-CA", self.ca, "-CAkey", self._ca_key, *_NEW_KEY, "-subj", subject]
            words += [
                "-addext",
                "basicConstraints=critical,CA:FALSE",
                "-addext",
                "extendedKeyUsage=clientAuth,serverAuth",
            ]
            if hosts:
                words += ["-addext", f"subjectAltName={','.join(hosts)}"]
            self._openssl(*words, "-keyout", key, "-out", certificate)
        return certificate, key

    def kubeconfig(self, name: str, server: str, **whose: str) -> Path:
        """A kubeconfig with a certificate of that user and group, everything in the one file."""
        certificate, key = self.certificate(name, **whose)  # type: ignore[arg-type]
        return self._config(
            name, server, {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)}
        )

    def token_kubeconfig(self, name: str, server: str, token_file: Path) -> Path:
        """A kubeconfig that names a file with a token, as a pod's service account has one."""
        return self._config(name, server, {"tokenFile": str(token_file)})

    def token(self, namespace: str, account: str, uid: str, *, valid_s: float) -> str:
        """A token of a service account, as the API server itself signs them.

        Args:
            valid_s: how long it is taken from now on; below 0 it has expired.
        """
        now = int(time.time())
        ends = int(now + valid_s) - LEEWAY_S
        about = {"namespace": namespace, "serviceaccount": {"name": account, "uid": uid}}
        claims = {
            "iss": ISSUER, "aud": [ISSUER], "sub": f"system:serviceaccount:{namespace}:{account}",
            "iat": ends - 600, "nbf": ends - 600, "exp": ends, "kubernetes.io": about,
        }  # fmt: skip
        text = f"{_part({'alg': 'RS256', 'typ': 'JWT'})}.{_part(claims)}"
        signed = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", self.accounts_key],
            input=text.encode(),
            check=True,
            capture_output=True,
        ).stdout
        return f"{text}.{_without_padding(signed)}"

    def _config(self, name: str, server: str, user: dict[str, str]) -> Path:
        cluster = {"server": server, "certificate-authority-data": _encoded(self.ca)}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "user"}}],
        }  # fmt: skip
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(config, indent=1))
        path.chmod(0o600)
        return path

    def _openssl(self, *words: object) -> None:
        run(["openssl", *map(str, words)])


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _part(value: Any) -> str:
    return _without_padding(json.dumps(value).encode())


def _without_padding(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
