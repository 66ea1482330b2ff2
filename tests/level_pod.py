"""A pod with resources of its own on a node: admitted by the agent's own decision."""

from msgspec.structs import replace

from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import (
    MemoryManagerPolicy,
    Node,
    Options,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from tests.builders import GIB, container, cpu_resources, machine, pod

WHOLE = Amounts(6000, 6000, 6 * GIB, 6 * GIB)

EXCLUSIVE_2 = Amounts(2000, 2000, 2 * GIB, 2 * GIB)

LEVEL = Options(
    topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
    topology_manager_scope=TopologyManagerScope.POD,
    memory_manager_policy=MemoryManagerPolicy.STATIC,
    pod_level_managers=True,
)

ROWS = (
    ContainerFacts("setup", Kind.INIT, EXCLUSIVE_2),
    ContainerFacts("mesh", Kind.SIDECAR),
    ContainerFacts("main", Kind.APP, EXCLUSIVE_2),
    ContainerFacts("log"),
)
"""One owns 2 of 6 CPUs and of 6 GiB, a sidecar and an app container share the rest; an init container ran before."""


def level_node(options: Options = LEVEL) -> Node:
    """Two NUMA nodes of 8 CPUs and 16 GiB, CPU 0 reserved."""
    return Node(machine(), options, CPUSet.parse("0"))


def admitted(on: Node, *rows: ContainerFacts, resources: Amounts | None = WHOLE, name: str = "web") -> State:
    """The state after the creation of the pod's first container, with the facts of all."""
    of = replace(pod(name), name=name, namespace="default")
    first = rows[0]
    asked = cpu_resources(first.amounts.cpu_request_milli / 1000, first.amounts.memory_limit_bytes)
    message = replace(container(of, first.name), resources=asked)
    facts = PodFacts(of.uid, QOSClass.GUARANTEED, rows, resources)
    decision = decide(on, State(), InformedCreate(nri.CreateContainer(of, message), facts=facts))
    assert decision.refusal is None, str(decision.refusal)
    return decision.state
