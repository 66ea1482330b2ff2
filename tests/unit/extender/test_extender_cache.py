"""Feeding the cache."""

from nri_plugin.extender.cache import PUBLISHED_S, Accounting, ExtenderCache, read_pod, read_topology
from nri_plugin.extender.cluster import ClusterAnswers
from nri_plugin.extender.cluster_scores import Scoring
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
    made.on_pod_deleted(read_pod(bound()))
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
    clock.now = 1.0
    made.expire()
    assert fits(made, "8")
    assert made.charged_pods() == 0


def test_a_guess_that_came_true_stays_and_one_that_did_not_ends_with_the_binding():
    made, clock = cache()
    made.on_topology(read_topology(nrt_object("m", EIGHT)))
    made.guess(demand("a"))
    made.guess(demand("b", "1"))
    made.on_pod(read_pod(bound("a")))
    made.on_pod(read_pod(bound("b", node="m")))
    clock.now = 5.0
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


def test_a_list_of_pods_leaves_guesses():
    made, _ = cache()
    made.guess(demand())
    made.on_pods_listed([])
    assert not fits(made, "8")


def test_two_thousand_nodes_that_come_and_go_leave_nothing():
    made, _ = cache()
    for number in range(2000):
        made.on_topology(read_topology(nrt_object(f"n{number}", EIGHT)))
        made.on_pod(read_pod(bound(node=f"n{number}")))
        made.on_topology_deleted(f"n{number}")
        made.on_pod_deleted(read_pod(bound(node=f"n{number}")))
    assert len(made._ledgers) == 1
    assert len(made.cluster.table.row_by_node) == 1
    assert made.cluster.table.size == 64
