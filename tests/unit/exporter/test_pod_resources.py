"""Devices as the kubelet tells of them, in the figures of NUMA zones."""

import dataclasses

import pytest
from msgspec.structs import replace

from nri_plugin.exporter.pod_resources import devices_of, merged_list, numa_ids, pod_of
from nri_plugin.exporter.publication import DeviceCount
from nri_plugin.kube._pb import podresources_pb2 as pb
from nri_plugin.model.options import Options, TopologyManagerPolicy
from nri_plugin.model.state import State
from tests.builders import GIB
from tests.kubelet import devices, pod
from tests.level_pod import EXCLUSIVE_2, LEVEL, ROWS, WHOLE, admitted, level_node


def test_devices_are_counted_by_numa_node_less_those_given() -> None:
    allocatable = pb.AllocatableResourcesResponse(
        devices=[devices("v/gpu", "a b", 0), devices("v/gpu", "c", 1), devices("v/key", "k")]
    )
    listed = pb.ListPodResourcesResponse(
        pod_resources=[pod("web", app=[devices("v/gpu", "b", 0)]), pod("tool", app=[devices("v/key", "k")])]
    )
    found = devices_of(allocatable, listed)
    assert found.counts == (DeviceCount(0, "v/gpu", 2, 1), DeviceCount(1, "v/gpu", 1, 1))
    assert found.pods == {("default", "web")}


def test_pods_with_a_resource_that_zones_list_count_wherever_theirs_is_and_others_never() -> None:
    allocatable = pb.AllocatableResourcesResponse(devices=[devices("v/gpu", "a", 0), devices("v/gpu", "far")])
    listed = pb.ListPodResourcesResponse(
        pod_resources=[pod("web", app=[devices("v/gpu", "far")]), pod("old", app=[devices("v/gone", "x", 0)])]
    )
    assert devices_of(allocatable, listed).pods == {("default", "web")}


def test_minus_one_is_no_numa_node() -> None:
    assert numa_ids(devices("v/gpu", "a", -1)) == []
    assert numa_ids(devices("v/gpu", "a", 3, 1)) == [1, 3]


def test_a_pod_is_found_by_namespace_and_name() -> None:
    listed = pb.ListPodResourcesResponse(pod_resources=[pod("web"), pod("db")])
    found = pod_of(listed, "default", "db")
    assert found is not None
    assert found.name == "db"
    assert pod_of(listed, "other", "db") is None


# Pods with resources of their own

LISTED = ("mesh", "main", "log")
"""The kubelet lists no plain init containers."""


def answered(state: State, *containers: str) -> pb.PodResources:
    """Our answer for pod web; the kubelet's own managers know something else."""
    told = pod("web", **{name: [] for name in containers})
    for row in (told, *told.containers):
        row.cpu_ids.extend([14, 15])
        row.memory.append(pb.ContainerMemory(memory_type="memory", size=GIB))
    (found,) = merged_list(pb.ListPodResourcesResponse(pod_resources=[told]), state).pod_resources
    return found


def sizes(rows: object) -> list[tuple[str, int, list[int]]]:
    return [(row.memory_type, row.size, [one.ID for one in row.topology.nodes]) for row in rows]  # type: ignore[attr-defined]


def test_the_pod_lists_all_its_cpus_and_memory_and_each_container_its_part() -> None:
    found = answered(admitted(level_node(), *ROWS), *LISTED)
    assert list(found.cpu_ids) == [2, 3, 4, 5, 6, 7]
    assert sizes(found.memory) == [("memory", 6 * GIB, [0])]
    assert [(row.name, list(row.cpu_ids), sizes(row.memory)) for row in found.containers] == [
        ("mesh", [4, 5, 6, 7], [("memory", 4 * GIB, [0])]),
        ("main", [2, 3], [("memory", 2 * GIB, [0])]),
        ("log", [], []),
    ]


@pytest.mark.parametrize("listed", [LISTED, ("setup", *LISTED), ("main", "log", "mesh"), ("log", "main")])
def test_sums_and_unions_and_the_fields_of_the_pod_agree(listed: tuple[str, ...]) -> None:
    found = answered(admitted(level_node(), *ROWS), *listed)
    summed = [number for row in found.containers for number in row.cpu_ids]
    assert sorted(summed) == sorted(set(summed)) == list(found.cpu_ids)
    assert sum(block.size for row in found.containers for block in row.memory) == 6 * GIB


def test_cpus_on_which_no_container_runs_are_in_the_fields_of_the_pod_only() -> None:
    found = answered(admitted(level_node(), ROWS[2]), "main")
    assert len(found.cpu_ids) == 6
    assert [list(row.cpu_ids) for row in found.containers] == [[2, 3]]


def test_a_pod_without_whole_cpus_lists_its_memory() -> None:
    odd = replace(WHOLE, cpu_request_milli=4500, cpu_limit_milli=4500)
    found = answered(admitted(level_node(), *ROWS, resources=odd), *LISTED)
    assert list(found.cpu_ids) == []
    assert sum(block.size for row in found.containers for block in row.memory) == 6 * GIB
    assert sizes(found.memory) == [("memory", 6 * GIB, [0])]


@pytest.mark.parametrize(
    "options", [Options(), dataclasses.replace(LEVEL, topology_manager_policy=TopologyManagerPolicy.NONE)]
)
def test_where_the_pod_owns_nothing_as_a_whole_its_own_fields_are_empty(options: Options) -> None:
    plain = dataclasses.replace(options, memory_manager_policy=Options().memory_manager_policy)
    found = answered(admitted(level_node(plain), *ROWS), *LISTED)
    assert (list(found.cpu_ids), list(found.memory)) == ([], [])
    assert all(not row.memory for row in found.containers)


def test_the_cpus_of_an_ended_init_container_are_listed_once() -> None:
    rows = (replace(ROWS[0], amounts=EXCLUSIVE_2), ROWS[2])
    found = answered(admitted(level_node(Options()), *rows, resources=None), "setup", "main")
    assert [list(row.cpu_ids) for row in found.containers] == [[], [2, 3]]
