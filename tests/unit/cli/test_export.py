"""`nri-pin export` as a person uses it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from nri_plugin.agent.observing.status_socket import StatusFeed, StatusSocket
from nri_plugin.cli.export import command, socket_of_a_kubelet
from nri_plugin.kube.api_client import NODE_RESOURCE_TOPOLOGIES as NRTS
from nri_plugin.model.options import Node, Options
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import machine
from tests.kube_api_server import KubeAPI


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[StatusSocket]:
    node, state = Node(machine(nodes=4), Options(), CPUSet.parse("0")), State()
    socket = StatusSocket(tmp_path / "agent.sock", lambda: (node, state), StatusFeed())
    yield socket
    socket.close()


def export(folder: Path, *words: str) -> Result:
    environment = {"NODE_NAME": "worker-1", "KUBECONFIG": None}
    return CliRunner().invoke(command, ["--state-dir", str(folder), *words], env=environment)


@pytest.mark.usefixtures("agent")
def test_the_object_of_a_running_agent_is_printed(tmp_path: Path) -> None:
    result = export(tmp_path, "--print")
    assert (result.exit_code, result.stderr) == (0, "")
    obj = yaml.safe_load(result.stdout)
    assert obj["metadata"]["name"] == "worker-1"
    assert [zone["name"] for zone in obj["zones"]] == ["node-0", "node-1", "node-2", "node-3"]


def test_without_an_agent_this_machine_is_printed_and_said_so(tmp_path: Path) -> None:
    result = export(tmp_path, "--print", "-o", "json")
    assert json.loads(result.stdout)["kind"] == "NodeResourceTopology"
    assert "this is the machine without reservations and allocations" in result.stderr


@pytest.mark.usefixtures("agent")
def test_once_publishes_and_says_so(tmp_path: Path, api: KubeAPI) -> None:
    result = export(tmp_path, "--once", "--kubeconfig", str(api.kubeconfig(tmp_path)))
    assert result.stdout == "published the NodeResourceTopology of worker-1\n", result.stderr
    assert (NRTS.group, NRTS.plural, "", "worker-1") in api.store.objects


@pytest.mark.usefixtures("api")
def test_a_cluster_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    result = export(tmp_path, "--once", "--kubeconfig", str(tmp_path / "missing"))
    assert "missing: configuration file" in str(result.exception)
    assert "give --kubeconfig FILE" in str(result.exception)


def test_a_kubelet_that_is_not_up_yet_is_waited_for_where_its_folder_is(tmp_path: Path) -> None:
    assert socket_of_a_kubelet(str(tmp_path / "kubelet.sock")) == str(tmp_path / "kubelet.sock")
    assert socket_of_a_kubelet(str(tmp_path / "nowhere" / "kubelet.sock")) == ""
    assert socket_of_a_kubelet("") == ""
