"""Refusals, drift and unplaced containers become events on their pods, each once."""

import logging
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.agent.observing.status_client import AgentStatus, DriftRow, RefusalRow
from nri_plugin.exporter.events import LONGEST_NOTE, Announcer
from nri_plugin.kube.api_client import PODS, KubeClient
from nri_plugin.kube.pod_facts import PodsHere
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.logs import fields_of
from tests.builders import machine
from tests.kube_api_server import KubeAPI

NODE = Node(machine(), Options(), CPUSet.parse("0"))


def refused(*numbers: int) -> AgentStatus:
    rows = tuple(
        RefusalRow(
            number, "u", "default", f"web-{number}", "app", "SMTAlignmentError", "SMTAlignmentError: odd"
        )
        for number in numbers
    )
    return AgentStatus(NODE, State(), rows)


def notes(api: KubeAPI) -> list[str]:
    events = sorted(
        (obj for key, obj in api.store.objects.items() if key[1] == "events"),
        key=lambda obj: int(obj["metadata"]["resourceVersion"]),
    )
    return [f"{event['reason']} {event['regarding']['name']}" for event in events]


def test_only_what_is_new_is_told(announcer: Announcer, api: KubeAPI) -> None:
    announcer.announce(refused(1, 2))
    assert notes(api) == []
    announcer.announce(refused(1, 2, 3))
    announcer.announce(refused(2, 3, 4))
    assert notes(api) == ["SMTAlignmentError web-3", "SMTAlignmentError web-4"]


def test_an_agent_that_counts_anew_is_followed(announcer: Announcer, api: KubeAPI) -> None:
    announcer.announce(refused(7))
    announcer.announce(refused())
    announcer.announce(refused(1))
    assert notes(api) == ["SMTAlignmentError web-1"]


def test_a_container_that_runs_unplaced_is_told_of_once(announcer: Announcer, api: KubeAPI) -> None:
    record = ContainerRecord("c1", "u", "app", Phase.RUNNING, CgroupRef(""), unplaced="no room")
    state = State({"u": PodRecord("u", "s", "db", "default")}, {"c1": record})
    announcer.announce(AgentStatus(NODE, State()))
    for _ in range(2):
        announcer.announce(AgentStatus(NODE, state))
    assert notes(api) == ["Unplaced db"]


PLACED = State(
    {"u": PodRecord("u", "s", "db", "default")},
    {"c1": ContainerRecord("c1", "u", "app", Phase.RUNNING, CgroupRef(""))},
)


def drift(number: int, container_id: str = "c1", error: str = "", is_fight: bool = False) -> DriftRow:
    where = ("/cg", container_id, "default/db/app")
    return DriftRow(number, *where, "0-3", "0-3", "2-3", "other-value", "watch", number, is_fight, error)


def drift_notes(api: KubeAPI) -> list[str]:
    return [obj["note"] for key, obj in api.store.objects.items() if key[1] == "events"]


def test_a_drift_is_told_of_once_however_often_it_comes(announcer: Announcer, api: KubeAPI) -> None:
    announcer.announce(AgentStatus(NODE, PLACED, drifts=(drift(1),)))
    assert notes(api) == []
    announcer.announce(AgentStatus(NODE, PLACED, drifts=(drift(1), drift(2), drift(3))))
    assert notes(api) == ["Drift db"]
    assert drift_notes(api) == ["container app: its cpuset was 0-3 instead of 2-3 (other-value), repaired"]


def test_a_drift_that_stays_says_why(announcer: Announcer, api: KubeAPI) -> None:
    announcer.announce(AgentStatus(NODE, PLACED))
    announcer.announce(AgentStatus(NODE, PLACED, drifts=(drift(1, error="read-only", is_fight=True),)))
    (note,) = drift_notes(api)
    assert note.endswith("not repaired: read-only; another program keeps changing it")


def test_what_drifts_without_a_pod_is_no_event(announcer: Announcer, api: KubeAPI) -> None:
    announcer.announce(AgentStatus(NODE, PLACED))
    announcer.announce(AgentStatus(NODE, PLACED, drifts=(drift(1, ""), drift(2, "gone"))))
    assert notes(api) == []


def test_events_that_may_not_be_created_are_said_once_with_the_servers_words(
    announcer: Announcer, api: KubeAPI, caplog: pytest.LogCaptureFixture
) -> None:
    announcer.announce(refused())
    api.behaviour.fail_next += [(403, {}), (403, {}), (500, {}), (403, {})]
    with caplog.at_level(logging.WARNING):
        announcer.announce(refused(1, 2, 3, 4))
    said = [fields_of(record) for record in caplog.records]
    assert [record.message for record in caplog.records] == ["event not created"] * 2
    assert [fields["status"] for fields in said] == [403, 500]
    assert str(said[0]["err"]).endswith("come back later; kubectl apply -f deploy/export-rbac.yaml")
    assert announcer.events["SMTAlignmentError", "failed"] == 4


