"""A pod that runs in part gets one event, which names what its containers hold."""

from nri_plugin.agent.observing.status_client import (
    AgentStatus,
    IncompletePodRow,
    RefusedContainerRow,
    SiblingRow,
)
from nri_plugin.exporter.events import Announcer
from nri_plugin.model.options import Node, Options
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import machine
from tests.kube_api_server import KubeAPI

NODE = Node(machine(), Options(), CPUSet.parse("0"))


def reasons(api: KubeAPI) -> list[str]:
    return [obj["reason"] for key, obj in api.store.objects.items() if key[1] == "events"]


def test_an_incomplete_pod_is_told_of_once_with_what_its_containers_hold(
    announcer: Announcer, api: KubeAPI
) -> None:
    refused = (RefusedContainerRow("e", "TopologyAffinityError", "TopologyAffinityError: no room"),)
    siblings = (
        SiblingRow("a", "1-10", "0", is_created=True),
        SiblingRow("b", "11-12", "", is_created=False),
        SiblingRow("c", "13", "", is_created=True, is_pod_shared=True),
        SiblingRow("d", "", "", is_created=True),
    )
    row = IncompletePodRow("u", "default", "db", refused, siblings)
    announcer.announce(AgentStatus(NODE, State()))
    for _ in range(2):
        announcer.announce(AgentStatus(NODE, State(), incomplete=(row,)))
    assert reasons(api) == ["IncompletePod"]
    (note,) = [obj["note"] for key, obj in api.store.objects.items() if key[1] == "events"]
    assert note == (
        "container e: incomplete: refused: e (TopologyAffinityError); other containers of the pod: a (CPUs 1-10), "
        "b (CPUs 11-12, not created), c (pod shared pool 13), d (shared pool)"
    )


def test_a_pod_that_lacks_what_it_should_own_gets_an_event_about_no_container(
    announcer: Announcer, api: KubeAPI
) -> None:
    siblings = (SiblingRow("log", "", "", is_created=True),)
    row = IncompletePodRow("u", "default", "db", (), siblings, "6 CPUs, memory 8Gi")
    announcer.announce(AgentStatus(NODE, State()))
    announcer.announce(AgentStatus(NODE, State(), incomplete=(row,)))
    (event,) = [obj for key, obj in api.store.objects.items() if key[1] == "events"]
    assert event["note"].startswith("incomplete: it should own 6 CPUs, memory 8Gi as a whole")
    assert event["reason"] == "IncompletePod"
    assert "fieldPath" not in event["regarding"]
