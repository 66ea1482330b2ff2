"""Small machines, pods and containers for tests, in the words of the tests."""

from collections.abc import Sequence

from nri_plugin.model.options import Node, Options
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.topology import Topology
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod, Resources
from tests.topology_rows import topology_of_rows

GIB = 1 << 30
KUBEPODS = {
    "Guaranteed": "/kubepods",
    "Burstable": "/kubepods/burstable",
    "BestEffort": "/kubepods/besteffort",
}


def machine(
    nodes: int = 2, cores: int = 4, threads: int = 2, caches: int = 1, memory: int | Sequence[int] = 16 * GIB
) -> Topology:
    """`nodes` NUMA nodes, one socket each, `cores` cores of `threads` adjacent CPUs, `caches` caches a node.

    `memory` is that of each node.
    """
    rows = []
    for cpu in range(nodes * cores * threads):
        core, node = cpu // threads, cpu // (cores * threads)
        rows.append((cpu, core * threads, node, node, core * caches // cores))
    return topology_of_rows(
        rows,
        memory_bytes=dict(enumerate([memory] * nodes if isinstance(memory, int) else memory)),
        distances={a: [10 if a == b else 21 for b in range(nodes)] for a in range(nodes)},
    )


def node(topology: Topology | None = None, reserved: str = "0-1", **options: object) -> Node:
    """A node with `options` over the defaults."""
    return Node(topology or machine(), Options(**options), CPUSet.parse(reserved))  # type: ignore[arg-type]


def pod(
    uid: str = "p1",
    qos: str = "Guaranteed",
    *,
    sandbox: str = "",
    cpu: float | None = None,
    namespace: str = "default",
) -> Pod:
    """A pod below the cgroup of its QoS class; `cpu` is its total request."""
    return Pod(
        id=sandbox or f"sb-{uid}",
        name=uid,
        uid=uid,
        namespace=namespace,
        cgroup_parent=f"{KUBEPODS[qos]}/pod{uid}",
        resources=None if cpu is None else cpu_resources(cpu),
        pid=1000,
    )


def container(
    of: Pod,
    name: str = "c",
    *,
    cpu: float = 0,
    memory: int = 0,
    number: int = 0,
    cpus: str = "",
    mems: str = "",
    state: ContainerState = ContainerState.RUNNING,
) -> Container:
    """A container requesting `cpu` CPUs; `number` tells instances of one name apart."""
    container_id = f"{of.uid}-{name}-{number}"
    return Container(
        id=container_id,
        pod_id=of.id,
        name=name,
        state=state,
        resources=cpu_resources(cpu, memory, cpus=cpus, mems=mems),
        cgroups_path=f"{of.cgroup_parent}/{container_id}",
    )


def cpu_resources(cpu: float, memory: int = 0, *, cpus: str = "", mems: str = "") -> Resources:
    """What the kubelet makes of a CPU request."""
    return Resources(
        cpu_shares=max(2, int(cpu * 1000) * 1024 // 1000),
        memory_limit_bytes=memory or None,
        cpus=cpus,
        mems=mems,
    )


def cpus(text: str) -> CPUSet:
    """Short for `CPUSet.parse`."""
    return CPUSet.parse(text)


def nodes(*ids: int) -> NodeMask:
    """Short for `NodeMask.of`."""
    return NodeMask.of(*ids)
