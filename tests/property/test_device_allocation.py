"""The preferred devices are those that trying every set finds."""

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.device_allocation import preferred_devices
from tests.oracles.devices import preferred

IDS = "abcdefgh"


@st.composite
def requests(draw):
    available = draw(st.lists(st.sampled_from(IDS), unique=True, max_size=8))
    nodes = draw(st.dictionaries(st.sampled_from(IDS), st.frozensets(st.integers(0, 3), max_size=2)))
    pairs = [(a, b) for a in IDS for b in IDS if a < b]
    links = draw(st.dictionaries(st.sampled_from(pairs), st.integers(0, 3)))
    must = draw(st.lists(st.sampled_from(available), unique=True, max_size=3)) if available else []
    size = draw(st.integers(len(must), len(available)))
    affinity = draw(st.none() | st.frozensets(st.integers(0, 3), min_size=1))
    return available, must, size, nodes, links, affinity


@given(requests())
def test_no_other_set_is_better(request) -> None:
    available, must, size, nodes, links, affinity = request
    found = preferred_devices(
        available,
        must,
        size,
        {name: NodeMask.from_ids(ids) for name, ids in nodes.items()},
        links,
        affinity=None if affinity is None else NodeMask.from_ids(affinity),
    )
    assert found == preferred(available, must, size, nodes, links, affinity)
