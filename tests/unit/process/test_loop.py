import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from nri_plugin.process.loop import MOST_PUT_OFF, Loop


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop(clock: Clock) -> Iterator[Loop]:
    made = Loop(clock)
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_run_returns_the_code_of_the_first_stop(loop: Loop):
    loop.post(lambda: loop.stop(3))
    loop.post(lambda: loop.stop(4))
    assert loop.run() == 3


def test_a_readable_socket_runs_its_action(loop: Loop, pair):
    ours, theirs = pair
    got: list[bytes] = []
    loop.watch(ours, lambda: got.append(ours.recv(10)))
    theirs.send(b"hi")
    loop.run_once()
    assert got == [b"hi"]


def test_a_forgotten_socket_runs_nothing(loop: Loop, pair):
    ours, theirs = pair
    loop.watch(ours, pytest.fail)
    loop.forget(ours)
    loop.forget(ours)
    theirs.send(b"hi")
    loop.post(lambda: None)
    loop.run_once()


def test_a_socket_forgotten_by_its_own_write_action_is_not_read(loop: Loop, pair):
    ours, theirs = pair
    theirs.send(b"hi")
    loop.watch(ours, pytest.fail, lambda: loop.forget(ours))
    loop.run_once()


def test_watching_again_replaces_the_actions(loop: Loop, pair):
    ours, _ = pair
    written: list[int] = []
    loop.watch(ours, pytest.fail, lambda: written.append(1))
    loop.run_once()
    loop.watch(ours, pytest.fail)
    loop.post(lambda: None)
    loop.run_once()
    assert written == [1]


def test_a_timer_runs_once_when_it_is_due(loop: Loop, clock: Clock):
    ran: list[float] = []
    loop.set_timer("a", 105.0, lambda: ran.append(clock.now))
    loop.post(lambda: None)
    loop.run_once()
    assert ran == []
    clock.now = 105.0
    loop.run_once()
    clock.now = 200.0
    loop.post(lambda: None)
    loop.run_once()
    assert ran == [105.0]


def test_a_timer_of_the_same_name_replaces_and_none_removes(loop: Loop, clock: Clock):
    ran: list[str] = []
    loop.set_timer("a", 1.0, lambda: ran.append("old"))
    loop.set_timer("a", 2.0, lambda: ran.append("new"))
    loop.set_timer("b", 1.0, lambda: ran.append("b"))
    loop.set_timer("b", None, lambda: None)
    loop.set_timer("b", None, lambda: None)
    loop.run_once()
    assert ran == ["new"]


def test_a_timer_may_remove_another_that_is_due(loop: Loop):
    ran: list[str] = []

    def first() -> None:
        ran.append("first")
        loop.set_timer("second", None, first)

    loop.set_timer("first", 1.0, first)
    loop.set_timer("second", 2.0, lambda: ran.append("second"))
    loop.run_once()
    assert ran == ["first"]


def test_a_timer_set_by_a_timer_waits_for_the_next_round(loop: Loop):
    ran: list[int] = []

    def again() -> None:
        ran.append(1)
        loop.set_timer("a", 1.0, again)

    loop.set_timer("a", 1.0, again)
    loop.run_once()
    assert ran == [1]
    loop.run_once()
    assert ran == [1, 1]


def test_a_timer_of_minus_infinity_is_due_at_once(loop: Loop):
    ran: list[int] = []
    loop.set_timer("a", float("-inf"), lambda: ran.append(1))
    loop.run_once()
    assert ran == [1]


def test_timers_give_way_to_an_urgent_source_for_some_turns(loop: Loop, pair):
    ours, theirs = pair
    ran: list[str] = []

    def asked() -> None:
        ran.append("asked")  # and leaves the bytes: there is always more

    loop.watch(ours, asked)
    loop.watch(ours, asked, is_urgent=True)
    theirs.send(b"more")
    loop.set_timer("late", 1.0, lambda: ran.append("late"))
    assert loop.is_asked()
    for _ in range(MOST_PUT_OFF):
        loop.run_once()
    assert ran == ["asked"] * MOST_PUT_OFF
    loop.run_once()
    assert ran == ["asked"] * (MOST_PUT_OFF + 1) + ["late"]
    loop.set_timer("late", 1.0, lambda: ran.append("late"))
    loop.run_once()
    assert ran[-1] == "asked"
    loop.forget(ours)
    assert not loop.is_asked()
    loop.run_once()
    assert ran[-1] == "late"


def test_post_from_another_thread_wakes_the_loop_and_runs_here(loop: Loop):
    names: list[str] = []

    def hand_over() -> None:
        loop.post(lambda: names.append(threading.current_thread().name))
        loop.post(lambda: loop.stop(0))

    thread = threading.Thread(target=hand_over)
    thread.start()
    assert loop.run() == 0
    thread.join()
    assert names == [threading.current_thread().name]


def test_more_posts_than_the_wake_up_socket_holds_are_all_run(loop: Loop):
    ran: list[int] = []
    for _ in range(100_000):
        loop.post(lambda: ran.append(1))
    loop.run_once()
    assert len(ran) == 100_000


