"""Where the Kubernetes API is and who we are there: the pod's service account, or a kubeconfig file.

The only module that knows how a cluster is reached: certificates and tokens that are renewed in their files here,
programs that hand out tokens and certificates in `exec_credentials`.
"""

import os
import ssl
from pathlib import Path

import httpx2
import yaml
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError as LibraryConfigError

from nri_plugin.errors import ConfigError
from nri_plugin.kube.exec_credentials import ExecCredentials

TIMEOUT_S = 10.0
"""An API server that has not begun to answer by then is asked again later."""

EXPECTED = (
    "expected what kubectl config view --raw prints, with clusters, users, contexts and a current-context"
)

POOL = httpx2.Limits(max_connections=8, max_keepalive_connections=8)


def connect(kubeconfig: str | None = None) -> httpx2.Client:
    """A connection to the cluster of `kubeconfig`, else of the pod we run in, else of `KUBECONFIG` or the user's own.

    Nothing is sent yet. Environment variables for proxies are not looked at: they seldom mean the cluster.

    Raises:
        ConfigError: there is no such file, it is not a kubeconfig, or nothing names a cluster.
    """
    where = kubeconfig or place()
    try:
        config = (
            KubeConfig.from_service_account() if where == SERVICE_ACCOUNT else KubeConfig.from_file(where)
        )
        chosen = config.get()
        if chosen is None:
            raise ConfigError(where, "names no current context; choose one with kubectl config use-context")
        if chosen.user is None:
            chosen = chosen._replace(user=User())
        parameters = ConnectionParams(timeout=httpx2.Timeout(TIMEOUT_S), trust_env=False)
        given = parameters.httpx_params(chosen)
        if chosen.user is not None and chosen.user.exec and not (chosen.user.token or chosen.user.token_file):
            given["auth"] = _exec_credentials(where, chosen, given["verify"])
        return httpx2.Client(**given)
    except LibraryConfigError as error:
        raise ConfigError(
            where, f"{_lower(error)}; give --kubeconfig FILE, or run in a pod of the cluster"
        ) from None
    except OSError as error:
        raise ConfigError(where, f"cannot be used: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise ConfigError(where, f"is no kubeconfig file{_why(error)}; {EXPECTED}") from None


def _why(error: Exception) -> str:
    """What can be told of an error of the library; its own words are for its developers."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f": line {error.problem_mark.line + 1} is not YAML ({error.problem or error.context})"
    if isinstance(error, UnicodeDecodeError):
        return f": not UTF-8 text at byte {error.start}"
    return f": it has no {error.args[0]}" if isinstance(error, KeyError) and error.args else ""


def _exec_credentials(where: str, chosen: SingleConfig, tls: ssl.SSLContext) -> ExecCredentials:
    """Of the chosen user; the entries are read again, for the library keeps only a part of them."""
    config = yaml.safe_load(Path(where).expanduser().read_text())
    user, cluster = (
        next(row[part] for row in config[f"{part}s"] if row["name"] == name)
        for part, name in (("user", chosen.context.user), ("cluster", chosen.context.cluster))
    )
    return ExecCredentials(where, user["exec"], cluster, tls)


def place() -> str:
    """The pod's service account where there is one, else the kubeconfig that the environment names."""
    if os.environ.get("KUBERNETES_SERVICE_HOST") and Path(SERVICE_ACCOUNT, "token").exists():
        return SERVICE_ACCOUNT
    return os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG


def _lower(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]
