"""Which clients of an HTTP server are the node itself: the kubelet that probes, a person on the node.

The kubelet connects to a pod from an address of the node. Which one, the network plugin decides: the node's own
(Calico, cloud networks), or that of the bridge or router in front of the pod, which is the pod's default gateway
(bridge, flannel, Cilium). Another pod has neither.
"""

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HOST_IP = "HOST_IP"
"""Environment variable with the node's address, which a pod gets from `status.hostIP`."""

_MAPPED = "::ffff:"
_GATEWAY_FLAG = 0x2  # Source: linux/route.h, RTF_GATEWAY


@dataclass(frozen=True, slots=True)
class OwnNode:
    """The node's addresses, as a process in a pod sees them.

    Attributes:
        host_ip: of the node; empty outside of a pod.
        gateways: default gateways of our network.
    """

    host_ip: str = ""
    gateways: frozenset[str] = frozenset()

    @classmethod
    def read(cls, environment: Mapping[str, str], root: str = "/") -> "OwnNode":
        """What environment and kernel say."""
        found: set[str] = set()
        for file, gateways in (("proc/net/route", _gateways), ("proc/net/ipv6_route", _gateways_of_six)):
            with suppress(OSError, ValueError, struct.error):
                found.update(gateways(Path(root, file).read_text(encoding="ascii")))
        return cls(plain(environment.get(HOST_IP, "")), frozenset(found))

    def is_client(self, client: str, own: str) -> bool:
        """Whether `client`, connected to our address `own`, is the node or this pod.

        In the node's own network the gateway is a router, from which anybody's traffic may come.
        """
        if client == own or client.startswith("127.") or client == "::1":
            return True
        in_pod_network = bool(self.host_ip) and own != self.host_ip
        return in_pod_network and (client == self.host_ip or client in self.gateways)


def plain(address: str) -> str:
    """An address without the marks that sockets add: IPv4 seen through IPv6, the interface of a link-local one."""
    return address.removeprefix(_MAPPED).partition("%")[0]


def _gateways(text: str) -> Iterator[str]:
    for line in text.splitlines()[1:]:
        _, destination, gateway, flags, *_ = line.split()
        if int(destination, 16) == 0 and int(flags, 16) & _GATEWAY_FLAG:
            yield socket.inet_ntoa(struct.pack("=L", int(gateway, 16)))


def _gateways_of_six(text: str) -> Iterator[str]:
    for line in text.splitlines():
        destination, bits, _, _, gateway, _, _, _, flags, *_ = line.split()
        if int(bits, 16) == 0 and int(destination, 16) == 0 and int(flags, 16) & _GATEWAY_FLAG:
            yield socket.inet_ntop(socket.AF_INET6, bytes.fromhex(gateway))
