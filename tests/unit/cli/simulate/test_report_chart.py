"""Scales and shapes of the plots."""

import pytest

from nri_plugin.cli.simulate.report_plots import (
    LEFT,
    RIGHT,
    TOP,
    PlotField,
    bar,
    rounded_top,
    staircase,
    ticks,
)


@pytest.mark.parametrize(
    ("top", "values"),
    [
        (0, [0]),
        (1, [0, 0.5, 1]),
        (7, [0, 2, 4, 6]),
        (60, [0, 20, 40, 60]),
        (100, [0, 50, 100]),
        (4096, [0, 2000, 4000]),
    ],
)
def test_ticks_are_round_and_within(top: float, values: list[float]) -> None:
    assert ticks(top) == values


@pytest.mark.parametrize(
    ("top", "rounded"), [(0, 1), (1, 1), (63, 80), (64, 80), (92, 100), (100, 100), (143, 150)]
)
def test_scale_ends_at_a_round_value_that_nothing_exceeds(top: float, rounded: float) -> None:
    assert rounded_top(top) == rounded


def test_field_spans_the_drawing_between_its_margins() -> None:
    field = PlotField(600, 240, 10, 50)
    assert (field.x(0), field.x(10)) == (LEFT, 600 - RIGHT)
    assert field.y(50) == TOP
    assert field.y(0) > field.y(25) > field.y(50)


def test_field_without_columns_or_height_divides_by_nothing() -> None:
    assert PlotField(600, 240, 0, 0).x(0) == LEFT
    assert PlotField(600, 240, 0, 0).y(0) == PlotField(600, 240, 0, 5).y(0)


def test_staircase_stays_until_the_next_value() -> None:
    field = PlotField(LEFT + RIGHT + 20, 240, 2, 10)
    path = staircase(field, [0, 10])
    zero, ten = field.y(0), field.y(10)
    assert path == f"M{field.x(0)} {zero}H{field.x(1)}V{zero}H{field.x(2)}V{ten}"


def test_bars_have_no_negative_size() -> None:
    assert (bar(1, 2, -3, 4, "").width, bar(1, 2, 3, -4, "").height) == (0, 0)
