"""A played API server, and a client of it, for all tests that talk to Kubernetes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.kube.api_client import KubeClient
from tests.kube_api_exchanges import crd
from tests.kube_api_server import KubeAPI


@pytest.fixture
def api() -> Iterator[KubeAPI]:
    server = KubeAPI([crd()])
    yield server
    server.close()


@pytest.fixture
def client(api: KubeAPI, tmp_path: Path) -> Iterator[KubeClient]:
    connected = KubeClient.connected(str(api.kubeconfig(tmp_path)))
    yield connected
    connected.close()
