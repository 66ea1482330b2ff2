"""The end of a refusal: what would have fitted and what stands in the way, in a few true words."""

import dataclasses

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.errors import TopologyAffinityError
from nri_plugin.model.options import MemoryManagerPolicy, Node, TopologyManagerPolicy
from nri_plugin.model.records import (
    Allocation,
    CgroupRef,
    ContainerFacts,
    ContainerRecord,
    Kind,
    Phase,
    PodFacts,
    PodRecord,
    QOSClass,
)
from nri_plugin.model.refusals import LONGEST_REFUSAL, AdmissionRefusal
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import CreateContainer
from tests.builders import GIB, container, machine, node, pod
from tests.explained import after, creation

SINGLE = TopologyManagerPolicy.SINGLE_NUMA_NODE


def advice(on: Node, event: InformedCreate, state: State | None = None) -> str:
    refusal = decide(on, state or State(), event).refusal
    assert refusal is not None
    assert str(refusal).endswith(f"; {refusal.advice}")
    return str(refusal.advice)


def test_the_reason_word_comes_first_then_numbers_then_advice() -> None:
    refusal = str(decide(node(topology_manager_policy=SINGLE), State(), creation(cpu=10)).refusal)
    order = ["TopologyAffinityError: ", "cpu: 10 wanted, 14 available", "would fit: 8 CPUs", "no other pod"]
    assert [refusal.index(words) for words in order] == sorted(refusal.index(words) for words in order)
    assert refusal.startswith("TopologyAffinityError: ")


def test_a_laxer_policy_is_named_with_the_nodes_it_would_take() -> None:
    words = advice(node(topology_manager_policy=SINGLE), creation(cpu=10))
    assert "policy best-effort on NUMA nodes 0-1" in words


def test_whoever_must_end_is_named_and_whoever_stands_in_the_way() -> None:
    on = node(topology_manager_policy=SINGLE)
    state = after(on, creation("a", cpu=6), creation("b", cpu=2))
    words = advice(on, creation(cpu=8), state)
    assert "after default/b ends" in words
    assert "in the way: default/a/c (6 CPUs 2-7), default/b/c (2 CPUs 8-9)" in words


def test_nobody_is_blamed_for_what_would_not_fit_without_them() -> None:
    on = node(topology_manager_policy=SINGLE)
    state = after(on, creation("a", cpu=6))
    assert advice(on, creation(cpu=9), state).endswith("without other pods it would not fit either")


def test_less_memory_is_offered_where_less_cpus_do_not_help() -> None:
    on = node(topology_manager_policy=SINGLE, memory_manager_policy=MemoryManagerPolicy.STATIC)
    state = after(on, creation("a", cpu=2, memory=14 * GIB), creation("b", cpu=6, memory=14 * GIB))
    words = advice(on, creation(cpu=2, memory=5 * GIB), state)
    assert "would fit: 2Gi of memory" in words


def test_an_odd_number_gets_both_whole_numbers() -> None:
    assert "would fit: 2 or 4 CPUs" in advice(node(full_pcpus_only=True), creation(cpu=3))


def test_an_admitted_container_costs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    from nri_plugin.core import engine

    def refuse_to_try(*_: object) -> AdmissionRefusal:
        raise AssertionError("asked for advice")

    monkeypatch.setattr(engine, "advised", refuse_to_try)
    assert decide(node(), State(), creation(cpu=2)).refusal is None


def test_few_trials_are_made_while_a_runtime_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    from nri_plugin.core import advice as module

    made = []
    real = module.admit
    monkeypatch.setattr(module, "admit", lambda *args: made.append(args) or real(*args))
    on = node(machine(8), topology_manager_policy=SINGLE)
    state = after(on, *(creation(f"p{number}", cpu=3) for number in range(16)))
    decide(on, state, creation(cpu=8))
    assert 0 < len(made) <= 5


