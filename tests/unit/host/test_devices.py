"""Finding a container's devices in a sysfs tree."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.host.devices import DeviceLocator
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model.bounds import DEVICE_LOOKUPS, DEVICES
from nri_plugin.model.sets import NO_NODES, NodeMask
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri.messages import Container, DeviceNode
from tests.oracles.recordings import unpack

ROOT0, ROOT1 = "sys/devices/pci0000:00", "sys/devices/pci0000:80"
GPU0, GPU1 = f"{ROOT0}/0000:00:01.0/0000:03:00.0", f"{ROOT1}/0000:80:01.0/0000:83:00.0"
NIC = f"{ROOT1}/0000:84:00.0"
VF = f"{ROOT1}/0000:84:02.1"
DISK = f"{ROOT0}/0000:05:00.0/nvme/nvme0/nvme0n1"
VIRTIO = f"{ROOT0}/0000:00:06.0/virtio3"


def pci(where: str, node: int, *, vendor: str = "0x10de", device: str = "0x2330", kind: str = "0x030200"):
    address = where.rpartition("/")[2]
    return {
        f"{where}/numa_node": f"{node}\n",
        f"{where}/vendor": f"{vendor}\n",
        f"{where}/device": f"{device}\n",
        f"{where}/class": f"{kind}\n",
        f"sys/bus/pci/devices/{address}": {"link": f"/{where}"},
    }


def link(name: str, target: str) -> dict[str, Any]:
    return {name: {"link": f"/{target}"}, f"{target}/uevent": ""}


TREE: Mapping[str, Any] = {
    **pci(f"{ROOT0}/0000:00:01.0", 0, kind="0x060400"),
    **pci(GPU0, 0),
    **pci(GPU1, 1),
    **pci(NIC, 1, vendor="0x15b3", device="0x101d", kind="0x020000"),
    **pci(VF, -1, vendor="0x15b3", device="0x101e", kind="0x020000"),
    **pci(f"{ROOT0}/0000:05:00.0", 0, vendor="0x8086", device="0x0a54"),
    **pci(f"{ROOT0}/0000:00:06.0", 0, vendor="0x1af4", device="0x1041"),
    **link("sys/dev/char/226:0", f"{GPU0}/drm/card0"),
    **link("sys/dev/char/226:128", f"{GPU0}/drm/renderD128"),
    **link("sys/dev/char/226:1", f"{GPU1}/drm/card1"),
    **link("sys/dev/char/231:192", f"{NIC}/infiniband_verbs/uverbs0"),
    **link("sys/dev/block/259:0", DISK),
    **link("sys/dev/char/10:200", "sys/devices/virtual/misc/tun"),
    **link("sys/dev/char/10:196", "sys/devices/virtual/vfio/vfio"),
    **link("sys/dev/char/511:0", "sys/devices/virtual/vfio/12"),
    **link("sys/dev/char/252:0", "sys/devices/platform/dax0.0"),
    **link("sys/dev/char/4:64", "sys/devices/platform/serial8250/tty/ttyS0"),
    "sys/devices/platform/dax0.0/numa_node": "1\n",
    "sys/kernel/iommu_groups/12/devices/0000:83:00.0": {"link": f"/{GPU1}"},
    "sys/kernel/iommu_groups/12/devices/0000:00:01.0": {"link": f"/{ROOT0}/0000:00:01.0"},
    "sys/class/net/ens1/device": {"link": f"/{NIC}"},
    "sys/class/net/eth0/device": {"link": f"/{VIRTIO}"},
    "sys/class/net/lo/address": "00:00:00:00:00:00\n",
    f"{VIRTIO}/uevent": "",
    "proc/driver/nvidia/gpus/0000:03:00.0/information": "Model: \t\t X\nDevice Minor: \t 0\n",
    "proc/driver/nvidia/gpus/0000:83:00.0/information": "Model: \t\t X\nDevice Minor: \t 10\n",
}
GPUS = "pci/10de:2330"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    unpack(TREE, tmp_path)
    return tmp_path


def found(root: Path, **has: Any) -> dict[str, dict[str, str]]:
    """Resource -> device -> its NUMA nodes."""
    resources = DeviceLocator(KernelFiles(str(root))).resources(Container("c", **has))
    assert resources is not None
    return {each.name: {device.id: str(device.nodes) for device in each.devices} for each in resources}


def char(*numbers: tuple[int, int], kind: str = "c") -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(f"/dev/x{major}-{minor}", kind, major, minor) for major, minor in numbers)


def test_device_nodes_lead_to_the_pci_device_they_belong_to(root: Path) -> None:
    assert found(root, devices=char((226, 0))) == {GPUS: {"0000:03:00.0": "0"}}
    assert found(root, devices=char((226, 1), kind="u")) == {GPUS: {"0000:83:00.0": "1"}}
    assert found(root, devices=char((259, 0), kind="b")) == {"pci/8086:0a54": {"0000:05:00.0": "0"}}


def test_several_nodes_of_one_device_are_one_device(root: Path) -> None:
    assert found(root, devices=char((226, 0), (226, 128))) == {GPUS: {"0000:03:00.0": "0"}}


def test_devices_of_one_kind_are_one_resource_and_other_kinds_others(root: Path) -> None:
    assert found(root, devices=char((226, 0), (231, 192), (226, 1))) == {
        GPUS: {"0000:03:00.0": "0", "0000:83:00.0": "1"},
        "pci/15b3:101d": {"0000:84:00.0": "1"},
    }


def test_a_vfio_group_stands_for_its_devices_without_bridges(root: Path) -> None:
    assert found(root, devices=char((10, 196), (511, 0))) == {GPUS: {"0000:83:00.0": "1"}}


def test_a_device_on_no_pci_bus_counts_where_it_has_a_node(root: Path) -> None:
    assert found(root, devices=char((252, 0), (4, 64))) == {"device": {"dax0.0": "1"}}


def test_a_driver_without_entries_is_asked_itself(root: Path) -> None:
    assert found(root, devices=char((195, 0), (195, 255), (195, 1))) == {GPUS: {"0000:03:00.0": "0"}}
    assert found(root, devices=char((195, 10))) == {GPUS: {"0000:83:00.0": "1"}}


def test_where_the_hosts_proc_is_not_mounted_our_own_tells(root: Path, tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "sys").symlink_to(root / "sys")
    locator = DeviceLocator(KernelFiles(str(root)), KernelFiles(str(host)))
    assert locator.resources(Container("c", devices=char((195, 7)))) == ()
    unpack({name: value for name, value in TREE.items() if name.startswith("sys/")}, tmp_path / "bare")
    locator = DeviceLocator(KernelFiles(str(tmp_path / "bare")), KernelFiles(str(root)))
    assert [r.name for r in locator.resources(Container("c", devices=char((195, 0))))] == [GPUS]


@pytest.mark.parametrize("numbers", [(10, 200), (99, 9)])
def test_virtual_and_unknown_devices_are_nowhere(root: Path, numbers: tuple[int, int]) -> None:
    assert found(root, devices=char(numbers)) == {}


def test_a_node_of_a_kind_without_numbers_is_passed_over(root: Path) -> None:
    assert found(root, devices=char((226, 0), kind="p")) == {}


@pytest.mark.parametrize("extra", [char((1, 11)), char((1, 1))])
def test_a_privileged_container_has_chosen_no_device(root: Path, extra: tuple[DeviceNode, ...]) -> None:
    assert found(root, devices=(*char((226, 0)), *extra)) == {}


def test_a_privileged_container_has_those_of_its_devices_that_its_variables_name(root: Path) -> None:
    nodes = char((1, 11), (231, 192), (226, 0))
    assert found(root, devices=nodes, env=("PCIDEVICE_X=0000:84:00.0,0000:83:00.0",)) == {
        "PCIDEVICE_X": {"0000:84:00.0": "1"}
    }


def test_a_block_device_with_the_numbers_of_dev_mem_makes_nobody_privileged(root: Path) -> None:
    assert found(root, devices=(*char((226, 0)), *char((1, 1), kind="b"))) == {GPUS: {"0000:03:00.0": "0"}}


HAS_ALL = {"devices": char((226, 0), (226, 1), (231, 192))}


def test_variables_name_devices_by_resource(root: Path) -> None:
    env = ("A=1", "PCIDEVICE_INTEL_COM_NIC=0000:84:00.0,0000:03:00.0", "PCIDEVICE_X_COM_GPU=0000:83:00.0")
    assert found(root, env=env, **HAS_ALL) == {
        "PCIDEVICE_INTEL_COM_NIC": {"0000:84:00.0": "1", "0000:03:00.0": "0"},
        "PCIDEVICE_X_COM_GPU": {"0000:83:00.0": "1"},
    }


@pytest.mark.parametrize(
    ("has", "expected"),
    [
        ({}, {}),
        ({"devices": char((226, 0))}, {GPUS: {"0000:03:00.0": "0"}}),
        ({"devices": char((511, 0))}, {"PCIDEVICE_X": {"0000:83:00.0": "1"}}),
        ({"net_devices": ("ens1",)}, {"PCIDEVICE_X": {"0000:84:00.0": "1"}}),
    ],
    ids=["nothing", "another device", "a vfio group", "an interface"],
)
def test_a_variable_adds_no_device_that_the_container_has_not(
    root: Path, has: dict[str, Any], expected: dict[str, dict[str, str]]
) -> None:
    assert found(root, env=("PCIDEVICE_X=0000:83:00.0,0000:84:00.0",), **has) == expected


def test_a_variable_costs_no_look_at_the_host(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = DeviceLocator._real
    monkeypatch.setattr(DeviceLocator, "_real", lambda self, name: looked.append(name) or real(self, name))
    env = tuple(f"PCIDEVICE_{n}=" + ",".join(f"0000:{bus:02x}:00.0" for bus in range(256)) for n in range(32))
    assert found(root, env=env) == {}
    assert looked == []


def test_a_device_that_a_variable_names_is_not_counted_again_for_its_node(root: Path) -> None:
    assert found(root, env=("PCIDEVICE_X=0000:83:00.0",), devices=char((511, 0), (226, 0))) == {
        "PCIDEVICE_X": {"0000:83:00.0": "1"},
        GPUS: {"0000:03:00.0": "0"},
    }


@pytest.mark.parametrize(
    "line",
    [
        'PCIDEVICE_X_INFO={"0000:84:00.0":{}}',
        "PCIDEVICE_X_INFO=0000:84:00.0",
        "PCIDEVICE_X=",
        "PCIDEVICE_X=../../../../etc",
        "PCIDEVICE_X=0000:99:00.0",
        "pcidevice_x=0000:84:00.0",
        "PCIDEVICE_X",
    ],
)
def test_other_variables_name_nothing(root: Path, line: str) -> None:
    assert found(root, env=(line,), devices=char((231, 192))) == {"pci/15b3:101d": {"0000:84:00.0": "1"}}


def test_cdi_names_are_resources_by_class_whose_devices_are_behind_their_nodes(root: Path) -> None:
    folder = root / "etc/cdi"
    folder.mkdir(parents=True)
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": path}, {"path": "/dev/ctl"}]}}
        for name, path in (("0", "/dev/x226-0"), ("1", "/dev/x226-1"), ("2", "/dev/gone"))
    ]
    (folder / "v.json").write_text(json.dumps({"kind": "v.com/gpu", "devices": devices}))
    nodes = char((226, 0), (226, 1), (231, 192))
    names = ("v.com/gpu=1", "v.com/gpu=0", "v.com/gpu=2", "w.com/nic=0")
    assert found(root, devices=nodes, cdi_devices=names) == {
        "v.com/gpu": {"0000:83:00.0": "1", "0000:03:00.0": "0"},
        "pci/15b3:101d": {"0000:84:00.0": "1"},
    }


def test_addresses_are_taken_with_blanks_and_in_capitals(root: Path) -> None:
    env = ("PCIDEVICE_X= 0000:84:00.0 ,0000:03:00.0",)
    assert found(root, env=env, **HAS_ALL)["PCIDEVICE_X"].keys() == {"0000:84:00.0", "0000:03:00.0"}


def test_a_device_without_a_node_is_somewhere(root: Path) -> None:
    unpack(link("sys/dev/char/511:1", f"{VF}/vfio-dev/vfio1"), root)
    has = {"env": ("PCIDEVICE_X=0000:84:02.1",), "devices": char((511, 1))}
    resources = DeviceLocator(KernelFiles(str(root))).resources(Container("c", **has))
    assert resources == (DeviceResource("PCIDEVICE_X", (Device("0000:84:02.1", NO_NODES),)),)


def gpus(root: Path, count: int) -> tuple[DeviceNode, ...]:
    for number in range(count):
        where = f"{ROOT1}/0001:{number // 8:02x}:00.{number % 8}"
        unpack({**pci(where, 1), **link(f"sys/dev/char/99:{number}", f"{where}/x")}, root)
    return char(*((99, number) for number in range(count)))


def test_a_container_may_have_256_devices_and_with_more_nothing_is_said_of_any(root: Path) -> None:
    nodes, locator = gpus(root, DEVICES + 1), DeviceLocator(KernelFiles(str(root)))
    (resource,) = locator.resources(Container("c", devices=nodes[:-1])) or ()
    assert len(resource.devices) == DEVICES
    assert locator.resources(Container("c", devices=nodes)) is None
    assert locator.resources(Container("c", devices=nodes[:-1], net_devices=("ens1",))) is None


def test_each_number_is_looked_up_once_and_only_so_many(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = DeviceLocator._real
    monkeypatch.setattr(DeviceLocator, "_real", lambda self, name: looked.append(name) or real(self, name))
    locator = DeviceLocator(KernelFiles(str(root)))
    assert locator.resources(Container("c", devices=char((226, 0)) * DEVICE_LOOKUPS)) is not None
    assert looked == ["sys/dev/char/226:0"]
    assert locator.resources(Container("c", devices=char((99, 9)) * (DEVICE_LOOKUPS + 1))) is None


def test_a_parent_tells_the_node_a_device_does_not_have(root: Path) -> None:
    (root / GPU0 / "numa_node").write_text("-1\n")
    assert found(root, devices=char((226, 0))) == {GPUS: {"0000:03:00.0": "0"}}


@pytest.mark.parametrize("text", ["", "many", "99999"])
def test_a_node_that_makes_no_sense_is_not_said(root: Path, text: str) -> None:
    (root / GPU0 / "numa_node").write_text(text)
    (root / ROOT0 / "0000:00:01.0" / "numa_node").unlink()
    assert found(root, devices=char((226, 0))) == {GPUS: {"0000:03:00.0": ""}}


def test_interfaces_are_where_their_device_is(root: Path) -> None:
    assert found(root, net_devices=("ens1", "eth0", "lo", "none")) == {
        "pci/15b3:101d": {"0000:84:00.0": "1"},
        "pci/1af4:1041": {"0000:00:06.0": "0"},
    }


@pytest.mark.parametrize("name", ["", ".", "..", "../../x", "a b", "a\0b", "x" * 16])
def test_what_cannot_be_an_interface_is_not_looked_for(root: Path, name: str) -> None:
    assert found(root, net_devices=(name,)) == {}


def test_links_that_lead_out_of_the_tree_are_not_followed(root: Path, tmp_path: Path) -> None:
    (root / "sys/dev/char/7:7").symlink_to("/dev/null")
    assert found(root, devices=char((7, 7))) == {}


def test_a_device_without_numbers_of_its_own_is_of_an_unknown_kind(root: Path) -> None:
    (root / GPU0 / "vendor").unlink()
    (root / GPU0 / "device").unlink()
    assert found(root, devices=char((226, 0))) == {"pci/unknown:unknown": {"0000:03:00.0": "0"}}


def test_what_cannot_be_read_says_nothing(root: Path) -> None:
    (root / GPU0 / "vendor").unlink()
    (root / GPU0 / "vendor").mkdir()
    group = root / "sys/kernel/iommu_groups/12/devices"
    group.rename(root / "elsewhere")
    group.symlink_to("devices")
    assert found(root, devices=char((226, 0), (511, 0))) == {"pci/unknown:2330": {"0000:03:00.0": "0"}}


def test_a_host_without_sysfs_has_no_devices(tmp_path: Path) -> None:
    has = {
        "devices": char((226, 0), (195, 0)),
        "env": ("PCIDEVICE_X=0000:84:00.0",),
        "net_devices": ("ens1",),
    }
    assert found(tmp_path, **has) == {}


def test_nodes_are_masks(root: Path) -> None:
    (resource,) = DeviceLocator(KernelFiles(str(root))).resources(Container("c", devices=char((226, 1))))
    assert resource.devices == (Device("0000:83:00.0", NodeMask.of(1)),)
