"""Readers of the status socket see every state in the end, and nobody waits for them."""

import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from nri_plugin import __version__
from nri_plugin.agent.observing import status_socket
from nri_plugin.agent.observing.status_client import AgentStatus, RejectRow, RuntimeRow, decode, reject_pod
from nri_plugin.agent.observing.status_socket import (
    LATEST_DRIFTS,
    LATEST_REFUSALS,
    MOST_READERS,
    StatusFeed,
    StatusSocket,
)
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.core.decision import Decision
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, PodRefusal
from nri_plugin.model.refusals import AdmissionRefusal, RefusalKind
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import Configure, CreateContainer
from nri_plugin.wire.nri.messages import Container, Pod
from tests.agent_fakes import recording_log
from tests.builders import machine
from tests.drift_reports import drift

PATIENCE_S = 30.0
ON = Node(machine(), Options(), CPUSet.parse("0"))


def wait_for(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.001)


class Agent:
    """An agent as far as the socket sees it."""

    def __init__(self, folder: Path) -> None:
        self.node = Node(machine(), Options(), CPUSet.parse("0"))
        self.state = State()
        self.feed = StatusFeed()
        self.path = folder / "agent.sock"
        self.runtime: Configure | None = None
        self.socket = StatusSocket(
            self.path, lambda: (self.node, self.state), self.feed, lambda: self.runtime
        )

    def decides(self, state: State, refusal: AdmissionRefusal | None = None) -> None:
        before, self.state = self.state, state
        event = CreateContainer(
            Pod("s1", uid="u", name="web", namespace="default"), Container("c1", name="app")
        )
        self.feed(
            RequestOutcome(
                node=self.node,
                event=event,
                before=before,
                decision=Decision(state, refusal=refusal),
                refusal=str(refusal or ""),
                failed=False,
                decide_s=0.0,
                total_s=0.0,
            )
        )


class Reader:
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(path))
        self.lines = self.socket.makefile("rb")

    def reads(self) -> AgentStatus:
        return decode(self.lines.readline())

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


def listens_at(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trial:
        return trial.connect_ex(str(path)) == 0


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setattr(status_socket, "LOOK_S", 10 * PATIENCE_S)  # what is seen has been told
    made = Agent(tmp_path)
    yield made
    made.socket.close()


@pytest.fixture
def reader(agent: Agent) -> Iterator[Reader]:
    connected = Reader(agent.path)
    yield connected
    connected.close()


def holding(cpus: str) -> State:
    return State(allocations={"u/app": Allocation(CPUSet.parse(cpus))})


def test_who_connects_is_told_at_once(reader: Reader, agent: Agent) -> None:
    assert reader.reads().node.topology == agent.node.topology


def test_a_change_is_told(reader: Reader, agent: Agent) -> None:
    assert not reader.reads().state.allocations
    agent.decides(holding("2-3"))
    assert reader.reads().state == holding("2-3")


def test_a_burst_ends_with_its_last_state(reader: Reader, agent: Agent) -> None:
    reader.reads()
    for cpu in range(1, 16):
        agent.decides(holding(str(cpu)))
    while reader.reads().state != holding("15"):
        pass


def test_a_refusal_is_told_with_its_reason(reader: Reader, agent: Agent) -> None:
    reader.reads()
    agent.decides(agent.state, AdmissionRefusal(RefusalKind.SMT_ALIGNMENT, "3 CPUs are no whole cores"))
    (row,) = reader.reads().refusals
    assert (row.number, row.namespace, row.pod, row.container) == (1, "default", "web", "app")
    assert row.reason == "SMTAlignmentError"


def test_a_drift_is_told_and_only_the_latest_are_kept(reader: Reader, agent: Agent) -> None:
    reader.reads()
    for number in range(1, LATEST_DRIFTS + 6):
        agent.feed.drifted(drift(number))
    while not (rows := reader.reads().drifts) or rows[-1].number < LATEST_DRIFTS + 5:
        pass
    assert [row.number for row in rows] == list(range(6, LATEST_DRIFTS + 6))
    assert (rows[0].name, rows[0].found, rows[0].desired, rows[0].cause) == (
        "shop/web/c",
        "0-7",
        "1",
        "all-cpus",
    )


def test_a_changed_machine_wakes_who_tells(agent: Agent) -> None:
    woken: list[bool] = []
    agent.feed.wake = lambda: woken.append(True)
    agent.feed.machine_changed()
    assert woken == [True]


def test_only_the_latest_refusals_are_kept(agent: Agent) -> None:
    for _ in range(LATEST_REFUSALS + 5):
        agent.decides(agent.state, AdmissionRefusal(RefusalKind.TOPOLOGY_AFFINITY, "no"))
    assert [row.number for row in agent.feed.refusals] == list(range(6, LATEST_REFUSALS + 6))


def test_a_reader_that_does_not_read_keeps_nobody_from_being_told(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_socket, "PAUSE_S", 0.0)  # the sleeper is later than any pause
    sleeper, reader = Reader(agent.path), Reader(agent.path)
    reader.reads()
    many = {f"u{number}/app": Allocation(CPUSet.parse("1")) for number in range(20_000)}
    agent.decides(State(allocations=many))
    assert len(reader.reads().state.allocations) == 20_000
    agent.decides(holding("5"))
    assert reader.reads().state == holding("5")
    while sleeper.reads().state != holding("5"):
        pass
    sleeper.close()
    reader.close()


def test_news_in_a_pause_is_told_though_the_pause_ends_while_nobody_looks(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, once = [100.0], [100.0]
    clock = SimpleNamespace(monotonic=lambda: once.pop() if once else now[0])
    monkeypatch.setattr(status_socket, "time", clock)
    reader = Reader(agent.path)
    reader.reads()
    now[0], once[:] = 101.0, [100.01]
    agent.decides(holding("2-3"))
    assert reader.reads().state == holding("2-3")
    reader.close()


def test_only_the_owner_may_connect(agent: Agent) -> None:
    assert stat.S_IMODE(agent.path.stat().st_mode) == 0o600


def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "agent.sock"))
    left.close()
    agent = Agent(tmp_path)
    reader = Reader(agent.path)
    assert reader.reads().state == State()
    reader.close()
    agent.socket.close()
    assert not os.path.lexists(agent.path)


