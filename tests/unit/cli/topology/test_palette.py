"""Letters and colours of containers."""

from nri_plugin.cli.topology.palette import BEYOND, LETTERS, Palette, contrast, ink_on


def test_a_name_keeps_its_paint_whoever_is_asked_for_between() -> None:
    palette = Palette(["a", "b"])
    first = palette.paint("a")
    palette.paint("c")
    assert palette.paint("a") is first
    assert [palette.paint(name).letter for name in "abcd"] == ["A", "B", "C", "D"]


def test_letters_tell_containers_apart_until_there_is_none_left() -> None:
    palette = Palette()
    letters = [palette.paint(str(number)).letter for number in range(len(LETTERS) + 2)]
    assert len(set(letters)) == len(LETTERS) + 1
    assert letters[-2:] == [BEYOND, BEYOND]


def test_sixteen_neighbours_differ_in_colour_and_every_ink_is_read_on_its_fill() -> None:
    palette = Palette()
    paints = [palette.paint(str(number)) for number in range(17)]
    assert len({paint.fill for paint in paints}) == 16
    assert paints[16].fill == paints[0].fill
    assert min(contrast(paint.fill, paint.ink) for paint in paints) >= 4.5


def test_ink_is_black_on_light_and_white_on_dark() -> None:
    assert (ink_on("#ffff00"), ink_on("#000080")) == ("#000000", "#ffffff")
    assert round(contrast("#000000", "#ffffff"), 1) == 21.0


def test_a_terminal_gets_the_colour_of_the_picture() -> None:
    paint = Palette().paint("a")
    assert (paint.fill, paint.ansi) == ("#005fd7", "1;38;5;231;48;5;26")
