"""The values are frozen, comparable and empty by default."""

import dataclasses

import pytest

from nri_plugin.wire.nri import spec

VALUES = [each for each in vars(spec).values() if dataclasses.is_dataclass(each)]


@pytest.mark.parametrize("kind", VALUES)
def test_values_are_frozen_and_equal_by_content(kind):
    required = [each.name for each in dataclasses.fields(kind) if each.default is dataclasses.MISSING]
    one, other = kind(*required), kind(*required)
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, dataclasses.fields(kind)[0].name, None)


@pytest.mark.parametrize("kind", VALUES)
def test_only_a_key_is_required(kind):
    required = {each.name for each in dataclasses.fields(kind) if each.default is dataclasses.MISSING}
    assert required <= {"destination", "path", "type"}
