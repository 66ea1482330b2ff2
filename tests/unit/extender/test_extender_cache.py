"""Feeding the cache."""

import tracemalloc
from dataclasses import replace

import pytest

from nri_plugin.extender.cache import (
    MOST_GUESSES,
    PUBLISHED_S,
    Accounting,
    ExtenderCache,
    pod_key,
    read_pod,
    read_topology,
)
from nri_plugin.extender.cluster import ClusterAnswers
from nri_plugin.extender.cluster_scores import Scoring
from nri_plugin.model.errors import KubeObjectError
from tests.kube_builders import container, nrt_object, pod, pod_object

EIGHT = {0: {"cpu": "8", "memory": "8Gi"}, 1: {"cpu": "8", "memory": "8Gi"}}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def cache(*, is_on=True):
    clock = Clock()
    made = ExtenderCache(ClusterAnswers(Scoring()), Accounting(is_on=is_on, charge_s=60), clock)
    made.on_topology(read_topology(nrt_object("n", EIGHT)))
    made.on_synced("nrt")
    made.on_synced("pods")
    return made, clock


def bound(name="a", cpu="6", phase="Pending", node="n"):
    return pod_object(container(cpu=cpu, memory="1Gi"), name=name, node=node, phase=phase)


def fits(made, cpu, node="n"):
    return made.cluster.codes([node], pod(container(cpu=cpu, memory="1Gi"))).tolist() == [0]


def test_a_bound_pod_counts_at_once_and_no_more_when_it_ends():
    made, _ = cache()
    assert fits(made, "8")
    made.on_pod(read_pod(bound()))
    assert not fits(made, "8")
    assert fits(made, "2")
    made.on_pod(read_pod(bound(phase="Succeeded")))
    assert fits(made, "8")


def test_a_deleted_pod_counts_no_more():
    made, _ = cache()
    made.on_pod(read_pod(bound()))
    made.on_pod_deleted(pod_key(bound()))
    assert fits(made, "8")


def test_a_burst_of_pods_does_not_meet_at_one_numa_node():
    made, _ = cache()
    placed = 0
    for number in range(10):
        if fits(made, "3"):
            made.charge(pod(container(cpu="3", memory="1Gi"), name=str(number), node="n"))
            placed += 1
    assert placed == 2


def test_without_accounting_only_the_object_counts():
    made, _ = cache(is_on=False)
    made.on_pod(read_pod(bound()))
    assert fits(made, "8")


def test_a_node_without_object_passes_and_an_object_that_comes_later_counts_what_was_promised():
    made, _ = cache()
    made.on_pod(read_pod(bound(node="late")))
    assert fits(made, "100", "late")
    made.on_topology(read_topology(nrt_object("late", EIGHT)))
    assert not fits(made, "8", "late")
    assert fits(made, "2", "late")
    made.on_topology_deleted("late")
    assert fits(made, "100", "late")


def test_a_list_replaces_what_was_known():
    made, _ = cache()
    made.on_pod(read_pod(bound()))
    made.on_topologies_listed([read_topology(one) for one in [nrt_object("m", EIGHT)]])
    made.on_pods_listed([])
    assert fits(made, "100")
    assert not fits(made, "9", "m")
    assert made.charged_pods() == 0


def test_an_object_against_its_schema_is_as_none():
    made, _ = cache()
    made.on_topology(read_topology({"metadata": {"name": "n"}, "zones": 3}))
    assert fits(made, "100")
    assert made.counters.rejected_objects == 1
    made.on_topology(read_topology({"metadata": 3}))
    made.on_pod(read_pod({"spec": 3}))
    assert made.counters.rejected_objects == 3


def test_charges_on_running_pods_end():
    made, clock = cache()
    made.on_pod(read_pod(bound(phase="Running")))
    made.expire()
    assert not fits(made, "8")
    clock.now = 61
    made.expire()
    assert fits(made, "8")
    assert made.counters.expired_charges == 1


def test_a_running_pod_that_its_node_names_counts_no_more_a_little_later():
    made, clock = cache()
    one = container(cpu="3", memory="1Gi")
    made.on_topology(read_topology(nrt_object("n", EIGHT, **{"nri-pin/accounted-pods": "uida"})))
    made.on_pod(read_pod(pod_object(one, one, name="a", node="n", phase="Running")))
    assert not fits(made, "8")
    clock.now = PUBLISHED_S
    made.expire()
    assert fits(made, "8")
    assert made.counters.expired_charges == 0


