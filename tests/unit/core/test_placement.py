"""What the options beyond the kubelet's do to a whole decision."""

import pytest
from msgspec.structs import replace

from nri_plugin.checkpoint.kubelet_export import cpu_file, memory_file
from nri_plugin.checkpoint.kubelet_import import File, allocations_in, imported
from nri_plugin.core.engine import decide
from nri_plugin.core.validator import new_violations
from nri_plugin.model.options import (
    MemoryManagerPolicy,
    Options,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
    TopologyTieBreak,
    UncoreCacheFit,
)
from nri_plugin.model.state import State
from nri_plugin.policy import merge
from nri_plugin.policy.cpu_policy import reserved_cpus
from nri_plugin.wire.nri import events as nri
from tests.builders import GIB, container, machine, node, pod

MACHINE = machine(nodes=2, cores=8, threads=2, caches=4)
"""32 CPUs, caches of 4; CPUs 0-15 are node 0."""


def created(on, state, uid, size):
    of = pod(uid)
    return decide(on, state, nri.CreateContainer(of, container(of, cpu=size)))


def placed(on, *sizes):
    """The CPUs of containers that come one after the other, each in a pod of its own."""
    state, cpus = State(), []
    for number, size in enumerate(sizes):
        state = created(on, state, f"p{number}", size).state
        cpus.append(str(state.allocations[f"p{number}/c"].cpus))
    return cpus


def refused(on, size):
    return str(created(on, State(), "p", size).refusal)


def test_the_best_fit_keeps_a_container_in_one_cache():
    assert placed(node(MACHINE, reserved="0"), 4) == ["2-5"]
    assert placed(node(MACHINE, reserved="0", uncore_cache_fit=UncoreCacheFit.BEST), 4) == ["4-7"]


def test_a_strict_cache_refuses_what_spans_two():
    on = node(MACHINE, uncore_cache_fit=UncoreCacheFit.BEST, strict_uncore_cache=True)
    assert placed(on, 4) == ["4-7"]
    assert "5 cpus requested" in refused(on, 5)


def test_a_strict_cache_is_looked_for_on_the_hinted_nodes_and_elsewhere_only_when_they_are_full():
    on = node(
        MACHINE,
        uncore_cache_fit=UncoreCacheFit.BEST,
        strict_uncore_cache=True,
        topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT,
    )
    assert placed(on, 4, 4, 4, 2, 4) == ["4-7", "8-11", "12-15", "2-3", "16-19"]


def test_the_tie_between_nodes_goes_to_the_emptiest_or_to_the_tightest():
    def both(rule):
        best_effort = TopologyManagerPolicy.BEST_EFFORT
        on = node(MACHINE, "16-19", topology_manager_policy=best_effort, topology_tie_break=rule)
        return placed(on, 8, 2)

    assert both(TopologyTieBreak.PACKED) == ["0-7", "8-9"]
    assert both(TopologyTieBreak.SPREAD) == ["0-7", "20-21"]
    assert both(TopologyTieBreak.BEST_FIT) == ["20-27", "28-29"]


@pytest.mark.parametrize(
    ("rule", "full_pcpus_only", "size"),
    [
        (SMTOddCounts.KUBELET, False, 3),
        (SMTOddCounts.ROUND_UP, False, 4),
        (SMTOddCounts.ROUND_UP, True, 4),
        (SMTOddCounts.ALLOW, True, 3),
    ],
)
def test_an_odd_number_of_cpus_is_given_as_the_rule_says(rule, full_pcpus_only, size):
    on = node(MACHINE, smt_odd_counts=rule, full_pcpus_only=full_pcpus_only)
    assert len(created(on, State(), "p", 3).state.allocations["p/c"].cpus) == size


@pytest.mark.parametrize(
    ("rule", "full_pcpus_only"), [(SMTOddCounts.REJECT, False), (SMTOddCounts.KUBELET, True)]
)
def test_an_odd_number_of_cpus_is_refused_as_the_rule_says(rule, full_pcpus_only):
    on = node(MACHINE, smt_odd_counts=rule, full_pcpus_only=full_pcpus_only)
    assert refused(on, 3).startswith("SMTAlignmentError: requested 3 cpus")


def test_a_hint_that_a_search_had_to_give_up_on_is_said_whatever_the_container_gets(monkeypatch):
    large = machine(nodes=16, cores=2)
    on = node(large, "0", topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT)
    assert "inexact-hint" not in created(on, State(), "p", 7).steps
    monkeypatch.setattr(merge, "STEP_BUDGET", 0)
    decision = created(on, State(), "p", 7)
    assert "inexact-hint" in decision.steps
    assert len(decision.state.allocations["p/c"].cpus) == 7
    per_pod = node(
        large,
        "0",
        topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT,
        topology_manager_scope=TopologyManagerScope.POD,
    )
    assert "inexact-hint" in created(per_pod, State(), "p", 7).steps


