"""What is told of a container's devices, entry by entry."""

from nri_plugin.exporter.facts_socket import answer, totals_of
from nri_plugin.kube._pb import podresources_pb2 as pb
from nri_plugin.model.sets import NodeMask
from tests.kubelet import devices, pod

TOTALS = {"v/gpu": ((NodeMask.of(0), 2), (NodeMask.of(0, 1), 3))}


def test_an_entry_stands_for_each_resource_and_set_of_nodes() -> None:
    web = pod("web", app=[devices("v/gpu", "a", 0), devices("v/nic", "n", 1), devices("v/gpu", "b", 0)])
    assert answer(web, "app", TOTALS)["devices"] == [
        {"resource": "v/gpu", "ids": ["a", "b"], "nodes": [0], "totals": {"0": 2, "0-1": 3}},
        {"resource": "v/nic", "ids": ["n"], "nodes": [1]},
    ]


def test_entries_of_one_resource_stand_together_in_the_order_of_the_first() -> None:
    web = pod("web", app=[devices("v/b", "x", 0), devices("v/a", "y", 0), devices("v/b", "z", 1)])
    assert [entry["resource"] for entry in answer(web, "app", {})["devices"]] == ["v/b", "v/b", "v/a"]


def test_an_unknown_container_has_no_answer_and_an_empty_one_an_empty_answer() -> None:
    assert answer(pod("web"), "app", TOTALS) == {}
    assert answer(pod("web", app=[]), "app", TOTALS) == {"devices": [], "pod_devices": []}


def test_totals_are_by_resource_and_numa_nodes_those_of_devices_nowhere_left_out() -> None:
    allocatable = pb.AllocatableResourcesResponse(
        devices=[devices("v/gpu", "a b", 0), devices("v/gpu", "c", 0, 1), devices("v/key", "k")]
    )
    assert totals_of(allocatable) == {"v/gpu": ((NodeMask.of(0), 2), (NodeMask.of(0, 1), 1))}


def test_the_devices_of_the_other_containers_come_by_name_without_totals() -> None:
    web = pod("web", app=[devices("v/gpu", "a", 0)], side=[devices("v/gpu", "b", 1)], log=[])
    others = {"side": [{"resource": "v/gpu", "ids": ["b"], "nodes": [1]}]}
    assert answer(web, "app", TOTALS)["devices_by_container"] == others
    assert answer(web, "log", {})["devices_by_container"].keys() == {"app", "side"}


def test_an_answer_about_the_pod_alone_has_the_devices_of_all_containers() -> None:
    web = pod("web", app=[devices("v/gpu", "a", 0)], side=[devices("v/gpu", "b", 0)])
    given = answer(web, "", {})
    assert given.keys() == {"pod_devices", "devices_by_container"}
    assert given["devices_by_container"].keys() == {"app", "side"}
