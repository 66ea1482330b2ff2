import pytest

from nri_plugin.config import yaml_tree
from nri_plugin.config.yaml_tree import Scalar, Section
from nri_plugin.model.errors import ConfigError


def value_of(text: str) -> yaml_tree.Value:
    return yaml_tree.parse(f"key: {text}", "f").entries["key"]


def test_every_value_and_key_knows_its_place() -> None:
    tree = yaml_tree.parse("first: 1\nsecond:\n  third: [a, b]\n", "some.yaml")
    second = tree.entries["second"]
    assert isinstance(second, Section)
    assert str(second.keys["third"]) == "some.yaml:3:3: second.third"
    third = second.entries["third"]
    assert isinstance(third, yaml_tree.Sequence)
    assert str(third.items[1].place) == "some.yaml:3:14: second.third[1]"


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "{}"])
def test_no_entries_are_an_empty_section(text: str) -> None:
    assert yaml_tree.parse(text, "f").entries == {}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3:1: a: given twice, first on line 1; keep one of them"),
        ("x:\n  a: 1\n  a: 2\n", "f:3:3: x.a: given twice, first on line 2; keep one of them"),
        ("a: [", "f:2:1: not YAML: did not find expected node content"),
        ("- 1\n", "f:1:1: the configuration must be keys and values"),
        ("just words", "f:1:1: the configuration must be keys and values"),
        ("? [1]\n: 2\n", "f:1:3: a key must be a plain word"),
        ("a: &x 1\nb: *x\n", "f:2:4: *x is an alias; write the value out instead"),
        ("a: 1\n---\nb: 2\n", "f:2:1: not YAML"),
        ("a\0b", "f: not YAML: unacceptable character #x0000"),
        ("[" * 1000, "f:1:33: nested deeper than 32 levels"),
        ("x" * (yaml_tree.MAX_TEXT_CHARS + 1), "f: 1048577 characters, more than"),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_place(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        yaml_tree.parse(text, "f")
    assert str(caught.value).startswith(error)


def test_aliases_that_multiply_are_refused_before_they_are_followed() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 64)]
    with pytest.raises(ConfigError, match="is an alias"):
        yaml_tree.parse("\n".join(lines), "f")


@pytest.mark.parametrize("text", ["no", "yes", "on", "1:30", "1_0", "2026-01-01", "~", "3"])
def test_a_word_that_yaml_reads_as_something_else_needs_quotes(text: str) -> None:
    with pytest.raises(ConfigError, match="put it in quotes"):
        yaml_tree.text(value_of(text))
    assert yaml_tree.text(value_of(f"'{text}'")) == text


def test_numbers_are_taken_as_written() -> None:
    assert yaml_tree.text_or_number(value_of("3")) == "3"
    assert yaml_tree.text_or_number(value_of("0.5")) == "0.5"
    assert yaml_tree.number(value_of("12")) == 12


@pytest.mark.parametrize("text", ["0x10", "010", "1_0", "1:30", "'1'", "-1", "1.0", "~", "[1]"])
def test_numbers_in_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        yaml_tree.number(value_of(text))


@pytest.mark.parametrize("text", ["yes", "no", "on", "off", "y", "'true'", "1", "~"])
def test_only_true_and_false_are_flags(text: str) -> None:
    with pytest.raises(ConfigError, match="expected true or false, found "):
        yaml_tree.flag(value_of(text))
    assert yaml_tree.flag(value_of("true")) is True
    assert yaml_tree.flag(value_of("False")) is False


def test_nothing_counts_as_no_entries_where_a_list_or_a_section_is_expected() -> None:
    assert list(yaml_tree.items(value_of("~"))) == []
    assert yaml_tree.section(value_of("~")).entries == {}


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (yaml_tree.items, "a"),
        (yaml_tree.section, "[a]"),
        (yaml_tree.scalar, "[a]"),
        (yaml_tree.scalar, "{a: b}"),
    ],
)
def test_a_value_of_another_shape_is_refused(read, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match="f:1:6: key: expected "):
        read(value_of(text))


def test_a_scalar_keeps_its_text() -> None:
    assert value_of("1_0") == Scalar(yaml_tree.Place("f", 1, 6, "key"), "1_0", "int")
