"""When something is written to the cluster, and when not."""

from collections.abc import Iterator

import pytest

from nri_plugin.errors import KubeAPIError
from nri_plugin.kube.api_client import KubeClient
from nri_plugin.kube.backoff import Backoff
from nri_plugin.kube.publisher import Publisher, owners_of
from nri_plugin.kube.resources import NODE_RESOURCE_TOPOLOGIES as NRTS
from tests.kube_api_exchanges import crd
from tests.kube_api_server import KubeAPI

OURS = ("zones", "attributes")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def api() -> Iterator[KubeAPI]:
    server = KubeAPI([crd()])
    yield server
    server.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(api: KubeAPI, tmp_path) -> Iterator[KubeClient]:
    connected = KubeClient.connected(str(api.kubeconfig(tmp_path)))
    yield connected
    connected.close()


@pytest.fixture
def publisher(client: KubeClient, clock: Clock) -> Publisher:
    return Publisher(client, NRTS, "us", clock, backoff=Backoff(draw=lambda: 1.0))


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
    publisher.noticed(None, OURS)
    assert publisher.due_s() is not None


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


def test_only_conflicts_name_owners() -> None:
    assert owners_of(KubeAPIError("GET x", "gone", status=410)) == ""
