"""Promises and when they end."""

import pytest

from nri_plugin.extender.cache import NodeLedger
from nri_plugin.extender.nodes import numa_zones
from nri_plugin.kube.noderesourcetopology import METHOD_EXCLUSIVE, fingerprint, short_uid
from nri_plugin.kube.pod_demand import pod_demand
from tests.kube_builders import container, pod, pod_object, topology

ZONES = {0: {"cpu": "8", "memory": "8Gi"}}


def some(name, phase="Pending", **kwargs):
    return pod(container(cpu="2", memory="1Gi"), name=name, phase=phase, node="n", **kwargs)


def nrt(*names, **attributes):
    told = {"nodeTopologyPodsFingerprint": fingerprint(("ns", name) for name in names)} if names else {}
    return topology("n", ZONES, **told, **attributes)


def ledger(*pods, now=0.0):
    one = NodeLedger(nrt())
    for each in pods:
        one.arrived(each, now)
    return one


def charged(one):
    return [resident.pod.name for resident in one.charged]


def taken(one, name="cpu"):
    """What is charged of a resource, by NUMA node, in whole units."""
    before = {zone.id: zone.available for zone in numa_zones(one.topology)}
    taken = {zone.id: (before[zone.id][name] - zone.available[name]) // 1000 for zone in one.zones()}
    return {numa_id: amount for numa_id, amount in taken.items() if amount}


BOTH = {0: {"cpu": "8", "memory": "8Gi"}, 3: {"cpu": "8", "memory": "8Gi"}}


def on(node, *pods):
    one = NodeLedger(node)
    for each in pods:
        one.arrived(each, 0.0)
    return one


def test_a_bound_pod_is_charged_to_each_numa_node_that_can_hold_it():
    one = on(topology("n", BOTH), some("a"), some("b"))
    assert (taken(one), taken(one, "memory")) == ({0: 4, 3: 4}, {0: 2 * 2**30, 3: 2 * 2**30})


def test_a_pod_sent_to_a_numa_node_is_charged_there_only():
    one = NodeLedger(topology("n", BOTH))
    one.arrived(some("a"), 0.0, numa_id=3)
    assert taken(one) == {3: 2}


LARGE_AND_SMALL = {0: {"cpu": "8", "memory": "8Gi"}, 1: {"cpu": "4", "memory": "8Gi"}}


@pytest.mark.parametrize(
    ("policy", "scope", "cpus", "charged"),
    [
        ("single-numa-node", "pod", ("6",), {0: 6}),
        ("single-numa-node", "pod", ("3",), {0: 3, 1: 3}),
        ("single-numa-node", "pod", ("3", "3"), {0: 6}),
        ("single-numa-node", "container", ("3", "3"), {0: 6, 1: 4}),
        ("single-numa-node", "container", ("6", "5"), {0: 8}),
        ("single-numa-node", "container", ("9",), {0: 8, 1: 4}),
        ("restricted", "pod", ("6",), {0: 6, 1: 4}),
        ("best-effort", "container", ("6",), {0: 6, 1: 4}),
    ],
)
@pytest.mark.parametrize("is_terminating", [False, True])
def test_a_pod_is_charged_where_it_can_lie(policy, scope, cpus, charged, is_terminating):
    obj = pod_object(*(container(cpu=cpu, memory="1Gi") for cpu in cpus), node="n", phase="Running")
    if is_terminating:
        obj["metadata"]["deletionTimestamp"] = "2026-11-27T12:00:00Z"
    one = on(topology("n", LARGE_AND_SMALL, policy=policy, scope=scope), pod_demand(obj))
    assert taken(one) == charged


def test_pods_that_ran_before_we_looked_are_not_charged_and_those_that_wait_are():
    one = NodeLedger(nrt())
    one.arrived(some("old", "Running"), 0.0, is_old=True)
    one.arrived(some("new"), 0.0, is_old=True)
    assert charged(one) == ["new"]


def test_the_named_pods_are_settled_and_no_other():
    one = ledger(some("a"), some("b"))
    named = {"nri-pin/accounted-pods": short_uid("uid-b")}
    assert one.published(nrt(**named))
    assert charged(one) == ["a"]


def of_two(name, phase="Pending"):
    return pod(
        container(cpu="2", memory="1Gi"),
        init=[container(cpu="1", memory="1Gi")],
        name=name,
        phase=phase,
        node="n",
    )


def test_a_named_pod_of_several_containers_is_settled_once_it_runs():
    one = ledger(of_two("a"))
    named = nrt(**{"nri-pin/accounted-pods": short_uid("uid-a")})
    one.published(named)
    assert charged(one) == ["a"]
    one.arrived(of_two("a", "Running"), 10.0)
    assert charged(one) == ["a"]
    one.published(named)
    assert charged(one) == []


def test_a_named_pod_that_began_to_run_after_the_last_word_is_settled_after_a_while():
    one = ledger(of_two("a"), of_two("b"))
    one.published(nrt(**{"nri-pin/accounted-pods": short_uid("uid-a")}))
    for name in ("a", "b"):
        one.arrived(of_two(name, "Running"), 10.0)
    assert not one.settle_running(9.0)
    assert one.settle_running(10.0)
    assert charged(one) == ["b"]
    assert not ledger(of_two("a", "Running")).settle_running(99.0)


def test_a_pod_that_the_object_names_already_is_not_charged_unless_more_of_it_may_come():
    one = NodeLedger(nrt(**{"nri-pin/accounted-pods": f"{short_uid('uid-a')},{short_uid('uid-b')}"}))
    one.arrived(some("a"), 0.0)
    one.arrived(of_two("b"), 0.0)
    assert charged(one) == ["b"]


def test_a_fingerprint_of_all_but_the_youngest_settles_the_others():
    one = ledger(some("a"), some("b"), some("c"))
    assert one.published(nrt("a", "b"))
    assert charged(one) == ["c"]


def test_a_fingerprint_of_those_that_run_settles_them_in_any_order():
    one = ledger(some("a"), some("b", "Running"))
    one.published(nrt("b"))
    assert charged(one) == ["a"]


def test_a_fingerprint_of_something_else_settles_nothing():
    one = ledger(some("a"))
    one.published(nrt("stranger"))
    assert charged(one) == ["a"]


def test_where_only_exclusive_pods_are_in_the_fingerprint_others_do_not_matter():
    one = ledger(some("a"))
    one.arrived(pod(container(cpu="1", limits=False), name="shared", node="n"), 0.0)
    told = nrt("a", nodeTopologyPodsFingerprintMethod=METHOD_EXCLUSIVE)
    one.published(told)
    assert charged(one) == []


def test_without_a_fingerprint_the_next_object_settles_pods_that_run():
    one = ledger(some("a", "Running"), some("b"))
    one.published(nrt())
    assert charged(one) == ["b"]


def test_pods_that_hold_nothing_alone_are_never_charged():
    assert charged(ledger(pod(container(cpu="2", limits=False), node="n"))) == []
    zones = {0: {"cpu": "8", "vendor/gpu": "4"}}
    devices = on(topology("n", zones), pod(container(cpu="2", vendor__gpu="1", limits=False), node="n"))
    assert (taken(devices), taken(devices, "vendor/gpu")) == ({}, {0: 1})


def test_a_charge_on_a_running_pod_ends_after_a_while_and_on_a_waiting_one_never():
    one = ledger(some("a", "Running"), some("b"), now=10.0)
    assert one.expire(9.0) == 0
    assert one.expire(10.0) == 1
    assert charged(one) == ["b"]


def test_a_pod_that_left_is_charged_no_more():
    one = ledger(some("a"))
    assert one.left("uid-a")
    assert not one.left("uid-a")
    assert charged(one) == []


def test_seeing_a_pod_again_does_not_charge_it_again():
    one = ledger(some("a"))
    one.published(nrt("a"))
    assert not one.arrived(some("a", "Running"), 1.0)
    assert charged(one) == []


def level_pod():
    own = {"cpu": "6", "memory": "6Gi"}
    row = container(cpu="2", memory="1Gi", limits=False)
    return pod(row, name="a", node="n", resources={"requests": own, "limits": own})


def test_a_pod_is_charged_as_its_node_sees_it():
    for attributes, cpu in (({}, 2), ({"nri-pin/podLevelResourceManagers": "true"}, 6)):
        one = NodeLedger(topology("n", ZONES, scope="pod", **attributes))
        one.arrived(level_pod(), 0.0)
        assert taken(one) == {0: cpu}


def test_a_pod_whose_containers_request_nothing_is_charged_once_its_node_tells_how_it_sees_it():
    own = {"cpu": "6", "memory": "6Gi"}
    one = NodeLedger()
    one.arrived(pod(container(), name="a", node="n", resources={"requests": own, "limits": own}), 0.0)
    assert one.zones() == ()
    one.published(topology("n", ZONES, scope="pod", **{"nri-pin/podLevelResourceManagers": "true"}))
    assert taken(one) == {0: 6}