def test_it_is_ready_when_both_lists_are_complete():
    made = ExtenderCache(ClusterAnswers(Scoring()), Accounting(), Clock())
    made.on_topologies_listed([])
    assert not made.is_ready
    made.on_pods_listed([])
    assert made.is_ready
    assert ExtenderCache(ClusterAnswers(Scoring()), Accounting(is_on=False), Clock()).is_ready is False


def test_a_pod_that_moves_is_charged_where_it_is():
    made, _ = cache()
    made.on_topology(read_topology(nrt_object("m", EIGHT)))
    made.on_pod(read_pod(bound()))
    made.on_pod(read_pod(bound(node="m")))
    assert fits(made, "8")
    assert not fits(made, "8", "m")


def demand(name="a", cpu="6"):
    return pod(container(cpu=cpu, memory="1Gi"), name=name, node="n", phase="Pending")


def test_a_guess_counts_until_it_is_too_old():
    made, clock = cache()
    made.guess(demand())
    assert not fits(made, "8")
    clock.now = Accounting().guess_s
    made.expire()
    assert fits(made, "8")
    assert made.charged_pods() == 0


WAITS = {"metadata": {"name": "a", "namespace": "ns", "uid": "uid-a"}, "spec": {"containers": []}}
REFUSED = {"type": "PodScheduled", "status": "False"}


@pytest.mark.parametrize(
    ("event", "is_charged"),
    [
        (lambda made: made.on_pod(read_pod(WAITS)), True),
        (lambda made: made.on_pods_listed([read_pod(WAITS)]), True),
        (lambda made: made.on_pod(read_pod(bound("a"))), True),
        (lambda made: made.on_pod(read_pod({**WAITS, "status": {"conditions": [REFUSED]}})), False),
        (
            lambda made: made.on_pod(
                read_pod({**WAITS, "status": {"conditions": [REFUSED], "nominatedNodeName": "n"}})
            ),
            True,
        ),
        (lambda made: made.on_pod_deleted(pod_key(WAITS)), False),
        (lambda made: made.on_pod_deleted(pod_key({**WAITS, "spec": 3})), False),
        (lambda made: made.on_pods_listed([]), False),
        (lambda made: made.forget_guess(demand()), False),
    ],
)
def test_a_guess_lasts_until_the_pod_is_bound_gone_or_not_placed(event, is_charged):
    made, clock = cache()
    made.guess(demand())
    clock.now = 20.0
    event(made)
    made.expire()
    assert fits(made, "8") is not is_charged
    clock.now = 99.0
    made.expire()
    assert made.charged_pods() == made._node_by_pod.get("uid-a", "").count("n")


def test_pods_that_nobody_has_cannot_be_guessed_without_end():
    made, _ = cache()
    for number in range(MOST_GUESSES + 10):
        made.guess(replace(demand(str(number), "1"), node=str(number)))
    assert made.charged_pods() == MOST_GUESSES


def test_a_guess_that_came_true_stays_and_one_that_did_not_ends_with_the_binding():
    made, clock = cache()
    made.on_topology(read_topology(nrt_object("m", EIGHT)))
    made.guess(demand("a"))
    made.guess(demand("b", "1"))
    made.on_pod(read_pod(bound("a")))
    made.on_pod(read_pod(bound("b", node="m")))
    clock.now = 99.0
    made.expire()
    assert (fits(made, "2"), fits(made, "3")) == (True, False)
    assert not fits(made, "3", "m")


def test_a_guess_does_not_move_a_bound_pod_nor_stand_in_its_own_way():
    made, _ = cache()
    made.on_pod(read_pod(bound("a")))
    made.guess(demand("a"))
    made.forget_guess(demand("a"))
    assert not fits(made, "8")
    made.guess(demand("b", "2"))
    made.forget_guess(demand("b", "2"))
    assert fits(made, "2")


def resources(*names):
    return [{"name": name, "capacity": "64", "available": "32"} for name in names]


def costs(count, value):
    return [{"name": f"node-{other}", "value": value + other} for other in range(count)]


