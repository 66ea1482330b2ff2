"""Pauses between two repairs of one cgroup."""

from nri_plugin.agent.repair.drift_watch import CALM_S, FIGHT_ROUNDS, LONGEST_PAUSE_S, Pacing


def fought(rounds: int, draw: float = 0.5) -> tuple[Pacing, list[float], float]:
    pacing: Pacing = Pacing(lambda: draw)
    now, pauses = 100.0, []
    for _ in range(rounds):
        latest = pacing.took_place("a", now)
        pauses.append(latest.pause_s)
        now = latest.next_at
    return pacing, pauses, now


def test_first_drift_is_put_right_at_once() -> None:
    assert Pacing(lambda: 0.0).due_at("a") < 0


def test_pauses_double_up_to_the_longest() -> None:
    _, pauses, _ = fought(12)
    assert pauses[:5] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_pauses_are_uneven() -> None:
    assert fought(1, draw=0.0)[1] == [0.375]
    assert fought(1, draw=1.0)[1] == [0.625]


def test_many_rounds_in_a_row_are_a_fight() -> None:
    assert fought(FIGHT_ROUNDS - 1)[0].fights == []
    assert fought(FIGHT_ROUNDS)[0].fights == ["a"]


def test_whoever_leaves_it_alone_ends_the_fight_and_begins_anew() -> None:
    pacing, _, now = fought(FIGHT_ROUNDS)
    assert pacing.forget_calm(now) == []
    assert pacing.forget_calm(now + CALM_S) == ["a"]
    assert pacing.fights == []
    assert pacing.took_place("a", now + CALM_S + 1).number == 1


def test_long_pause_is_no_calm() -> None:
    pacing, pauses, now = fought(10)
    assert pacing.took_place("a", now + pauses[-1] / 2).number == 11


def test_one_repair_that_held_is_forgotten_without_a_word() -> None:
    pacing, _, now = fought(1)
    assert pacing.forget_calm(now + CALM_S) == []
    assert pacing.due_at("a") < 0


def test_removed_cgroup_is_forgotten() -> None:
    pacing, _, _ = fought(FIGHT_ROUNDS)
    pacing.forget("a")
    pacing.forget("never known")
    assert pacing.fights == []


def test_cpus_that_the_kernel_does_not_give_are_no_fight() -> None:
    pacing, _, now = fought(FIGHT_ROUNDS)
    assert not pacing.took_place("a", now, is_refused=True).is_fight
    assert pacing.fights == []
