"""What hangs on each NUMA node of a machine, in words for its pictures."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nri_plugin.host.sysfs_devices import read_pci
from nri_plugin.nodemask import NodeMask

if TYPE_CHECKING:
    from nri_plugin.simulator.machine_source import SourcedMachine
    from nri_plugin.simulator.machine_text import Description

CLASSES = {"01": "storage", "02": "network", "03": "display", "0b": "coprocessor", "12": "accelerator"}
"""PCI base classes that pods care for. Source: PCI Code and ID Assignment Specification, base classes."""


def resource_lines(description: "Description | None") -> list[str]:
    """What pods can ask for on a described machine: a line for each resource."""
    counts: dict[str, dict[str, int]] = {}
    for device in description.devices if description else ():
        where = f"on NUMA {device.nodes}" if device.nodes else "on no NUMA node"
        by_place = counts.setdefault(device.resource, {})
        by_place[where] = by_place.get(where, 0) + 1
    return [
        f"{name}: " + ", ".join(f"{count} {where}" for where, count in by_place.items())
        for name, by_place in counts.items()
    ]


def resources_by_node(description: "Description | None") -> dict[int, list[str]]:
    """The same node by node, with the ids of the devices."""
    found: dict[int, dict[str, list[str]]] = {}
    for device in description.devices if description else ():
        for node in device.nodes:
            found.setdefault(node, {}).setdefault(device.resource, []).append(device.id)
    return {
        node: [f"{name} {' '.join(ids)}" for name, ids in by_name.items()] for node, by_name in found.items()
    }


def pci_by_node(machine: "SourcedMachine") -> dict[int, str]:
    """How many PCI devices of which kind each node has; those that no firmware places are left out.

    Raises:
        HostError: a file of the machine cannot be read.
    """
    counts: dict[int, dict[str, int]] = {}
    for device in _pci(machine).values():
        name = CLASSES.get(str(device.get("class"))[2:4]) if isinstance(device, Mapping) else None
        node = device.get("numa_node") if name else None
        if name and isinstance(node, int) and node in machine.topology.node_ids:
            by_name = counts.setdefault(node, {})
            by_name[name] = by_name.get(name, 0) + 1
    return {
        node: "PCI: " + ", ".join(f"{count} {name}" for name, count in sorted(by_name.items()))
        for node, by_name in sorted(counts.items())
    }


def pci_lines(machine: "SourcedMachine") -> list[str]:
    """The same, a line for all nodes that have the same."""
    nodes_by_text: dict[str, NodeMask] = {}
    for node, text in pci_by_node(machine).items():
        nodes_by_text[text] = nodes_by_text.get(text, NodeMask()) | NodeMask.of(node)
    each = {text: " each" if len(nodes) > 1 else "" for text, nodes in nodes_by_text.items()}
    return [f"{text}{each[text]} on NUMA {nodes}" for text, nodes in nodes_by_text.items()]


def _pci(machine: "SourcedMachine") -> Mapping[str, Any]:
    if machine.files is not None:
        return read_pci(machine.files, machine.topology.online.mask)
    dumped = (machine.dump or {}).get("pci")
    return dumped if isinstance(dumped, Mapping) else {}
