"""CPUs that the kernel isolates: who runs there, by configuration and by annotation."""

import dataclasses

import pytest
from msgspec.structs import replace

from nri_plugin.core.engine import decide
from nri_plugin.model.options import IsolatedCPUs, IsolatedWish, Node, narrowed
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Pod
from tests.builders import container, cpus, machine, node, pod

TRUSTING = frozenset({"trusted"})
ISOLATED = replace(machine(), isolated=cpus("4-7"))


def isolating(rule: IsolatedCPUs = IsolatedCPUs.EXCLUSIVE, isolated: str = "4-7") -> Node:
    topology = replace(ISOLATED, isolated=cpus(isolated))
    return node(topology, isolated_cpus=rule, annotation_namespaces=TRUSTING, pool_floor=False)


def guaranteed(wish: str = "") -> Pod:
    made = pod("p", "Guaranteed", cpu=2, namespace="trusted")
    return replace(made, annotations={"nri-pin/isolated-cpus.pod": wish} if wish else {})


def created(on: Node, of: Pod, cpu: float, state: State | None = None) -> tuple[str, str]:
    """The CPUs given and the refusal."""
    decision = decide(on, state or State(), nri.CreateContainer(of, container(of, cpu=cpu)))
    resources = getattr(decision.response, "resources", None)
    return (resources.cpus if resources else ""), str(decision.refusal or "")


def test_the_shared_pool_stays_out_of_isolated_cpus():
    burstable = pod("b", "Burstable", cpu=0.5)
    online = ISOLATED.online
    assert created(isolating(), burstable, 0.5)[0] == str(online - cpus("4-7"))
    assert created(isolating(IsolatedCPUs.IGNORE), burstable, 0.5)[0] == str(online)


def test_the_pool_is_isolated_cpus_where_nothing_else_is_left():
    on = isolating(isolated="0-63")
    assert State().shared_pool(on) == on.topology.online


@pytest.mark.parametrize(
    ("rule", "wish", "given"),
    [
        (IsolatedCPUs.EXCLUSIVE, "", "2-5"),
        (IsolatedCPUs.EXCLUSIVE, "avoid", "2-3,8-9"),
        (IsolatedCPUs.EXCLUSIVE, "require", "4-7"),
        (IsolatedCPUs.ON_REQUEST, "", "2-3,8-9"),
        (IsolatedCPUs.ON_REQUEST, "any", "2-5"),
        (IsolatedCPUs.ON_REQUEST, "require", "4-7"),
        (IsolatedCPUs.IGNORE, "", "2-5"),
        (IsolatedCPUs.IGNORE, "require", "4-7"),
    ],
)
def test_exclusive_containers_get_isolated_cpus_by_rule_and_wish(rule: IsolatedCPUs, wish: str, given: str):
    assert created(isolating(rule), guaranteed(wish), 4)[0] == given


def test_more_isolated_cpus_than_there_are_are_refused_with_their_number():
    given, refusal = created(isolating(), guaranteed("require"), 5)
    assert given == ""
    assert "requested=5, available=4" in refusal


def test_a_wish_that_makes_no_sense_is_refused_where_it_is_heard():
    assert "expected require, avoid, any, found 'yes'" in created(isolating(), guaranteed("yes"), 2)[1]


def test_the_node_is_narrowed_once_for_each_wish():
    on = isolating()
    assert narrowed(on, IsolatedWish.AVOID) is narrowed(on, IsolatedWish.AVOID)
    assert narrowed(on, None) is on
    withholding = narrowed(on, IsolatedWish.REQUIRE)
    assert narrowed(withholding, IsolatedWish.AVOID) is withholding
    assert narrowed(
        dataclasses.replace(on, topology=replace(ISOLATED, isolated=cpus(""))), IsolatedWish.AVOID
    ).withheld == cpus("")
