"""Letters and colours of containers."""

from nri_plugin.cli.topology.palette import BEYOND, LETTERS, contrast, ink_on, paint_of


def test_letters_are_unique_until_the_last_one() -> None:
    letters = [paint_of(place).letter for place in range(len(LETTERS) + 2)]
    assert letters[:4] == ["A", "B", "C", "D"]
    assert len(set(letters)) == len(LETTERS) + 1
    assert letters[-2:] == [BEYOND, BEYOND]


def test_sixteen_neighbours_differ_in_colour_and_every_ink_has_contrast() -> None:
    paints = [paint_of(place) for place in range(17)]
    assert len({paint.fill for paint in paints}) == 16
    assert paints[16].fill == paints[0].fill
    assert min(contrast(paint.fill, paint.ink) for paint in paints) >= 4.5


def test_ink_is_black_on_light_and_white_on_dark() -> None:
    assert (ink_on("#ffff00"), ink_on("#000080")) == ("#000000", "#ffffff")
    assert round(contrast("#000000", "#ffffff"), 1) == 21.0


def test_a_terminal_gets_the_colour_of_the_picture() -> None:
    paint = paint_of(0)
    assert (paint.fill, paint.ansi) == ("#005fd7", "1;38;5;231;48;5;26")
