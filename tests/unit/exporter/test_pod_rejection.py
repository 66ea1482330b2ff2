"""Which refused pods are set to Failed, and what is then read of them."""

from typing import Any

import pytest

from nri_plugin.agent.observing.status_client import AgentStatus, RefusalRow
from nri_plugin.exporter import refused_pods
from nri_plugin.exporter.refused_pods import (
    FAILED,
    FIRST_PAUSE_S,
    LEFT,
    MOST_OWNERS,
    WAITS,
    Outcome,
    OwnerBackoff,
    RefusedPods,
    rejection,
    why_not,
)
from nri_plugin.kube.api_client import PODS, KubeClient
from nri_plugin.model.errors import KubeAPIError
from nri_plugin.model.options import Node, Options
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import machine
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


def row(uid: str, pod: str = "web", container: str = "app", number: int = 1) -> RefusalRow:
    return RefusalRow(number, uid, "default", pod, container, "SMTAlignmentError", "SMTAlignmentError: odd")


def reject(client: KubeClient, uid: str, node: str = "n1") -> Outcome:
    return RefusedPods(client, node, lambda: 0.0).fail(row(uid))


def test_a_pod_that_has_not_begun_is_failed_and_the_rest_of_its_status_stays(
    api: KubeAPI, client: KubeClient
) -> None:
    uid = api.put(pod())["metadata"]["uid"]
    api.put(pod(uid=uid))
    outcome = reject(client, uid)
    assert outcome.result == FAILED
    assert (
        "no controller: delete it and create it again (kubectl delete pod -n default web)" in outcome.advice
    )
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
    outcome = reject(client, "u")
    assert outcome.result == LEFT
    assert "403" in outcome.advice


def test_a_static_pod_is_changed_on_its_node(api: KubeAPI, client: KubeClient) -> None:
    uid = api.put(pod(annotations={"kubernetes.io/config.mirror": "h"}))["metadata"]["uid"]
    outcome = reject(client, uid)
    assert outcome.result == LEFT
    assert "manifest" in outcome.advice
    assert "kubectl delete" not in outcome.advice


RUNNING: dict[str, Any] = {"state": {"running": {}}}
ENDED: dict[str, Any] = {"state": {"terminated": {"exitCode": 0}}}
CRASHED: dict[str, Any] = {"restartCount": 1, "lastState": {"terminated": {"exitCode": 137}}}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pod(uid="other"), "another pod"),
        ({**pod(), "spec": {"nodeName": "n2"}}, "on node n2, not n1"),
        (pod(deletionTimestamp="2026-01-02T03:04:05Z"), "being deleted"),
        (pod({"phase": "Failed"}), "phase is Failed"),
        (pod({"phase": "Succeeded"}), "phase is Succeeded"),
        (pod({"containerStatuses": [WAITING | RUNNING]}), "runs or has ended"),
        (pod({"containerStatuses": [WAITING, {"name": "batch"} | ENDED]}), "runs or has ended"),
        (pod({"ephemeralContainerStatuses": [{"name": "debug"} | RUNNING]}), "runs or has ended"),
        (pod({"initContainerStatuses": [{"name": "app"} | RUNNING]}), "app was started meanwhile"),
        (pod({"initContainerStatuses": [{"name": "init"} | ENDED]}), ""),
        (pod({"initContainerStatuses": [{"name": "sidecar"} | RUNNING]}), ""),
        (pod({"containerStatuses": [WAITING | CRASHED]}), ""),
        (pod({"containerStatuses": [WAITING | CRASHED], "phase": "Running"}), ""),
        (pod(), ""),
        (pod({"phase": "Pending", "containerStatuses": None}), ""),
        (pod({"phase": ""}), ""),
    ],
)
def test_a_pod_is_failed_while_its_app_containers_wait(given: dict[str, Any], words: str) -> None:
    said = why_not(given, row("u"), "n1")
    assert words in said
    assert bool(said) == bool(words)


def test_a_reason_that_the_kubelet_does_not_have_becomes_its_word_for_the_unexpected() -> None:
    words = [
        rejection(pod(), reason, "")["status"]["reason"] for reason in ("TopologyAffinityError", "Other")
    ]
    assert words == ["TopologyAffinityError", "UnexpectedAdmissionError"]