def test_a_place_that_takes_no_socket_is_named_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_socket, "LOOK_S", 0.01)
    log, lines = recording_log()
    path = tmp_path / "missing" / "agent.sock"
    agent = StatusSocket(path, lambda: (ON, State()), StatusFeed(), log=log)
    try:
        ((_, _, fields),) = lines.lines
        assert "no status socket: no such file" in str(fields["err"])
        path.parent.mkdir()
        wait_for(path.exists)
    finally:
        agent.close()
    assert lines.texts("WARNING") == ["nothing can be exported to the cluster"]
    assert lines.texts("INFO") == ["the status socket was restored"]


def test_a_socket_that_was_removed_comes_back_and_its_readers_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_socket, "LOOK_S", 0.01)
    path = tmp_path / "agent.sock"
    agent = StatusSocket(path, lambda: (ON, State()), StatusFeed())
    try:
        path.unlink()
        wait_for(lambda: listens_at(path))
        reader = Reader(path)
        assert reader.lines.readline(), "it serves again, so it knows its new socket"
        reader.close()
        # In one step: between two the agent would put its socket back.
        (tmp_path / "other").write_text("another's")
        (tmp_path / "other").replace(path)
        assert path.read_text() == "another's"
    finally:
        agent.close()
    assert path.exists()


def test_the_runtime_is_told_once_it_asks_but_not_what_it_handed_over(agent: Agent) -> None:
    agent.runtime = Configure("nriSocket: secret", "containerd", "v2.1.9", 5000, 2000)
    reader = Reader(agent.path)
    line = reader.lines.readline()
    reader.close()
    assert decode(line).runtime == RuntimeRow("containerd", "v2.1.9", "", 2000, 5000)
    assert b"secret" not in line


def test_an_agent_that_nobody_asks_tells_of_no_runtime(agent: Agent) -> None:
    reader = Reader(agent.path)
    told = reader.reads()
    reader.close()
    assert (told.runtime, told.agent) == (None, __version__)


def test_many_readers_take_few_descriptors_and_a_new_one_is_served(agent: Agent) -> None:
    readers = []
    for _ in range(2 * MOST_READERS):
        readers.append(Reader(agent.path))
        assert readers[-1].reads().state == agent.state
    assert len(agent.socket._readers) == MOST_READERS
    agent.decides(holding("1-2"))
    assert readers[-1].reads().state == agent.state
    assert readers[0].lines.readline() == b"", "the oldest knows that it was dropped"
    for one in readers:
        one.close()


def test_a_process_that_is_near_its_limit_of_descriptors_keeps_one_reader(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_socket, "CORE_DESCRIPTORS", 1 << 30)
    readers = [Reader(agent.path) for _ in range(5)]
    assert readers[-1].reads().state == agent.state
    wait_for(lambda: len(agent.socket._readers) == 1)
    for one in readers:
        one.close()


def test_an_error_in_the_status_leaves_the_next_one_whole(
    agent: Agent, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_socket, "AFTER_ERROR_S", 0.0)
    reader.reads()
    encode, failures = status_socket.encode, [OSError(5, "Input/output error"), MemoryError()]

    def fails_first(status: AgentStatus) -> bytes:
        if failures:
            raise failures.pop()
        return encode(status)

    monkeypatch.setattr(status_socket, "encode", fails_first)
    agent.decides(holding("1-2"))
    wait_for(lambda: not agent.feed.wake() and not failures)
    assert reader.reads().state == holding("1-2")


@pytest.mark.parametrize("lives", [False, True])
def test_a_reader_may_ask_to_reject_a_pod_and_sees_that_it_is_done(tmp_path: Path, lives: bool) -> None:
    agent = Agent(tmp_path)
    agent.socket.close()
    heard: list[RejectRow] = []
    record = PodRecord("u", "s", "web", "default")
    runs = {"c": ContainerRecord("c", "u", "app", Phase.RUNNING, CgroupRef(""))} if lives else {}
    agent.state = State({"u": record}, runs)

    def rejects(row: RejectRow) -> None:
        heard.append(row)
        final = PodRefusal(row.reason, row.message, is_final=True)
        if not lives:
            agent.decides(State({"u": replace(record, refusal=final)}))

    socket_here = StatusSocket(agent.path, lambda: (agent.node, agent.state), agent.feed, reject=rejects)
    nonsense = socket.socket(socket.AF_UNIX)
    nonsense.connect(str(agent.path))
    nonsense.sendall(b"x" * 70_000 + b'\n{"reject_pod": 1}\n[]\n')
    said = reject_pod(str(agent.path), "u", "SMTAlignmentError", "odd")
    assert said == (None if lives else PodRefusal("SMTAlignmentError", "odd", is_final=True))
    wait_for(lambda: heard == [RejectRow("u", "SMTAlignmentError", "odd")])
    assert reject_pod(str(agent.path), "gone", "SMTAlignmentError", "odd") is None
    nonsense.close()
    socket_here.close()