def hostile(*, zones=1, names=1, first=0, prefix="a.b/", value=None, same=False):
    """An object of node "bad" with as many zones, each with as many resources of its own."""
    rows = [
        {
            "name": "node-0" if same else f"node-{zone}",
            "type": "Node",
            "resources": resources(*(f"{prefix}{first}-{zone}-{n}" for n in range(names))),
            "costs": costs(zones, value) if value else [],
        }
        for zone in range(zones)
    ]
    return {"metadata": {"name": "bad"}, "zones": rows}


def changed(**fields):
    obj = hostile()
    obj["zones"][0]["resources"][0].update(fields)
    return obj


HOSTILE = {
    "many names": [hostile(zones=64, names=200), hostile(zones=65, names=197)],
    "as many names as are read": [hostile(zones=2, names=256)],
    "other names in each update": [hostile(names=256, first=turn) for turn in range(40)],
    "other numbers of zones": [hostile(zones=zones, names=2) for zones in (1, 64, 3, 256, 17, 128)],
    "other distances in each update": [hostile(zones=64, value=20 + turn) for turn in range(12)],
    "one zone many times": [hostile(zones=64, names=2, same=True)],
    "a list of distances without end": [
        {**hostile(), "zones": [{"name": "node-0", "costs": costs(9999, 9)}]}
    ],
    "long names": [hostile(names=200, prefix=chr(0x1F600) * 2000)],
    "long amounts": [changed(available=" " * 500_000 + "4"), changed(available="9" * 10_000)],
    "a large integer": [changed(available=10**4000)],
    "long attributes": [{**hostile(), "attributes": [{"name": "a", "value": "x" * 900_000}]}],
}


@pytest.mark.parametrize("objects", HOSTILE.values(), ids=HOSTILE)
def test_no_object_of_one_node_takes_much_memory_or_changes_what_others_answer(objects):
    made, _ = cache()
    for number in range(100):
        made.on_topology(read_topology(nrt_object(f"n{number}", EIGHT)))
    names = [f"n{number}" for number in range(100)]
    asked = pod(container(cpu="8", memory="1Gi", a_b__0_0_0="0"))
    before = [made.cluster.codes(names, asked).tolist(), made.cluster.scores(names, asked).tolist()]
    tracemalloc.start()
    for obj in objects:
        made.on_topology(read_topology(obj))
        after = [
            made.cluster.codes(names, asked).tolist(),
            made.cluster.scores([*names, "bad"], asked).tolist(),
        ]
        assert [after[0], after[1][:-1]] == before
    _, peak = tracemalloc.get_traced_memory()
    made.on_topology_deleted("bad")
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 << 20
    assert left < 8 << 20
    assert not made.rejected


def test_a_resource_that_pods_request_is_counted_on_whichever_nodes_list_it_now():
    made, _ = cache()
    gpu = pod(container(vendor__gpu="2"))
    for available, code in (("1", 1), ("2", 0), ("1", 1)):
        made.on_topology(read_topology(nrt_object("g", {0: {"vendor/gpu": available}})))
        assert made.cluster.codes(["n", "g"], gpu).tolist() == [0, code]
    made.on_topology(read_topology(nrt_object("g", EIGHT)))
    assert made.cluster.codes(["n", "g"], gpu).tolist() == [0, 0]


def test_a_pod_that_requests_more_listed_resources_than_there_is_room_for_is_refused_in_words():
    made, _ = cache()
    names = [f"vendor/{number}" for number in range(300)]
    for number, part in enumerate((names[:150], names[150:])):
        made.on_topology(read_topology(nrt_object(f"m{number}", {0: dict.fromkeys(part, "1")})))
    asked = {name.replace("/", "__"): "1" for name in names}
    assert made.cluster.codes(["m0"], pod(container(**dict(list(asked.items())[:200])))).tolist() == [0]
    with pytest.raises(KubeObjectError, match="300 resources of NUMA nodes, at most 256"):
        made.cluster.codes(["m0"], pod(container(**asked)))


def test_two_thousand_nodes_that_come_and_go_leave_nothing():
    made, _ = cache()
    for number in range(2000):
        made.on_topology(read_topology(nrt_object(f"n{number}", EIGHT)))
        made.on_pod(read_pod(bound(node=f"n{number}")))
        made.on_topology_deleted(f"n{number}")
        made.on_pod_deleted(pod_key(bound(node=f"n{number}")))
    assert len(made._ledgers) == 1
    assert len(made.cluster.table.row_by_node) == 1
    assert made.cluster.table.size == 64
