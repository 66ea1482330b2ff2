import pytest

from nri_plugin.model.sets import CPUSet, NodeMask


def test_a_set_is_shown_as_a_kernel_list() -> None:
    assert str(NodeMask.of(0, 1, 2, 8)) == "0-2,8"
    assert repr(NodeMask.of(0, 1, 2, 8)) == "NodeMask('0-2,8')"
    assert repr(NodeMask()) == "NodeMask('')"


def test_a_set_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        NodeMask().mask = 1  # type: ignore[misc]


def test_cpus_and_nodes_are_never_equal() -> None:
    assert NodeMask.of(1) != CPUSet.of(1)


def test_members_are_numbers_only() -> None:
    assert 1 in NodeMask.of(1)
    assert "1" not in NodeMask.of(1)
    assert -1 not in NodeMask.of(1)


def test_a_text_that_is_no_list_is_refused() -> None:
    with pytest.raises(ValueError, match="neither a number nor a range"):
        NodeMask.parse("all")
