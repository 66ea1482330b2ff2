"""What a simulation tells: rows, refusals, notes, differences."""

import json
from dataclasses import replace

import pytest

from nri_plugin.cli.output import render
from nri_plugin.explain.explanation import ContainerOutcome, explain
from nri_plugin.model import violations
from nri_plugin.model.state import State
from nri_plugin.model.violations import Violation, ViolationKind
from nri_plugin.simulator.machine.source import SourcedMachine, machine_from
from nri_plugin.simulator.simulate.comparison import compare
from nri_plugin.simulator.simulate.config import choose
from nri_plugin.simulator.simulate.plan import PodPlan, read_short
from nri_plugin.simulator.simulate.simulate import simulate
from nri_plugin.simulator.simulate.simulation import ContainerStatus, RefusalStage, Simulation
from tests.explained import creation

TWO = "topology: pack:2 numa:1(memory=4GiB) l3:2 core:2 pu:2(indexes=core)\ndevices:\n  - {resource: a.b/nic, count: 2, nodes: 0}\n  - {resource: a.b/nic, count: 2, nodes: 1}\n"
STRICT = {"topologyManagerPolicy": "single-numa-node", "memoryManagerPolicy": "Static"}


def machine(text: str = TWO) -> SourcedMachine:
    return machine_from(text.encode(), "two", "two")


def plan(pods: str) -> PodPlan:
    return read_short(pods, "p.yaml")


def simulated(pods: str, sets: dict[str, str] | None = None, text: str = TWO) -> Simulation:
    where = machine(text)
    return simulate(where, plan(pods), choose(where.topology, sets=sets or {}))


def test_a_placed_container_is_told_at_every_level() -> None:
    found = simulated("- {pod: a, cpu: 4, memory: 1Gi, a.b/nic: 1}\n", STRICT)
    (row,) = found.containers
    assert (row.key, row.status, row.exclusive, row.kind) == ("default/a/a", ContainerStatus.PLACED, 4, "app")
    assert (row.cpus, row.mems, row.numa_nodes, row.caches, row.sockets, row.cores) == (
        "1-2,9-10",
        "0",
        "0",
        "0-1",
        "0",
        2,
    )
    assert row.aligned is not None
    assert row.aligned.numa_node
    assert not row.aligned.uncore_cache
    assert row.aligned.whole_cores
    assert row.preferred
    assert (row.devices, row.device_nodes) == ({"a.b/nic": ("0",)}, "0")
    assert {row.container for row in found.devices} == {"default/a/a", ""}
    assert [(one.numa_node, one.allocated) for one in found.memory] == [(0, 1 << 30), (1, 0)]


def test_a_shared_container_is_told_with_the_pool_as_it_is_at_the_end() -> None:
    found = simulated("- {pod: web, requests: {cpu: 100m}}\n- {pod: a, cpu: 2, memory: 1Gi}\n")
    first, _ = found.steps
    assert first.containers[0].cpus == "0-15"
    by_key = {row.key: row for row in found.containers}
    assert by_key["default/web/web"].cpus == found.totals.shared_pool == "0,2-8,10-15"
    assert by_key["default/web/web"].status is ContainerStatus.SHARED
    assert by_key["default/web/web"].aligned is None
    assert [step.exclusive_cpus for step in found.steps] == [0, 2]


def test_a_full_node_refuses_pods_and_placement_refuses_containers() -> None:
    pods = "- {pod: wide, cpu: 9, memory: 1Gi}\n- {pod: much, count: 2, memory: 5Gi}\n- {pod: none, a.b/gpu: 1}\n"
    found = simulated(pods, STRICT)
    reasons = {row.reason: (row.stage, row.containers) for row in found.refused}
    assert reasons == {
        "TopologyAffinityError": (RefusalStage.PLACEMENT, ("default/wide/wide",)),
        "OutOfmemory": (RefusalStage.NODE, ("default/much-1/much",)),
        "OutOfa.b/gpu": (RefusalStage.NODE, ("default/none/none",)),
    }
    assert (found.totals.pods, found.totals.pods_placed, found.totals.pods_refused) == (4, 1, 3)


