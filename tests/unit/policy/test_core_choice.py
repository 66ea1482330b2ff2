"""Which cores are split, and which are taken."""

import pytest

from nri_plugin.policy.best_fit import CorePlan, core_classes, count_cores, plan, take_cores

SMT2 = (0b11, 0b1100, 0b110000)
SMT4 = (0xF, 0xF0, 0xF00)
HYBRID = (0b11, 0b1100, 0b10000)
"""Two cores of two threads, one of one."""


def take(cores, free, need):
    classes = core_classes(cores)
    return take_cores(cores, free, plan(classes, count_cores(classes, cores, free), need))


def test_classes_go_from_whole_large_cores_to_single_threads():
    assert core_classes(HYBRID) == ((2, 2), (2, 1), (1, 1))


def test_cores_without_free_threads_do_not_count():
    assert count_cores(core_classes(SMT2), SMT2, 0b000111) == (1, 1)


@pytest.mark.parametrize(
    ("cores", "free", "need", "expected", "rule"),
    [
        (SMT2, 0b111111, 2, 0b000011, "the first whole core"),
        (SMT2, 0b111101, 2, 0b001100, "a whole core before a half"),
        (SMT2, 0b111101, 3, 0b001101, "then the half rather than another whole core"),
        (SMT2, 0b111111, 3, 0b000111, "which is opened where there is no half"),
        (SMT2, 0b010111, 4, 0b010111, "every half when whole cores are not enough"),
        (SMT4, 0xF37, 2, 0x030, "the tightest part of a core"),
        (SMT4, 0x0F37, 6, 0xF30, "a whole core and the tightest part"),
        (SMT4, 0x137, 5, 0x037, "the freest parts where whole cores are missing"),
        (SMT4, 0xF01, 3, 0x700, "a whole core is opened where no part has enough"),
        (HYBRID, 0b11111, 1, 0b10000, "a core of one thread is never split"),
        (HYBRID, 0b11111, 5, 0b11111, "everything"),
    ],
)
def test_the_cpus_taken(cores, free, need, expected, rule):
    assert take(cores, free, need) == expected, rule


@pytest.mark.parametrize(
    ("counts", "need", "split", "opens"),
    [((2, 0), 4, 0, False), ((2, 1), 3, 1, False), ((2, 0), 3, 1, True), ((0, 3), 3, 3, False)],
)
def test_the_fewest_cores_split(counts, need, split, opens):
    found = plan(core_classes(SMT2), counts, need)
    assert (found.split, found.opens) == (split, opens)


@pytest.mark.parametrize(
    ("counts", "need", "expected", "rule"),
    [
        ((2, 0, 0, 0), 4, CorePlan({4: 1}, 0, 0, opens=False), "nothing is left to come from split cores"),
        (
            (1, 1, 0, 0),
            2,
            CorePlan({4: 0}, 2, 1, opens=False),
            "one part is enough, whatever the others have",
        ),
        ((1, 0, 0, 3), 2, CorePlan({4: 0}, 2, 1, opens=True), "no part is enough"),
        ((0, 3, 0, 0), 3, CorePlan({4: 0}, 3, 1, opens=False), "no more parts than it takes"),
        ((0, 1, 1, 0), 5, CorePlan({4: 0}, 5, 2, opens=False), "what one part lacks comes from the next"),
    ],
)
def test_a_plan_for_cores_of_four_threads(counts, need, expected, rule):
    assert plan(core_classes(SMT4), counts, need) == expected, rule


def test_a_part_is_taken_before_a_smaller_core_is_opened():
    assert take((0b1111, 0b110000), 0b110111, 1) == 0b1
