from nri_plugin.host.sysfs_parts import read_net, read_pci
from tests.oracles.recordings import RecordedFiles

DEVICE = "sys/devices/pci0000:00/0000:00:01.0"
FILES = {
    f"{DEVICE}/class": "0x020000",
    f"{DEVICE}/numa_node": "-1",
    f"{DEVICE}/local_cpus": "00000005",
    "sys/bus/pci/devices/0000:00:01.0": {"link": f"/{DEVICE}"},
    f"{DEVICE}/net/eth0/device": {"link": "../../../0000:00:01.0"},
    "sys/class/net/eth0": {"link": f"/{DEVICE}/net/eth0"},
    "sys/class/net/lo/address": "00:00:00:00:00:00",
}


def test_a_device_without_a_node_says_minus_one_and_keeps_its_local_cpus() -> None:
    assert read_pci(RecordedFiles(FILES), online=0b111) == {
        "0000:00:01.0": {"class": "0x020000", "local_cpus": "0,2", "numa_node": -1}
    }


def test_local_cpus_are_restricted_to_online_ones() -> None:
    assert read_pci(RecordedFiles(FILES), online=0b001)["0000:00:01.0"]["local_cpus"] == "0"


def test_an_interface_is_where_its_device_is_and_virtual_ones_are_left_out() -> None:
    assert read_net(RecordedFiles(FILES)) == {"eth0": {"numa_node": -1, "pci": "0000:00:01.0"}}


def test_a_machine_without_pci_has_no_devices() -> None:
    assert read_pci(RecordedFiles({}), online=1) == {}
    assert read_net(RecordedFiles({})) == {}
