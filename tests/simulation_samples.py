"""Simulations made by hand, as far as a report needs them: who has which CPUs is decided by counting up."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nri_plugin.model import bits
from nri_plugin.model.topology import Topology
from nri_plugin.policy.alignment import CPUAlignment
from nri_plugin.simulator.machine.machine import build_topology, load
from nri_plugin.simulator.simulate.comparison import ContainerDifference, SimulationComparison, Sum
from nri_plugin.simulator.simulate.simulation import (
    Configuration,
    ContainerStatus,
    CPUGroup,
    FragmentationRow,
    Machine,
    RefusalStage,
    RefusedRow,
    ShapeCapacity,
    SimulatedContainer,
    SimulatedCPU,
    SimulatedMemory,
    SimulatedNUMANode,
    SimulatedRefusal,
    Simulation,
    StepRow,
    Totals,
)

RESERVED = 1
SHAPE = "Guaranteed: cpu {}, memory 1Gi"
HintSet = tuple[str, int]
"""`NAMESPACE/POD/CONTAINER` and how many CPUs it wants to itself; 0 for the shared pool."""


def sample(
    machine: str = "demo",
    wishes: Sequence[HintSet] | None = None,
    *,
    config: str = "packed.yaml",
    backwards: bool = False,
) -> dict[str, Any]:
    """What `Simulation.as_dict` says of containers that get the next CPUs until there are no more."""
    topology = build_topology(load(machine))
    wishes = (
        [("net/filter/filter", 8), ("shop/web/web", 0), ("db/main/db", 6), ("ml/train/train", 1000)]
        if wishes is None
        else wishes
    )
    return asdict(_Counting(machine, topology, config, backwards=backwards).run(wishes))


def many(count: int, machine: str, size: int = 2, **more: Any) -> dict[str, Any]:
    """A simulation of so many pods."""
    return sample(
        machine,
        [(f"team-{number % 7}/pod-{number}/main", size if number % 3 else 0) for number in range(count)],
        **more,
    )


def comparison(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """What differs between two samples."""
    before = {row["key"]: row["cpus"] for row in first["containers"]}
    after = {row["key"]: row["cpus"] for row in second["containers"]}
    rows = tuple(
        ContainerDifference(key, "cpus", cpus, after[key])
        for key, cpus in before.items()
        if after.get(key, cpus) != cpus
    )
    sums = (Sum("pods placed", len(before), len(after)),)
    return asdict(
        SimulationComparison(
            (("topologyManagerPolicy", "best-effort", "restricted"),), rows, len(before) - len(rows), sums
        )
    )


class _Counting:
    def __init__(self, name: str, topology: Topology, config: str, *, backwards: bool) -> None:
        self.name, self.topology, self.config = name, topology, config
        self.free = list(topology.online)[RESERVED:][:: -1 if backwards else 1]
        self.rows: list[SimulatedContainer] = []
        self.steps: list[StepRow] = []
        self.taken = 0

    def run(self, wishes: Sequence[HintSet]) -> Simulation:
        for number, wish in enumerate(wishes, 1):
            self._step(number, *wish)
        return Simulation(
            scenario="a day",
            file="day.yaml",
            machine=_machine(self.name, self.topology),
            configuration=Configuration(
                self.config,
                {"topologyManagerPolicy": "restricted"},
                "0",
                "said by reservedSystemCPUs",
            ),
            shapes={str(size): SHAPE.format(size) for _, size in wishes},
            steps=tuple(self.steps),
            containers=tuple(self.rows),
            owners=self._owners(),
            devices=(),
            numa_nodes=tuple(self._broken(node.id, node.cpus.mask) for node in self.topology.nodes),
            caches=tuple(self._broken(number, cpus.mask) for number, cpus in self.topology.caches),
            memory=(SimulatedMemory(0, "memory", 64 << 30, 3 << 30),),
            capacity=(
                ShapeCapacity(
                    "2", SHAPE.format(2), "db/main", 1, len(self.free) // 2, 31, refusal=self._refusal(2)
                ),
                ShapeCapacity("9", SHAPE.format(9), "", 0, 3, 6),
            ),
            refused=(
                RefusedRow("InsufficientCPU", RefusalStage.PLACEMENT, "1000", ("ml/train/train",), "no room"),
            ),
            totals=self._totals(len(wishes)),
            notes=("memory pressure is not simulated",),
        )

    def _step(self, number: int, key: str, size: int) -> None:
        namespace, pod, container = key.split("/") if key.count("/") == 2 else ("default", key, key)
        mine, self.free = (self.free[:size], self.free[size:]) if size <= len(self.free) else ([], self.free)
        mask = bits.from_ids(mine)
        row = SimulatedContainer(
            key,
            namespace,
            pod,
            container,
            "app",
            ContainerStatus.PLACED if mine else ContainerStatus.SHARED,
            len(mine),
        )
        cpus = mask or bits.from_ids(self.free)
        values = {
            "cpus": bits.format_list(cpus),
            "numa_nodes": bits.format_list(
                bits.from_ids(node.id for node in self.topology.nodes if node.cpus.mask & cpus)
            ),
            "caches": bits.format_list(
                bits.from_ids(cache for cache, group in self.topology.caches if group.mask & cpus)
            ),
            "mems": "0" if mine else "",
            "aligned": CPUAlignment(numa_node=True, socket=True, uncore_cache=size <= 8, whole_cores=False)
            if mine
            else None,
        }
        if size and not mine:
            values = {"refusal": self._refusal(size), "status": ContainerStatus.REFUSED}
        row = SimulatedContainer(**{**{name: getattr(row, name) for name in row.__slots__}, **values})
        if not row.refusal:
            self.rows.append(row)
        self.taken += len(mine)
        self.steps.append(
            StepRow(
                number,
                line=number,
                action="run",
                target=f"{namespace}/{pod}",
                shape=str(size),
                qos="Guaranteed",
                containers=(row,),
                exclusive_cpus=self.taken,
            )
        )

    def _refusal(self, size: int) -> SimulatedRefusal:
        return SimulatedRefusal(
            RefusalStage.PLACEMENT,
            "InsufficientCPU",
            f"InsufficientCPU: {size} wanted, {len(self.free)} available",
        )

    def _owners(self) -> tuple[SimulatedCPU, ...]:
        owner = {
            cpu: row.key
            for row in self.rows
            if row.exclusive
            for cpu in bits.iterate(bits.parse_list(row.cpus))
        }
        return tuple(
            SimulatedCPU(
                cpu,
                "exclusive" if cpu in owner else "reserved" if number < RESERVED else "shared",
                owner.get(cpu, ""),
            )
            for number, cpu in enumerate(self.topology.online)
        )

    def _broken(self, number: int, mask: int) -> FragmentationRow:
        left = bits.from_ids(self.free) & mask
        reserved = bits.from_ids(list(self.topology.online)[:RESERVED]) & mask
        return FragmentationRow(
            number,
            mask.bit_count(),
            (mask & ~reserved).bit_count(),
            left.bit_count(),
            number % 5 / 5 if left else 0,
        )

    def _totals(self, pods: int) -> Totals:
        own = sum(bool(row.exclusive) for row in self.rows)
        pool = bits.from_ids(self.free) | bits.from_ids(list(self.topology.online)[:RESERVED])
        counts = (pods, len(self.rows), 0, pods - len(self.rows), len(self.rows), own, self.taken)
        cpus = (pool.bit_count(), RESERVED, len(self.free), bits.format_list(pool))
        return Totals(*counts, *cpus, own, own, own, 0, 0.25, 0.5, 3 << 30, 0)


def _machine(name: str, topology: Topology) -> Machine:
    nodes = tuple(
        SimulatedNUMANode(node.id, tuple(node.cpus), node.memory_bytes, node.hugepages, node.distances)
        for node in topology.nodes
    )
    return Machine(
        name,
        "a described machine",
        f"{len(topology.sockets)} sockets, {len(topology.nodes)} NUMA nodes, {len(topology.online)} CPUs",
        tuple(CPUGroup(number, tuple(cpus)) for number, cpus in topology.sockets),
        nodes,
        tuple(CPUGroup(number, tuple(cpus)) for number, cpus in topology.caches),
        tuple(CPUGroup(number, tuple(cpus)) for number, cpus in topology.cores),
        topology.caches_known,
        tuple(topology.online),
        tuple(topology.offline),
        tuple(topology.isolated),
    )
