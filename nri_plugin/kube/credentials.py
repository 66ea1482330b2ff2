"""Address of the Kubernetes API and credentials for it: the pod's service account, or a kubeconfig file.

`connect` makes the connection; certificates and tokens that are renewed in their files are read again. `ExecCredentials`
runs the program that a kubeconfig names (`users[].user.exec`), as cloud providers use: before the first request, when
its credentials have expired, and when the server answers 401. The program prints an ExecCredential with a token, a
client certificate, or both.

Source: client-go v0.35 plugin/pkg/client/auth/exec; v1alpha1, which it has dropped, differs in its name only.
Differs: client-go gives the program of a kubeconfig a terminal; here: the program gets none. Why: exporter
    and extender have none. Option: none.
"""

import base64
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import yaml
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError as LibraryConfigError

from nri_plugin.kube.pod_demand import MALFORMED
from nri_plugin.model.errors import ConfigError

GROUP = "client.authentication.k8s.io"
VERSIONS = (f"{GROUP}/v1", f"{GROUP}/v1beta1", f"{GROUP}/v1alpha1")
CLUSTER_EXTENSION = f"{GROUP}/exec"
UNAUTHORIZED = 401
PROGRAM_S = 60.0
"""Time limit of the program. A request to a cloud for a token takes a second or two."""

LONGEST_COMPLAINT = 400
"""Characters of a failing program's output that an error quotes."""


