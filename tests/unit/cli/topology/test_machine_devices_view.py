"""What hangs on each NUMA node, in words."""

import json

from nri_plugin.cli.topology.machine_view import pci_by_node, pci_lines, resource_lines, resources_by_node
from nri_plugin.simulator.machine.machine import build_topology, parse
from nri_plugin.simulator.machine.source import (
    MachineKind,
    RecordedFiles,
    SourcedMachine,
    machine_from,
    read_machine,
)
from tests.conftest import HERE

DESCRIBED = parse(
    'topology: pack:2 numa:1 l3:1 core:1 pu:1\ndevices:\n  - {resource: a/b, count: 1, nodes: 0}\n  - {resource: a/b, count: 2, nodes: 1}\n  - {resource: a/b, count: 1}\n  - {resource: c/d, count: 1, nodes: "0,1"}'
)
PCI = "sys/bus/pci/devices"


def machine_with(*devices: tuple[str, int]) -> SourcedMachine:
    """Two NUMA nodes and devices of these classes on these nodes."""
    entries = {}
    for number, (kind, node) in enumerate(devices):
        entries |= {
            f"{PCI}/0000:00:{number:02x}.0/class": kind,
            f"{PCI}/0000:00:{number:02x}.0/numa_node": str(node),
        }
    return SourcedMachine("m", MachineKind.RECORDED, build_topology(DESCRIBED), files=RecordedFiles(entries))


def test_resources_are_told_by_place() -> None:
    assert resource_lines(DESCRIBED) == [
        "a/b: 1 on NUMA 0, 2 on NUMA 1, 1 on no NUMA node",
        "c/d: 1 on NUMA 0-1",
    ]
    assert resources_by_node(DESCRIBED) == {0: ["a/b 0", "c/d 0"], 1: ["a/b 1 2", "c/d 0"]}
    assert resource_lines(None) == []


def test_pci_devices_are_counted_by_kind_and_bridges_are_none_of_them() -> None:
    machine = machine_with(
        ("0x020000", 0), ("0x020000", 0), ("0x010802", 0), ("0x060400", 1), ("0x030200", 1)
    )
    assert pci_by_node(machine) == {0: "PCI: 2 network, 1 storage", 1: "PCI: 1 display"}


def test_what_no_firmware_places_or_another_machine_has_is_left_out() -> None:
    assert pci_by_node(machine_with(("0x020000", -1), ("0x020000", 7))) == {}


def test_nodes_that_have_the_same_share_a_line() -> None:
    assert pci_lines(machine_with(("0x020000", 0), ("0x020000", 1))) == ["PCI: 1 network each on NUMA 0-1"]
    assert pci_lines(machine_with(("0x120000", 1))) == ["PCI: 1 accelerator on NUMA 1"]


def test_a_dump_tells_them_and_a_damaged_one_none() -> None:
    facts = read_machine(str(HERE / "machines" / "lstopo" / "vm-2-cpus.xml.gz")).facts()
    facts["pci"] = {"0000:00:01.0": {"class": "0x0200", "numa_node": 0}, "x": 3}
    assert pci_lines(machine_from(json.dumps(facts).encode(), "d", "d")) == ["PCI: 1 network on NUMA 0"]
    facts["pci"] = "none"
    assert pci_lines(machine_from(json.dumps(facts).encode(), "d", "d")) == []


def test_a_described_machine_has_none() -> None:
    assert pci_lines(read_machine("demo")) == []
