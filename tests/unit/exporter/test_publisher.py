"""When something is written to the cluster, and when not."""

from typing import Any

import pytest

from nri_plugin.exporter.publication import Publisher, owners_of
from nri_plugin.kube.api_client import NODE_RESOURCE_TOPOLOGIES as NRTS
from nri_plugin.kube.api_client import KubeClient
from nri_plugin.kube.watch import WatchBackoff
from nri_plugin.model.errors import KubeAPIError
from tests.kube_api_server import KubeAPI

OURS = ("zones", "attributes")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def publisher(client: KubeClient, clock: Clock) -> Publisher:
    return Publisher(client, NRTS, "us", clock, backoff=WatchBackoff(draw=lambda: 1.0))


def topology(zones: int = 0) -> dict:
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "n1"},
        "zones": [{"name": f"node-{number}", "type": "Node"} for number in range(zones)],
    }


def writes(api: KubeAPI) -> int:
    return sum(asked.method == "PATCH" for asked in api.asked)


def test_nothing_is_due_before_something_is_wanted(publisher: Publisher) -> None:
    assert publisher.due_s() is None


def test_equal_content_is_never_sent_again(publisher: Publisher, api: KubeAPI, clock: Clock) -> None:
    publisher.want(topology(2))
    publisher.publish()
    clock.now += 60
    publisher.want(topology(2))
    assert publisher.due_s() is None
    assert writes(api) == 1


def test_changes_wait_for_the_pause_and_only_the_last_is_sent(
    publisher: Publisher, api: KubeAPI, clock: Clock
) -> None:
    publisher.want(topology(1))
    assert publisher.due_s() == 0.0
    publisher.publish()
    publisher.want(topology(2))
    assert publisher.due_s() == 1.0
    publisher.want(topology(3))
    clock.now += 1.0
    assert publisher.due_s() == 0.0
    publisher.publish()
    assert len(api.store.get(api.kinds[-1], (NRTS.group, NRTS.plural, "", "n1"))["zones"]) == 3
    assert writes(api) == 2


def test_what_goes_back_in_time_is_not_sent(publisher: Publisher, clock: Clock) -> None:
    publisher.want(topology(1))
    publisher.publish()
    publisher.want(topology(2))
    publisher.want(topology(1))
    assert publisher.due_s() is None


def test_a_failure_is_tried_again_after_a_pause_that_grows(
    publisher: Publisher, api: KubeAPI, clock: Clock
) -> None:
    publisher.want(topology())
    api.behaviour.fail_next += [(500, {}), (503, {}), (429, {"Retry-After": "17"})]
    pauses = []
    for _ in range(3):
        with pytest.raises(KubeAPIError):
            publisher.publish()
        due_s = publisher.due_s()
        assert due_s is not None
        pauses.append(due_s)
        clock.now += due_s
    assert pauses == [1.0, 2.0, 17.0]
    publisher.publish()
    assert (publisher.writes, publisher.failures) == (1, 3)


def test_another_exporter_is_named_and_its_object_left_alone(
    publisher: Publisher, client: KubeClient
) -> None:
    client.apply(NRTS, topology(5), "them", force=False)
    publisher.want(topology(1))
    with pytest.raises(KubeAPIError) as caught:
        publisher.publish()
    assert owners_of(caught.value) == "them"
    assert len(client.get(NRTS, "n1")["zones"]) == 5


def test_one_who_writes_without_applying_is_named_too(publisher: Publisher, client: KubeClient) -> None:
    client.create(NRTS, topology(5))
    publisher.want(topology(1))
    with pytest.raises(KubeAPIError) as caught:
        publisher.publish()
    assert owners_of(caught.value) == "python-httpx2"


def test_taking_over_makes_the_object_ours(client: KubeClient, clock: Clock) -> None:
    client.apply(NRTS, topology(5), "them", force=False)
    publisher = Publisher(client, NRTS, "us", clock, take_over=True)
    publisher.want(topology(1))
    publisher.publish()
    assert len(client.get(NRTS, "n1")["zones"]) == 1


def test_what_others_change_or_delete_is_due_again(client: KubeClient, clock: Clock) -> None:
    publisher = Publisher(client, NRTS, "us", clock, take_over=True)
    publisher.want(topology(1))
    publisher.publish()
    theirs = client.merge_patch(NRTS, "n1", {"zones": []})
    publisher.noticed(theirs, OURS)
    assert publisher.due_s() is not None
    publisher.publish()
    publisher.noticed({}, OURS, is_gone=True)
    assert publisher.due_s() is not None


def test_one_foreign_edit_does_not_freeze_the_object(publisher: Publisher, client: KubeClient) -> None:
    publisher.want(topology(1))
    publisher.publish()
    client.merge_patch(NRTS, "n1", {"zones": []})
    publisher.want(topology(2))
    publisher.publish()
    assert publisher.taken_back_from == "python-httpx2"
    found = client.get(NRTS, "n1")
    assert len(found["zones"]) == 2
    assert [entry["manager"] for entry in found["metadata"]["managedFields"]] == ["us"]
    publisher.want(topology(3))
    publisher.publish()
    assert publisher.taken_back_from == ""


