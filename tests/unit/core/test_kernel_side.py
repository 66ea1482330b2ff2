"""Quotas of containers that have their CPUs to themselves, and where sandboxes run."""

import pytest
from msgspec.structs import replace

from nri_plugin.core.engine import decide
from nri_plugin.core.kernel_settings import (
    NO_QUOTA,
    allocated_cgroups,
    lifts_quota,
    limits,
    partitions,
    quotas,
    replies_quota,
    sandboxes,
)
from nri_plugin.model.options import Effect, Isolation, Node
from nri_plugin.model.records import ContainerFacts, PodFacts, QOSClass
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod, Resources
from tests.builders import container, cpus, machine, node, pod


def limited(of: Pod, cpu: float, limit: float) -> Container:
    made = container(of, cpu=cpu)
    said = replace(made.resources, cpu_quota_us=int(limit * 100_000), cpu_period_us=100_000)
    return replace(made, resources=said)


def whole(qos: str = "Guaranteed", limit: float = 2, **annotations: str) -> Pod:
    made = pod("p", qos, cpu=limit, namespace="trusted")
    said = replace(made.resources or Resources(), cpu_quota_us=int(limit * 100_000), cpu_period_us=100_000)
    return replace(made, resources=said, annotations=annotations, cgroups_path=f"{made.cgroup_parent}/sb")


def living(on: Node, of: Pod, born: Container) -> tuple[State, Resources]:
    """The state with the container running, and what its creation was answered with."""
    state = decide(on, State(), nri.RunPodSandbox(of)).state
    decision = decide(on, state, nri.CreateContainer(of, born))
    assert isinstance(decision.response, nri.CreateContainerResponse)
    assert decision.response.resources is not None
    started = decide(on, decision.state, nri.StartContainer(of, born))
    return started.state, decision.response.resources


def said(on: Node, state: State) -> dict[str, int]:
    return {write.target.path or write.target.parent: write.quota_us for write in quotas(on, state)}


def test_a_wholly_exclusive_container_and_its_pod_have_no_quota() -> None:
    on, of = node(), whole()
    state, answer = living(on, of, limited(of, 2, 2))
    assert (answer.cpus, answer.cpu_quota_us) == ("2-3", NO_QUOTA)
    assert said(on, state) == {"/kubepods/podp/p-c-0": NO_QUOTA, "/kubepods/podp": NO_QUOTA}


def test_facts_without_resources_of_the_pod_change_no_quota() -> None:
    on, of = node(), whole()
    state, _ = living(on, of, limited(of, 2, 2))
    facts = PodFacts("p", QOSClass.GUARANTEED, (ContainerFacts("c"),))
    known = state.with_pod(replace(state.pods["p"], facts=facts))
    assert said(on, known) == said(on, state)


def test_a_container_of_the_shared_pool_keeps_its_quota() -> None:
    on, of = node(), whole()
    state, answer = living(on, of, limited(of, 1.5, 1.5))
    assert answer.cpu_quota_us is None
    assert said(on, state) == {}


def test_one_without_a_limit_is_told_nothing() -> None:
    on, of = node(), whole()
    state, answer = living(on, of, container(of, cpu=2))
    assert (answer.cpus, answer.cpu_quota_us) == ("2-3", None)
    assert said(on, state) == {}


def test_the_gate_leaves_quotas_alone_and_gives_back_what_was_lifted() -> None:
    on, of = node(lift_cpu_quota=False), whole()
    state, answer = living(on, of, limited(of, 2, 2))
    assert answer.cpu_quota_us is None
    assert said(on, state) == {"/kubepods/podp/p-c-0": 200_000, "/kubepods/podp": 200_000}


def test_who_looks_after_them_no_more_gives_all_limits_back() -> None:
    state, _ = living(node(), whole(), limited(whole(), 2, 2))
    assert {write.quota_us for write in limits(state)} == {200_000}


def test_a_container_without_a_cgroup_has_its_pods_quota_lifted() -> None:
    state, _ = living(node(), whole(), limited(whole(), 2, 2))
    record = state.containers["p-c-0"]
    state = state.with_container(replace(record, cgroup=replace(record.cgroup, path="")))
    assert said(node(), state) == {"/kubepods/podp": NO_QUOTA}
    assert list(allocated_cgroups(state)) == []


