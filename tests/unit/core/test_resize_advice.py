"""What the refusal of a resize says of other sizes, and of who is in the way."""

import pytest

from nri_plugin.core.engine import decide
from nri_plugin.model.options import Node, TopologyManagerPolicy
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container
from tests.builders import container, cpu_resources, node, pod

POD, OTHER = pod(cpu=2), pod("other", cpu=8)


def running(on: Node, *pods: nri.Pod) -> tuple[State, Container]:
    """The pods' containers run; and the one of the first, as the runtime has it stored."""
    state = State()
    for each in pods:
        what = container(each, cpu=2 if each is POD else 8)
        for event in (
            nri.RunPodSandbox(each),
            nri.CreateContainer(each, what),
            nri.StartContainer(each, what),
        ):
            decision = decide(on, state, event)
            assert decision.refusal is None
            state = decision.state
    return state, container(POD, cpu=2)


def refused(on: Node, state: State, what: Container, cpu: float) -> str:
    return str(decide(on, state, nri.UpdateContainer(POD, what, cpu_resources(cpu))).refusal)


def test_what_others_hold_is_named_and_the_largest_size_that_fits() -> None:
    on = node()
    state, what = running(on, POD, OTHER)
    text = refused(on, state, what, 10)
    assert text.endswith("; would fit: 6 CPUs; in the way: default/other/c (8 CPUs 8-15)"), text
    assert decide(on, state, nri.UpdateContainer(POD, what, cpu_resources(6))).refusal is None
    assert decide(on, state, nri.UpdateContainer(POD, what, cpu_resources(7))).refusal is not None


def test_a_size_that_no_machine_of_that_kind_has_is_told_so() -> None:
    on = node()
    state, what = running(on, POD)
    text = refused(on, state, what, 90)
    assert text.endswith("would fit: 14 CPUs; without other pods it would not fit either"), text


def test_whole_cores_are_suggested_where_only_those_are_given() -> None:
    on = node(full_pcpus_only=True, topology_manager_policy=TopologyManagerPolicy.NONE)
    state, what = running(on, POD, OTHER)
    assert "would fit: 6 CPUs; in the way" in refused(on, state, what, 10)


def test_what_is_not_about_room_says_no_more_than_before() -> None:
    on = node()
    state, what = running(on, POD)
    assert refused(on, state, what, 1).endswith("or make the pod anew")


@pytest.mark.parametrize(
    ("total", "advice"),
    [
        (10, "would fit: 6000m for the pod; in the way: default/other/c"),
        (90, "without other pods it would not fit either"),
    ],
)
def test_a_pods_larger_total_is_answered_the_same_way(total: int, advice: str) -> None:
    on = node()
    state, _ = running(on, POD, OTHER)
    decision = decide(on, state, nri.UpdatePodSandbox(POD, resources=cpu_resources(total)))
    assert advice in str(decision.refusal)
