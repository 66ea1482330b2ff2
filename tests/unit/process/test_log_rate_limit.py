from nri_plugin.process.logs import MOST_REMEMBERED, LogRateLimit, Repeats


def test_a_lasting_trouble_is_said_at_once_and_then_when_the_interval_is_over():
    reminder = LogRateLimit(10.0)
    assert [now for now in range(0, 25, 5) if reminder.is_due("down", now)] == [0, 10, 20]


def test_another_trouble_and_one_that_came_back_are_said_at_once():
    reminder = LogRateLimit(10.0)
    assert reminder.is_due("down", 0.0)
    assert reminder.is_due("refused", 1.0)
    assert not reminder.is_due("refused", 2.0)
    reminder.forget()
    assert reminder.is_due("refused", 3.0)


def test_what_is_repeated_is_new_once_for_each_key_and_text():
    repeats: Repeats[str] = Repeats(10.0)
    assert repeats.is_first("a", "no room", 0.0)
    assert not any(repeats.is_first("a", "no room", float(now)) for now in range(1, 60))
    assert repeats.is_first("b", "no room", 60.0)
    assert repeats.is_first("a", "less room", 60.0)
    assert repeats.is_first("a", "no room", 61.0)


def test_what_nobody_repeated_for_long_or_was_settled_is_new_again():
    repeats: Repeats[str] = Repeats(10.0)
    assert repeats.is_first("a", "no room", 0.0)
    assert repeats.is_first("a", "no room", 10.5)
    repeats.forget("a")
    assert repeats.is_first("a", "no room", 11.0)


def test_of_endless_keys_the_latest_are_remembered():
    repeats: Repeats[int] = Repeats(10.0)
    assert all(repeats.is_first(number, "", 0.0) for number in range(2 * MOST_REMEMBERED))
    assert len(repeats._latest) == MOST_REMEMBERED
    assert not repeats.is_first(2 * MOST_REMEMBERED - 1, "", 1.0)