def test_of_two_containers_of_a_pod_the_shared_one_keeps_its_quota() -> None:
    on, of = node(), whole(limit=2.5)
    state, _ = living(on, of, limited(of, 2, 2))
    helper = limited(of, 0.5, 0.5)
    helper = replace(helper, id="h", name="h", cgroups_path="/kubepods/podp/h")
    state = decide(on, state, nri.CreateContainer(of, helper)).state
    state = decide(on, state, nri.StartContainer(of, helper)).state
    assert said(on, state) == {"/kubepods/podp/p-c-0": NO_QUOTA, "/kubepods/podp": NO_QUOTA}
    assert [(ref.path, str(own)) for ref, own in allocated_cgroups(state)] == [
        ("/kubepods/podp/p-c-0", "2-3")
    ]


def test_a_resize_that_was_never_done_changes_no_limit() -> None:
    on, of = node(), whole()
    born = limited(of, 2, 2)
    state, answer = living(on, of, born)
    stored = replace(born, resources=replace(born.resources, cpus=answer.cpus, cpu_quota_us=NO_QUOTA))
    state = decide(on, state, nri.UpdateContainer(of, stored, limited(of, 4, 4).resources)).state
    assert state.containers["p-c-0"].limit_milli == 4000
    assert {write.quota_us for write in limits(state)} == {200_000}


def test_quotas_come_back_while_its_cpus_are_offline() -> None:
    on, of = node(), whole()
    state, _ = living(on, of, limited(of, 2, 2))
    without = node(replace(machine(), online=machine().online - cpus("2-3")))
    assert set(said(without, state).values()) == {200_000}


@pytest.mark.parametrize(("limit", "lifted"), [(1.8, False), (2, True), (3, True)])
def test_a_limit_below_the_cpus_given_by_annotation_was_meant(limit: float, lifted: bool) -> None:
    on = node(annotation_namespaces=frozenset({"trusted"}), pool_floor=False)
    of = whole("Burstable", limit, **{"nri-pin/exclusive-cpus.container.c": "2"})
    state, _ = living(on, of, limited(of, 1.8, limit))
    assert lifts_quota(on, state, state.containers["p-c-0"]) is lifted


def test_a_pod_that_may_never_have_had_a_quota_is_given_none() -> None:
    on = node(annotation_namespaces=frozenset({"trusted"}), pool_floor=False)
    of = whole("Burstable", 1.8, **{"nri-pin/exclusive-cpus.container.c": "2"})
    state, _ = living(on, of, limited(of, 1.8, 1.8))
    assert said(on, state) == {"/kubepods/burstable/podp/p-c-0": 180_000}


def test_a_request_that_only_the_quota_tells_stays_on_the_runtimes_record() -> None:
    on, of = node(machine(2, 150, 2)), whole(limit=256)
    born = limited(of, 256, 256)
    state, answer = living(on, of, born)
    assert (len(cpus(answer.cpus)), answer.cpu_quota_us) == (256, None)
    record = state.containers["p-c-0"]
    assert lifts_quota(on, state, record)
    assert not replies_quota(on, state, record)


def test_an_update_that_brings_a_quota_is_answered_with_none() -> None:
    on, of = node(), whole()
    born = limited(of, 2, 2)
    state, answer = living(on, of, born)
    stored = replace(born, resources=replace(born.resources, cpus=answer.cpus, cpu_quota_us=NO_QUOTA))
    asked = replace(born.resources, memory_limit_bytes=1 << 30)
    response = decide(on, state, nri.UpdateContainer(of, stored, asked)).response
    assert isinstance(response, nri.UpdateContainerResponse)
    assert [update.resources for update in response.updates] == [Resources(cpus="2-3", cpu_quota_us=NO_QUOTA)]


def test_an_update_without_a_quota_is_left_alone() -> None:
    on, of = node(), whole()
    born = limited(of, 2, 2)
    state, answer = living(on, of, born)
    stored = replace(born, resources=replace(born.resources, cpus=answer.cpus, cpu_quota_us=NO_QUOTA))
    response = decide(on, state, nri.UpdateContainer(of, stored, Resources(cpu_shares=2048))).response
    assert response == nri.UpdateContainerResponse()


