"""Every option changes what is decided: the same pods come to a node with it and to one without it."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from msgspec.structs import replace

from nri_plugin.config.option_checks import machine_refusals
from nri_plugin.core.annotations import EXCLUSIVE_CPUS
from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.core.kernel_settings import partitions, quotas
from nri_plugin.core.quiet import wanted
from nri_plugin.exporter.publication import published
from nri_plugin.model.option_rows import Affects
from nri_plugin.model.options import (
    REGISTRY,
    CPUManagerPolicy,
    Effect,
    FullPCPUsRule,
    IRQBalance,
    IRQHousekeeping,
    IRQs,
    IsolatedCPUs,
    Isolation,
    MemoryManagerPolicy,
    Node,
    Options,
    PodSharedPoolRule,
    ReceiveSteering,
    ReservedMemory,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
    TopologyTieBreak,
    UncoreCacheFit,
    UncoreCacheRule,
    Workqueues,
)
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.sets import CPUSet, NodeMask, NUMANodeID
from nri_plugin.model.state import State
from nri_plugin.model.topology import SharedQueue, Topology
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import events as nri
from tests.builders import GIB, container, pod
from tests.topology_rows import topology_of_rows

BEST_EFFORT = {"topology_manager_policy": TopologyManagerPolicy.BEST_EFFORT}
SINGLE = {"topology_manager_policy": TopologyManagerPolicy.SINGLE_NUMA_NODE}
BY_CACHE = {"prefer_align_cpus_by_uncore_cache": True}
WHOLE_CORES = {"full_pcpus_only": True, "smt_odd_counts": SMTOddCounts.ALLOW}
BEST_FIT = {"uncore_cache_fit": UncoreCacheFit.BEST}
QUIET = {"irqs": IRQs.EXCLUSIVE}
STATIC_MEMORY = {"memory_manager_policy": MemoryManagerPolicy.STATIC}
PODS_AS_WHOLES = {
    **SINGLE,
    **STATIC_MEMORY,
    "topology_manager_scope": TopologyManagerScope.POD,
    "pod_level_managers": True,
    "reserved_memory": (ReservedMemory(NUMANodeID(0), "memory", GIB),),
}

CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "cpu_manager_policy": ({}, CPUManagerPolicy.NONE),
    "topology_manager_policy": ({}, TopologyManagerPolicy.SINGLE_NUMA_NODE),
    "topology_manager_scope": (SINGLE, TopologyManagerScope.POD),
    "memory_manager_policy": ({}, MemoryManagerPolicy.STATIC),
    "full_pcpus_only": ({}, True),
    "distribute_cpus_across_numa": ({}, True),
    "distribute_cpus_across_cores": ({}, True),
    "align_by_socket": (BEST_EFFORT, True),
    "strict_cpu_reservation": ({}, True),
    "prefer_align_cpus_by_uncore_cache": ({}, True),
    "prefer_closest_numa_nodes": (BEST_EFFORT, True),
    "max_allowable_numa_nodes": (BEST_EFFORT, 3),
    "strict_uncore_cache": (BEST_FIT, True),
    "device_proportional_cpus": (BEST_EFFORT, True),
    "uncore_cache_fit": ({}, UncoreCacheFit.BEST),
    "uncore_cache_rule": (BY_CACHE, UncoreCacheRule.KEP_4800),
    "prefer_whole_queues": ({}, True),
    "full_pcpus_rule": (WHOLE_CORES, FullPCPUsRule.WHOLE_CORES),
    "smt_odd_counts": ({}, SMTOddCounts.REJECT),
    "pod_shared_pool_rule": (PODS_AS_WHOLES, PodSharedPoolRule.CPU_AND_MEMORY),
    "topology_tie_break": (BEST_EFFORT, TopologyTieBreak.SPREAD),
    "isolated_cpus": ({}, IsolatedCPUs.ON_REQUEST),
    "isolation": ({}, Isolation.PARTITION),
    "irqs": ({}, IRQs.EXCLUSIVE),
    "irq_housekeeping": (QUIET, IRQHousekeeping.RESERVED),
    "irqs_controlled": (QUIET, ("eth*",)),
    "irqs_left_alone": (QUIET, ("eth*",)),
    "workqueues": ({}, Workqueues.EXCLUSIVE),
    "receive_steering": ({}, ReceiveSteering.EXCLUSIVE),
    "irqbalance": (QUIET, IRQBalance.NONE),
    "annotation_namespaces": ({}, frozenset({"default"})),
    "never_refuse": (SINGLE, frozenset({"default"})),
    "pool_floor": ({}, False),
    "reserved_memory": (STATIC_MEMORY, (ReservedMemory(NUMANodeID(0), "memory", 15 * GIB),)),
    "kept_memory_bytes": ({}, GIB),
    "lift_cpu_quota": ({}, False),
    "effect": ({}, Effect.UPDATE),
    "pod_level_managers": (SINGLE, True),
}
"""By option: the options without which it has no effect, and a value that is not its default."""


def machine() -> Topology:
    """Two sockets of two NUMA nodes, each of two uncore caches of two cores; nodes 0 and 3 are close to each other."""
    rows = [(cpu, core, core // 8, core // 4, core // 2) for cpu in range(32) for core in [cpu % 16]]
    distances = {0: (10, 20, 30, 12), 1: (20, 10, 12, 30), 2: (30, 12, 10, 20), 3: (12, 30, 20, 10)}
    made = topology_of_rows(rows, memory_bytes=dict.fromkeys(range(4), 16 * GIB), distances=distances)
    queues = (SharedQueue(CPUSet.parse("0-1,16-17"), CPUSet.of(1)),)
    nodes = tuple(replace(one, hugepages=((2048, 512),)) for one in made.nodes)
    return replace(made, nodes=nodes, isolated=CPUSet.parse("2,18"), queues=queues)


Asked = tuple[float, int, str, tuple[int, ...]]
"""CPUs, bytes of memory, QoS class, and the NUMA node of each device."""

LIVES: tuple[tuple[Asked, ...], ...] = (
    (
        (0, 0, "Burstable", ()),
        (2.5, GIB, "Burstable", ()),
        (3, GIB, "Guaranteed", ()),
        (1, GIB, "Guaranteed", (1,)),
        (2, GIB, "Guaranteed", ()),
        (4, 0, "Guaranteed", (3, 3, 2)),
        (10, GIB, "Guaranteed", (0,)),
        (6, GIB, "Guaranteed", (2,)),
    ),
    ((9, GIB, "Guaranteed", ()),),
    ((3, GIB, "Guaranteed", ()), (27, GIB, "Guaranteed", ())),
)
"""Pods of one container that come to an empty node, one after the other."""


def creation(uid: str, asked: Asked) -> InformedCreate:
    """An annotation asks for exclusive CPUs, which has no effect on Guaranteed pods."""
    cpu, memory, qos, nodes = asked
    of = replace(pod(uid, qos, cpu=cpu and cpu + 7), annotations={f"{EXCLUSIVE_CPUS}.pod": "2"})
    created = container(of, cpu=cpu, memory=memory)
    limited = replace(created.resources, cpu_quota_us=int(cpu * 100_000), cpu_period_us=100_000)
    devices = tuple(Device(str(index), NodeMask.of(node)) for index, node in enumerate(nodes))
    given = (DeviceResource("example.com/gpu", devices),) if devices else ()
    return InformedCreate(nri.CreateContainer(of, replace(created, resources=limited)), devices=given)


def whole_pod() -> InformedCreate:
    """A pod with CPUs of its own. Its container sets the same amounts."""
    of, amounts = pod("whole", "Guaranteed", cpu=2), Amounts(2000, 2000, GIB, GIB)
    facts = PodFacts(of.uid, QOSClass.GUARANTEED, (ContainerFacts("c", Kind.APP, amounts),), amounts)
    return InformedCreate(nri.CreateContainer(of, container(of, "c", cpu=2, memory=GIB)), facts=facts)


def pod_with_pages() -> InformedCreate:
    """A pod with CPUs of its own, of which one container has all the huge pages, and one shares the rest."""
    of, pages = pod("pages", "Guaranteed", cpu=4), (("hugepages-2Mi", 64 << 20),)
    rows = ContainerFacts("c", Kind.APP, Amounts(2000, 2000, GIB, GIB, pages)), ContainerFacts("log")
    facts = PodFacts(of.uid, QOSClass.GUARANTEED, rows, Amounts(4000, 4000, 2 * GIB, 2 * GIB, pages))
    return InformedCreate(nri.CreateContainer(of, container(of, "c", cpu=2, memory=GIB)), facts=facts)


def outcomes(options: dict[str, Any]) -> Iterator[object]:
    """Everything that follows from the same lives: decisions, kernel settings, published zones."""
    node = Node(machine(), Options(**options), CPUSet.parse("0,16"))
    lives = [[creation(f"p{number}", asked) for number, asked in enumerate(life)] for life in LIVES]
    for life in (*lives, [whole_pod()], [pod_with_pages()]):
        state = State()
        for known in life:
            of, created = known.event.pod, known.event.container
            for event in (nri.RunPodSandbox(of), known, nri.StartContainer(of, created)):
                decision = decide(node, state, event)
                state = decision.state
                yield decision.response, decision.refusal, decision.overruled, decision.writes
        yield from partitions(node, state)
        yield from quotas(node, state)
        yield wanted(node, state)
        yield published("n", node, state).zones


def test_there_is_a_case_for_every_option() -> None:
    assert set(CASES) == {one.name for one in fields(Options)}


@pytest.mark.parametrize("name", CASES)
def test_the_option_changes_what_follows(name: str) -> None:
    base, value = CASES[name]
    with_it = {**base, name: value}
    if REGISTRY[name].affects is Affects.MACHINE:
        assert list(machine_refusals(Options(**with_it), machine()))
    else:
        assert list(outcomes(base)) != list(outcomes(with_it))
