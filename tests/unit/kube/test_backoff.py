"""Pauses between attempts."""

from nri_plugin.kube.watch import WatchBackoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = WatchBackoff(1.0, 8.0, draw=lambda: 1.0)
    assert [backoff.next_s() for _ in range(5)] == [1.0, 2.0, 4.0, 8.0, 8.0]


def test_nobody_waits_less_than_half() -> None:
    backoff = WatchBackoff(2.0, 8.0, draw=lambda: 0.0)
    assert [backoff.next_s() for _ in range(3)] == [1.0, 2.0, 4.0]


def test_what_the_server_asks_for_is_kept() -> None:
    backoff = WatchBackoff(1.0, 8.0, draw=lambda: 1.0)
    assert backoff.next_s(30.0) == 30.0
    assert backoff.next_s(0.5) == 2.0


def test_success_begins_again() -> None:
    backoff = WatchBackoff(1.0, 8.0, draw=lambda: 1.0)
    backoff.next_s()
    backoff.next_s()
    backoff.reset()
    assert backoff.next_s() == 1.0