def test_an_edit_is_put_right_after_a_restart_too(client: KubeClient, clock: Clock) -> None:
    first = topology(1) | {"attributes": [{"name": "a", "value": "1"}]}
    client.apply(NRTS, first, "us", force=False)
    client.merge_patch(NRTS, "n1", {"zones": []})
    restarted = Publisher(client, NRTS, "us", clock)
    restarted.want(first)
    restarted.publish()
    assert len(client.get(NRTS, "n1")["zones"]) == 1


def test_an_object_whose_every_field_was_changed_is_still_ours(
    publisher: Publisher, client: KubeClient
) -> None:
    publisher.want(topology(1))
    publisher.publish()
    client.merge_patch(NRTS, "n1", {"zones": []})
    assert [row["manager"] for row in client.get(NRTS, "n1")["metadata"]["managedFields"]] == [
        "python-httpx2"
    ]
    publisher.want(topology(2))
    publisher.publish()
    assert len(client.get(NRTS, "n1")["zones"]) == 2


def test_an_object_that_another_exporter_made_anew_is_left_alone(
    publisher: Publisher, client: KubeClient
) -> None:
    publisher.want(topology(1))
    publisher.publish()
    client.send("DELETE", NRTS.path("n1"))
    client.apply(NRTS, topology(5), "them", force=False)
    publisher.want(topology(2))
    with pytest.raises(KubeAPIError) as caught:
        publisher.publish()
    assert owners_of(caught.value) == "them"
    assert len(client.get(NRTS, "n1")["zones"]) == 5


def test_a_write_that_comes_between_is_not_overwritten_unseen(
    publisher: Publisher, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.want(topology(1))
    publisher.publish()
    client.merge_patch(NRTS, "n1", {"zones": []})
    look = client.get

    def look_and_lose_the_race(*arguments: Any) -> Any:
        found = look(*arguments)
        client.merge_patch(NRTS, "n1", {"zones": topology(4)["zones"]})
        return found

    monkeypatch.setattr(client, "get", look_and_lose_the_race)
    publisher.want(topology(2))
    with pytest.raises(KubeAPIError) as caught:
        publisher.publish()
    assert caught.value.status == 409
    monkeypatch.undo()
    publisher.publish()
    assert len(client.get(NRTS, "n1")["zones"]) == 2


def test_a_foreign_change_of_the_owners_is_due_again(publisher: Publisher, client: KubeClient) -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"}
    wanted = topology(1)
    wanted["metadata"]["ownerReferences"] = [owner]
    publisher.want(wanted)
    publisher.publish()
    assert publisher.noticed(client.merge_patch(NRTS, "n1", {"metadata": {"ownerReferences": []}}), OURS)
    publisher.publish()
    assert client.get(NRTS, "n1")["metadata"]["ownerReferences"] == [owner]


def test_who_deletes_again_and_again_is_answered_ever_later_but_news_is_not_late(
    publisher: Publisher, client: KubeClient, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_contest", WatchBackoff(draw=lambda: 1.0))
    publisher.want(topology(1))
    publisher.publish()
    pauses = []
    for _ in range(9):
        clock.now += 5.0
        client.send("DELETE", NRTS.path("n1"))
        assert publisher.noticed({}, OURS, is_gone=True)
        due_s = publisher.due_s()
        assert due_s is not None
        pauses.append(due_s)
        clock.now += due_s
        publisher.publish()
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    clock.now += 5.0
    publisher.noticed({}, OURS, is_gone=True)
    publisher.want(topology(2))
    assert publisher.due_s() == 0.0
    publisher.publish()
    clock.now += 200.0
    publisher.noticed({}, OURS, is_gone=True)
    assert publisher.due_s() == 0.0


def test_our_own_writes_seen_late_are_passed_over(
    publisher: Publisher, client: KubeClient, clock: Clock
) -> None:
    publisher.want(topology(1))
    publisher.publish()
    first = client.get(NRTS, "n1")
    publisher.want(topology(2))
    publisher.publish()
    for seen in (first, client.get(NRTS, "n1")):
        publisher.noticed(seen, OURS)
    assert publisher.due_s() is None


def test_a_list_made_before_the_first_write_takes_nothing_away(
    publisher: Publisher, client: KubeClient
) -> None:
    _, before = client.list(NRTS)
    publisher.want(topology(1))
    publisher.publish()
    assert not publisher.noticed({"metadata": {"resourceVersion": before}}, OURS, is_gone=True)
    client.send("DELETE", NRTS.path("n1"))
    _, after = client.list(NRTS)
    assert publisher.noticed({"metadata": {"resourceVersion": after}}, OURS, is_gone=True)


def test_only_conflicts_name_owners() -> None:
    assert owners_of(KubeAPIError("GET x", "gone", status=410)) == ""
