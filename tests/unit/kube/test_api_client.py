"""The client against the recorded exchanges and against the tests' API server."""

import pytest

from nri_plugin.kube import api_client
from nri_plugin.kube.api_client import NODE_RESOURCE_TOPOLOGIES as NRTS
from nri_plugin.kube.api_client import PODS, KubeClient
from nri_plugin.model.errors import KubeAPIError
from tests.kube_api_exchanges import exchanges
from tests.kube_api_server import KubeAPI
from tests.vectors.judges.exchanges import judge
from tests.vectors.judges.verdict import Verdict


def topology(name: str, available: str = "16") -> dict:
    resource = {"name": "cpu", "capacity": "16", "allocatable": "16", "available": available}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "zones": [{"name": "node-0", "type": "Node", "resources": [resource]}],
    }


def test_recorded_answers_are_understood() -> None:
    outcomes = list(judge({"cases": exchanges()}))
    assert [one for one in outcomes if one.verdict is not Verdict.PASSED] == []
    assert len(outcomes) == 46


def test_an_applied_object_can_be_read_listed_and_deleted(client: KubeClient) -> None:
    stored = client.apply(NRTS, topology("n1"), "us", force=True)
    assert client.get(NRTS, "n1") == stored
    assert client.list(NRTS) == ([stored], stored["metadata"]["resourceVersion"])
    client.send("DELETE", NRTS.path("n1"))
    with pytest.raises(KubeAPIError, match='"n1" not found') as caught:
        client.get(NRTS, "n1")
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")


def test_fields_of_another_manager_are_taken_by_force_only(client: KubeClient) -> None:
    client.apply(NRTS, topology("n1"), "them", force=True)
    with pytest.raises(KubeAPIError) as caught:
        client.apply(NRTS, topology("n1", "3"), "us", force=False)
    assert caught.value.status == 409
    assert caught.value.causes == ((".zones", 'conflict with "them"'),)
    assert client.apply(NRTS, topology("n1", "3"), "us", force=True)["zones"] == topology("n1", "3")["zones"]


def test_a_list_is_put_together_from_its_pages(
    api: KubeAPI, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_client, "PAGE_ITEMS", 2)
    for number in range(5):
        client.create(NRTS, topology(f"n{number}"))
    items, _ = client.list(NRTS)
    assert [item["metadata"]["name"] for item in items] == ["n0", "n1", "n2", "n3", "n4"]
    assert sum(asked.method == "GET" for asked in api.asked) == 3


def test_a_merge_patch_of_the_status_leaves_the_rest(api: KubeAPI, client: KubeClient) -> None:
    spec = {"nodeName": "n", "containers": [{"name": "app", "image": "i"}]}
    api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    patch = {"status": {"phase": "Failed"}, "spec": {"nodeName": "other"}}
    patched = client.merge_patch(PODS, "p", patch, namespace="default", subresource="status")
    assert (patched["status"], patched["spec"]) == ({"phase": "Failed"}, spec)


def test_a_watch_tells_what_changed_since(api: KubeAPI, client: KubeClient) -> None:
    api.behaviour.ends_watches_at_once = True
    _, version = client.list(NRTS)
    client.apply(NRTS, topology("n1"), "us", force=True)
    client.apply(NRTS, topology("n1", "3"), "us", force=True)
    client.send("DELETE", NRTS.path("n1"))
    events = list(client.watch(NRTS, version))
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]


def test_a_watch_from_a_forgotten_version_is_gone(api: KubeAPI, client: KubeClient) -> None:
    _, version = client.list(NRTS)
    client.apply(NRTS, topology("n1"), "us", force=True)
    api.store.compact()
    with pytest.raises(KubeAPIError, match="too old resource version") as caught:
        list(client.watch(NRTS, version))
    assert caught.value.status == 410


def test_a_server_that_is_busy_says_for_how_long(api: KubeAPI, client: KubeClient) -> None:
    api.behaviour.fail_next.append((429, {"Retry-After": "7"}))
    with pytest.raises(KubeAPIError, match="status 429: come back later") as caught:
        client.list(NRTS)
    assert caught.value.retry_after_s == 7.0


def test_no_server_is_no_answer(tmp_path) -> None:
    server = KubeAPI()
    config = str(server.kubeconfig(tmp_path))
    server.close()
    client = KubeClient.connected(config)
    with pytest.raises(KubeAPIError, match=r"GET /api/v1/pods: no answer from 127\.0\.0\.1") as caught:
        client.list(PODS)
    assert caught.value.status == 0
    client.close()