def test_a_signal_runs_its_action_in_the_loop(loop: Loop):
    before = signal.getsignal(signal.SIGUSR1)
    try:
        loop.handle_signals({signal.SIGUSR1: lambda: loop.stop(7)})
        os.kill(os.getpid(), signal.SIGUSR1)
        assert loop.run() == 7
    finally:
        signal.signal(signal.SIGUSR1, before)
        loop.close()
    assert signal.set_wakeup_fd(-1) == -1


class Failing:
    """Work that raises until it is allowed to succeed."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ran_at: list[float] = []
        self.error: BaseException | None = OSError(5, "Input/output error")

    def __call__(self) -> None:
        self.ran_at.append(self.clock.now)
        if self.error is not None:
            raise self.error


def pass_seconds(loop: Loop, clock: Clock, seconds: float, turns_in_a_second: int = 20) -> None:
    for _ in range(int(seconds * turns_in_a_second)):
        clock.now += 1 / turns_in_a_second
        loop.post(lambda: None)
        loop.run_once()


@pytest.mark.parametrize(
    "kind", ["timer", "repeated timer", "readable", "urgent readable", "after each turn"]
)
@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), RuntimeError("can't start new thread"), MemoryError()]
)
def test_work_that_fails_is_tried_again_with_growing_pauses_and_the_loop_goes_on(
    kind: str, error: Exception, loop: Loop, clock: Clock, pair, caplog: pytest.LogCaptureFixture
):
    ours, theirs = pair
    theirs.send(b"never read")
    work, beats = Failing(clock), Failing(clock)
    work.error, beats.error = error, None
    loop.repeat("beats", 1.0, beats)
    if kind == "timer":
        loop.set_timer("work", clock.now, work)
    elif kind == "repeated timer":
        loop.repeat("work", 0.0, work)
    elif kind == "after each turn":
        loop.after_each_turn(work)
    else:
        loop.watch(ours, work, is_urgent=kind == "urgent readable")
    pass_seconds(loop, clock, 60)
    assert len(beats.ran_at) >= 55
    assert 5 <= len(work.ran_at) <= 15, "0.5, 1, 2, 4, 8 and then 10 seconds apart"
    pauses = [later - former for former, later in zip(work.ran_at, work.ran_at[1:], strict=False)]
    assert [round(pause) for pause in pauses] == sorted(round(pause) for pause in pauses)
    assert loop.failures == len(work.ran_at)
    traces = [one for one in caplog.records if one.exc_info]
    assert 3 <= len(traces) <= 5, "not each time"
    # Once it succeeds, it is work like any other.
    tries, work.error = len(work.ran_at), None
    pass_seconds(loop, clock, 11)
    expected = 1 if kind == "timer" else 10
    assert len(work.ran_at) - tries >= expected
    assert loop.failures == tries
    loop.forget(ours)


def test_a_source_that_is_forgotten_while_it_is_left_alone_is_not_heard_again(loop: Loop, clock: Clock, pair):
    ours, theirs = pair
    theirs.send(b"more")
    work = Failing(clock)
    loop.watch(ours, work)
    loop.run_once()
    loop.forget(ours)
    pass_seconds(loop, clock, 20)
    assert len(work.ran_at) == 1


def test_posted_work_that_fails_leaves_the_rest(loop: Loop, clock: Clock):
    work, after = Failing(clock), Failing(clock)
    after.error = None
    loop.post(work)
    loop.post(after)
    loop.run_once()
    assert (len(after.ran_at), loop.failures) == (1, 1)


def test_a_closed_loop_drops_what_a_thread_posts_late(clock: Clock):
    loop = Loop(clock)
    loop.close()
    loop.post(pytest.fail)


def test_what_cannot_go_on_ends_the_loop_with_its_error(loop: Loop):
    loop.post(lambda: loop.fail(ValueError("no handler")))
    with pytest.raises(ValueError, match="no handler"):
        loop.run()


def test_a_thread_starts_as_soon_as_the_node_has_one_left(loop: Loop, clock: Clock):
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    start, refusals = thread.start, [1, 2, 3]

    def refused() -> None:
        if refusals:
            refusals.pop()
            raise RuntimeError("can't start new thread")
        start()

    thread.start = refused  # type: ignore[method-assign]
    loop.start_thread(thread)
    assert not ran.is_set()
    pass_seconds(loop, clock, 5)
    assert ran.wait(30)
    thread.join()
    assert loop.failures == 0, "it is no error of the agent"


def test_a_wait_that_the_kernel_refuses_is_tried_again(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    ran: list[int] = []
    select, refusals = loop._selector.select, [OSError(5, "Input/output error")]

    def refused(timeout: float | None = None) -> list[object]:
        if refusals:
            raise refusals.pop()
        return select(timeout)  # type: ignore[return-value]

    monkeypatch.setattr(loop._selector, "select", refused)
    loop.post(lambda: ran.append(1))
    loop.post(lambda: loop.stop(0))
    assert loop.run() == 0
    assert ran == [1]