class ExecCredentials(httpx2.Auth):
    """Signs requests with the credentials of a program. Threads may share it; at worst they run the program twice.

    lightkube's own `ExecAuth` has neither version v1, client certificates, expiry nor cluster information.

    Args:
        where: the kubeconfig file.
        spec: its `exec` entry.
        cluster: its `cluster` entry, passed to a program that asks for it.
        tls: of the connection; client certificates are put into it.
        clock: seconds since 1970.

    Raises:
        ConfigError: the entry cannot be used; the text tells the remedy.
    """

    def __init__(
        self,
        where: str,
        spec: Mapping[str, Any],
        cluster: Mapping[str, Any],
        tls: ssl.SSLContext,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._where, self._tls, self._clock = where, tls, clock
        self._version = str(spec.get("apiVersion") or "")
        if self._version not in VERSIONS:
            raise ConfigError(
                where,
                f"exec apiVersion {self._version or 'missing'} is not supported, only {', '.join(VERSIONS)}; "
                "update the program and its entry, or use a token or a client certificate",
            )
        command = str(spec.get("command") or "")
        if not command:
            raise ConfigError(where, "exec names no command")
        if spec.get("interactiveMode") == "Always":
            raise ConfigError(
                where,
                f"{command} wants a terminal (exec interactiveMode: Always), and there is none; use a service account's "
                "token, or a program without input",
            )
        self._hint = str(spec.get("installHint") or "")
        self._command = [_program(where, command), *map(str, spec.get("args") or ())]
        given = {str(row["name"]): str(row["value"]) for row in spec.get("env") or ()}
        self._environment = {
            **os.environ,
            **given,
            "KUBERNETES_EXEC_INFO": json.dumps(self._info(spec, cluster)),
        }
        self._bearer, self._has_run, self._expires_at = "", False, float("inf")

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Sign the request; retry once with new credentials if the server refuses the old ones."""
        is_fresh = not self._has_run or self._clock() >= self._expires_at
        if is_fresh:
            self._renew()
        self._sign(request)
        response = yield request
        # New credentials that the server refuses would be refused again.
        if response.status_code == UNAUTHORIZED and not is_fresh:
            self._renew()
            self._sign(request)
            yield request

    def _sign(self, request: httpx2.Request) -> None:
        if self._bearer:
            request.headers["Authorization"] = self._bearer

    def _renew(self) -> None:
        """Run the program and use its credentials.

        Raises:
            ConfigError: it fails, or prints nothing usable.
        """
        status = self._status(self._output())
        words = [status.get(name) or "" for name in ("token", "clientCertificateData", "clientKeyData")]
        if not all(isinstance(word, str) and word.isascii() and "\0" not in word for word in words):
            raise self._error("prints a token, a certificate or a key that is not plain text")
        token, certificate, key = words
        if not token.isprintable():  # the error of a header would quote it
            raise self._error("prints a token with line breaks or other control characters")
        if bool(certificate) != bool(key):
            raise self._error("prints only one of clientCertificateData and clientKeyData")
        if not token and not certificate:
            raise self._error("prints neither a token nor a client certificate")
        if certificate and key:
            self._present(certificate, key)
        self._bearer = f"Bearer {token}" if token else ""
        self._expires_at = self._expiry(status.get("expirationTimestamp"))
        self._has_run = True

    def _output(self) -> bytes:
        try:
            done = subprocess.run(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROGRAM_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self._error(f"has not ended after {PROGRAM_S:g} s") from None
        except (OSError, ValueError) as error:
            hint = f"; {self._hint.strip()}" if self._hint else ""
            raise self._error(f"cannot be run: {getattr(error, 'strerror', '') or error}{hint}") from None
        if done.returncode:
            said = " ".join(done.stderr.decode(errors="replace").split())[:LONGEST_COMPLAINT]
            raise self._error(f"ended with {done.returncode}{f': {said}' if said else ''}")
        return done.stdout

    def _status(self, output: bytes) -> Mapping[str, Any]:
        try:
            credential = json.loads(output)
        except (ValueError, RecursionError):
            raise self._error("does not print JSON") from None
        if not isinstance(credential, dict) or credential.get("kind") != "ExecCredential":
            raise self._error("does not print an ExecCredential")
        if credential.get("apiVersion") != self._version:
            raise self._error(
                f"prints an ExecCredential of {credential.get('apiVersion')}, and the kubeconfig requires {self._version}; "
                "write the program's version into the entry"
            )
        status = credential.get("status")
        if not isinstance(status, dict):
            raise self._error("prints an ExecCredential without a status")
        return status

    def _present(self, certificate: str, key: str) -> None:
        """Load the client certificate; new connections present it."""
        # Python's ssl module reads certificates from files only.
        with tempfile.NamedTemporaryFile(prefix="nri-pin-") as file:
            file.write(f"{certificate}\n{key}\n".encode())
            file.flush()
            try:
                self._tls.load_cert_chain(file.name)
            except (ssl.SSLError, OSError) as error:
                raise self._error(f"prints a client certificate that cannot be used: {error}") from None

    def _expiry(self, text: Any) -> float:
        if not text:
            return float("inf")
        try:
            return datetime.fromisoformat(str(text)).timestamp()
        except (ValueError, OverflowError):
            shown = str(text)[:LONGEST_COMPLAINT]
            raise self._error(f"prints an expirationTimestamp that is not a time: {shown}") from None

    def _info(self, spec: Mapping[str, Any], cluster: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the content of `KUBERNETES_EXEC_INFO`."""
        told: dict[str, Any] = {"interactive": False}
        if spec.get("provideClusterInfo"):
            told["cluster"] = _cluster_info(cluster, Path(self._where).expanduser().parent)
        return {"kind": "ExecCredential", "apiVersion": self._version, "spec": told}

    def _error(self, words: str) -> ConfigError:
        return ConfigError(self._where, f"{self._command[0]} {words}")


def _program(where: str, command: str) -> str:
    """Return the program's path. As in kubectl, a path with a slash is relative to the kubeconfig's folder."""
    is_relative = "/" in command and not os.path.isabs(command)
    return str(Path(where).expanduser().parent / command) if is_relative else command


def _cluster_info(cluster: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    names = (
        "server",
        "tls-server-name",
        "insecure-skip-tls-verify",
        "certificate-authority-data",
        "proxy-url",
    )
    info = {name: cluster[name] for name in names if cluster.get(name)}
    if cluster.get("certificate-authority"):
        authority = (folder / cluster["certificate-authority"]).read_bytes()
        info["certificate-authority-data"] = base64.b64encode(authority).decode()
    config = [
        row["extension"] for row in cluster.get("extensions") or () if row.get("name") == CLUSTER_EXTENSION
    ]
    return {**info, "config": config[0] if config else None}


TIMEOUT_S = 10.0
"""Time limit for the start of an answer. The caller tries again later."""

EXPECTED = (
    "expected what kubectl config view --raw prints, with clusters, users, contexts and a current-context"
)


def connect(kubeconfig: str | None = None) -> httpx2.Client:
    """Return a connection to the cluster of `kubeconfig`, of this pod, of `KUBECONFIG`, or of the user's own file.

    The first that exists is used. Nothing is sent yet. Environment variables for proxies are ignored, because they
    seldom apply to the cluster.

    Raises:
        ConfigError: the file does not exist or is not a kubeconfig, or no configuration names a cluster.
    """
    where = kubeconfig or place()
    try:
        config = (
            KubeConfig.from_service_account() if where == SERVICE_ACCOUNT else KubeConfig.from_file(where)
        )
        chosen = config.get()
        if chosen is None:
            raise ConfigError(where, "names no current context; choose one with kubectl config use-context")
        # The library requires a user, but a kubeconfig may name none.
        if chosen.user is None:
            chosen = chosen._replace(user=User())
        parameters = ConnectionParams(timeout=httpx2.Timeout(TIMEOUT_S), trust_env=False)
        given = parameters.httpx_params(chosen)
        # Python 3.13 and later ask more of a certificate authority than client-go and kubectl do: a key usage, for example.
        # Authorities of clusters are often older than that, and what is signed is verified all the same.
        given["verify"].verify_flags &= ~ssl.VERIFY_X509_STRICT
        if chosen.user is not None and chosen.user.exec and not (chosen.user.token or chosen.user.token_file):
            given["auth"] = _exec_credentials(where, chosen, given["verify"])
        return httpx2.Client(**given)
    except LibraryConfigError as error:
        raise ConfigError(
            where, f"{_lower(error)}; give --kubeconfig FILE, or run in a pod of the cluster"
        ) from None
    except OSError as error:
        raise ConfigError(where, f"cannot be used: {error.strerror or error}") from None
    except (*MALFORMED, IndexError, StopIteration, yaml.YAMLError) as error:
        raise ConfigError(where, f"is not a kubeconfig file{_why(error)}; {EXPECTED}") from None


def _why(error: Exception) -> str:
    """Return the part of a library's error that helps an administrator."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f": line {error.problem_mark.line + 1} is not YAML ({error.problem or error.context})"
    if isinstance(error, UnicodeDecodeError):
        return f": not UTF-8 text at byte {error.start}"
    return f": it has no {error.args[0]}" if isinstance(error, KeyError) and error.args else ""


def _exec_credentials(where: str, chosen: SingleConfig, tls: ssl.SSLContext) -> ExecCredentials:
    """Return the credentials of the chosen user. The entries are read again, because the library keeps a part of them."""
    config = yaml.safe_load(Path(where).expanduser().read_text())
    user, cluster = (
        next(row[part] for row in config[f"{part}s"] if row["name"] == name)
        for part, name in (("user", chosen.context.user), ("cluster", chosen.context.cluster))
    )
    return ExecCredentials(where, user["exec"], cluster, tls)


def place() -> str:
    """Return the pod's service account if there is one, else the kubeconfig of the environment."""
    if os.environ.get("KUBERNETES_SERVICE_HOST") and Path(SERVICE_ACCOUNT, "token").exists():
        return SERVICE_ACCOUNT
    return os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG


def _lower(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]