def test_a_refusal_for_want_of_steps_is_said_as_such(monkeypatch):
    on = node(machine(nodes=16, cores=2), "0", topology_manager_policy=TopologyManagerPolicy.RESTRICTED)
    assert created(on, State(), "p", 7).refusal is None
    monkeypatch.setattr(merge, "STEP_BUDGET", 0)
    decision = created(on, State(), "p", 7)
    assert decision.steps == ("refused", "TopologyAffinityError", "inexact-hint")


def test_what_an_ended_container_hands_over_leaves_the_pods_others_as_they_are():
    on, of = node(machine(nodes=1, cores=4)), pod()
    state = State()
    init, sidecar, app = (container(of, name, cpu=2) for name in ("init", "sidecar", "app"))
    for event in (
        nri.CreateContainer(of, init),
        nri.CreateContainer(of, sidecar),
        nri.StopContainer(of, init),
        nri.CreateContainer(of, app),
    ):
        state = decide(on, state, event).state
    held = {key: str(allocation.cpus) for key, allocation in state.allocations.items()}
    assert held == {"p1/init": "", "p1/sidecar": "4-5", "p1/app": "2-3"}


@pytest.mark.parametrize(("count", "reserved"), [(1, "0"), (2, "0-1"), (4, "0-3")])
def test_where_only_the_number_of_reserved_cpus_is_given_they_are_those_the_policy_takes_first(
    count, reserved
):
    assert str(reserved_cpus(MACHINE, Options(), count)) == reserved


BEST_EFFORT = {
    "memory_manager_policy": MemoryManagerPolicy.STATIC,
    "topology_manager_policy": TopologyManagerPolicy.BEST_EFFORT,
}


@pytest.mark.parametrize(
    ("memory", "pages", "options", "cpu", "group", "bound"),
    [
        ([16, 0], {}, {}, 10, "0-1", "0"),
        ([0, 16], {}, {}, 10, "0-1", "1"),
        ([16, 16], {}, {}, 10, "0-1", "0-1"),
        ([16, 0, 0], {}, {}, 20, "0-2", "0"),
        ([0, 16, 0, 16], {}, {}, 28, "0-3", "1,3"),
        ([16, 0], {1: 2}, {}, 10, "0-1", "0-1"),
        ([16, 0], {}, {"topology_manager_scope": TopologyManagerScope.POD}, 10, "0-1", "0"),
        ([16, 0], {}, {"topology_manager_policy": TopologyManagerPolicy.NONE}, 10, "0", "0"),
        ([16, 0], {}, {"topology_manager_policy": TopologyManagerPolicy.RESTRICTED}, 4, "0", "0"),
        ([16, 0], {}, {"topology_manager_policy": TopologyManagerPolicy.RESTRICTED}, 10, "", ""),
        ([16, 0], {}, {"topology_manager_policy": TopologyManagerPolicy.SINGLE_NUMA_NODE}, 4, "0", "0"),
    ],
)
def test_memory_is_bound_to_the_nodes_of_the_hint_that_have_memory(memory, pages, options, cpu, group, bound):
    """The blocks keep all nodes of the hint. A node without ordinary memory may have huge pages."""
    topology = machine(nodes=len(memory), memory=[GIB * size for size in memory])
    topology = replace(
        topology,
        nodes=tuple(
            replace(one, hugepages=((2048, pages[one.id]),)) if one.id in pages else one
            for one in topology.nodes
        ),
    )
    on = node(topology, "0", **(BEST_EFFORT | options))
    of = pod("p", cpu=cpu)
    event = nri.CreateContainer(of, container(of, cpu=cpu, memory=GIB))
    decision = decide(on, State(), event)
    assert new_violations(on, State(), event, decision) == []
    if not bound:
        assert decision.refusal is not None
        return
    held = decision.state.allocations["p/c"]
    assert (len(held.cpus), str(held.memory[0].nodes), str(held.mems)) == (cpu, group, bound)
    assert decision.response.resources.mems == bound
    # A restart keeps it, and so does one on the memory file of a kubelet.
    stored = replace(event.container, resources=decision.response.resources)
    again = decide(on, decision.state, nri.Synchronize((of,), (stored,)))
    assert again.state.allocations == decision.state.allocations
    files = [File("cpu", cpu_file(on, again.state)), File("memory", memory_file(on, again.state))]
    taken_over = imported(on, allocations_in(*files)).allocations["p/c"]
    assert (taken_over.cpus, taken_over.memory, taken_over.mems) == (held.cpus, held.memory, held.mems)
