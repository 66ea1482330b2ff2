"""Frozen dataclasses that are made quickly."""

import inspect
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from nri_plugin.model.frozen import changed, made_quickly


@dataclass(frozen=True, slots=True)
class Plain:
    """A value with a field of each kind."""

    first: int
    second: str = "two"
    third: list[int] = field(default_factory=list)


@made_quickly
@dataclass(frozen=True, slots=True)
class Quick:
    """The same, made quickly."""

    first: int
    second: str = "two"
    third: list[int] = field(default_factory=list)


@pytest.mark.parametrize(
    ("given", "named"), [((1,), {}), ((1, "b"), {}), ((), {"first": 1, "third": [2]}), ((1, "b", [3]), {})]
)
def test_a_value_has_the_fields_it_is_given_and_defaults_for_others(given: tuple, named: dict):
    plain, quick = Plain(*given, **named), Quick(*given, **named)
    assert (quick.first, quick.second, quick.third) == (plain.first, plain.second, plain.third)
    assert repr(quick) == repr(plain).replace("Plain", "Quick")
    assert quick == Quick(*given, **named)
    assert replace(quick, second="c") == Quick(plain.first, "c", plain.third)


def test_each_value_has_a_default_of_its_own():
    assert Quick(1).third is not Quick(1).third


def test_a_value_stays_frozen():
    with pytest.raises(FrozenInstanceError):
        Quick(1).first = 2  # type: ignore[misc]


@pytest.mark.parametrize(("given", "named"), [((), {}), ((1, "b", [], 4), {}), ((1,), {"fourth": 4})])
def test_missing_and_unknown_fields_are_refused(given: tuple, named: dict):
    for kind in (Plain, Quick):
        with pytest.raises(TypeError):
            kind(*given, **named)


def test_the_names_of_the_arguments_are_those_of_the_fields():
    assert list(inspect.signature(Quick).parameters) == list(inspect.signature(Plain).parameters)


def test_a_class_that_needs_more_than_its_slots_is_refused():
    @dataclass(frozen=True, slots=True)
    class Checked:
        number: int

        def __post_init__(self) -> None:
            raise ValueError

    @dataclass(frozen=True, slots=True)
    class Derived:
        number: int = field(init=False, default=1)

    for kind in (Checked, Derived):
        with pytest.raises(TypeError, match=f"{kind.__name__} needs the __init__ of its dataclass"):
            made_quickly(kind)


@dataclass(frozen=True)
class Single:
    """A value with one field."""

    only: int


def test_a_changed_copy_is_what_the_standard_library_makes():
    quick = Quick(1, "b", [3])
    assert changed(quick, second="c") == replace(quick, second="c") == Quick(1, "c", [3])
    assert changed(quick) == quick
    assert changed(quick).third is quick.third
    assert changed(Single(1), only=2) == Single(2)
    with pytest.raises(TypeError, match="fourth"):
        changed(quick, fourth=4)
