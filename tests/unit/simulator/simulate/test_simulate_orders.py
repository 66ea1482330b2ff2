"""The same pods in other orders."""

import pytest

from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine.source import machine_from
from nri_plugin.simulator.simulate.comparison import PodOrder, ordered, other_orders, spread
from nri_plugin.simulator.simulate.config import choose
from nri_plugin.simulator.simulate.plan import PodPlan, read_plan, read_short
from nri_plugin.simulator.simulate.steps import Run

MACHINE = machine_from(b"pack:2 numa:1(memory=4GiB) l3:1 core:4 pu:1\n", "x", "x")
PODS = """\
- {pod: two, count: 2, cpu: 2, memory: 1Gi}
- {pod: four, cpu: 4, memory: 1Gi}
- {pod: three, cpu: 3, memory: 2Gi}
"""


def plan() -> PodPlan:
    return read_short(PODS, "p.yaml")


def names(found: PodPlan) -> list[str]:
    return [step.pod.name for step in found.steps if isinstance(step, Run)]


def test_the_order_of_the_file_is_kept_unless_another_is_asked_for() -> None:
    assert ordered(plan(), PodOrder.FILE, 0) == plan()
    assert names(ordered(plan(), PodOrder.LARGE_FIRST, 0)) == ["four", "three", "two-0", "two-1"]
    assert names(ordered(plan(), PodOrder.SMALL_FIRST, 0)) == ["two-0", "two-1", "three", "four"]


def test_a_shuffle_has_all_pods_and_is_the_same_for_the_same_seed() -> None:
    once, again = ordered(plan(), PodOrder.SHUFFLE, 7), ordered(plan(), PodOrder.SHUFFLE, 7)
    assert names(once) == names(again)
    assert sorted(names(once)) == sorted(names(plan()))
    assert len({tuple(names(ordered(plan(), PodOrder.SHUFFLE, seed))) for seed in range(20)}) > 5


def test_steps_that_depend_on_their_order_are_left_in_it() -> None:
    with pytest.raises(ConfigError, match="has steps that depend on their order"):
        ordered(read_plan("devices"), PodOrder.SHUFFLE, 0)


def test_orders_that_place_more_are_found() -> None:
    chosen = choose(MACHINE.topology, sets={"topologyManagerPolicy": "single-numa-node"})
    rows = list(other_orders(MACHINE, plan(), chosen, range(12)))
    assert [row.seed for row in rows] == [None, *range(12)]
    figures = {name: rest for name, *rest in spread(rows)}
    own, least, middle, most = figures["pods placed"]
    assert (own, least, most) == (2, 2, 3)
    assert least <= middle <= most
    assert rows[0].exclusive_cpus == 4
