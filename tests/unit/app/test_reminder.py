from nri_plugin.app.reminder import Reminder


def test_a_lasting_trouble_is_said_at_once_and_then_when_the_interval_is_over():
    reminder = Reminder(10.0)
    assert [now for now in range(0, 25, 5) if reminder.is_due("down", now)] == [0, 10, 20]


def test_another_trouble_and_one_that_came_back_are_said_at_once():
    reminder = Reminder(10.0)
    assert reminder.is_due("down", 0.0)
    assert reminder.is_due("refused", 1.0)
    assert not reminder.is_due("refused", 2.0)
    reminder.forget()
    assert reminder.is_due("refused", 3.0)
