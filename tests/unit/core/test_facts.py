"""What devices that are known beside the runtime's message change in a decision."""

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.bounds import Cut
from nri_plugin.model.options import CPUManagerPolicy, Node, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.refusals import RefusalKind
from nri_plugin.model.sets import NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod
from tests.builders import container, cpus, node, pod

SINGLE = TopologyManagerPolicy.SINGLE_NUMA_NODE
RESTRICTED = TopologyManagerPolicy.RESTRICTED
QOS = ["Guaranteed", "Burstable", "BestEffort"]


def on_nodes(*nodes: int, name: str = "example.com/gpu") -> DeviceResource:
    return DeviceResource(name, tuple(Device(f"{name[-3:]}{on}", NodeMask.of(on)) for on in nodes))


def create(
    on: Node, of: Pod, what: Container, *devices: DeviceResource, state: State | None = None
) -> Decision:
    return decide(on, state or State(), InformedCreate(nri.CreateContainer(of, what), devices))


def cpus_of(decision: Decision) -> str:
    assert decision.refusal is None, decision.refusal
    assert isinstance(decision.response, nri.CreateContainerResponse)
    assert decision.response.resources is not None
    return decision.response.resources.cpus


@pytest.mark.parametrize(
    "policy", [TopologyManagerPolicy.BEST_EFFORT, TopologyManagerPolicy.RESTRICTED, SINGLE]
)
def test_cpus_are_on_the_node_of_the_devices(policy: TopologyManagerPolicy) -> None:
    on = node(topology_manager_policy=policy)
    assert cpus_of(create(on, pod(), container(pod(), cpu=2), on_nodes(1))) == "8-9"


def test_more_devices_than_the_bounds_allow_give_no_hint() -> None:
    on = node(topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT)
    cut = replace(container(pod(), cpu=2), cut=(Cut.DEVICES,))
    decision = create(on, pod(), cut, on_nodes(1))
    assert cpus_of(decision) == "2-3"
    assert "devices-not-counted" in decision.steps


def test_topology_policy_none_looks_at_no_device() -> None:
    assert cpus_of(create(node(), pod(), container(pod(), cpu=2), on_nodes(1))) == "2-3"


def test_without_facts_the_same_container_goes_where_cpus_are_taken_first() -> None:
    on = node(topology_manager_policy=SINGLE)
    event = nri.CreateContainer(pod(), container(pod(), cpu=2))
    assert cpus_of(decide(on, State(), event)) == "2-3"
    assert decide(on, State(), InformedCreate(event)) == decide(on, State(), event)


@pytest.mark.parametrize("qos", QOS)
def test_devices_that_span_nodes_are_refused_under_single_numa_node_whatever_the_class(qos: str) -> None:
    of = pod("p1", qos)
    decision = create(node(topology_manager_policy=SINGLE), of, container(of), on_nodes(0, 1))
    assert decision.refusal
    assert decision.refusal.kind is RefusalKind.TOPOLOGY_AFFINITY
    assert "example.com/gpu: given gpu0 on NUMA node 0, gpu1 on NUMA node 1" in str(decision.refusal)
    assert decision.state == State()


@pytest.mark.parametrize("qos", QOS)
def test_two_resources_on_two_nodes_are_refused_under_restricted(qos: str) -> None:
    of, nic = pod("p1", qos), on_nodes(1, name="example.com/nic")
    decision = create(node(topology_manager_policy=RESTRICTED), of, container(of), on_nodes(0), nic)
    assert decision.refusal
    assert decision.refusal.kind is RefusalKind.TOPOLOGY_AFFINITY
    assert "nic1 on NUMA node 1" in str(decision.refusal)


def test_without_exclusive_cpus_of_any_kind_devices_still_refuse() -> None:
    on = node(topology_manager_policy=SINGLE, cpu_manager_policy=CPUManagerPolicy.NONE)
    assert create(on, pod(), container(pod(), cpu=2), on_nodes(0, 1)).refusal is not None


def test_best_effort_admits_what_spans_nodes() -> None:
    of = pod("p1", "BestEffort")
    on = node(topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT)
    assert cpus_of(create(on, of, container(of), on_nodes(0, 1))) == "0-15"


def test_a_shared_container_with_devices_of_one_node_runs_in_the_pool() -> None:
    of = pod("p1", "Burstable")
    decision = create(node(topology_manager_policy=SINGLE), of, container(of, cpu=1), on_nodes(1))
    assert cpus_of(decision) == "0-15"
    assert decision.steps == ("container-scope", "shared")
    assert not decision.state.allocations


def test_cpus_that_do_not_fit_beside_the_device_are_refused_with_both_named() -> None:
    on = node(topology_manager_policy=SINGLE)
    full = create(on, pod("a"), container(pod("a"), cpu=8), on_nodes(1))
    refused = create(on, pod("b"), container(pod("b"), cpu=2), on_nodes(1), state=full.state)
    assert "gpu1 on NUMA node 1" in str(refused.refusal)
    assert "cpu: 2 wanted" in str(refused.refusal)


