"""What a pod asks for."""

import pytest

from nri_plugin.kube.pod_demand import ContainerKind, QoS, pod_demand
from nri_plugin.model.errors import KubeObjectError
from tests.kube_builders import container, pod


@pytest.mark.parametrize(
    ("containers", "qos"),
    [
        ([container(cpu="1", memory="1Gi")], QoS.GUARANTEED),
        ([container(cpu="1", memory="1Gi", limits=False)], QoS.BURSTABLE),
        ([container(cpu="1")], QoS.BURSTABLE),
        ([container()], QoS.BEST_EFFORT),
        ([container(cpu="0", memory="0")], QoS.BEST_EFFORT),
        ([container(cpu="1", memory="1Gi"), container()], QoS.BURSTABLE),
        ([container(vendor__gpu="1")], QoS.BEST_EFFORT),
    ],
)
def test_qos_counts_cpus_and_memory_of_all_containers(containers, qos):
    assert pod(*containers).qos is qos


def test_limits_above_the_requests_are_burstable():
    obj = container(cpu="1", memory="1Gi")
    obj["resources"]["limits"] = {"cpu": "2", "memory": "1Gi"}
    assert pod(obj).qos is QoS.BURSTABLE


def test_what_the_status_tells_of_qos_wins():
    obj = {"spec": {"containers": [container()]}, "status": {"qosClass": "Guaranteed"}}
    assert pod_demand(obj).is_guaranteed


def test_pod_level_resources_replace_those_of_containers():
    both = {"cpu": "4", "memory": "4Gi"}
    assert pod(container(), resources={"requests": both, "limits": both}).is_guaranteed


def test_an_empty_field_for_the_pod_makes_it_best_effort():
    asked = pod(container(cpu="1", memory="1Gi"), resources={})
    assert (asked.qos, asked.own) == (QoS.BEST_EFFORT, {})


def level_pod(cpu="6", **more):
    """It owns `cpu` and 6Gi: one container has 2 of them for itself, the others share the rest."""
    own = {"cpu": cpu, "memory": "6Gi", "hugepages-1Gi": "2Gi"}
    return pod(
        container("main", cpu="2", memory="2Gi"),
        container("odd", cpu="1500m", memory="1Gi"),
        container("log", limits=False, cpu="1", vendor__gpu="1"),
        init=[container("mesh", always=True, vendor__gpu="2")],
        resources={"requests": own, "limits": own},
        overhead={"cpu": "250m"},
        **more,
    )


GIB = 2**30 * 1000


def test_under_pod_scope_a_pod_asks_for_what_it_sets_for_itself_and_for_all_devices():
    asked = level_pod().under_pod_scope
    want = {"cpu": 6000, "memory": 6 * GIB, "hugepages-1Gi": 2 * GIB, "vendor/gpu": 3000}
    assert asked.effective == asked.effective_with_sidecars == want
    assert asked.is_guaranteed


def test_a_part_of_a_cpu_is_bound_to_no_numa_node():
    assert "cpu" not in level_pod("4500m").under_pod_scope.effective
    assert "memory" in level_pod("4500m").under_pod_scope.effective


def test_under_container_scope_only_eligible_containers_ask_for_cpus_and_memory():
    asked = level_pod().under_container_scope
    assert [(one.name, dict(one.requests)) for one in asked.containers] == [
        ("mesh", {"vendor/gpu": 2000}),
        ("main", {"cpu": 2000, "memory": 2 * GIB}),
        ("odd", {"memory": GIB}),
        ("log", {"vendor/gpu": 1000}),
    ]


def test_no_container_of_a_pod_that_is_not_guaranteed_is_eligible():
    asked = pod(container(cpu="2", memory="2Gi"), resources={"requests": {"cpu": "6"}})
    assert asked.qos is QoS.BURSTABLE
    assert [dict(one.requests) for one in asked.under_container_scope.containers] == [{}]


def test_a_pod_without_resources_of_its_own_is_the_same_everywhere():
    asked = pod(container(cpu="2", memory="2Gi"), resources={"limits": {"vendor/gpu": "1"}})
    assert asked.under_pod_scope is asked.under_container_scope is asked


def test_what_makes_a_container_eligible_is_part_of_the_shape():
    own = {"cpu": "6", "memory": "6Gi"}
    both = {"requests": own, "limits": own}
    one, other = (
        pod(container(cpu="2", memory="2Gi", limits=limits), resources=both) for limits in (True, False)
    )
    assert one.shape != other.shape
    assert one.shape != pod(container(cpu="2", memory="2Gi")).shape


def test_the_effective_request_is_the_larger_of_app_and_init_and_the_overhead():
    asked = pod(
        container(cpu="2"),
        container(cpu="3"),
        init=[container(cpu="4", memory="1Gi")],
        overhead={"cpu": "250m"},
    )
    assert asked.effective == {"cpu": 5250, "memory": 2**30 * 1000}


def test_sidecars_count_beside_what_starts_after_them_when_told_to():
    asked = pod(container(cpu="2"), init=[container(cpu="3", always=True), container(cpu="4")])
    assert asked.effective == {"cpu": 4000}
    assert asked.effective_with_sidecars == {"cpu": 7000}


def test_init_containers_and_sidecars_come_first():
    asked = pod(container("a"), init=[container("i"), container("s", always=True)])
    assert [(one.name, one.kind) for one in asked.containers] == [
        ("i", ContainerKind.INIT),
        ("s", ContainerKind.SIDECAR),
        ("a", ContainerKind.APP),
    ]


@pytest.mark.parametrize(
    ("containers", "holds"),
    [
        ([container(cpu="1", memory="1Gi")], True),
        ([container(cpu="1500m", memory="0")], False),
        ([container(vendor__gpu="1")], True),
        ([container(vendor__nic="1")], False),
        ([container(cpu="1", memory="1Gi", limits=False)], False),
    ],
)
def test_a_pod_holds_devices_that_the_node_lists_and_whole_cpus_and_memory_when_guaranteed(containers, holds):
    assert pod(*containers).holds_exclusively(["cpu", "vendor/gpu"]) is holds


def test_pods_of_one_shape_differ_in_name_only():
    one, other = container(cpu="1", memory="1Gi"), container("x", cpu="1000m", memory="1024Mi")
    assert pod(one, name="a").shape == pod(other, name="b").shape
    assert pod(one).shape != pod(container(cpu="2", memory="1Gi")).shape


@pytest.mark.parametrize(
    "obj",
    [
        {"spec": 3},
        {"spec": {"containers": [{"resources": {"requests": {"cpu": "x"}}}]}},
        {"spec": {"containers": [1]}},
    ],
)
def test_an_object_that_is_no_pod_is_refused(obj):
    with pytest.raises(KubeObjectError):
        pod_demand(obj)
