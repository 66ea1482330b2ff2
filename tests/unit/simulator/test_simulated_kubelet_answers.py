"""Pods that the kubelet's managers were seen to treat in one way, played as a whole node: we do the same."""

from nri_plugin.simulator.machine.source import machine_from
from nri_plugin.simulator.simulate.config import choose
from nri_plugin.simulator.simulate.plan import PodPlan, read_short
from nri_plugin.simulator.simulate.simulate import simulate
from nri_plugin.simulator.simulate.simulation import ContainerStatus, SimulatedContainer

MACHINE = "2 sockets, 1 NUMA nodes each, 4 cores each, SMT 1\nmemory 16Gi each\n"
STATIC = {
    "reservedSystemCPUs": '"0"',
    "memoryManagerPolicy": "Static",
    "evictionHard": '{memory.available: "0"}',
    "systemReserved": "{memory: 512Mi}",
    "reservedMemory": "[{numaNode: 0, limits: {memory: 512Mi}}]",
}


def plan(pods: str) -> PodPlan:
    return read_short(pods, "p.yaml")


def played(pods: str, devices: str = "", **sets: str) -> dict[str, SimulatedContainer]:
    where = machine_from(f"{MACHINE}{devices}".encode(), "m", "m")
    found = simulate(where, plan(pods), choose(where.topology, sets=sets))
    assert [row.refusal for row in found.containers] == [None] * len(found.containers)
    return {row.key: row for row in found.containers}


def test_memory_that_an_init_container_leaves_is_there_for_another_pod() -> None:
    pods = """
- pod: a
  initContainers: {load: {cpu: 1, memory: 12Gi}}
  containers: {app: {cpu: 1, memory: 1Gi}}
- {pod: b, cpu: 1, memory: 10Gi}
- {pod: c, cpu: 1, memory: 8Gi}
"""
    rows = played(pods, topologyManagerPolicy="single-numa-node", **STATIC)
    mems = {key: row.mems for key, row in rows.items()}
    assert mems["default/a/app"] == mems["default/b/b"] == "0"
    assert mems["default/c/c"] == "1"


def test_cpus_and_memory_go_to_the_only_node_with_such_devices() -> None:
    pods = (
        "- {pod: filler, cpu: 2, memory: 1Gi, a.b/gpu: 1}\n- {pod: train, cpu: 3, memory: 1Gi, a.b/gpu: 1}\n"
    )
    rows = played(pods, "devices a.b/gpu 2 on 1\n", topologyManagerPolicy="best-effort", **STATIC)
    train = rows["default/train/train"]
    assert (train.cpus, train.mems) == ("1,6-7", "1")


RING = "- pod: ring\n  containers:\n    left: WHAT\n    right: WHAT\n"
APART = "devices a.b/gpu 2 on 0 + 2 on 1\n"
POD_SCOPE = {
    "topologyManagerPolicy": "restricted",
    "topologyManagerScope": "pod",
    "reservedSystemCPUs": '"0"',
}


def test_devices_of_a_pods_containers_may_be_on_different_nodes_where_the_pod_needs_both() -> None:
    pods = RING.replace("WHAT", "{cpu: 3, memory: 1Gi, a.b/gpu: 2}")
    rows = played(pods, APART, **POD_SCOPE)
    assert {key: row.device_nodes for key, row in rows.items()} == {
        "default/ring/left": "0",
        "default/ring/right": "1",
    }
    assert all(row.exclusive == 3 for row in rows.values())


def test_so_may_those_of_a_pod_without_cpus_of_its_own() -> None:
    pods = RING.replace("WHAT", "{requests: {cpu: 100m}, limits: {a.b/gpu: 2}}")
    rows = played(pods, APART, **POD_SCOPE)
    assert [row.status for row in rows.values()] == [ContainerStatus.SHARED, ContainerStatus.SHARED]
