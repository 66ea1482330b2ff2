"""Devices as the kubelet tells of them, in the figures of NUMA zones."""

from nri_plugin.exporter.pod_resources import devices_of, numa_ids, pod_of
from nri_plugin.exporter.publication import DeviceCount
from nri_plugin.kube._pb import podresources_pb2 as pb
from tests.kubelet import devices, pod


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
