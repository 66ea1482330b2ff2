"""Which clients are the node itself."""

from pathlib import Path

import pytest

from nri_plugin.process.http_connections import OwnNode, plain

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0101F40A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0001F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
ROUTES_OF_SIX = (
    "fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 1 0 00000001     eth0\n"
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 1 0 00000003     eth0\n"
    "00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 1 0 00200200       lo\n"
)


@pytest.fixture
def in_pod(tmp_path: Path) -> OwnNode:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text(ROUTES)
    (tmp_path / "proc/net/ipv6_route").write_text(ROUTES_OF_SIX)
    return OwnNode.read({"HOST_IP": "192.0.2.7"}, str(tmp_path))


@pytest.mark.parametrize("client", ["192.0.2.7", "10.244.1.1", "fd00::1", "10.244.1.9", "127.0.0.1", "::1"])
def test_the_kubelets_addresses_seen_from_a_pod(in_pod: OwnNode, client: str):
    assert in_pod.is_client(client, "10.244.1.9")


@pytest.mark.parametrize("client", ["10.244.1.8", "192.0.2.8", "fd00::2", "::", "0.0.0.0"])
def test_other_pods_and_nodes_are_not_the_node(in_pod: OwnNode, client: str):
    assert not in_pod.is_client(client, "10.244.1.9")


def test_in_the_nodes_own_network_the_gateway_is_a_router(in_pod: OwnNode):
    assert in_pod.is_client("192.0.2.7", "192.0.2.7")
    assert not in_pod.is_client("10.244.1.1", "192.0.2.7")


def test_where_nobody_tells_the_nodes_address_only_the_machine_itself_is_known(tmp_path: Path):
    nowhere = OwnNode.read({}, str(tmp_path))
    assert nowhere.is_client("198.51.100.1", "198.51.100.1")
    assert not nowhere.is_client("10.244.1.1", "10.244.1.9")
    assert not nowhere.is_client("", "10.244.1.9")


def test_routes_that_cannot_be_read_are_none(tmp_path: Path):
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text("Iface\nnonsense\n")
    (tmp_path / "proc/net/ipv6_route").write_text("zz 00\n")
    assert OwnNode.read({}, str(tmp_path)).gateways == frozenset()


def test_addresses_lose_the_marks_of_their_sockets():
    assert plain("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain("fe80::1%eth0") == "fe80::1"
