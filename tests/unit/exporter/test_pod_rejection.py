"""Which refused pods are set to Failed, and what is then read of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.agent.status_client import RefusalRow
from nri_plugin.exporter.events import fail_pod, rejection, why_not
from nri_plugin.kube.api_client import PODS, KubeClient
from nri_plugin.model.errors import KubeAPIError
from tests.kube_api_server import KubeAPI

WAITING = {"name": "app", "state": {"waiting": {"reason": "CreateContainerError"}}, "restartCount": 0}


def pod(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "resourceVersion": "7", **metadata},
        "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "i"}]},
        "status": {"phase": "Pending", "containerStatuses": [WAITING], **(status or {})},
    }


@pytest.fixture
def api() -> Iterator[KubeAPI]:
    server = KubeAPI()
    yield server
    server.close()


@pytest.fixture
def client(api: KubeAPI, tmp_path: Path) -> Iterator[KubeClient]:
    one = KubeClient.connected(str(api.kubeconfig(tmp_path)))
    yield one
    one.close()


def reject(client: KubeClient, uid: str, node: str = "n1") -> str:
    row = RefusalRow(1, uid, "default", "web", "app", "SMTAlignmentError", "SMTAlignmentError: odd")
    return fail_pod(client, node, row)


def test_a_pod_that_has_not_begun_is_failed_and_the_rest_of_its_status_stays(
    api: KubeAPI, client: KubeClient
) -> None:
    uid = api.put(pod())["metadata"]["uid"]
    api.put(pod(uid=uid))
    assert reject(client, uid) == ""
    status = client.get(PODS, "web", "default")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "SMTAlignmentError")
    assert status["message"] == "Pod was rejected: SMTAlignmentError: odd"
    assert status["containerStatuses"] == [WAITING]


def test_a_pod_that_changed_since_it_was_read_is_left(api: KubeAPI, client: KubeClient) -> None:
    read = api.put(pod())
    api.put(pod({"phase": "Running"}, uid=read["metadata"]["uid"]))
    with pytest.raises(KubeAPIError) as failure:
        client.merge_patch(PODS, "web", rejection(read, "X", "x"), namespace="default", subresource="status")
    assert failure.value.status == 409
    assert client.get(PODS, "web", "default")["status"]["phase"] == "Running"


def test_what_the_cluster_does_not_allow_is_said(api: KubeAPI, client: KubeClient) -> None:
    api.behaviour.fail_next.append((403, {}))
    assert "403" in reject(client, "u")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pod(annotations={"kubernetes.io/config.mirror": "h"}), "static pod"),
        (pod(uid="other"), "another pod"),
        ({**pod(), "spec": {"nodeName": "n2"}}, "on node n2, not n1"),
        (pod(deletionTimestamp="2026-01-02T03:04:05Z"), "being deleted"),
        (pod({"phase": "Failed"}), "phase is Failed"),
        (pod({"containerStatuses": [WAITING | {"restartCount": 1}]}), "has run"),
        (pod({"containerStatuses": [WAITING | {"state": {"running": {}}}]}), "has run"),
        (pod({"containerStatuses": [WAITING | {"lastState": {"terminated": {}}}]}), "has run"),
        (pod({"initContainerStatuses": [{"name": "i", "state": {"terminated": {}}}]}), "has run"),
        (pod(), ""),
        (pod({"phase": "Pending", "containerStatuses": None}), ""),
        (pod({"phase": ""}), ""),
    ],
)
def test_a_pod_is_left_to_wait_where_the_kubelet_would_not_make_room_for_another(
    given: dict[str, Any], words: str
) -> None:
    said = why_not(given, "u", "n1")
    assert words in said
    assert bool(said) == bool(words)


def test_a_reason_that_the_kubelet_does_not_have_becomes_its_word_for_the_unexpected() -> None:
    words = [
        rejection(pod(), reason, "")["status"]["reason"] for reason in ("TopologyAffinityError", "Other")
    ]
    assert words == ["TopologyAffinityError", "UnexpectedAdmissionError"]