def test_a_limit_that_was_lifted_is_remembered_when_the_runtime_tells_it_no_more() -> None:
    on, of = node(), whole()
    born = limited(of, 2, 2)
    state, answer = living(on, of, born)
    stored = replace(born, resources=replace(born.resources, cpus=answer.cpus, cpu_quota_us=NO_QUOTA))
    after = decide(on, state, nri.Synchronize((of,), (stored,))).state
    assert after.containers["p-c-0"].limit_milli == 2000


def test_sandboxes_that_no_slice_bounds_run_in_the_shared_pool() -> None:
    of = whole()
    state, _ = living(node(), of, limited(of, 2, 2))
    burstable = replace(pod("b", "Burstable"), cgroups_path="/kubepods/burstable/podb/sb")
    for other in (burstable, pod("untold")):
        state = decide(node(), state, nri.RunPodSandbox(other)).state
    told = [(ref.path, str(pool)) for ref, pool in sandboxes(node(), state)]
    assert told == [("/kubepods/podp/sb", "0-1,4-15")]
    unbounded = node(pool_floor=False)
    assert [ref.path for ref, _ in sandboxes(unbounded, state)] == [
        "/kubepods/podp/sb",
        "/kubepods/burstable/podb/sb",
    ]


def test_where_cgroups_are_not_ours_nothing_is_written() -> None:
    of = whole()
    state, _ = living(node(), of, limited(of, 2, 2))
    elsewhere = node(effect=Effect.UPDATE)
    assert not list(quotas(elsewhere, state))
    assert not list(sandboxes(elsewhere, state))


def domains(on: Node, state: State) -> list[tuple[str, str]]:
    return [(str(one.cpus), one.kind) for one in partitions(on, state)]


@pytest.mark.parametrize(
    ("isolation", "kind"), [(Isolation.PARTITION, "root"), (Isolation.ISOLATED, "isolated")]
)
def test_exclusive_cpus_are_a_partition_where_configured(isolation: Isolation, kind: str) -> None:
    of = whole()
    state, _ = living(node(), of, limited(of, 2, 2))
    assert domains(node(isolation=isolation), state) == [("2-3", kind)]
    assert domains(node(), state) == []
    assert domains(node(isolation=isolation, effect=Effect.UPDATE), state) == []


@pytest.mark.parametrize(("word", "found"), [("isolated", [("2-3", "isolated")]), ("none", [])])
def test_an_annotation_decides_over_the_configuration(word: str, found: list[tuple[str, str]]) -> None:
    on = node(isolation=Isolation.PARTITION, annotation_namespaces=frozenset({"trusted"}), pool_floor=False)
    of = whole(**{"nri-pin/isolation.container.c": word})
    state, _ = living(on, of, limited(of, 2, 2))
    assert domains(on, state) == found


def test_a_word_that_is_no_isolation_refuses_its_container() -> None:
    on = node(annotation_namespaces=frozenset({"trusted"}), pool_floor=False)
    of = whole(**{"nri-pin/isolation.pod": "much"})
    refusal = decide(on, State(), nri.CreateContainer(of, limited(of, 2, 2))).refusal
    assert "expected none, partition, isolated, found 'much'" in str(refusal)


def test_a_container_of_the_pool_or_one_that_is_not_running_has_no_partition() -> None:
    on, of = node(isolation=Isolation.PARTITION), whole()
    state, _ = living(on, of, limited(of, 1.5, 1.5))
    assert domains(on, state) == []
    state, _ = living(on, of, limited(of, 2, 2))
    assert domains(on, decide(on, state, nri.StopContainer(of, limited(of, 2, 2))).state) == []


def test_two_instances_that_run_at_once_share_and_have_none() -> None:
    on, of = node(isolation=Isolation.PARTITION), whole()
    state, _ = living(on, of, limited(of, 2, 2))
    twin = replace(state.containers["p-c-0"], id="twin")
    assert domains(on, state.with_container(twin)) == []