def test_a_trouble_that_was_over_is_said_again(
    announcer: Announcer, api: KubeAPI, caplog: pytest.LogCaptureFixture
) -> None:
    announcer.announce(refused())
    for number in (1, 3):
        api.behaviour.fail_next.append((403, {}))
        announcer.announce(refused(number))
        announcer.announce(refused(number, number + 1))
    assert [record.message for record in caplog.records] == ["event not created"] * 2


def test_what_is_wrong_with_some_events_is_said_once_while_others_succeed(
    announcer: Announcer, api: KubeAPI, caplog: pytest.LogCaptureFixture
) -> None:
    announcer.announce(refused())
    for number in range(1, 7):
        rows = refused(number).refusals
        rows = tuple(replace(row, pod=f"not a name {number}") for row in rows) if number % 2 else rows
        announcer.announce(AgentStatus(NODE, State(), rows))
    (record,) = caplog.records
    fields = fields_of(record)
    assert (fields["status"], fields["reason"]) == (422, "Invalid")
    assert "metadata.generateName: Invalid value" in str(fields["err"])
    assert notes(api) == [f"SMTAlignmentError web-{number}" for number in (2, 4, 6)]


def test_an_event_says_where_the_pod_lists_the_container(api: KubeAPI, tmp_path: Path) -> None:
    client = KubeClient.connected(str(api.kubeconfig(tmp_path)))
    pods = PodsHere(lambda _: None)
    announcer = Announcer(client, "n1", logging.getLogger("t"), lambda: 0.0, pods=pods)
    init = {"name": "app", "image": "i"}
    spec = {"nodeName": "n1", "initContainers": [init], "containers": [{"name": "main", "image": "i"}]}
    put = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": "default"},
        "spec": spec,
    }
    stored = api.put(put)
    pods.listed([stored])
    announcer.announce(refused())
    uid, version = (stored["metadata"][key] for key in ("uid", "resourceVersion"))
    rows = tuple(replace(row, pod_uid=uid) for row in refused(1).refusals)
    announcer.announce(AgentStatus(NODE, State(), rows))
    (event,) = (obj for key, obj in api.store.objects.items() if key[1] == "events")
    assert event["regarding"]["fieldPath"] == "spec.initContainers{app}"
    assert (event["regarding"]["uid"], event["regarding"]["resourceVersion"]) == (uid, version)
    client.close()


def test_a_refused_pod_is_failed_or_its_event_says_why_not(api: KubeAPI, tmp_path: Path) -> None:
    client = KubeClient.connected(str(api.kubeconfig(tmp_path)))
    announcer = Announcer(client, "n1", logging.getLogger("t"), lambda: 0.0, fails_pods=True)
    spec = {"nodeName": "n1", "containers": [{"name": "app", "image": "i"}]}
    metadata = {"name": "web-2", "namespace": "default", "uid": "u"}
    put = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    uid = api.put(put)["metadata"]["uid"]
    rows = tuple(replace(row, pod_uid=uid) for row in refused(1, 2, 3).refusals)
    announcer.announce(AgentStatus(NODE, State(), rows[:1]))
    announcer.announce(AgentStatus(NODE, State(), rows))
    status = client.get(PODS, "web-2", "default")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "SMTAlignmentError")
    first, second = drift_notes(api)
    assert first.startswith("container app: SMTAlignmentError: odd; the pod is set to Failed")
    assert "not set to Failed" in second
    # A refusal with many words leaves room for what to do.
    long = replace(rows[2], number=4, detail="x" * 5000)
    announcer.announce(AgentStatus(NODE, State(), (*rows, long)))
    note = drift_notes(api)[-1]
    assert len(note) == LONGEST_NOTE
    assert note.endswith("kubectl delete pod -n default web-3")
    assert announcer.rejections == {"failed-pod": 1, "left": 2}
    client.close()


def test_a_pod_that_was_refused_before_the_exporter_began_is_failed_at_its_first_status(
    api: KubeAPI, client: KubeClient
) -> None:
    spec = {"nodeName": "n1", "containers": [{"name": "app", "image": "i"}]}
    put = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": "default"},
        "spec": spec,
    }
    uid = api.put(put)["metadata"]["uid"]
    announcer = Announcer(client, "n1", logging.getLogger("t"), lambda: 0.0, fails_pods=True)
    rows = tuple(replace(row, pod_uid=uid, pod="web-1") for row in refused(1, 2).refusals)
    announcer.announce(AgentStatus(NODE, State(), rows))
    assert client.get(PODS, "web-1", "default")["status"]["phase"] == "Failed"
    assert (announcer.rejections, notes(api)) == ({"failed-pod": 1}, [])
