"""Simulated pods with resources of their own: block, slices, shared pool, refusals, and room for more."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from nri_plugin.simulator.machine.source import machine_from
from nri_plugin.simulator.simulate.comparison import compare
from nri_plugin.simulator.simulate.config import choose
from nri_plugin.simulator.simulate.plan import read_plan
from nri_plugin.simulator.simulate.simulate import simulate
from nri_plugin.simulator.simulate.simulation import Simulation

MACHINE = "topology: pack:2 numa:1(memory=4GiB) l3:2 core:2 pu:2(indexes=core)\n"
CONFIG = """
reservedSystemCPUs: "0"
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
memoryManagerPolicy: Static
reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]
featureGates: {PodLevelResourceManagers: %s}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: ml}
spec:
  resources:
    requests: {cpu: 5, memory: 1Gi}
    limits: {cpu: 5, memory: 1Gi}
  initContainers:
  - {name: fetch, resources: {limits: {cpu: 2, memory: 128Mi}}}
  - {name: mesh, restartPolicy: Always}
  containers:
  - {name: work, resources: {limits: {cpu: %s, memory: 512Mi}}}
"""


def simulated(folder: Path, *sizes: int, gate: str = "true") -> Simulation:
    pods, config = folder / "pods.yaml", folder / "config.yaml"
    pods.write_text("---".join(POD % (f"p{number}", size) for number, size in enumerate(sizes)))
    config.write_text(CONFIG % gate)
    where = machine_from(MACHINE.encode(), "two", "two")
    return simulate(where, read_plan(str(pods)), choose(where.topology, str(config)))


def test_a_pod_has_a_block_slices_and_a_pool_that_its_sidecar_shares(tmp_path: Path) -> None:
    found = simulated(tmp_path, 2)
    (pod,) = found.pods
    assert (pod.key, pod.unused, pod.mems, pod.memory_bytes) == ("ml/p0", "", "0", 1 << 30)
    mesh, work = found.containers
    assert (mesh.container, mesh.exclusive, mesh.is_pod_shared, mesh.mems) == ("mesh", 0, True, "0")
    assert (work.container, work.exclusive, work.is_pod_shared, work.mems) == ("work", 2, False, "0")
    assert (mesh.cpus, work.cpus) == (pod.shared_pool, pod.slices["work"])
    assert mesh.aligned is None
    block = [owner for owner in found.owners if owner.pod == "ml/p0"]
    assert Counter((owner.kind, owner.container) for owner in block) == {
        ("exclusive", "ml/p0/work"): 2,
        ("pod-shared", ""): 3,
    }
    assert (found.totals.exclusive_cpus, found.totals.containers_exclusive) == (5, 1)
    assert found.totals.memory_allocated_bytes == 1 << 30
    assert sum(row.allocated for row in found.memory) == 1 << 30


def test_a_pod_without_a_cpu_for_its_sidecar_is_refused_as_one(tmp_path: Path) -> None:
    found = simulated(tmp_path, 5)
    (row,) = found.refused
    assert row.of_pods
    assert row.containers == ("ml/p0/fetch", "ml/p0/mesh", "ml/p0/work")
    assert (found.totals.pods_refused, found.totals.exclusive_cpus, found.pods) == (1, 0, ())


def test_how_many_more_fit_counts_whole_pods(tmp_path: Path) -> None:
    (room,) = simulated(tmp_path, 2).capacity
    assert (room.fits, room.fits_empty) == (1, 2)
    assert room.refusal is not None
    assert room.refusal.of_pod


@pytest.mark.parametrize("gate", ["true", "false"])
def test_the_feature_gate_decides_whether_the_pod_gets_anything(tmp_path: Path, gate: str) -> None:
    found = simulated(tmp_path, 2, gate=gate)
    assert bool(found.pods) == (gate == "true")
    assert bool(found.totals.exclusive_cpus) == (gate == "true")
    off = [note for note in found.notes if "featureGates.PodLevelResourceManagers is off" in note]
    assert [note.partition(" has ")[0] for note in off] == ([] if gate == "true" else ["ml/p0"])


def test_a_comparison_tells_the_pool_of_a_pod_from_that_of_the_node(tmp_path: Path) -> None:
    before, after = simulated(tmp_path, 2, gate="false"), simulated(tmp_path, 2)
    told = {one.key: (one.what, one.before, one.after) for one in compare(before, after).containers}
    assert told["ml/p0/mesh"] == (
        "kind",
        "shared pool",
        f"shared pool of its pod {after.pods[0].shared_pool}, memory of NUMA 0",
    )
    moved = replace(after, containers=tuple(replace(row, cpus="1") for row in after.containers))
    assert {one.what for one in compare(after, moved).containers} == {"cpus"}


STEPS = """
machine: two
config: {reservedSystemCPUs: "0", topologyManagerPolicy: single-numa-node}
steps:
- run: a/pod
  facts: %s
  containers: {one: {cpu: 4, memory: 1Mi}, two: {cpu: 9, memory: 1Mi}}
"""


@pytest.mark.parametrize(
    ("facts", "refused", "cpus"),
    [
        ("known", [True, True], 0),
        ("once", [True, True], 0),
        ("late", [False, True], 4),
        ("lost", [False, True], 4),
    ],
)
def test_steps_say_when_the_facts_of_a_pod_are_told(
    tmp_path: Path, facts: str, refused: list[bool], cpus: int
) -> None:
    file = tmp_path / "steps.yaml"
    file.write_text(STEPS % facts)
    where, pods = machine_from(MACHINE.encode(), "two", "two"), read_plan(str(file))
    found = simulate(where, pods, choose(where.topology, said=pods.config, said_in="steps.yaml"))
    (step,) = found.steps
    assert [row.refusal is not None for row in step.containers] == refused
    assert all(row.refusal is None or row.refusal.of_pod == refused[0] for row in step.containers)
    assert found.totals.exclusive_cpus == cpus
