"""Which nodes are out, and why."""

import pytest

from nri_plugin.extender.answers import reason
from nri_plugin.extender.cluster import OWN_RESOURCES, PASS, POD, ClusterAnswers
from nri_plugin.extender.cluster_scores import Scoring
from tests.kube_builders import container, node_row, pod, topology

TWO = {0: {"cpu": "4", "memory": "4Gi"}, 1: {"cpu": "4", "memory": "4Gi"}}
BIG = container("big", cpu="5", memory="1Gi")
THREE = [container(name, cpu="3", memory="1Gi") for name in "abc"]


def what(asked, node, sidecars_stay=False):
    """The kind and name of what does not fit; None where all does."""
    cluster = ClusterAnswers(Scoring(), sidecars_stay=sidecars_stay)
    if node is not None:
        cluster.put("n", *node_row(node))
    code = cluster.codes(["n"], asked)[0]
    if code <= PASS:
        return {PASS: None, POD: ("pod", ""), OWN_RESOURCES: ("own resources", "")}[code]
    found = asked.containers[code - 1]
    return found.kind.value, found.name


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted"])
def test_only_single_numa_node_turns_pods_away(policy):
    assert what(pod(BIG), topology("n", TWO, policy=policy)) is None
    assert what(pod(BIG), topology("n", TWO)) == ("app-container", "big")


def test_a_node_that_tells_nothing_passes():
    assert what(pod(BIG), None) is None


def test_containers_take_from_each_other_the_lowest_zone_first():
    assert what(pod(*THREE[:2]), topology("n", TWO)) is None
    assert what(pod(*THREE), topology("n", TWO)) == ("app-container", "c")


def test_in_pod_scope_the_total_must_fit():
    assert what(pod(*THREE[:2]), topology("n", TWO, scope="pod")) == ("pod", "")
    assert what(pod(THREE[0]), topology("n", TWO, scope="pod")) is None


def test_init_containers_are_checked_alone_and_leave_nothing_taken():
    init = [container("i", cpu="4", memory="1Gi")] * 3
    assert what(pod(*THREE[:2], init=init), topology("n", TWO)) is None
    assert what(pod(THREE[0], init=[BIG]), topology("n", TWO)) == ("init-container", "big")


def test_sidecars_stay_only_when_told_to():
    asked = pod(*THREE[:2], init=[container("s", cpu="3", memory="1Gi", always=True)])
    assert what(asked, topology("n", TWO)) is None
    assert what(asked, topology("n", TWO), sidecars_stay=True) == ("app-container", "b")


def test_a_best_effort_pod_is_never_looked_at_unless_it_asks_for_devices():
    node = topology("n", {0: {"vendor/gpu": "1"}})
    assert what(pod(container()), node) is None
    assert what(pod(container("g", vendor__gpu="2")), node) == ("app-container", "g")


def test_the_lowest_numa_node_that_fits_gives():
    node = topology("n", {1: {"cpu": "8", "memory": "8Gi"}, 0: {"cpu": "4", "memory": "8Gi"}})
    first, second = container("x", cpu="3", memory="1Mi"), container("y", cpu="8", memory="1Mi")
    assert what(pod(first, second), node) is None
    assert what(pod(second, first, second), node) == ("app-container", "y")


MANAGED = {"nri-pin/podLevelResourceManagers": "true"}


def level_pod(cpu, *containers):
    own = {"cpu": cpu, "memory": "2Gi"}
    return pod(*containers, resources={"requests": own, "limits": own})


@pytest.mark.parametrize(
    ("scope", "attributes", "asked", "found"),
    [
        # The containers ask for 1 CPU, the pod for 5 of 4.
        ("pod", MANAGED, level_pod("5", container(cpu="1", memory="1Gi")), ("own resources", "")),
        ("pod", {}, level_pod("5", container(cpu="1", memory="1Gi")), None),
        ("pod", MANAGED, level_pod("4", container(cpu="1", memory="1Gi")), None),
        ("pod", MANAGED, level_pod("5", container()), ("own resources", "")),
        ("pod", MANAGED, pod(BIG), ("pod", "")),
        ("pod", {"nri-pin/podLevelResourceManagers": "no"}, level_pod("5", container()), None),
        # Requests below the limits make a container share, whatever it asks for.
        ("container", MANAGED, level_pod("9", container("a", cpu="5", limits=False)), None),
        ("container", {}, level_pod("9", container("a", cpu="5", limits=False)), ("app-container", "a")),
        ("container", MANAGED, level_pod("9", BIG), ("app-container", "big")),
        ("container", MANAGED, level_pod("9", *THREE), ("app-container", "c")),
    ],
)
def test_a_node_that_manages_pods_looks_at_what_the_pod_sets_for_itself(scope, attributes, asked, found):
    assert what(asked, topology("n", TWO, scope=scope, **attributes)) == found


def test_the_reason_names_the_amounts_of_the_pod():
    asked = level_pod("5", container(cpu="1", memory="1Gi"))
    assert reason(asked, OWN_RESOURCES) == (
        "no NUMA node has the resources that the pod sets for itself available: cpu 5, memory 2147483648"
    )


def test_scores_of_one_pod_differ_by_what_the_nodes_manage():
    cluster = ClusterAnswers(Scoring())
    for name, attributes in (("managed", MANAGED), ("plain", {})):
        cluster.put(name, *node_row(topology(name, TWO, scope="pod", policy="best-effort", **attributes)))
    asked = level_pod("6", container(cpu="1", memory="1Gi"))
    # 6 CPUs need two NUMA nodes of 4, the single CPU of its container needs one.
    managed, plain = cluster.scores(["managed", "plain"], asked)
    assert managed < plain
