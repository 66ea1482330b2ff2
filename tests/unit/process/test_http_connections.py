"""Who makes room for whom, and who is late."""

import socket
import threading
from collections.abc import Iterator

import pytest

from nri_plugin.process.http_connections import REQUEST_S, Connection, Connections, Limits

LIMITS = Limits(strangers=3, strangers_of_one=2, idle_s=20.0, body_bytes=10)


class Clients:
    """Pairs of sockets, and a clock that only this moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.all = Connections(LIMITS, lambda: self.now)
        self.by_name: dict[str, Connection] = {}
        self.ends: list[socket.socket] = []

    def come(self, name: str, address: str = "", *, known: bool = False) -> bool:
        near, far = socket.socketpair()
        self.ends += [near, far]
        self.by_name[name] = Connection(near, address or name, known)
        return self.all.admit(self.by_name[name])

    def closed(self) -> str:
        return "".join(name for name, one in self.by_name.items() if one.is_closed)

    def __getitem__(self, name: str) -> Connection:
        return self.by_name[name]


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    for end in made.ends:
        end.close()


def test_who_has_waited_longest_makes_room_and_notices(clients: Clients):
    assert all(clients.come(name) for name in "abcd")
    assert clients.closed() == "a"
    assert clients["a"].socket.recv(1) == b""
    assert len(clients.all) == 3


def test_who_was_answered_last_has_waited_least(clients: Clients):
    assert all(clients.come(name) for name in "abc")
    clients.all.answering(clients["a"])
    clients.all.sending(clients["a"])
    clients.all.idle(clients["a"])
    assert clients.come("d")
    assert clients.closed() == "b"


def test_what_is_being_answered_is_not_closed(clients: Clients):
    for name in "abc":
        assert clients.come(name)
        assert clients.all.answering(clients[name])
    assert not clients.come("d")
    clients.all.left(clients["a"])
    assert clients.come("e")
    assert clients.closed() == "a"  # by itself


def test_one_address_makes_room_for_itself_only(clients: Clients):
    assert clients.come("o")
    assert all(clients.come(name, "greedy") for name in "xyz")
    assert clients.closed() == "x"


def test_one_address_whose_requests_are_being_answered_gets_no_more(clients: Clients):
    for name in "xy":
        assert clients.come(name, "greedy")
        clients.all.answering(clients[name])
    assert not clients.come("z", "greedy")
    assert clients.come("o")


def test_strangers_never_take_the_place_of_known_clients_and_the_other_way_round(clients: Clients):
    assert clients.come("k", known=True)
    assert all(clients.come(name) for name in "abcdefgh")
    assert not clients["k"].is_closed
    assert all(clients.come(name, "node", known=True) for name in "lmn")
    assert clients.closed() == "kabcde"


def test_a_client_that_shows_a_certificate_leaves_the_strangers(clients: Clients):
    assert clients.come("a")
    assert clients.all.verified(clients["a"])
    assert all(clients.come(name) for name in "bcde")
    assert clients.closed() == "b"
    assert clients["a"].has_certificate


def test_known_clients_that_are_all_being_answered_leave_no_place_for_another(clients: Clients):
    for name in "abc":
        assert clients.come(name, known=True)
        clients.all.answering(clients[name])
    assert clients.come("d")
    assert not clients.all.verified(clients["d"])


def test_the_time_of_a_request_is_not_made_longer_by_bytes(clients: Clients):
    assert clients.come("a")
    clients.now += REQUEST_S - 1
    clients.all.request_begins(clients["a"])
    clients.all.close_late()
    assert clients.closed() == ""
    clients.now += 1
    clients.all.close_late()
    assert clients.closed() == "a"
    assert not clients.all.answering(clients["a"])


def test_a_connection_may_be_idle_for_long_but_a_request_that_began_may_not(clients: Clients):
    for name in "ab":
        assert clients.come(name)
        clients.all.answering(clients[name])
        clients.all.idle(clients[name])
    clients.all.request_begins(clients["b"])
    clients.now += REQUEST_S
    clients.all.close_late()
    assert clients.closed() == "b"
    clients.now += LIMITS.idle_s - REQUEST_S
    clients.all.close_late()
    assert clients.closed() == "ab"


def test_an_answer_that_nobody_takes_is_given_up(clients: Clients):
    assert clients.come("a")
    clients.all.answering(clients["a"])
    clients.now += 10 * REQUEST_S
    clients.all.close_late()
    assert clients.closed() == ""  # we are slow, not the client
    clients.all.sending(clients["a"])
    clients.now += REQUEST_S
    clients.all.close_late()
    assert clients.closed() == "a"


def test_bodies_take_room_at_the_cost_of_the_one_that_is_sent_longest(clients: Clients):
    assert all(clients.come(name) for name in "abc")
    assert clients.all.take_room(clients["a"], 6)
    assert clients.all.take_room(clients["b"], 4)
    took = []
    taking = threading.Thread(target=lambda: took.append(clients.all.take_room(clients["c"], 4)))
    taking.start()
    assert clients["a"].socket.recv(1) == b""
    assert not took  # what a closed connection has in memory counts until its thread has left
    clients.all.left(clients["a"])
    taking.join(60)
    assert took == [True]
    assert clients.closed() == "a"


def test_room_is_taken_until_the_answer_has_been_sent(clients: Clients):
    assert all(clients.come(name) for name in "ab")
    assert clients.all.take_room(clients["a"], 10)
    clients.all.answering(clients["a"])
    took = []
    taking = threading.Thread(target=lambda: took.append(clients.all.take_room(clients["b"], 1)))
    taking.start()
    clients.all.idle(clients["a"])
    taking.join(60)
    assert took == [True]
    assert clients.closed() == ""


def test_a_stranger_gets_no_room_from_a_known_client_and_stops_waiting_when_it_is_late(clients: Clients):
    assert clients.come("k", known=True)
    assert clients.come("s")
    assert clients.all.take_room(clients["k"], 10)
    took = []
    taking = threading.Thread(target=lambda: took.append(clients.all.take_room(clients["s"], 1)))
    taking.start()
    clients.now += REQUEST_S
    clients.all.request_begins(clients["k"])
    clients.all.answering(clients["k"])
    clients.all.close_late()
    taking.join(60)
    assert took == [False]
    assert clients.closed() == "s"


def test_ending_waits_for_what_is_being_answered_and_for_nobody_else(clients: Clients):
    assert all(clients.come(name) for name in "ab")
    clients.all.answering(clients["a"])
    clients.all.sending(clients["a"])
    ending = threading.Thread(target=clients.all.close_all, args=(60.0,))
    ending.start()
    assert clients.closed() == ""
    clients.all.idle(clients["a"])
    ending.join(60)
    assert clients.closed() == "ab"


def test_a_socket_that_tls_took_over_is_closed_when_the_connection_is(clients: Clients):
    assert clients.come("a")
    near, far = socket.socketpair()
    clients.ends += [near, far]
    clients.all.secure(clients["a"], near)
    clients.all.close_all(0.0)
    assert far.recv(1) == b""
    assert clients.come("b")
    clients.all.close_all(0.0)
    late, end = socket.socketpair()
    clients.ends += [late, end]
    clients.all.secure(clients["b"], late)
    assert end.recv(1) == b""
