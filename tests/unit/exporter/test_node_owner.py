"""The Node's uid as owner: read when the object vanishes, again after failures, and now and then."""

import logging

import pytest

from nri_plugin.exporter.publication import AGAIN_S, NodeOwner
from nri_plugin.kube.api_client import NODES, KubeClient
from tests.kube_api_server import KubeAPI

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {}}


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def owner(client: KubeClient, clock: Clock) -> NodeOwner:
    return NodeOwner(client, "n1", logging.getLogger("owner under test"), clock)


def looks(api: KubeAPI) -> int:
    return len(api.asked)


def uid_of(owner: NodeOwner) -> str:
    return owner.reference["uid"] if owner.reference else ""


def when_due(owner: NodeOwner, clock: Clock) -> float:
    """Look at the time that the owner names; how long that was."""
    due_s = owner.due_s()
    clock.now += due_s
    owner.look()
    return due_s


def test_the_uid_is_read_once_and_again_after_a_while(owner: NodeOwner, api: KubeAPI, clock: Clock) -> None:
    uid = api.put(NODE)["metadata"]["uid"]
    for _ in range(3):
        owner.look()
    assert owner.reference == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid}
    assert looks(api) == 1
    assert when_due(owner, clock) == AGAIN_S
    assert (looks(api), uid_of(owner)) == (2, uid)


@pytest.mark.parametrize("status", [403, 404, 429, 500])
def test_any_failure_at_the_first_look_is_tried_again_later(
    owner: NodeOwner, api: KubeAPI, clock: Clock, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    api.behaviour.fail_next += [(status, {})] * 4
    owner.look()
    assert (owner.reference, owner.is_missing) == (None, False)
    pauses = [when_due(owner, clock) for _ in range(3)]
    assert all(pauses[i] < 2.0 ** (i + 1) for i in range(3))
    assert pauses[2] >= 2.0
    assert [record.message for record in caplog.records] == [
        "the object has no owner and will outlive its node, unless the node is found later"
    ]
    uid = api.put(NODE)["metadata"]["uid"]
    when_due(owner, clock)
    assert uid_of(owner) == uid


def test_the_server_says_when_to_come_back(owner: NodeOwner, api: KubeAPI) -> None:
    api.behaviour.fail_next.append((429, {"Retry-After": "17"}))
    owner.look()
    assert owner.due_s() == 17.0


def test_a_node_that_was_registered_again_has_its_new_uid_when_the_object_vanishes(
    owner: NodeOwner, api: KubeAPI, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    former = api.put(NODE)["metadata"]["uid"]
    owner.look()
    client.send("DELETE", NODES.path("n1"))
    uid = api.put(NODE)["metadata"]["uid"]
    owner.doubt()
    assert (owner.is_missing, uid_of(owner)) == (True, "")
    owner.look()
    assert (owner.is_missing, uid_of(owner)) == (False, uid)
    assert uid != former
    assert [record.message for record in caplog.records] == [
        "the node was registered again: the object gets its new uid as owner"
    ]


def test_a_missing_node_is_looked_for_until_it_is_back(
    owner: NodeOwner, api: KubeAPI, client: KubeClient, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(NODE)
    owner.look()
    client.send("DELETE", NODES.path("n1"))
    owner.doubt()
    owner.look()
    pauses = [when_due(owner, clock) for _ in range(8)]
    assert max(pauses) <= 10.0
    assert owner.is_missing
    assert [record.message for record in caplog.records] == [
        "nothing is published until the node is found again"
    ]
    uid = api.put(NODE)["metadata"]["uid"]
    when_due(owner, clock)
    assert (owner.is_missing, uid_of(owner)) == (False, uid)


def test_a_node_found_missing_by_the_way_is_no_owner_any_more(
    owner: NodeOwner, api: KubeAPI, client: KubeClient, clock: Clock
) -> None:
    api.put(NODE)
    owner.look()
    client.send("DELETE", NODES.path("n1"))
    when_due(owner, clock)
    assert (owner.is_missing, owner.reference) == (True, None)


def test_a_server_that_fails_now_and_then_takes_no_owner_away(
    owner: NodeOwner, api: KubeAPI, clock: Clock
) -> None:
    uid = api.put(NODE)["metadata"]["uid"]
    owner.look()
    api.behaviour.fail_next.append((500, {}))
    when_due(owner, clock)
    assert (owner.is_missing, uid_of(owner)) == (False, uid)


def test_without_the_right_to_look_the_object_is_published_without_an_owner(
    owner: NodeOwner, api: KubeAPI
) -> None:
    api.put(NODE)
    owner.look()
    owner.doubt()
    api.behaviour.fail_next.append((403, {}))
    owner.look()
    assert (owner.is_missing, owner.reference) == (False, None)
