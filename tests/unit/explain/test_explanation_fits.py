"""What would have fitted, long enough looked for."""

import dataclasses

from msgspec.structs import replace

from nri_plugin.cli.explain.text import fit_text
from nri_plugin.core.decision import InformedCreate
from nri_plugin.explain.explanation import explain
from nri_plugin.explain.fits import Fit, FitKind
from nri_plugin.model.options import (
    IsolatedCPUs,
    MemoryManagerPolicy,
    Node,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
    UncoreCacheFit,
)
from nri_plugin.model.records import ContainerFacts
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from tests.builders import GIB, cpus, machine, node
from tests.explained import after, creation
from tests.whole_pods import PodLife, part, pod_scope, whole

SINGLE = TopologyManagerPolicy.SINGLE_NUMA_NODE


def fits(on: Node, event: InformedCreate, state: State | None = None, *kinds: str) -> list[str]:
    found = explain(on, state or State(), event).fits
    return [fit_text(one) for one in found if not kinds or one.kind in kinds]


def test_the_largest_number_of_cpus_that_fits_is_found_and_said_to_be_that() -> None:
    on = node(topology_manager_policy=SINGLE)
    state = after(on, creation("a", cpu=5))
    found = explain(on, state, creation(cpu=9)).fits
    assert found[0] == Fit(FitKind.CPUS, 8, numa_nodes="1", is_largest=True)


def test_an_odd_number_is_offered_both_whole_ones() -> None:
    on = node(full_pcpus_only=True)
    assert fits(on, creation(cpu=3), None, "cpus") == ["2 CPUs", "4 CPUs"]
    assert not any(one.is_largest for one in explain(on, State(), creation(cpu=3)).fits)


def test_options_that_were_in_the_way_are_named() -> None:
    on = node(full_pcpus_only=True, smt_odd_counts=SMTOddCounts.KUBELET)
    assert fits(on, creation(cpu=3), None, "option") == [
        "without full-pcpus-only",
        "smtOddCounts: round-up",
        "smtOddCounts: allow",
    ]
    strict = node(machine(caches=2), uncore_cache_fit=UncoreCacheFit.BEST, strict_uncore_cache=True)
    assert fits(strict, creation(cpu=6), None, "option") == ["without strictUncoreCache"]


def test_rules_that_a_slice_or_the_pages_of_a_pod_break_are_named() -> None:
    slices = PodLife(pod_scope(smt_odd_counts=SMTOddCounts.REJECT), part("a", 3), resources=whole(6))
    assert what_fits(slices, "a") == ["smtOddCounts: round-up", "smtOddCounts: allow"]
    pages = (("hugepages-2Mi", 4 << 20),)
    on = pod_scope(topology_manager_policy=SINGLE)
    paged = tuple(replace(one, hugepages=((2048, 8),)) for one in on.topology.nodes)
    on = dataclasses.replace(on, topology=replace(on.topology, nodes=paged))
    owner = replace(part("a", 2), amounts=replace(part("a", 2).amounts, hugepages=pages))
    shared = PodLife(on, owner, ContainerFacts("log"), resources=replace(whole(6), hugepages=pages))
    assert "podSharedPoolRule: cpu-and-memory" in what_fits(shared, "a")


def what_fits(life: PodLife, name: str) -> list[str]:
    event = InformedCreate(nri.CreateContainer(life.of, life.message(name)), facts=life.facts)
    return fits(life.on, event, None, "option")


def test_cpus_that_the_kernel_isolates_are_counted_and_offered_by_their_option() -> None:
    isolated = replace(machine(), isolated=cpus("8-15"))
    on = node(isolated, isolated_cpus=IsolatedCPUs.ON_REQUEST, topology_manager_policy=SINGLE)
    told = explain(on, State(), creation(cpu=8))
    assert [(one.available, one.withheld) for one in told.numa_nodes] == [(6, 0), (0, 8)]
    assert "isolatedCPUs: exclusive" in [fit_text(one) for one in told.fits]


def test_under_pod_scope_container_scope_is_tried() -> None:
    on = node(topology_manager_policy=SINGLE, topology_manager_scope=TopologyManagerScope.POD)
    assert fits(on, creation(cpu=4, total=12), None, "scope") == ["topologyManagerScope container"]


def test_less_memory_is_offered() -> None:
    on = node(topology_manager_policy=SINGLE, memory_manager_policy=MemoryManagerPolicy.STATIC)
    state = after(on, creation("a", cpu=2, memory=10 * GIB), creation("b", cpu=6, memory=15 * GIB))
    assert fits(on, creation(cpu=2, memory=12 * GIB), state, "memory") == ["6Gi of memory"]


def test_each_pod_whose_end_is_enough_is_named_the_smallest_first() -> None:
    on = node(topology_manager_policy=SINGLE)
    state = after(on, creation("a", cpu=6), creation("b", cpu=4), creation("d", cpu=2))
    assert fits(on, creation(cpu=6), state, "end") == [
        "once default/b has ended",
        "once default/a has ended",
    ]


def test_where_one_is_not_enough_the_fewest_are_named() -> None:
    on = node(topology_manager_policy=SINGLE)
    state = after(on, creation("a", cpu=6), creation("b", cpu=4), creation("d", cpu=4))
    assert fits(on, creation(cpu=8), state, "end") == ["once default/b and default/d have ended"]


def test_many_that_must_end_are_counted() -> None:
    on = node(topology_manager_policy=SINGLE)
    state = after(on, creation("big", cpu=6), *(creation(f"p{number}", cpu=1) for number in range(8)))
    (text,) = fits(on, creation(cpu=8), state, "end")
    assert text == "once default/p0, default/p1, default/p2, default/p3 and 4 more have ended"


def test_an_admitted_container_is_told_of_nothing_else() -> None:
    assert explain(node(), State(), creation(cpu=2)).fits == ()


def test_where_nothing_fits_nothing_is_claimed() -> None:
    on = node(machine(1, cores=1, threads=1), reserved="0")
    assert explain(on, State(), creation(cpu=2)).fits == ()
