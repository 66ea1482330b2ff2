"""What the annotations of a pod ask for its placement, and whose are heard."""

import pytest
from msgspec.structs import replace

from nri_plugin.core.annotations import NUMA_NODE, annotated_node
from nri_plugin.core.engine import decide
from nri_plugin.core.requests import ContainerRequest, annotated, container_request, pod_record
from nri_plugin.model.errors import AnnotationError
from nri_plugin.model.options import Node, SMTOddCounts, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Pod
from tests.builders import container, cpus, node, pod

TRUSTING = frozenset({"trusted"})
HEARING = node(annotation_namespaces=TRUSTING).options
ODD, OWN = "nri-pin/smt-odd-counts", "nri-pin/exclusive-cpus"


def asking(qos: str = "Burstable", namespace: str = "trusted", **annotations: str) -> Pod:
    """A pod with annotations; `odd` and `own` are those of all its containers, `odd_c` and `own_c` of container c."""
    names = {
        "odd": f"{ODD}.pod",
        "own": f"{OWN}.pod",
        "odd_c": f"{ODD}.container.c",
        "own_c": f"{OWN}.container.c",
    }
    made = pod("p", qos, cpu=4, namespace=namespace)
    return replace(made, annotations={names.get(key, key): value for key, value in annotations.items()})


def wished(of: Pod, cpu: float = 2.5, trusted: frozenset[str] = TRUSTING) -> ContainerRequest:
    options = node(annotation_namespaces=trusted).options
    record = pod_record(of, options, run_seen=True)
    return annotated(options, record, container_request(options, record, container(of, cpu=cpu)))


def create(of: Pod, cpu: float, on: Node) -> tuple[str, str]:
    """The CPUs given and the refusal."""
    decision = decide(on, State(), nri.CreateContainer(of, container(of, cpu=cpu)))
    resources = getattr(decision.response, "resources", None)
    return (resources.cpus if resources else ""), str(decision.refusal or "")


def test_a_container_of_a_burstable_pod_gets_the_exclusive_cpus_it_asks_for():
    on = node(annotation_namespaces=TRUSTING, pool_floor=False)
    assert create(asking(own_c="2"), 2, on) == ("2-3", "")
    assert create(asking(own="3"), 2.5, on) == ("2-4", "")


def test_its_own_annotation_wins_over_the_pods():
    request = wished(asking(own="1", own_c="3", odd="reject", odd_c="allow"))
    assert (request.exclusive_cpus, request.smt_odd_counts) == (3, SMTOddCounts.ALLOW)


def test_elsewhere_annotations_have_no_effect_however_wrong_they_are():
    of = asking(namespace="default", own_c="lots", odd_c="maybe")
    assert wished(of).exclusive_cpus == 0
    assert wished(asking(own_c="lots"), trusted=frozenset()).exclusive_cpus == 0
    assert create(of, 2.5, node(annotation_namespaces=TRUSTING))[1] == ""


@pytest.mark.parametrize(
    ("annotations", "told"),
    [
        ({"own_c": "two"}, f"annotation {OWN}.container.c: expected a number of CPUs such as 2, found 'two'"),
        ({"own": "0"}, f"annotation {OWN}.pod: expected a number of CPUs such as 2, found '0'"),
        ({"own_c": "1.5"}, "found '1.5'"),
        ({"own_c": "4"}, "4 exclusive CPUs need a CPU request above 3000m, found 2500m; raise it"),
        ({"odd_c": "up"}, f"{ODD}.container.c: expected kubelet, reject, round-up, allow, found 'up'"),
        ({"odd": "x" * 99}, f"found '{'x' * 40}'"),
    ],
)
def test_an_annotation_that_makes_no_sense_refuses_its_container_by_name(
    annotations: dict[str, str], told: str
):
    with pytest.raises(AnnotationError) as caught:
        wished(asking(**annotations))
    assert told in str(caught.value)
    cpus_given, refusal = create(asking(**annotations), 2.5, node(annotation_namespaces=TRUSTING))
    assert (cpus_given, told in refusal) == ("", True)


def test_a_guaranteed_pods_request_decides():
    with pytest.raises(AnnotationError, match="the pod is Guaranteed: its CPU request decides"):
        wished(asking("Guaranteed", own_c="2"), cpu=2)
    assert wished(asking("Guaranteed", own="1"), cpu=2).exclusive_cpus == 2


def test_a_best_effort_container_has_no_request_to_make_exclusive():
    with pytest.raises(AnnotationError, match="1 exclusive CPUs need a CPU request above 0m, found 0m"):
        wished(asking("BestEffort", own_c="1"), cpu=0)


def test_annotations_of_others_are_not_remembered():
    record = pod_record(asking(own_c="1", **{"example/a": "b"}), HEARING, run_seen=True)
    assert record.annotations == ((f"{OWN}.container.c", "1"),)


def test_annotations_that_nobody_hears_are_not_remembered():
    assert pod_record(asking(own_c="1"), node().options, run_seen=True).annotations == ()


@pytest.mark.parametrize("is_heard", [False, True])
def test_a_container_is_placed_by_the_annotations_that_are_heard_when_it_is_created(is_heard: bool):
    of, before = asking("Burstable", own_c="2"), State()
    for trusted in (TRUSTING, frozenset()) if not is_heard else (frozenset(), TRUSTING):
        on = node(annotation_namespaces=trusted)
        first = nri.RunPodSandbox(of) if not before.pods else nri.CreateContainer(of, container(of, cpu=2.5))
        before = decide(on, before, first).state
    assert bool(before.exclusive) is is_heard
    assert bool(before.pods["p"].annotations) is is_heard


