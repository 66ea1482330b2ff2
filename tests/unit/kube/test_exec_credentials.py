"""Programs that a kubeconfig names for credentials: what they are given, and when they are run again."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_plugin.kube.api_client import NODES, KubeClient
from nri_plugin.model.errors import ConfigError, KubeAPIError
from tests.kube_api_server import KubeAPI

GROUP = "client.authentication.k8s.io"

PROGRAM = """#!{python}
import json, os, sys
from pathlib import Path
folder = Path(__file__).parent
(folder / "runs").open("a").write("x")
(folder / "given").write_text(json.dumps([sys.argv[1:], os.environ["KUBERNETES_EXEC_INFO"], os.environ.get("REGION")]))
answer = json.loads((folder / "answer").read_text())
sys.stdout.write(answer["stdout"])
sys.stderr.write(answer["stderr"])
sys.exit(answer["status"])
"""


class Plugin:
    """A program in a folder, which prints what it is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "login").write_text(PROGRAM.format(python=sys.executable))
        (folder / "login").chmod(0o755)
        self.prints(credential("secret"))

    def prints(self, stdout: str, stderr: str = "", status: int = 0) -> None:
        answer = {"stdout": stdout, "stderr": stderr, "status": status}
        (self.folder / "answer").write_text(json.dumps(answer))

    @property
    def runs(self) -> int:
        return len((self.folder / "runs").read_text())


def credential(token: object) -> str:
    return json.dumps({"kind": "ExecCredential", "apiVersion": f"{GROUP}/v1", "status": {"token": token}})


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


@pytest.fixture
def api(api: KubeAPI) -> KubeAPI:
    api.behaviour.token = "secret"
    return api


def kubeconfig(api: KubeAPI, plugin: Plugin, **spec: Any) -> str:
    path = api.kubeconfig(plugin.folder)
    config = yaml.safe_load(path.read_text())
    given = {"apiVersion": f"{GROUP}/v1", "command": "./login", "interactiveMode": "IfAvailable"} | spec
    config["users"][0]["user"] = {"exec": given}
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_program_is_run_once_with_its_arguments_its_environment_and_the_version(
    api: KubeAPI, plugin: Plugin, version: str
) -> None:
    name = f"{GROUP}/{version}"
    spec = {"args": ["get-token", "--cluster"], "env": [{"name": "REGION", "value": "north"}]}
    client = KubeClient.connected(kubeconfig(api, plugin, apiVersion=name, **spec))
    assert client.list(NODES)[0] == client.list(NODES)[0] == []
    arguments, info, region = json.loads((plugin.folder / "given").read_text())
    assert (arguments, region, plugin.runs) == (["get-token", "--cluster"], "north", 1)
    assert json.loads(info) == {"kind": "ExecCredential", "apiVersion": name, "spec": {"interactive": False}}
    client.close()


def test_credentials_that_the_server_refuses_are_renewed_once(api: KubeAPI, plugin: Plugin) -> None:
    client = KubeClient.connected(kubeconfig(api, plugin))
    client.list(NODES)
    plugin.prints(credential("new"))
    api.behaviour.token = "new"
    client.list(NODES)
    assert plugin.runs == 2
    api.behaviour.token = "another"
    with pytest.raises(KubeAPIError) as caught:
        client.list(NODES)
    assert (caught.value.status, plugin.runs) == (401, 3)
    client.close()


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "words"),
    [
        ("no json", "", 0, "GET /api"),
        ("[]", "", 0, "GET /api"),
        ("{}", "", 0, "GET /api"),
        ("[" * 100_000, "", 0, "GET /api"),
        (credential(["a"]), "", 0, "GET /api"),
        (credential("caf\u00e9"), "", 0, "GET /api"),
        (credential("a\r\nb: c"), "", 0, "the token is not one line of plain text"),
        ("", "please log in" + "x" * 5000, 3, "returned 3: please log in"),
    ],
)
def test_a_program_that_gives_nothing_usable_is_an_error_until_it_does(
    api: KubeAPI, plugin: Plugin, stdout: str, stderr: str, status: int, words: str
) -> None:
    plugin.prints(stdout, stderr, status)
    client = KubeClient.connected(kubeconfig(api, plugin))
    with pytest.raises(KubeAPIError, match=words) as caught:
        client.list(NODES)
    assert (caught.value.status in (0, 401), len(str(caught.value)) < 1000) == (True, True)
    plugin.prints(credential("secret"))
    assert client.list(NODES)[0] == []
    client.close()


def test_a_program_that_is_missing_is_named(api: KubeAPI, plugin: Plugin) -> None:
    client = KubeClient.connected(kubeconfig(api, plugin, command="./nowhere"))
    with pytest.raises(KubeAPIError, match=r"credentials cannot be read: .*nowhere"):
        client.list(NODES)
    client.close()


@pytest.mark.parametrize("version", [f"{GROUP}/v9", f"{GROUP}/v1alpha1", ""])
def test_an_entry_of_another_version_is_refused_with_the_way_out(
    api: KubeAPI, plugin: Plugin, version: str
) -> None:
    with pytest.raises(ConfigError, match=r"is not supported, only .*v1beta1; use a token"):
        KubeClient.connected(kubeconfig(api, plugin, apiVersion=version))
