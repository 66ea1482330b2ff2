"""Whether a stuck loop ends the process, and a busy one does not."""

import threading
from collections.abc import Iterator

import pytest

from nri_plugin.process.loop import EXIT_STUCK, Loop, LoopWatchdog
from tests.agent_fakes import recording_log


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_a_loop_that_does_not_come_round_ends_the_process_and_says_where_it_is(
    loop: Loop, capfd: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    over = threading.Event()
    log, lines = recording_log()

    def give_up(code: int) -> None:
        ended.append(code)
        over.set()

    dog = LoopWatchdog(loop, log, pause_s=0.001, limit_s=0.01, give_up=give_up)  # nobody runs the loop
    assert over.wait(30)
    dog.close()
    assert ended == [EXIT_STUCK]
    assert "stuck" in lines.texts("CRITICAL")[0]
    assert "test_watchdog.py" in capfd.readouterr().err


def test_a_loop_that_comes_round_is_left_alone(loop: Loop) -> None:
    ended: list[int] = []
    log, _ = recording_log()
    signs = threading.Semaphore(0)
    post = loop.post

    def counted(action: object) -> None:
        signs.release()
        post(action)  # type: ignore[arg-type]

    loop.post = counted  # type: ignore[method-assign,assignment]
    dog = LoopWatchdog(loop, log, pause_s=0.001, limit_s=60, give_up=ended.append)
    for _ in range(3):
        assert signs.acquire(timeout=30)
        loop.run_once()
    closing = threading.Thread(target=dog.close)
    closing.start()
    while closing.is_alive():
        loop.post(lambda: None)
        loop.run_once()
    closing.join()
    assert not ended
