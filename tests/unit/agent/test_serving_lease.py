import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.agent.serving.serving_lease import (
    EXIT_YIELDED,
    LOOK_PAUSE_S,
    LOST_S,
    ServingLease,
    StateDirInUseError,
    lock_state_dir,
)
from nri_plugin.checkpoint.file import LOCK_FILE
from nri_plugin.host.runtime_lock import RuntimeLock
from nri_plugin.process.loop import Loop
from tests.agent_fakes import Clock, recording_log


class Bench:
    """Agents of one runtime in one process, each with a loop of its own; time passes for all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.loops: list[Loop] = []
        self.turns: list[ServingLease] = []

    def agent(self, state: str = "state", **options: bool) -> "Agent":
        one = Agent(self, state, **options)
        self.loops.append(one.loop)
        self.turns.append(one.turn)
        return one

    def pass_time(self) -> None:
        self.clock.now += LOOK_PAUSE_S
        for loop in self.loops:
            loop.post(lambda: None)
            loop.run_once()

    def wait_for_lock(self) -> None:
        for _ in range(int(LOST_S / LOOK_PAUSE_S) + 1):
            self.pass_time()

    def close(self) -> None:
        for turn in self.turns:
            turn.close()
        for loop in self.loops:
            loop.close()


class Agent:
    def __init__(self, bench: Bench, state: str, **options: bool) -> None:
        self.loop = Loop(bench.clock)
        self.served = 0
        self.waits_for = ""
        log, self.lines = recording_log()
        self.lock = RuntimeLock(str(bench.folder / "nri" / "nri.sock"))
        self.turn = ServingLease(
            self.lock, str(bench.folder / state), self.loop, log, self._serve, self._wait, **options
        )

    @property
    def has_ended(self) -> bool:
        return self.loop._exit_code == EXIT_YIELDED

    def _serve(self) -> None:
        assert self.lock._lock is not None
        self.served += 1

    def _wait(self, reason: str) -> None:
        self.waits_for = reason


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "nri").mkdir(mode=0o700)
    made = Bench(tmp_path)
    yield made
    made.close()


def test_the_first_serves_at_once(bench: Bench):
    first = bench.agent()
    first.turn.begin()
    assert (first.served, first.waits_for) == (1, "")


def test_the_second_waits_and_serves_once_when_the_first_ends(bench: Bench):
    first, second = bench.agent(), bench.agent("other")
    first.turn.begin()
    second.turn.begin()
    bench.pass_time()
    assert second.served == 0
    assert "another agent" in second.waits_for
    assert not (bench.folder / "other").exists()
    first.turn.close()
    bench.pass_time()
    bench.pass_time()
    assert (second.served, second.waits_for) == (1, "")
    assert not second.has_ended


def test_whom_it_waits_for_is_said_once(bench: Bench):
    first, second = bench.agent(), bench.agent()
    first.turn.begin()
    second.turn.begin()
    for _ in range(9):
        bench.pass_time()
    assert second.lines.texts("WARNING") == ["waiting for the right to serve the runtime"]


def test_a_state_directory_of_the_agent_of_another_runtime_is_waited_for(bench: Bench):
    held = lock_state_dir(str(bench.folder / "state"))
    agent = bench.agent()
    agent.turn.begin()
    assert agent.served == 0
    assert "uses this state directory" in agent.waits_for
    os.close(held)
    bench.pass_time()
    assert agent.served == 1


@pytest.mark.parametrize("is_made_anew", [True, False], ids=["directory", "lock file"])
def test_an_agent_that_serves_locks_the_state_directory_that_is_there_now(bench: Bench, is_made_anew: bool):
    agent, state = bench.agent(), bench.folder / "state"
    agent.turn.begin()
    (state / LOCK_FILE).unlink()
    bench.pass_time()
    assert not (state / LOCK_FILE).exists(), "somebody may be about to remove the directory"
    if is_made_anew:
        state.rmdir()
        bench.wait_for_lock()
        assert not state.exists(), "only the checkpoint makes it anew"
        state.mkdir()
    bench.wait_for_lock()
    with pytest.raises(StateDirInUseError, match="uses this state directory"):
        lock_state_dir(str(state))
    assert agent.served == 1


def test_an_agent_that_serves_says_who_works_on_its_state_directory_made_anew(bench: Bench):
    agent, state = bench.agent(), bench.folder / "state"
    agent.turn.begin()
    (state / LOCK_FILE).unlink()
    held = lock_state_dir(str(state))
    bench.wait_for_lock()
    bench.pass_time()
    assert agent.lines.texts("WARNING") == ["another process uses the state directory"]
    os.close(held)
    bench.pass_time()
    with pytest.raises(StateDirInUseError):
        lock_state_dir(str(state))
    assert not agent.has_ended


def test_other_users_of_an_unsafe_state_directory_keep_no_agent_from_serving(bench: Bench):
    held = lock_state_dir(str(bench.folder / "state"))
    (bench.folder / "state").chmod(0o777)
    agent = bench.agent()
    agent.turn.begin()
    bench.pass_time()
    os.close(held)
    assert (agent.served, agent.waits_for) == (1, "")


def test_an_agent_that_serves_gives_up_for_a_launched_one(bench: Bench):
    old, launched = bench.agent(), bench.agent(is_replaceable=False)
    old.turn.begin()
    launched.lock.ask()
    bench.pass_time()
    assert old.has_ended
    assert launched.served == 0, "the old one has not let go yet"
    old.turn.close()
    launched.turn.demand()
    assert launched.served == 1


def test_a_launched_agent_serves_as_soon_as_one_that_cannot_be_ended_is_gone(bench: Bench, no_patience: None):
    old, launched = bench.agent(), bench.agent(is_replaceable=False)
    old.turn.begin()
    launched.turn.demand()
    assert launched.served == 0
    assert "another agent" in launched.waits_for
    old.turn.close()
    bench.pass_time()
    assert launched.served == 1


def test_an_agent_that_waits_goes_on_waiting_while_a_launched_one_lives(bench: Bench):
    launched, waiting = bench.agent(is_replaceable=False), bench.agent()
    launched.turn.demand()
    waiting.turn.begin()
    bench.pass_time()
    assert (waiting.served, waiting.has_ended) == (0, False)
    assert waiting.waits_for == "a newer agent, started by the runtime, takes over"
    launched.turn.close()
    bench.pass_time()
    assert waiting.served == 1


@pytest.mark.parametrize("is_late", [False, True])
def test_an_agent_that_came_back_ends_when_a_launched_one_lives(bench: Bench, is_late: bool):
    launched, returned = bench.agent(is_replaceable=False), bench.agent("other", stays=False)
    if is_late:
        ordinary = bench.agent()
        ordinary.turn.begin()
        returned.turn.begin()
        assert not returned.has_ended, "it waits for an ordinary agent as others do"
        launched.lock.ask()
        bench.pass_time()
    else:
        launched.turn.demand()
        returned.turn.begin()
    assert (returned.served, returned.has_ended) == (0, True)


def test_a_launched_agent_asks_again_until_it_is_heard(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Somebody who looks at the mark holds it for a moment."""
    launched, other = bench.agent(is_replaceable=False), bench.agent()
    with monkeypatch.context() as patch:
        patch.setattr(RuntimeLock, "ask", lambda self: None)
        launched.turn.demand()
    assert not other.lock.is_wanted()
    bench.pass_time()
    assert other.lock.is_wanted()


