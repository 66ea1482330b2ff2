import pytest

from nri_plugin.model import bits


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        (" \n", []),
        ("0", [0]),
        ("0-3,8,10-11", [0, 1, 2, 3, 8, 10, 11]),
        ("8,0-1,1", [0, 1, 8]),
        ("0-7\n\0", list(range(8))),
        ("65535", [65535]),
        ("007", [7]),
    ],
)
def test_kernel_lists_are_read(text: str, ids: list[int]) -> None:
    assert list(bits.iterate(bits.parse_list(text))) == ids


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "'a' in 'a' is neither a number nor a range such as 0-3"),
        ("1,,2", "'' in '1,,2' is neither a number nor a range such as 0-3"),
        ("1,", "'' in '1,' is neither a number nor a range such as 0-3"),
        ("-1", "'-1' in '-1' is neither a number nor a range such as 0-3"),
        ("0-", "'0-' in '0-' is neither a number nor a range such as 0-3"),
        ("1 2", "'1 2' in '1 2' is neither a number nor a range such as 0-3"),
        ("0-8:2/4", "'0-8:2/4' in '0-8:2/4' is neither a number nor a range such as 0-3"),
        ("٣", "'٣' in '٣' is neither a number nor a range such as 0-3"),
        ("3-1", "range '3-1' in '3-1' runs backwards"),
        ("65536", "id 65536 in '65536' is above 65535"),
        ("0-999999999", "id 999999999 in '0-999999999' is above 65535"),
    ],
)
def test_other_texts_are_refused_with_the_item_and_the_text(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        bits.parse_list(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (0, ""),
        (1, "0"),
        (0b11, "0-1"),
        (0b101, "0,2"),
        (0b1110111, "0-2,4-6"),
        (1 << 300, "300"),
        ((1 << 4096) - 1, "0-4095"),
    ],
)
def test_masks_are_written_as_kernel_lists(mask: int, text: str) -> None:
    assert bits.format_list(mask) == text


def test_the_lowest_of_nothing_is_minus_one() -> None:
    assert (bits.lowest(0), bits.lowest(0b1000), bits.lowest(0b1010)) == (-1, 3, 1)


def test_a_negative_id_makes_no_mask() -> None:
    with pytest.raises(ValueError, match="negative shift count"):
        bits.from_ids([3, -1])