def test_a_container_that_was_admitted_is_started_again_whatever_policy_says_now() -> None:
    of = pod("p1", "Burstable")
    first = create(node(), of, container(of), on_nodes(0, 1))
    strict = node(topology_manager_policy=SINGLE)
    stopped = decide(strict, first.state, nri.PostCreateContainer(of, container(of))).state
    again = create(strict, of, container(of, number=1), on_nodes(0, 1), state=stopped)
    assert again.refusal is None


def test_one_that_only_ran_because_its_namespace_is_never_refused_stays_marked() -> None:
    of = pod("p1", "Burstable", namespace="kube-system")
    on = node(topology_manager_policy=SINGLE, never_refuse=frozenset({"kube-system"}))
    state = create(on, of, container(of), on_nodes(0, 1)).state
    state = decide(on, state, nri.PostCreateContainer(of, container(of))).state
    again = create(on, of, container(of, number=1), on_nodes(0, 1), state=state)
    assert "TopologyAffinityError" in again.state.containers["p1-c-1"].unplaced


def test_a_restarted_container_keeps_its_cpus_wherever_its_devices_are_now() -> None:
    on = node(topology_manager_policy=SINGLE)
    first = create(on, pod(), container(pod(), cpu=2), on_nodes(1))
    again = create(on, pod(), container(pod(), cpu=2, number=1), on_nodes(0), state=first.state)
    assert cpus_of(again) == "8-9"


def test_adoption_goes_by_what_is_there_not_by_devices() -> None:
    on = node(topology_manager_policy=SINGLE)
    what = container(pod(), cpu=2, cpus="2-3")
    assert decide(on, State(), nri.Synchronize((pod(),), (what,))).state.exclusive == cpus("2-3")


def in_pod_scope(policy: TopologyManagerPolicy = SINGLE) -> Node:
    return node(topology_manager_policy=policy, topology_manager_scope=TopologyManagerScope.POD)


def test_under_pod_scope_the_first_containers_devices_place_the_pod() -> None:
    whole = pod(cpu=4)
    first = create(in_pod_scope(), whole, container(whole, "a", cpu=2), on_nodes(1))
    second = create(in_pod_scope(), whole, container(whole, "b", cpu=2), state=first.state)
    assert (cpus_of(first), cpus_of(second)) == ("8-9", "10-11")


def test_under_pod_scope_devices_of_later_containers_count_where_they_are_known() -> None:
    whole = pod(cpu=4)
    event = nri.CreateContainer(whole, container(whole, "a", cpu=2))
    first = decide(in_pod_scope(), State(), InformedCreate(event, (), (on_nodes(1),)))
    second = create(in_pod_scope(), whole, container(whole, "b", cpu=2), on_nodes(1), state=first.state)
    assert (cpus_of(first), cpus_of(second)) == ("8-9", "10-11")


@pytest.mark.parametrize("policy", [SINGLE, RESTRICTED])
def test_under_pod_scope_a_later_container_with_devices_elsewhere_is_refused(
    policy: TopologyManagerPolicy,
) -> None:
    whole = pod(cpu=4)
    on = in_pod_scope(policy)
    first = create(on, whole, container(whole, "a", cpu=2), on_nodes(1))
    second = create(on, whole, container(whole, "b", cpu=2), on_nodes(0), state=first.state)
    assert "gpu0 on NUMA node 0" in str(second.refusal)
    assert "pod: placed on NUMA nodes 1 with its first container" in str(second.refusal)
    assert second.state is first.state


def test_under_pod_scope_a_later_container_goes_where_the_pod_is_when_nothing_is_refused() -> None:
    whole = pod(cpu=4)
    on = in_pod_scope(TopologyManagerPolicy.BEST_EFFORT)
    first = create(on, whole, container(whole, "a", cpu=2), on_nodes(1))
    second = create(on, whole, container(whole, "b", cpu=2), on_nodes(0), state=first.state)
    assert cpus_of(second) == "10-11"


def test_under_pod_scope_the_cpus_of_a_burstable_pod_are_no_wish() -> None:
    whole = replace(pod("p1", "Burstable", cpu=12), name="whole")
    assert create(in_pod_scope(), whole, container(whole, cpu=12), on_nodes(1)).refusal is None


@pytest.mark.parametrize(("proportional", "expected"), [(False, "8-15"), (True, "2-5,8-11")])
def test_cpus_in_proportion_to_the_devices_nodes_are_an_option(proportional: bool, expected: str) -> None:
    policy = TopologyManagerPolicy.BEST_EFFORT
    on = node(topology_manager_policy=policy, device_proportional_cpus=proportional)
    assert cpus_of(create(on, pod(), container(pod(), cpu=8), on_nodes(0, 1))) == expected