@pytest.mark.parametrize(
    ("rule", "cpu", "given", "refused"),
    [
        ("round-up", 3, "2-5", False),
        ("reject", 3, "", True),
        ("allow", 3, "2-4", False),
        ("kubelet", 3, "", True),
        ("reject", 2, "2-3", False),
    ],
)
def test_a_containers_own_rule_for_odd_counts_wins_over_the_nodes(
    rule: str, cpu: int, given: str, refused: bool
):
    on = node(annotation_namespaces=TRUSTING, full_pcpus_only=True, smt_odd_counts=SMTOddCounts.ROUND_UP)
    got, refusal = create(asking("Guaranteed", odd_c=rule), cpu, on)
    assert (got, "SMTAlignmentError" in refusal) == (given, refused)


def test_a_container_met_at_synchronize_gets_what_its_annotations_ask_for():
    on = node(annotation_namespaces=TRUSTING, pool_floor=False)
    of = asking(own_c="2")
    state = decide(on, State(), nri.Synchronize((of,), (container(of, cpu=2, cpus="4-5"),))).state
    assert state.exclusive == cpus("4-5")
    placed = decide(on, State(), nri.Synchronize((of,), (container(of, cpu=2, cpus="0-15"),))).state
    assert placed.exclusive == cpus("2-3")


def test_one_met_at_synchronize_that_asks_for_what_cannot_be_is_unplaced():
    on = node(annotation_namespaces=TRUSTING, pool_floor=False)
    of = asking(own_c="many")
    state = decide(on, State(), nri.Synchronize((of,), (container(of, cpu=2),))).state
    (record,) = state.containers.values()
    assert "expected a number of CPUs" in record.unplaced
    assert not state.exclusive


@pytest.mark.parametrize(("rule", "affinity"), [(SMTOddCounts.ROUND_UP, (1,)), (SMTOddCounts.KUBELET, (0,))])
def test_a_pods_total_is_rounded_up_before_its_nodes_are_chosen(
    rule: SMTOddCounts, affinity: tuple[int, ...]
):
    on = node(
        reserved="0",
        topology_manager_policy=TopologyManagerPolicy.RESTRICTED,
        topology_manager_scope=TopologyManagerScope.POD,
        smt_odd_counts=rule,
    )
    of = pod("p", cpu=7)  # NUMA node 0 has seven CPUs left, three of them in whole cores
    decision = decide(on, State(), nri.CreateContainer(of, container(of, cpu=7)))
    assert tuple(decision.state.pods["p"].affinity or ()) == affinity


BEST_EFFORT = TopologyManagerPolicy.BEST_EFFORT


@pytest.mark.parametrize(
    ("value", "mask"),
    [("0", 1), ("3", 8), ("", 0), ("-1", 0), ("01", 0), ("1,2", 0), ("x", 0), ("99999", 0), ("٣", 0)],
)
def test_a_wish_for_a_numa_node_is_a_number_or_nothing(value: str, mask: int) -> None:
    record = pod_record(
        replace(pod("p", namespace="trusted"), annotations={NUMA_NODE: value}), HEARING, run_seen=True
    )
    options = node(annotation_namespaces=TRUSTING).options
    assert annotated_node(options, record) == mask
    assert annotated_node(node().options, record) == 0


@pytest.mark.parametrize(
    ("namespace", "value", "given"),
    [
        ("trusted", "1", "8-9"),
        ("trusted", "0", "2-3"),
        ("trusted", "7", "2-3"),
        ("trusted", "nonsense", "2-3"),
        ("elsewhere", "1", "2-3"),
    ],
)
def test_a_wish_is_heard_where_the_namespace_is_trusted_and_refuses_nobody(
    namespace: str, value: str, given: str
) -> None:
    of = replace(pod("p", namespace=namespace), annotations={NUMA_NODE: value})
    on = node(annotation_namespaces=TRUSTING, topology_manager_policy=BEST_EFFORT)
    state = decide(on, State(), nri.RunPodSandbox(of)).state
    decision = decide(on, state, nri.CreateContainer(of, container(of, cpu=2)))
    assert str(decision.state.allocations["p/c"].cpus) == given


def test_a_wish_under_pod_scope_draws_the_whole_pod() -> None:
    of = replace(pod("p", cpu=4, namespace="trusted"), annotations={NUMA_NODE: "1"})
    scope = TopologyManagerScope.POD
    on = node(
        annotation_namespaces=TRUSTING, topology_manager_policy=BEST_EFFORT, topology_manager_scope=scope
    )
    state = decide(on, State(), nri.RunPodSandbox(of)).state
    for name in ("a", "b"):
        state = decide(on, state, nri.CreateContainer(of, container(of, name, cpu=2))).state
    assert [str(one.cpus) for one in state.allocations.values()] == ["8-9", "10-11"]


def test_a_wish_for_a_full_node_is_no_reason_to_be_refused() -> None:
    of = replace(pod("p", namespace="trusted"), annotations={NUMA_NODE: "1"})
    on = node(annotation_namespaces=TRUSTING, topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)
    other = pod("other")
    state = decide(on, State(), nri.CreateContainer(other, container(other, cpu=7))).state
    decision = decide(on, state, nri.CreateContainer(of, container(of, cpu=6)))
    assert decision.refusal is None
    assert str(decision.state.allocations["p/c"].cpus) == "2-7"
