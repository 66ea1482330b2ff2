"""Expectations: broken at their second, not before, and gone when they are met."""

import pytest

from nri_plugin.wire.nri.events import Configure
from nri_plugin.wire.nri.session import SessionWatchdog

OLD, NEW = Configure("", "containerd", "1.7.24"), Configure("", "containerd", "2.1.9", 5000, 2000)


def watchdog(*, prelaunched=False):
    return SessionWatchdog(30.0, prelaunched=prelaunched)


def test_nothing_is_expected_at_first():
    assert watchdog().next_check() is None
    assert watchdog().overdue(1e9) is None


def test_configure_must_come():
    dog = watchdog()
    dog.registering(10.0)
    assert dog.next_check() == 40.0
    assert dog.overdue(39.9) is None
    assert "no Configure within 30 s" in dog.overdue(40.0)


@pytest.mark.parametrize(
    ("prelaunched", "runtime", "expected"),
    [(False, OLD, 31.0), (False, NEW, 31.0), (True, NEW, 31.0), (True, OLD, None)],
)
def test_synchronize_must_come_except_to_what_an_old_runtime_launched(prelaunched, runtime, expected):
    dog = watchdog(prelaunched=prelaunched)
    dog.registering(0.0)
    dog.configured(runtime, 1.0)
    assert dog.next_check() == expected
    assert (dog.overdue(31.0) is None) is (expected is None)


def test_a_good_synchronize_ends_all_expectations():
    dog = watchdog()
    dog.registering(0.0)
    dog.configured(NEW, 1.0)
    dog.synchronized(is_lost=False)
    assert dog.next_check() is None


def test_a_lost_synchronize_is_overdue_at_once():
    dog = watchdog()
    dog.synchronized(is_lost=True)
    assert "answer to Synchronize" in dog.overdue(0.0)


def test_a_late_answer_gives_the_runtime_one_second_to_close():
    dog = watchdog()
    dog.answered_late(5.0)
    dog.answered_late(5.5)
    assert dog.overdue(5.9) is None
    assert "after its deadline" in dog.overdue(6.0)


def test_an_incomplete_frame_is_given_ten_seconds():
    dog = watchdog()
    dog.received(0.0, 4, is_incomplete=True)
    dog.received(9.0, 4, is_incomplete=True)
    assert dog.overdue(9.9) is None
    assert "a frame is incomplete for 10 s" in dog.overdue(10.0)


def test_a_frame_in_between_starts_the_ten_seconds_anew():
    dog = watchdog()
    dog.received(0.0, 4, is_incomplete=True)
    dog.received(9.0, 5, is_incomplete=True)
    assert dog.next_check() == 19.0
    dog.received(10.0, 6, is_incomplete=False)
    assert dog.next_check() is None


def test_the_first_broken_expectation_is_named():
    dog = watchdog()
    dog.registering(0.0)
    dog.answered_late(5.0)
    assert "after its deadline" in dog.overdue(100.0)
