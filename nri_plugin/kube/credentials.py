"""The connection to the Kubernetes API, by lightkube: the pod's service account, or a kubeconfig file.

Tokens that are renewed in their files are read again when the server refuses the former one. So is the program that a
kubeconfig names for its credentials (`users[].user.exec`), as cloud providers use.
"""

import json
import os
import ssl
from collections.abc import Generator
from pathlib import Path

import httpx2
import yaml
from lightkube.config.client_adapter import ConnectionParams, ExecAuth
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, SERVICE_ACCOUNT, KubeConfig
from lightkube.config.models import User, UserExec
from lightkube.core.exceptions import ConfigError as LibraryConfigError

from nri_plugin.kube.pod_demand import MALFORMED
from nri_plugin.model.errors import ConfigError

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
TIMEOUT_S = 10.0
"""Time limit for the start of an answer. The caller tries again later."""


class ExecCredentials(ExecAuth):
    """lightkube's, which knows neither version v1 nor what a program is told of its caller.

    Args:
        where: the kubeconfig file; as in kubectl, a program's path with a slash is relative to its folder.
        spec: the `exec` entry.

    Raises:
        ConfigError: the entry has another version.
    """

    def __init__(self, where: str, spec: UserExec) -> None:
        super().__init__(spec)
        if spec.apiVersion not in VERSIONS:
            text = (
                f"exec apiVersion {spec.apiVersion or 'missing'} is not supported, only {', '.join(VERSIONS)}"
            )
            raise ConfigError(where, f"{text}; use a token or a client certificate")
        self._folder = Path(where).expanduser().parent

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Sign the request; run the program again after a token that no header can hold, too."""
        bearer = self._last_bearer or ""
        if not (bearer.isascii() and bearer.isprintable()):
            self._last_bearer = None
        yield from super().sync_auth_flow(request)

    def _prepare(self) -> tuple[list[str], dict[str, str]]:
        spec = self._exec
        info = {"kind": "ExecCredential", "apiVersion": spec.apiVersion, "spec": {"interactive": False}}
        given = {one.name: one.value for one in spec.env or ()}
        command = str(self._folder / spec.command) if "/" in spec.command else spec.command
        environment = {**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(info), **given}
        return [command, *(spec.args or ())], environment


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
        assert chosen is not None  # there is no default
        user = chosen.user or User()  # the library requires one, but a kubeconfig may name none
        parameters = ConnectionParams(timeout=httpx2.Timeout(TIMEOUT_S), trust_env=False)
        given = parameters.httpx_params(chosen._replace(user=user))
        # Python 3.13 and later ask more of a certificate authority than client-go and kubectl do: a key usage, for example.
        # Authorities of clusters are often older than that, and what is signed is verified all the same.
        given["verify"].verify_flags &= ~ssl.VERIFY_X509_STRICT
        if user.exec and isinstance(given["auth"], ExecAuth):
            given["auth"] = ExecCredentials(where, user.exec)
        return httpx2.Client(**given)
    except LibraryConfigError as error:
        text = str(error)
        advice = "give --kubeconfig FILE, or run in a pod of the cluster"
        raise ConfigError(where, f"{text[:1].lower()}{text[1:]}; {advice}") from None
    except OSError as error:
        raise ConfigError(where, f"cannot be used: {error.strerror or error}") from None
    except (*MALFORMED, yaml.YAMLError) as error:
        why = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise ConfigError(
            where, f"is not a kubeconfig file ({why}); expected what kubectl config view --raw prints"
        ) from None


def place() -> str:
    """Return the pod's service account if there is one, else the kubeconfig of the environment."""
    if os.environ.get("KUBERNETES_SERVICE_HOST") and Path(SERVICE_ACCOUNT, "token").exists():
        return SERVICE_ACCOUNT
    return os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
