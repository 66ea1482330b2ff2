"""The client against the recorded exchanges and against the tests' API server."""

import json
from collections.abc import Callable

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


def as_json(obj: object) -> bytes:
    return json.dumps(obj).encode()


RPC = {
    "code": 14,
    "message": "unavailable",
    "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo"}],
}

REFUSALS = {
    "html": b"<html>bad gateway</html>",
    "a list": b"[]",
    "details as text": as_json({"message": "x", "details": "upstream connect error"}),
    "google.rpc.Status": as_json(RPC),
    "causes as text": as_json({"details": {"causes": ["a", "b"]}}),
    "causes as a number": as_json({"details": {"causes": 5}}),
    "deep": b"[" * 100_000,
    "not UTF-8": b"\xff\xfe",
    "nothing": b"",
    "a long message": as_json({"message": "x" * 1_000_000}),
}

ANSWERS = {
    "a list": b"[1]",
    "items as a number": as_json({"items": 5, "metadata": 5}),
    "items as text": as_json({"items": ["a"], "metadata": ["a"]}),
    "items as null": as_json({"items": [None], "metadata": False}),
    "metadata as text": as_json({"metadata": "x"}),
    "metadata of an item as a list": as_json({"items": [{"metadata": ["x"]}], "metadata": {"labels": 5}}),
    "a name as a number": as_json({"metadata": {"name": 5}, "items": [{"metadata": {"name": 5}}]}),
    "annotations as text": as_json(
        {"metadata": {"annotations": "x"}, "items": [{"metadata": {"annotations": "x"}}]}
    ),
    "deep": b"[" * 100_000,
    "cut": b'{"items":[',
    "not UTF-8": b'{"metadata":{"name":"\xff\xfe"},"items":[{"metadata":{"name":"\xff\xfe"}}]}',
    "no answer": b"",
}


def requests_to(client: KubeClient) -> list[Callable[[], object]]:
    return [
        lambda: client.get(NRTS, "n1"),
        lambda: client.list(NRTS),
        lambda: client.create(NRTS, topology("n1")),
        lambda: client.apply(NRTS, topology("n1"), "us", force=True),
        lambda: list(client.watch(NRTS, "1")),
    ]


@pytest.mark.parametrize("body", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_of_any_form_is_an_error_with_its_status(
    api: KubeAPI, client: KubeClient, body: bytes
) -> None:
    for send in requests_to(client):
        api.behaviour.spoil_next = [lambda _: (503, {}, body)]
        with pytest.raises(KubeAPIError) as caught:
            send()
        assert (caught.value.status, len(str(caught.value)) < 1000) == (503, True)


@pytest.mark.parametrize("body", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_of_another_form_is_an_error(api: KubeAPI, client: KubeClient, body: bytes) -> None:
    for send in requests_to(client)[:4]:
        api.behaviour.spoil_next = [lambda _: (200, {}, body)]
        with pytest.raises(KubeAPIError):
            send()


@pytest.mark.parametrize(
    "event",
    [
        {"type": "ERROR", "object": {"code": "x", "message": "m"}},
        {"type": "ERROR", "object": {"code": 500, "details": [1]}},
        {"object": {"metadata": {}}},
        {"type": "ADDED"},
        {"type": "ADDED", "object": {"metadata": "x"}},
        {"type": "ADDED", "object": {"metadata": {"resourceVersion": 5}}},
        {"type": 5, "object": {}},
        [],
    ],
    ids=str,
)
def test_a_watch_event_of_another_form_is_an_error(api: KubeAPI, client: KubeClient, event: object) -> None:
    _, version = client.list(NRTS)
    client.apply(NRTS, topology("n1"), "us", force=True)
    api.behaviour.ends_watches_at_once = True
    api.behaviour.spoil_next = [lambda _: (200, {}, b""), lambda _: (200, {}, as_json(event))]
    with pytest.raises(KubeAPIError) as caught:
        list(client.watch(NRTS, version))
    assert caught.value.status in (200, 500)


def test_a_list_whose_pages_do_not_end_is_an_error(api: KubeAPI, client: KubeClient) -> None:
    page = as_json({"items": [], "metadata": {"continue": "x"}})
    api.behaviour.spoil_next = [lambda _: (200, {}, page)] * 2
    with pytest.raises(KubeAPIError, match="goes on with the page that was read"):
        client.list(NRTS)


@pytest.mark.parametrize(
    ("after", "pause_s"),
    [
        ("7", 7.0),
        ("-1", None),
        ("99999999999", 600.0),
        ("9" * 400, 600.0),
        ("soon", None),
        ("\u0667".encode().decode("latin-1"), None),
        ("Wed, 21 Oct 2099 07:28:00 GMT", None),
    ],
)
def test_a_requested_pause_is_bounded(
    api: KubeAPI, client: KubeClient, after: str, pause_s: float | None
) -> None:
    api.behaviour.spoil_next = [lambda _: (429, {"Retry-After": after}, b"{}")]
    with pytest.raises(KubeAPIError) as caught:
        client.list(NRTS)
    assert caught.value.retry_after_s == pause_s


@pytest.mark.parametrize(("told", "pause_s"), [(7, 7.0), (10**30, 600.0), (-5, 0.0), ("7", None)])
def test_a_pause_that_the_status_requests_is_bounded(
    api: KubeAPI, client: KubeClient, told: object, pause_s: float | None
) -> None:
    api.behaviour.spoil_next = [lambda _: (429, {}, as_json({"details": {"retryAfterSeconds": told}}))]
    with pytest.raises(KubeAPIError) as caught:
        client.list(NRTS)
    assert caught.value.retry_after_s == pause_s


def test_no_server_is_no_answer(tmp_path) -> None:
    server = KubeAPI()
    config = str(server.kubeconfig(tmp_path))
    server.close()
    client = KubeClient.connected(config)
    with pytest.raises(KubeAPIError, match=r"GET /api/v1/pods: no answer from 127\.0\.0\.1") as caught:
        client.list(PODS)
    assert caught.value.status == 0
    client.close()
