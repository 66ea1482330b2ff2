"""Who leaves what to whom in a pod; whole decisions are in `test_pod_facts`."""

from collections.abc import Sequence

import pytest

from nri_plugin.core.engine import decide
from nri_plugin.core.reuse import donors, handed_over, reusable_cpus, reusable_memory
from nri_plugin.core.validator import new_violations
from nri_plugin.explain.explanation import explain
from nri_plugin.model.options import MemoryManagerPolicy, Node, UncoreCacheFit
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
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from tests.builders import GIB, container, cpus, machine, node, nodes, pod

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


# Without facts, whole decisions: another pod ends between the init containers of a pod and the others.


def without_facts(
    on: Node, inits: Sequence[int], apps: Sequence[int], total: int | None, memory: int = 0
) -> tuple[State, dict[str, CPUSet]]:
    """The state at the end, and the CPUs that each container got when it was created."""
    state, got = State(), {}

    def told(*events: nri.NRIEvent) -> None:
        nonlocal state
        for event in events:
            decision = decide(on, state, event)
            assert decision.refusal is None, decision.refusal
            assert new_violations(on, state, event, decision) == []
            state = decision.state

    other, of = pod("other"), pod("p", cpu=total)
    told(nri.CreateContainer(other, container(other, cpu=3, memory=memory)))
    names = [*(("init", size) for size in inits), *(("app", size) for size in apps)]
    for number, (kind, size) in enumerate(names):
        if number == len(inits):
            told(nri.StopPodSandbox(other))
        one = container(of, f"{kind}{number}", cpu=size, memory=memory)
        told(nri.CreateContainer(of, one), nri.StartContainer(of, one))
        got[one.name] = state.allocations[f"p/{one.name}"].cpus
        if kind == "init":
            told(nri.StopContainer(of, one))
    return state, got


@pytest.mark.parametrize(
    ("inits", "apps", "inside"),
    [
        ([3], [3], {"app1": "init0"}),
        ([4], [2], {"app1": "init0"}),
        ([2, 3], [3], {"app2": "init1"}),
        ([3, 2], [3], {}),
        ([3], [1, 2], {"app1": "init0"}),
        ([3], [2, 2], {"app1": "init0"}),
        ([2], [2, 2], {}),
        ([1], [3], {}),
        ([2], [1, 3], {}),
        ([2, 2, 2], [2], {"init1": "init0", "app3": "init2"}),
    ],
)
@pytest.mark.parametrize("caches", [1, 2])
def test_without_facts_containers_take_what_ended_init_containers_leave_and_no_pod_that_fits_is_refused(
    inits: list[int], apps: list[int], inside: dict[str, str], caches: int
) -> None:
    total = max(*inits, sum(apps))
    on = node(machine(nodes=1, caches=caches), reserved="0", prefer_align_cpus_by_uncore_cache=True)
    state, got = without_facts(on, inits, apps, total)
    assert [len(one) for one in got.values()] == [*inits, *apps]
    assert all(got[name] <= got[init] for name, init in inside.items())
    following = pod("next")
    rest = len(on.allocatable) - total  # what the scheduler counts as free
    decision = decide(on, state, nri.CreateContainer(following, container(following, cpu=rest)))
    assert decision.refusal is None


def test_without_the_total_of_the_pod_its_own_cpus_come_first_too() -> None:
    on = node(machine(nodes=1), reserved="0")
    _, got = without_facts(on, [3], [3], None)
    assert got["app1"] == got["init0"]


def test_memory_of_an_ended_init_container_comes_first_too() -> None:
    on = node(machine(memory=4 * GIB), reserved="0", memory_manager_policy=MemoryManagerPolicy.STATIC)
    for total in (3, None):
        state, _ = without_facts(on, [3], [3], total, memory=3 * GIB)
        held = [
            one for one in state.allocations.values() if one.memory and sum(b.size_bytes for b in one.memory)
        ]
        assert [(str(one.mems), one.memory) for one in held] == [("1", (block(3 * GIB, 1),))]


def test_a_container_that_may_run_again_beside_its_sibling_keeps_its_cpus() -> None:
    """It crashed before the runtime created the other one; the pod asks for both."""
    on = node(machine(nodes=1), reserved="0")
    state, got = without_facts(on, [2], [2], 4)
    assert got["app1"].isdisjoint(got["init0"])
    assert state.allocations["p/init0"].cpus == got["init0"]


def test_own_cpus_that_the_policy_refuses_are_passed_over() -> None:
    on = node(
        machine(nodes=1, cores=8, caches=4),
        reserved="0-1",
        uncore_cache_fit=UncoreCacheFit.BEST,
        strict_uncore_cache=True,
    )
    _, got = without_facts(on, [2, 3], [4], None)
    assert len(got["app2"]) == 4
    assert got["app2"].isdisjoint(got["init0"] | got["init1"])
    assert sum(1 for _, cache in on.topology.caches if not cache.isdisjoint(got["app2"])) == 1


def test_the_explanation_is_about_the_cpus_of_ended_init_containers_where_these_come_first() -> None:
    on = node(machine(nodes=1), reserved="0")
    state, got = without_facts(on, [3], [], 3)
    state = decide(on, state, nri.StopPodSandbox(pod("other"))).state
    of = pod("p", cpu=3)
    told = explain(on, state, nri.CreateContainer(of, container(of, "app", cpu=3)))
    assert (told.cpus, "own-first" in told.steps) == (str(got["init0"]), True)
    assert {step.on_offer for step in told.taking} == {3}
