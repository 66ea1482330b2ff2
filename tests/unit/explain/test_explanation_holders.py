"""Who holds what, NUMA node by NUMA node."""

from nri_plugin.explain.fits import uses
from nri_plugin.model.options import MemoryManagerPolicy, TopologyManagerPolicy
from nri_plugin.model.records import Allocation
from nri_plugin.model.state import State
from tests.builders import GIB, cpus, node
from tests.explained import after, creation

ON = node(
    memory_manager_policy=MemoryManagerPolicy.STATIC,
    topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT,
)


def test_available_reserved_and_held_add_up_on_every_node() -> None:
    state = after(ON, creation("a", cpu=4, memory=GIB), creation("b", cpu=4, memory=GIB))
    for one in uses(ON, state):
        assert one.cpus == one.available + one.reserved + sum(holder.count for holder in one.holders)


def test_holders_are_named_with_cpus_and_memory_of_that_node() -> None:
    first, second = uses(ON, after(ON, creation("a", cpu=4, memory=GIB)))
    (holder,) = first.holders
    assert (holder.container, holder.cpus, holder.memory) == ("default/a/c", "2-5", (("memory", GIB),))
    assert first.memory == (("memory", 15 * GIB, 16 * GIB),)
    assert second.holders == ()


def test_without_the_memory_manager_no_memory_is_told() -> None:
    assert uses(node(), State())[0].memory == ()


def test_what_is_kept_for_nobody_alive_is_marked() -> None:
    state = State(allocations={"gone/c": Allocation(cpus("2-3"))})
    (holder,) = uses(ON, state)[0].holders
    assert holder.has_ended
    assert holder.container == "gone/c"


def test_who_holds_most_comes_first() -> None:
    state = after(ON, creation("a", cpu=2, memory=GIB), creation("b", cpu=4, memory=GIB))
    assert [holder.container for holder in uses(ON, state)[0].holders] == ["default/b/c", "default/a/c"]