def test_an_event_on_a_pod_holds_it_whatever_there_is_to_say() -> None:
    on = node(machine(8), topology_manager_policy=SINGLE, memory_manager_policy=MemoryManagerPolicy.STATIC)
    names = [f"a-pod-with-a-very-long-name-{number:0>30}" for number in range(8)]
    state = after(on, *(creation(name, cpu=5, memory=13 * GIB + 12345) for name in names))
    refusal = decide(on, state, creation(cpu=8, memory=10 * GIB, gpus=tuple(range(8)))).refusal
    assert refusal is not None
    assert len(str(refusal)) <= LONGEST_REFUSAL
    assert str(refusal).endswith(str(refusal.advice))


def test_what_is_not_about_room_gets_no_advice() -> None:
    def broken(_: object) -> None:
        raise ValueError("no such file")

    on = dataclasses.replace(node(), hint_providers=(broken,))
    refusal = decide(on, State(), creation(cpu=2)).refusal
    assert refusal is not None
    assert refusal.advice is None
    assert str(refusal).endswith("failed: ValueError: no such file")
    untold = creation(cpu=256)
    assert str(decide(node(), State(), untold).refusal).endswith("which reads the request from the pod")


def test_fewer_cpus_are_offered_to_an_annotation_too() -> None:
    on = node(annotation_namespaces=frozenset({"default"}))
    of = replace(pod("new", "Burstable"), annotations={"nri-pin/exclusive-cpus.pod": "20"})
    refusal = decide(on, State(), InformedCreate(CreateContainer(of, container(of, cpu=20)))).refusal
    assert refusal is not None
    assert refusal.advice is not None
    assert refusal.advice.cpu_counts == (14,)


def test_no_policy_is_offered_where_a_provider_of_another_package_refuses() -> None:
    def full(_: object) -> None:
        raise TopologyAffinityError("no licence")

    on = dataclasses.replace(node(topology_manager_policy=SINGLE), hint_providers=(full,))
    refusal = decide(on, State(), creation(cpu=2)).refusal
    assert refusal is not None
    assert str(refusal).startswith("TopologyAffinityError: no licence; no other pod holds anything")
    assert refusal.advice is not None
    assert refusal.advice.policy is None


@pytest.mark.parametrize(
    ("kinds", "phases", "named"),
    [
        ({"init": Kind.INIT}, {"init": Phase.STOPPED, "app": Phase.RUNNING}, True),
        ({"init": Kind.INIT}, {"app": Phase.RUNNING}, True),
        ({}, {"init": Phase.STOPPED, "app": Phase.RUNNING}, True),
        ({"init": Kind.INIT}, {"init": Phase.RUNNING}, False),
        ({"init": Kind.INIT}, {}, False),
        ({"init": Kind.SIDECAR}, {"init": Phase.STOPPED, "app": Phase.RUNNING}, False),
    ],
    ids=["ended", "removed", "without facts", "running", "not created", "sidecar"],
)
def test_an_ended_init_container_that_keeps_cpus_is_named_before_larger_ones(
    kinds: dict[str, Kind], phases: dict[str, Phase], named: bool
) -> None:
    """No list of running containers shows it. Without facts, an ended container counts as an init container."""
    rows = tuple(ContainerFacts(name, kind) for name, kind in {**kinds, "app": Kind.APP}.items())
    facts = PodFacts("b", QOSClass.GUARANTEED, rows) if kinds else None
    state = State().with_pod(PodRecord("b", "sandbox", namespace="default", name="b", facts=facts))
    for uid, first in zip("abcd", (1, 4, 7, 10), strict=True):
        own = Allocation(CPUSet.of(first, first + 1, first + 2), cpu_milli=3000)
        state = state.with_allocation(f"{uid}/app", own)
    state = state.with_allocation("b/init", Allocation(CPUSet.of(13), is_init="init" in kinds))
    for name, phase in phases.items():
        state = state.with_container(ContainerRecord(name, "b", name, phase, CgroupRef("/kubepods")))
    words = advice(node(reserved="0"), creation(cpu=9), state)
    assert ("in the way: default/b/init (ended) (1 CPUs 13), " in words) is named
    assert "and 2 more" in words
