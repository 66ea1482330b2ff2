"""The table of what was tried, as doctor reads it."""

import re

import pytest

from nri_plugin.cli.doctor.settings import CONTAINERD, CRIO
from nri_plugin.cli.doctor.support import LINUX, Basis, Version, caveat, support, support_of, support_table


@pytest.mark.parametrize(
    ("subject", "version", "text"),
    [
        (CONTAINERD, (2, 1, 9), ""),
        (CONTAINERD, (1, 7, 24), ""),
        (CONTAINERD, (2, 4, 1), "nri-pin follows its source, and was not run with it"),
        (CONTAINERD, (9, 0, 0), "nri-pin was not tried with it"),
        (CONTAINERD, (1, 6, 0), "nri-pin was not tried with it"),
        (CRIO, (1, 36, 3), "nri-pin follows its source, and was not run with it"),
        (LINUX, (6, 12, 0), ""),
        (LINUX, (6, 1, 0), ""),
        (LINUX, (6, 8, 0), "nri-pin was not tried with it"),
        (LINUX, (5, 4, 0), "nri-pin was not tried with it"),
    ],
)
def test_a_release_that_was_run_needs_no_word(subject: str, version: Version, text: str) -> None:
    assert caveat(subject, version) == text


def test_releases_stand_newest_first_and_each_is_found_by_its_own_number() -> None:
    for subject in {row.subject for row in support() if row.since}:
        rows = [row for row in support() if row.subject == subject]
        numbers = [row.since for row in rows if row.since]
        assert numbers == sorted(numbers, reverse=True)
        assert [support_of(subject, number) for number in numbers] == rows


def test_what_was_tried_says_how_and_when() -> None:
    for row in support():
        if row.basis is not Basis.NOT_TRIED:
            assert row.how, row
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", row.date), row


def test_the_table_has_a_line_for_each() -> None:
    assert len(support_table().splitlines()) == len(support()) + 2
