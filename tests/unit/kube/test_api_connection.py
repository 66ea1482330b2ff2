"""Which cluster is talked to, and as whom."""

import ssl
from pathlib import Path

import pytest

from nri_plugin.kube import credentials
from nri_plugin.kube.api_client import NODES, KubeClient
from nri_plugin.model.errors import ConfigError, KubeAPIError
from tests.kube_api_server import KubeAPI


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_the_token_of_the_kubeconfig_is_sent(tmp_path: Path) -> None:
    api = KubeAPI()
    api.behaviour.token = "secret"
    client = KubeClient.connected(str(api.kubeconfig(tmp_path)))
    assert client.list(NODES) == ([], "100")
    api.behaviour.token = "another"
    with pytest.raises(KubeAPIError, match="Unauthorized") as caught:
        client.list(NODES)
    assert caught.value.status == 401
    client.close()
    api.close()


def test_a_renewed_token_file_is_read_again(tmp_path: Path) -> None:
    api = KubeAPI()
    token = tmp_path / "token"
    token.write_text("first")
    api.behaviour.token = "first"
    path = api.kubeconfig(tmp_path)
    path.write_text(path.read_text().replace("token: first", f"tokenFile: {token}"))
    client = KubeClient.connected(str(path))
    client.list(NODES)
    token.write_text("second")
    api.behaviour.token = "second"
    client.list(NODES)
    assert [asked.token for asked in api.asked] == ["first", "first", "second"]
    client.close()
    api.close()


def test_a_certificate_authority_is_asked_no_more_than_by_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = ssl.create_default_context()
    usual = strict.verify_flags & ~ssl.VERIFY_X509_STRICT
    strict.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 makes it
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: strict)
    api = KubeAPI()
    path = api.kubeconfig(tmp_path)
    path.write_text(path.read_text().replace("server:", "certificate-authority: ca.crt\n    server:"))
    credentials.connect(str(path)).close()
    assert strict.verify_flags == usual
    assert strict.verify_mode is ssl.CERT_REQUIRED
    api.close()


def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("t")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", str(tmp_path))
    assert credentials.place() == str(tmp_path)


def test_the_environment_names_the_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    assert credentials.place() == "~/.kube/config"
    monkeypatch.setenv("KUBECONFIG", "/elsewhere")
    assert credentials.place() == "/elsewhere"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "not found; give --kubeconfig FILE"),
        (
            "a: [",
            r"is not a kubeconfig file \(ParserError .* line 1.*; expected what kubectl config view --raw prints",
        ),
        ("just text", r"is not a kubeconfig file \(AttributeError"),
        ("a: 1", r"is not a kubeconfig file \(KeyError 'clusters'\); expected"),
        ("clusters: 5", r"is not a kubeconfig file"),
        ("clusters: [{name: a, cluster: 5}]", r"is not a kubeconfig file \(ValidationError"),
        ("clusters: []\ncontexts: []", "no current context set"),
        ("clusters: []\ncontexts: []\ncurrent-context: x", "context 'x' not found"),
    ],
)
def test_a_file_that_names_no_cluster_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        KubeClient.connected(str(path))
