"""Programs that a kubeconfig names for credentials: what they are told, what they hand out, when they are run again."""

import json
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_plugin.kube.api_client import NODES, KubeClient
from nri_plugin.kube.credentials import ExecCredentials
from nri_plugin.model.errors import ConfigError, KubeAPIError
from tests.kube_api_server import KubeAPI

V1 = "client.authentication.k8s.io/v1"

PROGRAM = """#!{python}
import json, os, sys
from pathlib import Path
folder = Path(__file__).parent
(folder / "runs").open("a").write("x")
(folder / "told").write_text(json.dumps([sys.argv[1:], os.environ["KUBERNETES_EXEC_INFO"], os.environ.get("REGION")]))
answer = json.loads((folder / "answer").read_text())
sys.stdout.write(answer["stdout"])
sys.stderr.write(answer["stderr"])
sys.exit(answer["status"])
"""


class Plugin:
    """A program in a folder, which says what it is told to say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "login"
        self.path.write_text(PROGRAM.format(python=sys.executable))
        self.path.chmod(0o755)
        self.hands_out(token="secret")

    def prints(self, stdout: str, stderr: str = "", status: int = 0) -> None:
        answer = {"stdout": stdout, "stderr": stderr, "status": status}
        (self.folder / "answer").write_text(json.dumps(answer))

    def hands_out(self, version: str = V1, **status: str) -> None:
        self.prints(json.dumps({"kind": "ExecCredential", "apiVersion": version, "status": status}))

    @property
    def runs(self) -> int:
        path = self.folder / "runs"
        return len(path.read_text()) if path.exists() else 0

    @property
    def told(self) -> list[Any]:
        return json.loads((self.folder / "told").read_text())


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


@pytest.fixture
def api(api: KubeAPI) -> KubeAPI:
    api.behaviour.token = "secret"
    return api


def kubeconfig(api: KubeAPI, plugin: Plugin, cluster: dict[str, Any] | None = None, **spec: Any) -> str:
    path = api.kubeconfig(plugin.folder)
    config = yaml.safe_load(path.read_text())
    given = {"apiVersion": V1, "command": "./login", "interactiveMode": "IfAvailable"} | spec
    config["users"][0]["user"] = {"exec": given}
    config["clusters"][0]["cluster"] |= cluster or {}
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
def test_a_token_of_every_version_is_sent(api: KubeAPI, plugin: Plugin, version: str) -> None:
    name = f"client.authentication.k8s.io/{version}"
    plugin.hands_out(name, token="secret")
    client = KubeClient.connected(kubeconfig(api, plugin, apiVersion=name))
    assert client.list(NODES)[0] == []
    assert client.list(NODES)[0] == []
    assert plugin.runs == 1
    client.close()


def test_the_program_is_told_its_arguments_its_environment_and_the_version(
    api: KubeAPI, plugin: Plugin
) -> None:
    spec = {"args": ["get-token", "--cluster"], "env": [{"name": "REGION", "value": "north"}]}
    client = KubeClient.connected(kubeconfig(api, plugin, **spec))
    client.list(NODES)
    arguments, info, region = plugin.told
    assert (arguments, region) == (["get-token", "--cluster"], "north")
    assert json.loads(info) == {"kind": "ExecCredential", "apiVersion": V1, "spec": {"interactive": False}}
    client.close()


def test_a_program_that_wants_to_know_is_told_the_cluster(api: KubeAPI, plugin: Plugin) -> None:
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    cluster = {"insecure-skip-tls-verify": True, "extensions": [extension]}
    client = KubeClient.connected(kubeconfig(api, plugin, cluster, provideClusterInfo=True))
    client.list(NODES)
    assert json.loads(plugin.told[1])["spec"]["cluster"] == {
        "server": api.url,
        "insecure-skip-tls-verify": True,
        "config": {"audience": "a"},
    }
    client.close()


def test_credentials_that_the_server_does_not_take_any_more_are_renewed(api: KubeAPI, plugin: Plugin) -> None:
    client = KubeClient.connected(kubeconfig(api, plugin))
    client.list(NODES)
    plugin.hands_out(token="new")
    api.behaviour.token = "new"
    client.list(NODES)
    assert plugin.runs == 2
    api.behaviour.token = "another"
    with pytest.raises(KubeAPIError) as caught:
        client.list(NODES)
    assert (caught.value.status, plugin.runs) == (401, 3)
    client.close()


def test_credentials_that_expire_are_renewed_before_they_are_refused(api: KubeAPI, plugin: Plugin) -> None:
    plugin.hands_out(token="secret", expirationTimestamp="2001-01-01T00:00:00Z")
    client = KubeClient.connected(kubeconfig(api, plugin))
    client.list(NODES)
    client.list(NODES)
    assert plugin.runs == 2
    assert all(asked.token == "secret" for asked in api.asked)
    client.close()


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl: apt install openssl")
def test_a_client_certificate_is_put_into_the_connection(api: KubeAPI, plugin: Plugin) -> None:
    api.behaviour.token = ""
    key, made = (plugin.folder / name for name in ("key.pem", "made.pem"))
    words = [
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(key),
        "-out",
        str(made),
        "-subj",
        "/CN=exporter",
    ]
    subprocess.run(["openssl", "req", *words], check=True, capture_output=True)
    plugin.hands_out(clientCertificateData=made.read_text(), clientKeyData=key.read_text())
    client = KubeClient.connected(kubeconfig(api, plugin))
    client.list(NODES)
    assert [asked.token for asked in api.asked] == [""]
    client.close()


def status_of(**status: object) -> str:
    return json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": status})


@pytest.mark.parametrize(
    ("stdout", "words"),
    [
        ("no json", "does not print JSON"),
        ("[]", "does not print an ExecCredential"),
        (
            '{"kind": "ExecCredential", "apiVersion": "x"}',
            f"of x, and the kubeconfig requires {V1}; write the program",
        ),
        (f'{{"kind": "ExecCredential", "apiVersion": "{V1}"}}', "without a status"),
        (
            f'{{"kind": "ExecCredential", "apiVersion": "{V1}", "status": {{}}}}',
            "neither a token nor a client",
        ),
        ("[" * 100_000, "does not print JSON"),
        (status_of(token=["a"]), "not plain text"),
        (status_of(token={"a": "b"}), "not plain text"),
        (status_of(token="caf\u00e9"), "not plain text"),
        (status_of(token="a\r\nb: c"), "a token with line breaks"),
        (status_of(clientCertificateData="\ud800", clientKeyData="k"), "not plain text"),
        (status_of(clientCertificateData="c", clientKeyData=5), "not plain text"),
        (status_of(token="a", expirationTimestamp="soon"), "not a time"),
        (status_of(token="a", expirationTimestamp=["x" * 9000]), "not a time"),
    ],
)
def test_a_program_that_hands_out_nothing_usable_is_named(
    api: KubeAPI, plugin: Plugin, stdout: str, words: str
) -> None:
    plugin.prints(stdout)
    client = KubeClient.connected(kubeconfig(api, plugin))
    with pytest.raises(KubeAPIError, match=words) as caught:
        client.list(NODES)
    assert "/login" in str(caught.value)
    assert caught.value.status == 0
    client.close()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"clientCertificateData": "x"}, "only one of clientCertificateData and clientKeyData"),
        ({"clientCertificateData": "x", "clientKeyData": "y"}, "a client certificate that cannot be used"),
        (
            {"token": "secret", "expirationTimestamp": "soon"},
            "an expirationTimestamp that is not a time: soon",
        ),
    ],
)
def test_a_wrong_part_of_the_credentials_is_named(
    api: KubeAPI, plugin: Plugin, status: dict[str, str], words: str
) -> None:
    plugin.hands_out(**status)
    client = KubeClient.connected(kubeconfig(api, plugin))
    with pytest.raises(KubeAPIError, match=words):
        client.list(NODES)
    client.close()


def test_a_program_that_fails_says_why(api: KubeAPI, plugin: Plugin) -> None:
    plugin.prints("", "please log in\nfirst\n" + "x" * 5000, status=3)
    client = KubeClient.connected(kubeconfig(api, plugin))
    with pytest.raises(KubeAPIError, match="ended with 3: please log in first xxx") as caught:
        client.list(NODES)
    assert len(str(caught.value)) < 1000
    plugin.hands_out(token="secret")
    assert client.list(NODES)[0] == []
    client.close()


def test_a_program_that_is_not_there_is_named_with_the_hint(api: KubeAPI, plugin: Plugin) -> None:
    spec = {"command": "./nowhere", "installHint": "install the cloud's tools"}
    client = KubeClient.connected(kubeconfig(api, plugin, **spec))
    with pytest.raises(
        KubeAPIError, match="nowhere cannot be run: No such file or directory; install the cloud's"
    ):
        client.list(NODES)
    client.close()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"apiVersion": "client.authentication.k8s.io/v9"},
            "v9 is not supported, only .*v1beta1.*; update the program",
        ),
        ({"apiVersion": ""}, "missing is not supported"),
        ({"interactiveMode": "Always"}, "wants a terminal .*; use a service account's token"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused_with_the_way_out(
    api: KubeAPI, plugin: Plugin, spec: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        KubeClient.connected(kubeconfig(api, plugin, **spec))
    assert plugin.runs == 0


def test_an_authority_in_a_file_is_told_as_data(plugin: Plugin) -> None:
    (plugin.folder / "ca.crt").write_text("authority")
    spec = {"apiVersion": V1, "command": str(plugin.path), "provideClusterInfo": True}
    cluster = {"server": "https://x", "certificate-authority": "ca.crt"}
    where = str(plugin.folder / "kubeconfig")
    made = ExecCredentials(where, spec, cluster, ssl.create_default_context())
    made._renew()
    told = json.loads(plugin.told[1])["spec"]["cluster"]
    assert told == {"server": "https://x", "certificate-authority-data": "YXV0aG9yaXR5", "config": None}
