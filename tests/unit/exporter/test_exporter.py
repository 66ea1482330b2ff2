"""The exporter between an agent's socket and an API server, both real as far as it can tell."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.agent.observing.status_client import AgentStatus, read_status
from nri_plugin.agent.observing.status_socket import StatusFeed, StatusSocket
from nri_plugin.exporter.exporter import Exporter, ExportOptions, _OwnObject
from nri_plugin.exporter.publication import DeviceCount, Devices
from nri_plugin.kube.api_client import NODE_RESOURCE_TOPOLOGIES as NRTS
from nri_plugin.kube.api_client import NODES, KubeClient
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import machine
from tests.kube_api_server import KubeAPI

PATIENCE_S = 30.0
LOG = logging.getLogger("exporter under test")


class Agent:
    """An agent as far as its socket shows it."""

    def __init__(self, folder: Path) -> None:
        self.node = Node(machine(), Options(), CPUSet.parse("0"))
        self.state = State()
        self.feed = StatusFeed()
        self.path = folder / "agent.sock"
        self.socket = StatusSocket(self.path, lambda: (self.node, self.state), self.feed)

    def close(self) -> None:
        if self.path.exists():
            self.socket.close()

    def promises(self, cpus: str) -> None:
        self.state = State(allocations={"u/app": Allocation(CPUSet.parse(cpus))})
        self.feed.wake()


@pytest.fixture
def api(api: KubeAPI) -> KubeAPI:
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {}})
    return api


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.close()


@pytest.fixture
def exporter(client: KubeClient, tmp_path: Path) -> Exporter:
    return Exporter(ExportOptions("n1", str(tmp_path / "agent.sock"), pause_s=0.0), client, LOG)


@pytest.fixture
def running(api: KubeAPI, agent: Agent, exporter: Exporter) -> Iterator[Exporter]:
    thread = threading.Thread(target=exporter.run)
    thread.start()
    yield exporter
    exporter.stop()
    thread.join(PATIENCE_S)
    agent.close()
    api.end_watches()
    for one in (thread, *exporter.threads):
        one.join(PATIENCE_S)
        assert not one.is_alive()


def stored(api: KubeAPI) -> dict[str, Any]:
    return api.store.objects.get((NRTS.group, NRTS.plural, "", "n1"), {})


def available(obj: dict[str, Any]) -> list[str]:
    return [zone["resources"][0]["available"] for zone in obj.get("zones", ())]


def wait_for(api: KubeAPI, figures: list[str]) -> None:
    with api.store.changed:
        assert api.store.changed.wait_for(lambda: available(stored(api)) == figures, PATIENCE_S), stored(api)


def test_promises_are_published_as_they_are_made(running: Exporter, api: KubeAPI, agent: Agent) -> None:
    wait_for(api, ["7", "8"])
    agent.promises("2-5,8")
    wait_for(api, ["3", "7"])


def test_the_node_owns_the_object(running: Exporter, api: KubeAPI) -> None:
    wait_for(api, ["7", "8"])
    (owner,) = stored(api)["metadata"]["ownerReferences"]
    uid = api.store.objects["", "nodes", "", "n1"]["metadata"]["uid"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid}


def test_an_object_that_somebody_deletes_is_made_again(
    running: Exporter, api: KubeAPI, tmp_path: Path
) -> None:
    wait_for(api, ["7", "8"])
    api.wait_for_watches(1)
    other = KubeClient.connected(str(api.kubeconfig(tmp_path)))
    other.send("DELETE", NRTS.path("n1"))
    wait_for(api, ["7", "8"])
    other.close()


def owner_uids(api: KubeAPI) -> list[str]:
    return [row["uid"] for row in stored(api).get("metadata", {}).get("ownerReferences", ())]


def test_a_node_that_is_registered_again_owns_the_object_again(
    running: Exporter, api: KubeAPI, client: KubeClient
) -> None:
    wait_for(api, ["7", "8"])
    api.wait_for_watches(1)
    client.send("DELETE", NODES.path("n1"))
    client.send("DELETE", NRTS.path("n1"))  # as the garbage collector does
    uid = api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {}})["metadata"][
        "uid"
    ]
    with api.store.changed:
        assert api.store.changed.wait_for(lambda: owner_uids(api) == [uid], PATIENCE_S), stored(api)


def test_a_list_that_was_made_before_the_first_write_is_no_deletion(
    exporter: Exporter, api: KubeAPI, caplog: pytest.LogCaptureFixture
) -> None:
    sink = _OwnObject(exporter)
    before = str(api.store.version)
    sink.version = lambda: before
    told = AgentStatus(Node(machine(), Options(), CPUSet.parse("0")), State())
    exporter.tell(told)
    exporter.step(told)
    sink.listed([])
    exporter.step(exporter._wait())
    assert not exporter.owner.is_missing
    assert "the object was deleted" not in caplog.messages
    sink.version = lambda: str(api.store.version + 1)
    sink.listed([])
    exporter._wait()
    assert exporter.owner.is_missing
    assert "the object was deleted" in caplog.messages


def test_nothing_is_published_while_the_node_is_gone(
    exporter: Exporter, api: KubeAPI, client: KubeClient
) -> None:
    told = AgentStatus(Node(machine(), Options(), CPUSet.parse("0")), State())
    exporter.tell(told)
    exporter.step(told)
    assert stored(api)
    client.send("DELETE", NODES.path("n1"))
    client.send("DELETE", NRTS.path("n1"))
    exporter.seen({}, is_gone=True)
    exporter.step(exporter._wait())
    exporter.step(None)
    assert stored(api) == {}
    assert exporter.publisher.writes == 1


def test_an_owner_that_was_not_known_at_first_is_added_later(api: KubeAPI, client: KubeClient) -> None:
    told = AgentStatus(Node(machine(), Options(), CPUSet.parse("0")), State())
    now = [0.0]
    exporter = Exporter(ExportOptions("n1", "", pause_s=0.0), client, LOG, lambda: now[0])
    api.behaviour.fail_next.append((429, {"Retry-After": "5"}))
    exporter.tell(told)
    exporter.step(told)
    assert (available(stored(api)), owner_uids(api)) == (["7", "8"], [])
    assert exporter._patience_s() == 5.0
    now[0] += 5.0
    exporter.step(None)
    assert len(owner_uids(api)) == 1


def test_a_foreign_edit_is_put_right_and_said(
    running: Exporter, api: KubeAPI, client: KubeClient, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    wait_for(api, ["7", "8"])
    api.wait_for_watches(1)
    client.merge_patch(NRTS, "n1", {"zones": []})
    wait_for(api, ["7", "8"])
    agent.promises("2-5,8")
    wait_for(api, ["3", "7"])
    said = "another manager changed the object, restored"
    assert [record.message for record in caplog.records].count(said) == 1


def test_a_status_without_news_is_not_sent(api: KubeAPI, agent: Agent, exporter: Exporter) -> None:
    for _ in range(3):
        exporter.step(read_status(str(agent.path)))
    assert sum(asked.method == "PATCH" for asked in api.asked) == 1


@pytest.mark.parametrize(
    ("trouble", "advice"),
    [
        ("no kind", r"does not know NodeResourceTopology yet; kubectl apply -f deploy/crd\.yaml"),
        ("forbidden", r"kubectl apply -f deploy/export-rbac\.yaml"),
        ("other exporter", "them already publishes the NodeResourceTopology of n1; .* --take-over"),
    ],
)
def test_what_stands_in_the_way_is_said_with_what_to_do(
    api: KubeAPI, agent: Agent, exporter: Exporter, client: KubeClient, trouble: str, advice: str
) -> None:
    status = read_status(str(agent.path))
    theirs = exporter.object_of(status) | {"zones": []}
    if trouble == "no kind":
        api.kinds.pop()
    elif trouble == "forbidden":
        api.behaviour.fail_next.append((403, {}))
    else:
        client.apply(NRTS, theirs, "them", force=True)
    with pytest.raises(NriPinError, match=advice):
        exporter.publish_once(status)


def test_devices_that_come_without_a_word_of_the_agent_are_published(
    api: KubeAPI, agent: Agent, client: KubeClient
) -> None:
    known = [Devices(), Devices((DeviceCount(0, "v/gpu", 2, 2),))]
    options = ExportOptions("n1", str(agent.path), pause_s=0.0)
    exporter = Exporter(options, client, LOG, devices=lambda: known.pop(0))
    exporter.tell(read_status(str(agent.path)))
    exporter.step(None)
    assert len(stored(api)["zones"][0]["resources"]) == 2
    exporter.step(None)
    assert stored(api)["zones"][0]["resources"][2]["name"] == "v/gpu"


def test_an_agent_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no such file or directory; is the agent running"):
        read_status(str(tmp_path / "agent.sock"))


def test_what_the_agent_says_is_read_once(agent: Agent) -> None:
    agent.promises("3")
    assert isinstance(read_status(str(agent.path)), AgentStatus)
    assert read_status(str(agent.path)).state == agent.state


def test_nothing_is_published_of_an_agent_that_only_observes(
    exporter: Exporter, api: KubeAPI, caplog: pytest.LogCaptureFixture
) -> None:
    told = AgentStatus(Node(machine(), Options(), CPUSet.parse("0")), State(), observing=True)
    caplog.set_level(logging.WARNING, LOG.name)
    for _ in range(2):
        exporter.tell(told)
        exporter.step(told)
    exporter.step(None)
    assert stored(api) == {}
    assert exporter.view() is None
    assert exporter.publisher.due_s() is None
    assert sum("the agent only observes" in text for text in caplog.messages) == 1
    with pytest.raises(NriPinError, match="the agent only observes, there is nothing to publish"):
        exporter.publish_once(told)
