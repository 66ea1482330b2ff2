"""Who makes room for whom at the extender."""

import socket

import pytest

from nri_plugin.app.extender_connections import Connections


class Clients:
    """Pairs of sockets: the far end notices being hung up on."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.connections = Connections(most, most_of_one)
        self.ends: dict[tuple[str, int], tuple[socket.socket, socket.socket]] = {}

    def come(self, address: str, port: int) -> bool:
        near, far = self.ends[address, port] = socket.socketpair()
        far.setblocking(False)
        return self.connections.admit(near, (address, port))

    def is_hung_up_on(self, address: str, port: int) -> bool:
        try:
            return self.ends[address, port][1].recv(1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        for peer, ends in self.ends.items():
            self.connections.left(peer)
            for end in ends:
                end.close()


@pytest.fixture
def clients():
    made = Clients(3, 2)
    yield made
    made.close()


def test_who_has_waited_longest_makes_room(clients):
    assert all(clients.come(address, 1) for address in "abcd")
    assert [clients.is_hung_up_on(address, 1) for address in "abcd"] == [True, False, False, False]


def test_who_was_answered_last_has_waited_least(clients):
    assert all(clients.come(address, 1) for address in "abc")
    clients.connections.answering(("a", 1))
    clients.connections.waiting(("a", 1))
    assert clients.come("d", 1)
    assert [clients.is_hung_up_on(address, 1) for address in "abc"] == [False, True, False]


def test_what_is_being_answered_is_not_hung_up_on(clients):
    for address in "abc":
        assert clients.come(address, 1)
        clients.connections.answering((address, 1))
    assert not clients.come("d", 1)
    clients.connections.left(("a", 1))
    assert clients.come("e", 1)
    assert not any(clients.is_hung_up_on(address, 1) for address in "bc")


def test_one_address_makes_room_for_itself_only(clients):
    assert clients.come("other", 1)
    assert all(clients.come("greedy", port) for port in (1, 2, 3))
    assert clients.is_hung_up_on("greedy", 1)
    assert not clients.is_hung_up_on("other", 1)


def test_one_that_was_hung_up_on_is_not_remembered(clients):
    assert all(clients.come(address, 1) for address in "abcd")
    clients.connections.waiting(("a", 1))
    clients.connections.left(("a", 1))
    assert clients.come("e", 1)
    assert clients.is_hung_up_on("b", 1)