def test_simulate_and_explain_refuse_what_the_validator_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the agent does: the faults of a decision show before it is tried on a node."""
    broken = [Violation(ViolationKind.NO_MEMORY, "1", "p/c")]
    monkeypatch.setattr(violations, "new_violations", lambda *_: broken)
    found = simulated("- {pod: a, cpu: 2, memory: 1Gi}\n")
    (refused,) = found.refused
    assert "would break an invariant: p/c is bound to NUMA nodes without memory: 1" in refused.text
    assert (found.totals.exclusive_cpus, [one.fits for one in found.capacity]) == (0, [0])
    told = explain(choose(machine().topology).node, State(), creation(cpu=2))
    assert (told.outcome, "would break an invariant" in str(told.refusal)) == (ContainerOutcome.REFUSED, True)


def test_refusals_that_are_alike_are_told_together() -> None:
    found = simulated(
        "- {pod: a, count: 3, cpu: 9, memory: 64Mi}\n", {"topologyManagerPolicy": "single-numa-node"}
    )
    (row,) = found.refused
    assert row.containers == ("default/a-0/a", "default/a-1/a", "default/a-2/a")
    assert row.text.startswith("TopologyAffinityError: ")
    assert found.shapes[row.shape] == "Guaranteed: cpu 9, memory 64Mi"


TWO_PODS = (
    "{pod: a, initContainers: {i: {cpu: 9, memory: 64Mi}}, containers: {c: {cpu: 1, memory: 64Mi}}}",
    "{pod: b, containers: {small: {cpu: 1, memory: 64Mi}, big: {cpu: 9, memory: 64Mi}}}",
)


def test_a_pod_whose_object_is_known_is_refused_as_a_whole_with_the_container_that_does_not_fit() -> None:
    pods = "".join(f"- {one}\n" for one in TWO_PODS)
    found = simulated(pods, {"topologyManagerPolicy": "single-numa-node"})
    for step, name in zip(found.steps, ["i", "big"], strict=True):
        refusals = {(row.status, row.refusal) for row in step.containers}
        assert len(step.containers) == 2
        ((status, refusal),) = refusals
        assert status is ContainerStatus.REFUSED
        assert refusal is not None
        assert refusal.of_pod
        assert refusal.container == name
        assert f"container {name} of the pod: " in refusal.text
    assert [(row.of_pods, len(row.containers)) for row in found.refused] == [(True, 2), (True, 2)]
    assert (found.totals.pods_partly, found.totals.pods_refused, found.totals.exclusive_cpus) == (0, 2, 0)
    assert [room.refusal and room.refusal.container for room in found.capacity] == ["i0", "c1"]


def test_without_objects_a_refused_init_container_ends_its_pod_and_a_refused_second_container_does_not() -> (
    None
):
    where = machine()
    pods = replace(plan("".join(f"- {one}\n" for one in TWO_PODS)), has_objects=False)
    chosen = choose(where.topology, sets={"topologyManagerPolicy": "single-numa-node"})
    found = simulate(where, pods, chosen)
    first, second = found.steps
    assert [row.status for row in first.containers] == [ContainerStatus.REFUSED, ContainerStatus.SKIPPED]
    assert [row.status for row in second.containers] == [ContainerStatus.PLACED, ContainerStatus.REFUSED]
    assert (found.totals.pods_partly, found.totals.pods_refused) == (1, 1)


def test_an_init_container_ends_and_a_sidecar_stays() -> None:
    pods = (
        "- pod: a\n  initContainers: {i: {cpu: 2, memory: 64Mi}, s: {restartPolicy: Always, cpu: 1, memory: 64Mi}}\n"
        "  containers: {c: {cpu: 2, memory: 64Mi}}\n"
    )
    found = simulated(pods)
    assert [row.kind for row in found.steps[0].containers] == ["init", "sidecar", "app"]
    assert [row.container for row in found.containers] == ["s", "c"]


def test_a_namespace_that_is_never_refused_runs_in_the_pool_with_the_reason() -> None:
    sets = {"topologyManagerPolicy": "single-numa-node", "neverRefuse": "[kube-system]"}
    found = simulated("- {pod: kube-system/a, cpu: 9, memory: 64Mi}\n", sets)
    (row,) = found.containers
    assert row.status is ContainerStatus.SHARED
    (told,) = found.steps[0].containers
    assert told.refusal is not None
    assert told.refusal.reason == "TopologyAffinityError"


def test_what_a_machine_does_not_say_is_noted() -> None:
    bare = SourcedMachine("bare", machine().kind, machine().topology)
    found = simulate(bare, plan("- {pod: a, a.b/nic: 1}\n"), choose(bare.topology))
    assert found.notes == (
        "bare says nothing of devices, so a.b/nic cannot be had; a described machine can have some",
    )


def test_who_runs_on_the_machine_that_was_dumped_is_left_out_and_said() -> None:
    node = SourcedMachine(
        "n7",
        machine().kind,
        machine().topology,
        machine().description,
        dump={"placements": {"containers": [{}]}},
    )
    found = simulate(node, plan("- {pod: a}\n"), choose(node.topology))
    assert found.notes == (
        "n7 tells of containers that run there (1); they are left out, a simulation begins on an empty machine",
    )


def test_offline_and_isolated_and_reserved_cpus_are_told_apart() -> None:
    found = simulated("- {pod: a, cpu: 1, memory: 64Mi}\n", text=TWO + "offline: 15\nisolated: 6-7\n")
    kinds = {owner.cpu: owner.kind for owner in found.owners}
    assert (kinds[0], kinds[15], kinds[6], kinds[3]) == ("reserved", "offline", "isolated", "shared")
    assert "exclusive" in kinds.values()


def test_everything_is_plain_values() -> None:
    found = simulated("- {pod: a, cpu: 1, memory: 64Mi}\n- {pod: b, cpu: 99}\n")
    again = json.loads(render(found, "json"))
    assert again["containers"][0]["aligned"]["numa_node"] is True
    assert again["refused"][0]["stage"] == "node"


def test_the_gravest_difference_is_told_and_the_shared_pool_is_none() -> None:
    pods = "- {pod: a, cpu: 4, memory: 64Mi}\n- {pod: wide, cpu: 9, memory: 64Mi}\n- {pod: web}\n"
    both = [simulated(pods, sets) for sets in ({}, {"topologyManagerPolicy": "single-numa-node"})]
    found = compare(*both)
    assert [(one.key, one.what) for one in found.containers] == [("default/wide/wide", "placed")]
    assert found.containers[0].after == "refused: TopologyAffinityError"
    assert found.alike == 2
    assert found.configuration == (("topologyManagerPolicy", "default", "single-numa-node"),)
    sums = {one.name: one for one in found.sums}
    assert (sums["pods placed"].before, sums["pods placed"].after, sums["pods placed"].better) == (3, 2, 1)


@pytest.mark.parametrize(
    ("sets", "what"),
    [
        ({"reservedSystemCPUs": "2-3"}, "cpus"),
        ({"memoryManagerPolicy": "Static"}, "mems"),
        ({"cpuManagerPolicy": "none"}, "kind"),
    ],
)
def test_each_kind_of_difference_has_a_word(sets: dict[str, str], what: str) -> None:
    pods = "- {pod: a, cpu: 2, memory: 64Mi}\n"
    found = compare(simulated(pods), simulated(pods, sets))
    assert [one.what for one in found.containers] == [what]