# The back-off, as a Deployment meets it

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d", "uid": "rs-1", "controller": True}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Node1:
    """A node on which a Deployment's pods are refused, one after another."""

    def __init__(self, api: KubeAPI, client: KubeClient) -> None:
        self.api, self.clock, self.count = api, Clock(), 0
        self.refused = RefusedPods(client, "n1", self.clock, wall_clock=lambda: 1_800_000_000.0)

    def creates(self, owner: dict[str, Any] = OWNER) -> RefusalRow:
        self.count += 1
        obj = pod(ownerReferences=[owner])
        obj["metadata"]["name"] = name = f"web-{self.count}"
        del obj["metadata"]["uid"]
        return row(self.api.put(obj)["metadata"]["uid"], name, number=self.count)

    def refuses(self, one: RefusalRow) -> Outcome:
        self.refused.take(AgentStatus(Node(machine(), Options(), CPUSet.parse("0")), State(), (one,)))
        return self.refused.fail(one)


@pytest.fixture
def node(api: KubeAPI, client: KubeClient) -> Node1:
    return Node1(api, client)


def test_the_pod_that_waits_is_told_until_when(node: Node1) -> None:
    first, second = node.creates(), node.creates()
    assert node.refuses(first) == Outcome(
        FAILED, "; the pod is set to Failed, ReplicaSet web-5d creates another"
    )
    waits = node.refuses(second)
    assert waits.result == WAITS
    assert "pods of ReplicaSet web-5d were refused here before" in waits.advice
    assert "until 2027-01-15T08:00:10Z" in waits.advice
    assert f"kubectl delete pod -n default {second.pod}" in waits.advice
    # The same words each time, so that the event is not repeated.
    node.clock.now += 9.0
    assert node.refuses(second) == waits
    node.clock.now += 1.0
    assert node.refuses(second).result == FAILED


def test_a_pod_that_waits_is_not_read_again(node: Node1) -> None:
    node.refuses(node.creates())
    waiting = node.creates()
    node.refuses(waiting)
    node.api.behaviour.fail_next.append((500, {}))
    assert node.refuses(waiting).result == WAITS


def test_pods_of_another_owner_do_not_wait(node: Node1) -> None:
    other = {**OWNER, "name": "db", "uid": "rs-2"}
    pods = [node.creates(), node.creates(owner=other)]
    assert [node.refuses(one).result for one in pods] == [FAILED] * 2
    assert node.refuses(node.creates()).result == WAITS


def test_waiting_pods_are_remembered_in_bounds(node: Node1, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_pods, "MOST_PODS", 2)
    node.refuses(node.creates())
    assert [node.refuses(node.creates()).result for _ in range(5)] == [WAITS] * 5
    assert len(node.refused._waits) == 2


def test_a_write_that_the_cluster_refuses_makes_no_pod_wait(
    node: Node1, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise KubeAPIError("PATCH", "no", status=403, reason="Forbidden")

    with monkeypatch.context() as patched:
        patched.setattr(client, "merge_patch", forbidden)
        assert node.refuses(node.creates()).result == LEFT
    assert node.refuses(node.creates()).result == FAILED


def test_pods_without_a_controller_do_not_wait(node: Node1) -> None:
    plain = {**OWNER, "controller": False}
    assert [node.refuses(node.creates(owner=plain)).result for _ in range(20)] == [FAILED] * 20


# The back-off alone; its law is in tests/property/test_refusal_backoff.py


@pytest.mark.parametrize(
    ("failed_at", "until"),
    [
        ([], 0.0),
        ([0.0], 10.0),
        ([0.0, 10.0], 30.0),
        ([0.0, 10.0, 30.0], 70.0),
        # Calm for ten minutes after the wait: new. A second less: the pause doubles.
        ([0.0, 610.0], 620.0),
        ([0.0, 609.0], 629.0),
    ],
)
def test_how_long_the_next_pod_waits(failed_at: list[float], until: float) -> None:
    backoff = OwnerBackoff()
    for at in failed_at:
        backoff.failed("rs-1", at)
    assert (backoff.until_s("rs-1"), backoff.until_s("rs-2")) == (until, 0.0)


def test_the_table_is_bounded_and_the_owners_without_room_share_one_pause() -> None:
    backoff = OwnerBackoff()
    for number in range(3 * MOST_OWNERS):
        if not backoff.until_s(f"rs-{number}"):
            backoff.failed(f"rs-{number}", 0.0)
    assert len(backoff.pauses) == MOST_OWNERS + 1
    assert backoff.until_s("one more") == FIRST_PAUSE_S
    backoff.failed("one more", 10.0)
    assert backoff.until_s("another") == 10.0 + 2 * FIRST_PAUSE_S
    backoff.failed("later", 10_000.0)
    assert list(backoff.pauses) == ["later"]
