"""What sysfs says about where PCI devices and network interfaces are attached."""

from typing import Any

from nri_plugin import bits
from nri_plugin.host.sysfs_files import KernelFiles

PCI_DIR = "sys/bus/pci/devices"
NET_DIR = "sys/class/net"


def read_pci(files: KernelFiles, online: int) -> dict[str, dict[str, Any]]:
    """PCI devices by address: class, NUMA node (-1 where firmware does not say), local CPUs.

    Raises:
        HostError: a file cannot be read or does not hold what it should.
    """
    return {
        address: _device(files, f"{PCI_DIR}/{address}", online)
        for address in sorted(files.names(PCI_DIR) or ())
    }


def read_net(files: KernelFiles) -> dict[str, dict[str, Any]]:
    """Network interfaces that hang on a PCI device, by name.

    Raises:
        HostError: a file cannot be read or does not hold what it should.
    """
    found = {}
    for name in sorted(files.names(NET_DIR) or ()):
        where = f"{NET_DIR}/{name}/device"
        address = files.end_of_link(where)
        if address is not None:
            found[name] = {"numa_node": files.number(f"{where}/numa_node"), "pci": address}
    return found


def _device(files: KernelFiles, where: str, online: int) -> dict[str, Any]:
    local = files.id_list(f"{where}/local_cpulist")
    if local is None:
        local = files.id_map(f"{where}/local_cpus")
    return {
        "class": files.text(f"{where}/class"),
        "local_cpus": None if local is None else bits.format_list(local & online),
        "numa_node": files.number(f"{where}/numa_node"),
    }
