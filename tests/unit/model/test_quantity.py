"""Kubernetes quantities become exact whole numbers."""

from fractions import Fraction

import pytest

from nri_plugin.model.quantity import format_bytes, parse_bytes, parse_cpu_milli, parse_quantity, round_down


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("0", 0),
        ("4", 4000),
        ("1500m", 1500),
        ("0.5", 500),
        (".25", 250),
        ("2.", 2000),
        ("+3", 3000),
        ("1k", 1_000_000),
        ("1Ki", 1_024_000),
        ("100u", 1),
        ("1.0001", 1001),
        ("12e-1", 1200),
        ("1E1", 10_000),
    ],
)
def test_cpus_are_counted_in_thousandths_rounded_up(text, milli):
    assert parse_cpu_milli(text) == milli


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("100Mi", 100 << 20),
        ("2Gi", 2 << 30),
        ("1.5Gi", 3 << 29),
        ("1G", 10**9),
        ("1M", 10**6),
        ("1Ei", 1 << 60),
        ("1E", 10**18),
        ("1e3", 1000),
        ("1500m", 2),
        ("128974848", 128974848),
        (" 64Ki\n", 65536),
    ],
)
def test_bytes_are_whole_and_rounded_up(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "abc", "1 Gi", "1,5", "--1", "1.2.3", "0x10", "Gi", "1e", "1e+", "٣"])
def test_what_is_no_quantity_is_refused_with_its_text(text):
    with pytest.raises(ValueError, match=r"is not a quantity|unknown suffix"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["1gi", "1K", "1kb", "5Zi", "1GiB"])
def test_an_unknown_suffix_is_named_beside_the_known_ones(text):
    with pytest.raises(ValueError, match=r"unknown suffix '.*'; known are .*Gi"):
        parse_quantity(text)


@pytest.mark.parametrize("parse", [parse_cpu_milli, parse_bytes])
def test_a_negative_amount_is_refused(parse):
    with pytest.raises(ValueError, match="'-1' is negative"):
        parse("-1")


def test_a_quantity_is_exact():
    assert parse_quantity("0.1") == Fraction(1, 10)
    assert parse_quantity("-250m") == Fraction(-1, 4)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0"), (1, "1"), (1536, "1536"), (3 << 30, "3Gi"), (3 << 29, "1536Mi")]
)
def test_bytes_are_shown_with_the_largest_exact_suffix(size, text):
    assert format_bytes(size) == text
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (999, "999"),
        (64 << 30, "64Gi"),
        (53148 << 20, "51.9Gi"),
        ((52 << 30) - 1, "51.9Gi"),
        (1536 << 20, "1.5Gi"),
    ],
)
def test_amounts_for_eyes_are_short_and_never_more_than_there_is(amount, text):
    assert round_down(amount) == text
