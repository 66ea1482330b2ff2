"""Laws of explanations: what is told is what is decided, what is said to fit does, and figures add up."""

import re
from dataclasses import replace

from hypothesis import event as seen
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.cli.explain.text import sentence
from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.explain.explanation import ContainerOutcome, Explanation, explain
from nri_plugin.explain.fits import Fit
from nri_plugin.model.options import (
    MemoryManagerPolicy,
    Node,
    Options,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
    TopologyTieBreak,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.merge import candidates, merge
from nri_plugin.wire.nri.events import CreateContainerResponse
from tests.builders import GIB
from tests.explained import creation
from tests.property.machines import rows_of_any_machine
from tests.property.test_merge_laws import hint_sets_of, machines_and_lists
from tests.topology_rows import topology_of_rows

MIB = 1 << 20
POLICIES = st.sampled_from(TopologyManagerPolicy)
SCOPES = st.sampled_from(TopologyManagerScope)


@st.composite
def asked(draw, uid: str):
    """The numbers of a container: everything `creation` takes."""
    cpu = draw(st.sampled_from([0, 1, 1, 2, 2, 3, 4, 5, 6, 8, 12, 1.5]))
    return {
        "uid": uid,
        "cpu": cpu,
        "memory": draw(st.sampled_from([0, 0, GIB, 3 * GIB, 5 * GIB, 20 * GIB])),
        "qos": draw(st.sampled_from(["Guaranteed"] * 4 + ["Burstable"])),
        "gpus": tuple(draw(st.lists(st.integers(0, 1), max_size=2))),
        "total": draw(st.sampled_from([None, cpu, cpu + 2])),
    }


@st.composite
def situations(draw):
    """A node, a state in which some containers are placed, and the numbers of one that comes."""
    rows = draw(rows_of_any_machine())
    memory = {row[3]: draw(st.sampled_from([0, 2 * GIB, 4 * GIB, 8 * GIB])) for row in rows}
    topology = topology_of_rows(rows, memory_bytes=memory)
    reserved = CPUSet(topology.online.mask & draw(st.integers(0, 0b11)))
    options = Options(
        topology_manager_policy=draw(POLICIES),
        topology_manager_scope=draw(SCOPES),
        memory_manager_policy=draw(st.sampled_from(MemoryManagerPolicy)),
        full_pcpus_only=draw(st.booleans()),
        smt_odd_counts=draw(st.sampled_from([SMTOddCounts.KUBELET] * 3 + list(SMTOddCounts))),
        topology_tie_break=draw(st.sampled_from(TopologyTieBreak)),
        prefer_align_cpus_by_uncore_cache=draw(st.booleans()),
    )
    node, state = Node(topology, options, reserved), State()
    for number in range(draw(st.integers(0, 4))):
        state = decide(node, state, creation(**draw(asked(f"p{number}")))).state
    return node, state, draw(asked("new"))


@given(situations())
def test_the_outcome_told_is_the_one_decided(drawn):
    node, state, wanted = drawn
    event = creation(**wanted)
    told, decision = explain(node, state, event), decide(node, state, event)
    assert sentence(told) == str(decision.refusal or "")
    assert (told.outcome is ContainerOutcome.REFUSED) == (decision.refusal is not None)
    assert told.steps == decision.steps
    if decision.refusal is None:
        assert isinstance(decision.response, CreateContainerResponse)
        given_to = decision.response.resources
        assert (told.cpus, told.mems) == ((given_to.cpus, given_to.mems) if given_to else ("", ""))
    seen(told.outcome)


@given(situations())
def test_the_steps_of_taking_make_up_the_exclusive_cpus(drawn):
    node, state, wanted = drawn
    told = explain(node, state, creation(**wanted))
    if told.outcome is ContainerOutcome.EXCLUSIVE:
        taken = CPUSet()
        for step in told.taking:
            assert taken.isdisjoint(CPUSet.parse(step.cpus))
            taken |= CPUSet.parse(step.cpus)
        assert taken == CPUSet.parse(told.cpus)


@given(situations())
def test_figures_add_up_on_every_numa_node(drawn):
    node, state, wanted = drawn
    told = explain(node, state, creation(**wanted))
    for one in told.numa_nodes:
        assert one.cpus == one.available + one.withheld + one.reserved + sum(
            holder.count for holder in one.holders
        )
        assert one.withheld == 0
    assert sum(one.available for one in told.numa_nodes) == len(state.available(node))


@given(situations())
@settings(max_examples=200)
def test_what_is_said_to_fit_fits_when_it_is_tried(drawn):
    node, state, wanted = drawn
    told = explain(node, state, creation(**wanted))
    for fit in told.fits:
        seen(fit.kind)
        on, before, event = changed_by(fit, node, state, wanted)
        decision = decide(on, before, event)
        assert decision.refusal is None, (fit, str(decision.refusal))
        if fit.numa_nodes and fit.kind != "policy":
            assert lies_on(on, explain(on, before, event)) == NodeMask.parse(fit.numa_nodes)


@given(situations())
def test_no_number_of_cpus_between_the_largest_and_the_one_refused_fits(drawn):
    node, state, wanted = drawn
    told = explain(node, state, creation(**wanted))
    for fit in told.fits:
        if fit.is_largest:
            for count in range(fit.amount + 1, told.subject.exclusive_cpus):
                assert decide(node, state, with_cpu(wanted, count)).refusal is not None


@given(situations())
def test_the_sentence_claims_nothing_that_is_not_so(drawn):
    node, state, wanted = drawn
    words = sentence(explain(node, state, creation(**wanted)))
    counts = re.search(r"would fit: (\d+)(?: or (\d+))? CPUs", words)
    for count in counts.groups() if counts else ():
        if count:
            assert decide(node, state, with_cpu(wanted, int(count))).refusal is None
    pod = re.search(r"after default/(\w+) ends", words)
    if pod:
        assert decide(node, state.released(pod[1]), creation(**wanted)).refusal is None
    policy = re.search(r"policy (best-effort|restricted) on", words)
    if policy:
        laxer = under(node, topology_manager_policy=TopologyManagerPolicy(policy[1]))
        assert decide(laxer, state, creation(**wanted)).refusal is None
    if "without other pods it would not fit either" in words:
        assert decide(node, State(), creation(**wanted)).refusal is not None


@given(POLICIES, machines_and_lists())
def test_the_first_contender_is_the_outcome_of_the_merge(policy, drawn):
    all_nodes, lists = drawn
    nodes, hint_sets = NodeMask(all_nodes), hint_sets_of(lists)
    merged, found = merge(policy, nodes, hint_sets), candidates(policy, nodes, hint_sets)
    if merged.affinity is not None and found:
        assert (found[0].nodes, found[0].preferred) == (merged.affinity.mask, merged.preferred)
    assert len({one.nodes for one in found}) == len(found)


def with_cpu(wanted: dict, count: int) -> InformedCreate:
    total = wanted["total"]
    total = None if total is None else total - wanted["cpu"] + count
    return creation(**{**wanted, "cpu": count, "total": total})


def under(node: Node, **options: object) -> Node:
    return replace(node, options=replace(node.options, **options))  # type: ignore[arg-type]


def changed_by(fit: Fit, node: Node, state: State, wanted: dict) -> tuple[Node, State, InformedCreate]:
    """The question that the claim is about."""
    event = creation(**wanted)
    if fit.kind == "cpus":
        return node, state, with_cpu(wanted, fit.amount)
    if fit.kind == "memory":
        return node, state, creation(**{**wanted, "memory": fit.amount})
    if fit.kind == "policy":
        return under(node, topology_manager_policy=TopologyManagerPolicy(fit.setting)), state, event
    if fit.kind == "scope":
        return under(node, topology_manager_scope=TopologyManagerScope.CONTAINER), state, event
    if fit.name == "full-pcpus-only":
        return under(node, full_pcpus_only=False), state, event
    if fit.kind == "option":
        rule = SMTOddCounts(fit.setting)
        return under(node, smt_odd_counts=rule), state, event
    if fit.kind == "end":
        for name in fit.pods:
            state = state.released(name.partition("/")[2])
        return node, state, event
    assert fit.kind == "empty"
    return node, State(), event


def lies_on(node: Node, told: Explanation) -> NodeMask:
    """The NUMA nodes of what was promised; of what was not the merged hint."""
    if told.outcome is ContainerOutcome.EXCLUSIVE or told.mems:
        cpus = CPUSet.parse(told.cpus) if told.outcome is ContainerOutcome.EXCLUSIVE else CPUSet()
        return node.topology.nodes_of(cpus) | NodeMask.parse(told.mems)
    return NodeMask.parse(told.merged.nodes if told.merged else "")
