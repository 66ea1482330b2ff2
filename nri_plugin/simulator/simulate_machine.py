"""The machine of a simulation, as lists that can be drawn."""

from collections.abc import Iterable

from nri_plugin.cpuset import CPUSet
from nri_plugin.simulator.machine_source import SourcedMachine, machine_from, read_machine
from nri_plugin.simulator.simulation import Group, Machine, NUMANodeRow

OWN = "its own machine"
"""What a machine is called that a scenario describes."""


def described_machine(text: str, file: str) -> SourcedMachine:
    """The machine that a scenario names or describes.

    Raises:
        ConfigError: there is no such machine, or the description is wrong.
    """
    is_description = "\n" in text or "," in text
    return (
        machine_from(text.encode(), f"{file}: machine", "machine") if is_description else read_machine(text)
    )


def machine_row(machine: SourcedMachine, summary: str) -> Machine:
    """Everything a picture needs; `summary` is the machine in one line."""
    topology = machine.topology
    return Machine(
        name=machine.name,
        title=machine.description.title if machine.description else "",
        summary=summary,
        sockets=_groups(topology.sockets),
        numa_nodes=tuple(
            NUMANodeRow(int(one.id), _ids(one.cpus), one.memory_bytes, one.hugepages, one.distances)
            for one in topology.nodes
        ),
        caches=_groups(topology.caches),
        cores=_groups(topology.cores),
        caches_known=topology.caches_known,
        online=_ids(topology.online),
        offline=_ids(topology.offline),
        isolated=_ids(topology.isolated),
        without_l3=_ids(topology.without_l3),
    )


def _groups(groups: Iterable[tuple[int, CPUSet]]) -> tuple[Group, ...]:
    return tuple(Group(int(number), _ids(cpus)) for number, cpus in groups)


def _ids(cpus: CPUSet) -> tuple[int, ...]:
    return tuple(map(int, cpus))
