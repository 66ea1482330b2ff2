"""How given devices reach a container: as device nodes, with a `PCIDEVICE_*` variable or CDI names in its message.

Source: kubelet device plugin API v1beta1, ContainerAllocateResponse; the SR-IOV network device plugin, which gives the
    node of a function that is bound to vfio-pci, and a variable that lists the addresses of all functions.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from nri_plugin.simulator.device_places import PlacedDevice
from nri_plugin.simulator.machine_devices import Delivery
from nri_plugin.simulator.pods import ContainerSpec

_OTHER = re.compile(r"[^A-Z0-9]")


def delivered(spec: ContainerSpec, devices: Iterable[PlacedDevice]) -> ContainerSpec:
    """The container with its devices."""
    devices = tuple(devices)
    return replace(
        spec,
        devices=(*spec.devices, *(each.node for each in devices if each.delivery is not Delivery.CDI)),
        env=(*spec.env, *_variables(_by(devices, Delivery.VARIABLE))),
        cdi_devices=(*spec.cdi_devices, *(each.cdi_name for each in _by(devices, Delivery.CDI))),
    )


def _by(devices: Iterable[PlacedDevice], delivery: Delivery) -> tuple[PlacedDevice, ...]:
    return tuple(each for each in devices if each.delivery is delivery)


def _variables(devices: Iterable[PlacedDevice]) -> Iterable[str]:
    addresses: dict[str, list[str]] = {}
    for device in devices:
        addresses.setdefault(device.resource, []).append(device.address)
    for resource, listed in addresses.items():
        yield f"PCIDEVICE_{_OTHER.sub('_', resource.upper())}={','.join(listed)}"
