"""Described devices as files, and that the agent's own reader finds them where they were put."""

from pathlib import Path

import pytest

from nri_plugin.host.devices import DeviceLocator
from nri_plugin.host.sysfs import read_facts
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.simulator.machine.machine import build_sysfs, parse
from nri_plugin.simulator.simulate.pods import ContainerSpec
from nri_plugin.wire.nri.messages import Container
from tests.lab.runtime.exporter_stand_in import delivered

TEXT = """\
topology: pack:2 numa:1 l3:1 core:2 pu:1
devices:
  - {resource: nvidia.com/gpu, count: 1, nodes: 0}
  - {resource: nvidia.com/gpu, count: 1, nodes: 1}
  - {resource: example.com/fpga, count: 1, nodes: 1}
  - {resource: example.com/fpga, count: 1}
  - {resource: example.com/fpga, count: 1, nodes: "0,1"}
  - {resource: example.com/nic, count: 1, nodes: 0, as: variable}
  - {resource: example.com/nic, ids: ["0000:3b:02.1"], nodes: 1, as: variable}
  - {resource: example.com/ai, count: 2, nodes: 1, as: cdi}
"""
MACHINE = parse(TEXT)


def found(tmp_path: Path, text: str, *chosen: tuple[str, str]) -> dict[str, dict[str, str]]:
    """NUMA nodes by resource and address, as the agent sees a container that was given these devices."""
    described = parse(text)
    build_sysfs(described, str(tmp_path))
    devices = [each for each in described.devices if (each.resource, each.id) in chosen]
    spec = delivered(ContainerSpec("c"), devices)
    container = Container(
        id="c", pod_id="p", name="c", env=spec.env, devices=spec.devices, cdi_devices=spec.cdi_devices
    )
    resources = DeviceLocator(KernelFiles(str(tmp_path))).resources(container) or ()
    return {each.name: {device.id: str(device.nodes) for device in each.devices} for each in resources}


def test_each_device_has_an_address_and_a_device_node_of_its_own() -> None:
    placed = MACHINE.devices
    assert len({each.address for each in placed}) == len(placed)
    assert len({(each.node.major, each.node.minor) for each in placed}) == len(placed)
    assert [each.node.path for each in placed[:3]] == ["/dev/nvidia0", "/dev/nvidia1", "/dev/fpga0"]
    assert "0000:3b:02.1" in {each.address for each in placed if each.id == each.address}


def test_addresses_go_on_in_the_next_domain_and_keep_out_of_the_way_of_named_ones() -> None:
    many = parse(
        'topology: pack:1 numa:1 l3:1 core:1 pu:1\ndevices:\n  - {resource: a/b, ids: ["0000:10:00.0"]}\n  - {resource: a/b, count: 250}'
    ).devices
    assert [each.address for each in many[:2]] == ["0000:10:00.0", "0000:11:00.0"]
    assert many[-1].address == "0001:1a:00.0"
    assert len({each.address for each in many}) == 251


@pytest.mark.parametrize(
    ("chosen", "resource", "nodes"),
    [
        (("nvidia.com/gpu", "0"), "pci/10de:2330", {"0000:10:00.0": "0"}),
        (("nvidia.com/gpu", "1"), "pci/10de:2330", {"0000:11:00.0": "1"}),
        (("example.com/fpga", "0"), "pci/8086:1001", {"0000:12:00.0": "1"}),
        (("example.com/fpga", "1"), "pci/8086:1001", {"0000:13:00.0": ""}),
        (("example.com/fpga", "2"), "pci/8086:1001", {"0000:14:00.0": ""}),
        (("example.com/nic", "0000:3b:02.1"), "PCIDEVICE_EXAMPLE_COM_NIC", {"0000:3b:02.1": "1"}),
        (("example.com/ai", "1"), "example.com/ai", {"0000:17:00.0": "1"}),
    ],
)
def test_the_agent_finds_a_device_by_what_the_container_is_given(
    tmp_path: Path, chosen: tuple[str, str], resource: str, nodes: dict[str, str]
) -> None:
    assert found(tmp_path, TEXT, chosen) == {resource: nodes}


def test_several_addresses_stand_in_one_variable(tmp_path: Path) -> None:
    both = (("example.com/nic", "0"), ("example.com/nic", "0000:3b:02.1"))
    assert found(tmp_path, TEXT, *both) == {
        "PCIDEVICE_EXAMPLE_COM_NIC": {"0000:15:00.0": "0", "0000:3b:02.1": "1"}
    }


def test_a_kernel_without_numa_places_no_device(tmp_path: Path) -> None:
    text = TEXT + "numa: none\n"
    assert found(tmp_path, text, ("nvidia.com/gpu", "1")) == {"pci/10de:2330": {"0000:11:00.0": ""}}
    assert all(not each.nodes for each in parse(text).devices)


def test_the_facts_of_a_machine_hold_its_devices(tmp_path: Path) -> None:
    build_sysfs(
        parse(
            "topology: pack:2 numa:1 l3:1 core:2 pu:1\ndevices:\n  - {resource: nvidia.com/gpu, count: 1, nodes: 1}\n  - {resource: nvidia.com/gpu, count: 1}"
        ),
        str(tmp_path),
    )
    assert read_facts(KernelFiles(str(tmp_path)))["pci"] == {
        "0000:10:00.0": {"class": "0x030200", "local_cpus": "2-3", "numa_node": 1},
        "0000:11:00.0": {"class": "0x030200", "local_cpus": "0-3", "numa_node": -1},
    }
