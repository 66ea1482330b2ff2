"""Who leaves what to whom in a pod; whole decisions are in `test_pod_facts`."""

import pytest

from nri_plugin.core.reuse import donors, handed_over, reusable_cpus, reusable_memory
from nri_plugin.model.records import (
    Allocation,
    CgroupRef,
    ContainerFacts,
    ContainerRecord,
    Kind,
    MemoryBlock,
    Phase,
    PodFacts,
    PodRecord,
    QOSClass,
    Resize,
    Size,
)
from nri_plugin.model.state import State
from tests.builders import cpus, nodes

NO_CPUS = cpus("")
KINDS = {"fetch": Kind.INIT, "mesh": Kind.SIDECAR, "setup": Kind.INIT, "web": Kind.APP, "log": Kind.APP}
FACTS = PodFacts("p", QOSClass.GUARANTEED, tuple(ContainerFacts(name, kind) for name, kind in KINDS.items()))


def block(size: int, *on: int, resource: str = "memory") -> MemoryBlock:
    return MemoryBlock(nodes(*on), resource, size)


def state(*live: str, **allocations: Allocation) -> State:
    """The pod's promises, and one of a pod whose uid begins alike."""
    records = {
        name: ContainerRecord(name, "p", name, phase, CgroupRef(""))
        for names, phase in ((live, Phase.RUNNING), (["ended"], Phase.STOPPED))
        for name in names
    }
    mine = {f"p/{name}": promised for name, promised in allocations.items()}
    return State({}, records, {**mine, "p2/fetch": Allocation(cpus("60"))})


def promised_to(*names: str, live: tuple[str, ...] = ()) -> State:
    return state(*live, **{name: Allocation(cpus(str(number))) for number, name in enumerate(names)})


@pytest.mark.parametrize(
    ("name", "live", "expected"),
    [
        ("setup", (), "fetch"),
        ("web", ("fetch",), "fetch setup"),
        ("mesh", (), "fetch setup"),
        ("debugger", (), "fetch setup"),
    ],
)
def test_by_facts_plain_init_containers_leave_theirs(name: str, live: tuple[str, ...], expected: str) -> None:
    found = donors(promised_to(*KINDS, live=live), PodRecord("p", "s", facts=FACTS), name)
    assert found == tuple(f"p/{one}" for one in expected.split())


def test_without_facts_whoever_does_not_live_leaves_it() -> None:
    found = donors(promised_to(*KINDS, live=("web", "mesh")), PodRecord("p", "s"), "log")
    assert found == ("p/fetch", "p/setup")


def test_memory_adds_up_by_nodes_and_resource() -> None:
    held = state(
        fetch=Allocation(memory=(block(5, 0), block(1, 0, resource="hugepages-2Mi"))),
        setup=Allocation(memory=(block(2, 0), block(3, 0, 1))),
    )
    assert reusable_memory(held, ("p/fetch", "p/setup")) == {
        (0b1, "memory"): 7,
        (0b1, "hugepages-2Mi"): 1,
        (0b11, "memory"): 3,
    }


def test_cpus_add_up() -> None:
    assert reusable_cpus(promised_to("fetch", "mesh", "setup"), ("p/fetch", "p/setup")) == cpus("0,2")


def test_cpus_that_a_sidecar_took_over_pass_on_no_further() -> None:
    held = state(
        fetch=Allocation(cpus("0-3"), is_init=True),
        setup=Allocation(cpus("2-5"), is_init=True),
        mesh=Allocation(cpus("1-2")),
    )
    assert reusable_cpus(held, ("p/fetch", "p/setup")) == cpus("0,3-5")


def test_an_init_container_keeps_the_cpus_that_it_passes_on() -> None:
    before = state(fetch=Allocation(cpus("0-1"), memory=(block(5, 0),), is_init=True))
    after = handed_over(before, ("p/fetch",), cpus("1"), (block(3, 0),))
    assert after.allocations["p/fetch"] == Allocation(cpus("0-1"), memory=(block(2, 0),), is_init=True)


def test_what_passes_on_is_taken_from_the_oldest_first() -> None:
    before = state(
        fetch=Allocation(cpus("0-1"), memory=(block(5, 0),)),
        setup=Allocation(cpus("2-3"), memory=(block(2, 0),)),
        mesh=Allocation(cpus("4"), memory=(block(9, 0),)),
    )
    after = handed_over(before, ("p/fetch", "p/setup"), cpus("1-2"), (block(6, 0),))
    assert after.allocations["p/fetch"] == Allocation(cpus("0"), memory=(block(0, 0),))
    assert after.allocations["p/setup"] == Allocation(cpus("3"), memory=(block(1, 0),))
    assert after.allocations["p/mesh"] is before.allocations["p/mesh"]


def test_nothing_passes_on_and_nothing_changes() -> None:
    before = state(fetch=Allocation(cpus("0-1"), memory=(block(5, 0),)))
    assert handed_over(before, ("p/fetch",), cpus("2"), (block(5, 1),)) is before
    assert handed_over(before, (), NO_CPUS, ()) is before


def test_a_resize_under_way_ends_with_its_container_and_brings_nothing_back() -> None:
    sizes = Size(cpus("0-2"), (cpus("2"),), 3000, ()), Size(cpus("0-3"), (cpus("2"), cpus("3")), 4000, ())
    growing = Allocation(cpus("0-3"), cpu_milli=3000, grown=(cpus("2"), cpus("3")), resize=Resize(*sizes))
    after = handed_over(state(web=growing), ("p/web",), cpus("2-3"), ())
    assert after.allocations["p/web"] == Allocation(cpus("0-1"), cpu_milli=3000)
