"""Who makes room for whom, and who is late."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from nri_plugin.process.http_server import REQUEST_S, Connection, Connections, Limits

LIMITS = Limits(connections=4, idle_s=20.0, body_bytes=10)


class Clients:
    """Pairs of sockets, and a clock that only this moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.all = Connections(LIMITS, lambda: self.now)
        self.by_name: dict[str, Connection] = {}
        self.ends: list[socket.socket] = []

    def come(self, names: str, address: str = "") -> bool:
        """Return whether the last one was admitted."""
        is_admitted = False
        for name in names:
            near, far = socket.socketpair()
            self.ends += [near, far]
            self.by_name[name] = Connection(near, address or name)
            is_admitted = self.all.admit(self.by_name[name])
        return is_admitted

    def answer(self, names: str) -> None:
        for name in names:
            assert self.all.answering(self.by_name[name])

    def answered(self, name: str) -> None:
        self.all.sending(self.by_name[name])
        self.all.idle(self.by_name[name])

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.all.close_late()

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


def begun(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_the_connection_that_has_waited_longest_makes_room_and_notices(clients: Clients):
    assert clients.come("abcd")
    clients.answer("a")
    clients.answered("a")
    assert clients.come("e")
    assert clients.closed() == "b"
    assert clients["b"].socket.recv(1) == b""
    assert len(clients.all) == LIMITS.connections


def test_the_address_with_most_connections_makes_room(clients: Clients):
    assert clients.come("k")
    assert clients.come("wxyz", "greedy")
    assert clients.come("a")
    assert clients.closed() == "wx"
    clients.answer("yz")
    assert clients.come("b")
    assert clients.closed() == "kwx"


def test_a_client_waits_for_its_place_while_all_others_are_being_answered(clients: Clients):
    assert clients.come("abcd")
    clients.answer("abcd")
    coming = begun(lambda: clients.come("e"))
    clients.all.left(clients["a"])
    coming.join(60)
    assert clients.closed() == "a"  # by itself
    assert not clients["e"].is_closed


def test_threads_of_closed_connections_are_waited_for(clients: Clients):
    assert clients.come("abcdefgh")
    coming = begun(lambda: clients.come("i"))
    for name in "abcd":
        clients.all.left(clients[name])
    coming.join(60)
    assert not clients["i"].is_closed


def test_nobody_makes_room_for_threads_that_have_not_ended(clients: Clients, monkeypatch: pytest.MonkeyPatch):
    assert clients.come("abcdefgh")
    assert clients.closed() == "abcd"
    clients["h"].has_certificate = True
    monkeypatch.setattr(clients.all._change, "wait", lambda _: clients.all.left(clients["a"]))
    assert clients.come("i")
    assert clients.closed() == "abcde"


def test_a_client_that_showed_a_certificate_is_the_last_to_make_room(clients: Clients):
    assert clients.come("abcd")
    clients["a"].has_certificate = True
    assert clients.come("efg")
    assert clients.closed() == "bcd"


def test_a_request_has_its_time_however_its_bytes_come_and_a_connection_may_be_idle_for_longer(
    clients: Clients,
):
    assert clients.come("abc")
    clients.answer("bc")
    clients.answered("b")
    clients.answered("c")
    clients.later(REQUEST_S - 1)
    clients.all.request_begins(clients["a"])  # its time began when it came
    clients.all.request_begins(clients["c"])
    assert clients.closed() == ""
    clients.later(1)
    assert clients.closed() == "a"
    assert not clients.all.answering(clients["a"])
    clients.later(REQUEST_S - 1)
    assert clients.closed() == "ac"
    clients.later(LIMITS.idle_s)
    assert clients.closed() == "abc"


def test_an_answer_may_take_any_time_until_it_is_sent(clients: Clients):
    assert clients.come("a")
    clients.answer("a")
    clients.later(10 * REQUEST_S)
    assert clients.closed() == ""
    clients.all.sending(clients["a"])
    clients.later(REQUEST_S)
    assert clients.closed() == "a"


def test_bodies_take_room_at_the_cost_of_the_one_that_is_sent_longest(clients: Clients):
    assert clients.come("abc")
    clients.all.arrived(clients["a"], 6)
    clients.all.arrived(clients["b"], 4)
    arriving = begun(lambda: clients.all.arrived(clients["c"], 4))
    assert clients["a"].socket.recv(1) == b""
    assert arriving.is_alive()  # what a closed connection has in memory counts until its thread has ended
    clients.all.left(clients["a"])
    arriving.join(60)
    assert clients.closed() == "a"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_body_waits_for_those_that_are_being_answered_until_it_is_late(clients: Clients, is_late: bool):
    assert clients.come("ab")
    clients.all.arrived(clients["a"], 10)
    clients.answer("a")
    arriving = begun(lambda: clients.all.arrived(clients["b"], 1))
    if is_late:
        clients.later(REQUEST_S)
    else:
        clients.answered("a")
    arriving.join(60)
    assert clients.closed() == ("b" if is_late else "")


def test_the_end_waits_for_what_is_being_answered_and_admits_nobody(clients: Clients):
    assert clients.come("ab")
    clients.answer("a")
    ending = begun(lambda: clients.all.close_all(60.0))
    assert clients.closed() == ""
    clients.answered("a")
    ending.join(60)
    assert clients.closed() == "ab"
    assert not clients.come("c")