def test_an_agent_that_serves_gives_up_where_another_has_the_new_directory(bench: Bench):
    one, other = bench.agent(), bench.agent("other")
    one.turn.begin()
    (bench.folder / "nri").rename(bench.folder / "away")
    (bench.folder / "nri").mkdir(mode=0o700)
    other.turn.begin()
    bench.pass_time()
    assert (one.has_ended, other.served) == (True, 1)


def test_a_directory_that_everybody_may_lock_is_warned_of(bench: Bench):
    (bench.folder / "nri").chmod(0o755)
    agent = bench.agent()
    agent.turn.begin()
    assert agent.lines.texts("WARNING") == ["any user can prevent the agent from serving"]


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nri_plugin.agent.serving.serving_lease.YIELD_S", 0.0)
    monkeypatch.setattr("nri_plugin.agent.serving.serving_lease.END_S", 0.0)


def test_a_lock_that_cannot_be_looked_at_is_looked_at_again(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """An input/output error says nothing about other agents, so this one goes on."""
    agent, launched = bench.agent(), bench.agent("other", is_replaceable=False)
    agent.turn.begin()
    with monkeypatch.context() as patch:
        patch.setattr(agent.lock, "take", failing)
        for _ in range(8):
            bench.pass_time()
    assert not agent.has_ended
    assert agent.loop.failures > 0
    launched.lock.ask()
    for _ in range(40):
        bench.pass_time()
    assert agent.has_ended, "it still sees a newer agent"


def test_an_agent_that_cannot_serve_when_its_turn_comes_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    first, second = bench.agent(), bench.agent("other")
    first.turn.begin()
    second.turn.begin()
    monkeypatch.setattr(second.turn, "_serve", failing)
    first.turn.close()
    bench.pass_time()
    bench.pass_time()
    with pytest.raises(OSError, match="Input/output error"):
        second.loop.run()


def failing() -> str:
    raise OSError(5, "Input/output error")
