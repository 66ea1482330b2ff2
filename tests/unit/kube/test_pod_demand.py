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
