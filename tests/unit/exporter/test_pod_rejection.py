"""Which refused pods are set to Failed, and what is then read of them."""

from dataclasses import replace
from typing import Any

import pytest

from nri_plugin.agent.status_client import AgentStatus, RefusalRow
from nri_plugin.exporter.refused_pods import (
    FAILED,
    FIRST_PAUSE_S,
    LEFT,
    MOST_GROUPS,
    MOST_IN_WINDOW,
    MOST_PODS,
    MOST_ROOMS,
    OTHERS,
    WAITS,
    WINDOW_S,
    Brake,
    FreeResources,
    Group,
    Outcome,
    Pause,
    RefusedPods,
    Room,
    Wait,
    rejection,
    why_not,
)
from nri_plugin.kube.api_client import PODS, KubeClient
from nri_plugin.model.errors import KubeAPIError
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation, MemoryBlock, PodRecord
from nri_plugin.model.sets import CPUSet, NodeMask
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


# The brake, as a Deployment meets it

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
        self.heard(State())

    def heard(self, state: State, *rows: RefusalRow, options: Options | None = None) -> None:
        node = Node(machine(), options or Options(), CPUSet.parse("0"))
        self.refused.take(AgentStatus(node, state, rows), rows)

    def creates(self, cpu: str = "2", owner: dict[str, Any] = OWNER) -> RefusalRow:
        self.count += 1
        obj = pod(ownerReferences=[owner])
        obj["metadata"]["name"] = name = f"web-{self.count}"
        del obj["metadata"]["uid"]
        obj["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        return row(self.api.put(obj)["metadata"]["uid"], name, number=self.count)

    def refuses(self, one: RefusalRow, state: State | None = None) -> Outcome:
        self.heard(state or State(), one)
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
    assert "pods of ReplicaSet web-5d with these requests were refused here before" in waits.advice
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


def test_pods_of_another_owner_or_with_other_requests_do_not_wait(node: Node1) -> None:
    other = {**OWNER, "name": "db", "uid": "rs-2"}
    pods = [node.creates(), node.creates("4"), node.creates(owner=other)]
    assert [node.refuses(one).result for one in pods] == [FAILED] * 3
    assert node.refuses(node.creates()).result == WAITS


def test_the_end_of_another_pod_or_a_new_configuration_ends_the_wait(node: Node1) -> None:
    holds = State(allocations={"db/app": Allocation(CPUSet.parse("2-3"))})
    node.refuses(node.creates(), holds)
    waiting = node.creates()
    assert node.refuses(waiting, holds).result == WAITS
    node.heard(State())
    assert node.refuses(waiting).result == FAILED
    waiting = node.creates()
    assert node.refuses(waiting).result == WAITS
    node.heard(State(), options=Options(full_pcpus_only=True))
    assert node.refused.fail(waiting).result == FAILED


def test_the_end_of_a_refused_pod_ends_no_wait(node: Node1) -> None:
    """Its init container held CPUs until it was failed: others get no more than before."""
    first, second = node.creates(), node.creates()
    holds = State(allocations={f"{first.pod_uid}/init": Allocation(CPUSet.parse("2-3"))})
    node.heard(holds)
    assert node.refuses(first, holds).result == FAILED
    assert node.refuses(second, State()).result == WAITS


def holding(**cpus: str) -> State:
    return State(allocations={f"{uid}/app": Allocation(CPUSet.parse(text)) for uid, text in cpus.items()})


def test_jobs_that_come_and_go_on_the_same_cpus_end_no_wait(node: Node1) -> None:
    """They give back what the refused pods did not find enough of."""
    full, empty = holding(db="2-3"), holding()
    node.refuses(node.creates(), empty)
    failures = 1
    for _ in range(200):  # 200 jobs of a second each
        node.clock.now += 1.0
        node.heard(full)
        failures += node.refuses(node.creates(), empty).result == FAILED
    assert failures == 5, "after 10, 20, 40 and 80 s"


def test_jobs_on_ever_other_cpus_bring_no_more_than_ten_failures_in_ten_minutes(node: Node1) -> None:
    failed_at, waits = [], Outcome(WAITS, "")
    for number in range(600):
        node.clock.now += 1.0
        # Each leaves something that no refused pod has found.
        outcome = node.refuses(node.creates(), holding(job=str(1 + number % 7)))
        if outcome.result == FAILED:
            failed_at.append(node.clock.now)
        else:
            waits = outcome
    assert len(failed_at) == MOST_IN_WINDOW
    assert "were set to Failed here 10 times in ten minutes, so the pod waits until " in waits.advice
    assert "or until" not in waits.advice


def test_memory_that_comes_free_is_more_and_memory_that_was_free_is_not(node: Node1) -> None:
    def memory(size: int) -> State:
        block = MemoryBlock(NodeMask.of(0), "memory", size)
        return State(allocations={"db/app": Allocation(CPUSet.parse("2"), memory=(block,))})

    node.refuses(node.creates(), memory(5))
    assert node.refuses(node.creates(), memory(6)).result == WAITS
    assert node.refuses(node.creates(), memory(5)).result == WAITS
    assert node.refuses(node.creates(), memory(4)).result == FAILED


def test_the_end_of_a_pod_with_devices_is_a_change_and_a_kubelet_that_lists_none_is_not() -> None:
    follows, gpu = FreeResources(), frozenset({("default", "gpu")})
    running = State({"u": PodRecord("u", "s", "gpu", "default"), "v": PodRecord("v", "t", "web", "default")})
    status = AgentStatus(Node(machine(), Options(), CPUSet.parse("0")), running)
    rooms = []
    for state, with_devices in (
        (running, gpu),
        (running, frozenset()),
        (running.without_pod("v"), gpu),
        (State(), gpu),
    ):
        follows.take(replace(status, state=state), [], 0.0, with_devices)
        rooms.append(follows.room)
    assert [room.has_more_than(rooms[0], with_devices=True) for room in rooms] == [False] * 3 + [True]
    assert not rooms[3].has_more_than(rooms[0], with_devices=False), "nothing for a pod that asks for none"


def test_refused_pods_are_remembered_in_bounds() -> None:
    follows, first = FreeResources(), row("first")
    holds = State(allocations={"first/init": Allocation(CPUSet.parse("2-3"))})
    status = AgentStatus(Node(machine(), Options(), CPUSet.parse("0")), holds)
    follows.take(status, [first, *(row(str(number)) for number in range(MOST_PODS))], 0.0)
    before = follows.room
    follows.take(replace(status, state=State()), [], 1.0)
    assert follows.room.has_more_than(before, with_devices=False), "the first is forgotten, so its end counts"


@pytest.mark.parametrize(("now", "available"), [(WINDOW_S - 1.0, "1-7"), (WINDOW_S, "1,4-7")])
def test_a_pod_that_was_refused_long_ago_is_as_any_other(now: float, available: str) -> None:
    """It may have been placed at a later try; until then what it has counts as there for others."""
    follows, holds = FreeResources(), State(allocations={"u/app": Allocation(CPUSet.parse("2-3"))})
    status = AgentStatus(Node(machine(nodes=1), Options(), CPUSet.parse("0")), holds)
    follows.take(status, [row("u")], 0.0)
    follows.take(status, [], now)
    assert str(follows.room.available & CPUSet.parse("0-7")) == available


def test_the_rooms_of_equal_nodes_hold_one_node() -> None:
    follows, rooms = FreeResources(), []
    for _ in range(2):
        follows.take(AgentStatus(Node(machine(), Options(), CPUSet.parse("0")), State()), [], 0.0)
        rooms.append(follows.room)
    assert rooms[0].node is rooms[1].node


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
    node.refuses(node.creates())
    assert node.refuses(node.creates(cpu="many")).result == FAILED
    assert node.refuses(node.creates()).result == WAITS


# The decision alone; its law is in tests/property/test_refusal_brake.py

WEB, DB = Group("rs-1", 1), Group("rs-2", 1)


EMPTY, MORE = Room(available=CPUSet.parse("1")), Room(available=CPUSet.parse("1-2"))
OTHER = Room(available=CPUSet.parse("3"))
EVERY_SECOND = [(WEB, Room(available=CPUSet.of(at)), float(at)) for at in range(MOST_IN_WINDOW)]


@pytest.mark.parametrize(
    ("failures", "group", "room", "now", "until"),
    [
        # (group, room, seconds) of failed pods; then the question and its answer
        ([], WEB, EMPTY, 0.0, None),
        ([(WEB, EMPTY, 0.0)], WEB, EMPTY, 9.0, 10.0),
        ([(WEB, EMPTY, 0.0)], WEB, EMPTY, 10.0, None),
        ([(WEB, EMPTY, 0.0)], DB, EMPTY, 1.0, None),
        ([(WEB, EMPTY, 0.0)], WEB, MORE, 1.0, None),
        ([(WEB, MORE, 0.0)], WEB, EMPTY, 1.0, 10.0),
        ([(WEB, EMPTY, 0.0), (WEB, EMPTY, 10.0)], WEB, EMPTY, 11.0, 30.0),
        ([(WEB, EMPTY, 0.0), (WEB, EMPTY, 10.0), (WEB, EMPTY, 30.0)], WEB, EMPTY, 31.0, 70.0),
        # A turn that a change brought makes the pause longer, too.
        ([(WEB, EMPTY, 0.0), (WEB, EMPTY, 10.0), (WEB, MORE, 11.0)], WEB, MORE, 12.0, 51.0),
        ([(WEB, EMPTY, 0.0), (WEB, OTHER, 1.0)], WEB, EMPTY, 2.0, 21.0),
        ([(WEB, EMPTY, 0.0), (DB, EMPTY, 5.0)], WEB, EMPTY, 6.0, 10.0),
        # Calm for ten minutes after the wait: new. A second less: the pause doubles.
        ([(WEB, EMPTY, 0.0), (WEB, EMPTY, 610.0)], WEB, EMPTY, 611.0, 620.0),
        ([(WEB, EMPTY, 0.0), (WEB, EMPTY, 609.0)], WEB, EMPTY, 610.0, 629.0),
        # Ten in ten minutes are the most, whatever changes.
        (EVERY_SECOND, WEB, MORE, 10.0, 600.0),
        (EVERY_SECOND, WEB, MORE, 600.0, None),
        (EVERY_SECOND[1:], WEB, MORE, 10.0, None),
    ],
)
def test_how_long_the_next_pod_waits(
    failures: list[tuple[Group, Room, float]], group: Group, room: Room, now: float, until: float | None
) -> None:
    brake = Brake()
    for one, there, at in failures:
        brake = brake.failed(one, there, at)
    found = brake.wait(group, room, now)
    assert (found and found.until_s) == until
    assert (found and found.is_bound) == (until and until == WINDOW_S)


def test_the_table_is_bounded_and_the_groups_without_room_share_one_pause() -> None:
    brake = Brake()
    for number in range(3 * MOST_GROUPS):
        group = Group(f"rs-{number}", 0)
        if brake.wait(group, EMPTY, 0.0) is None:
            brake = brake.failed(group, EMPTY, 0.0)
    assert len(brake.pauses) == MOST_GROUPS + 1
    assert brake.wait(Group("one more", 0), EMPTY, 1.0) == Wait(FIRST_PAUSE_S)
    later = brake.failed(Group("later", 0), EMPTY, 10_000.0)
    assert list(later.pauses) == [Group("later", 0)]


def test_a_group_that_gets_a_place_of_its_own_takes_the_pause_of_the_others_along() -> None:
    late = Group("late", 0)
    brake = Brake(
        {Group(f"rs-{number}", 0): Pause(1.0, 1.0, (0.0,), (EMPTY,)) for number in range(MOST_GROUPS)}
    )
    for at in range(MOST_IN_WINDOW):
        brake = brake.failed(late, Room(available=CPUSet.of(at)), 595.0 + at / 2)
    assert late not in brake.pauses
    brake = brake.failed(DB, EMPTY, 601.0)
    assert list(brake.pauses) == [OTHERS, DB]
    assert brake.wait(late, MORE, 602.0) is not None


def test_the_rooms_of_a_group_are_bounded() -> None:
    brake = Brake()
    for _, room, at in EVERY_SECOND:
        brake = brake.failed(WEB, room, at)
    assert [room for _, room, _ in EVERY_SECOND[-MOST_ROOMS:]] == list(brake.pauses[WEB].rooms)
    assert brake.failed(WEB, Room(available=CPUSet.parse("0-9")), 20.0).pauses[WEB].rooms == (
        Room(available=CPUSet.parse("0-9")),
    )
