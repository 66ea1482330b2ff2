"""Where the Kubernetes API is and who we are there: the pod's service account, or a kubeconfig file.

The only module that knows how a cluster is reached: certificates, tokens that are renewed in their files, programs
that hand out tokens.
"""

import os
from pathlib import Path

import httpx2
import yaml
from lightkube.config.client_adapter import Client, ConnectionParams
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, SERVICE_ACCOUNT, KubeConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError as LibraryConfigError

from nri_plugin.errors import ConfigError

TIMEOUT_S = 10.0
"""An API server that has not begun to answer by then is asked again later."""

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
        return Client(chosen, ConnectionParams(timeout=httpx2.Timeout(TIMEOUT_S), trust_env=False))
    except LibraryConfigError as error:
        raise ConfigError(
            where, f"{_lower(error)}; give --kubeconfig FILE, or run in a pod of the cluster"
        ) from None
    except OSError as error:
        raise ConfigError(where, f"cannot be used: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise ConfigError(where, f"is no kubeconfig file: {type(error).__name__}: {error}") from None


def place() -> str:
    """The pod's service account where there is one, else the kubeconfig that the environment names."""
    if os.environ.get("KUBERNETES_SERVICE_HOST") and Path(SERVICE_ACCOUNT, "token").exists():
        return SERVICE_ACCOUNT
    return os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG


def _lower(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]
