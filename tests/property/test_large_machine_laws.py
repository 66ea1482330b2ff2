"""What a large machine decides by searching is what a small one decides by listing, on the same machine."""

from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.options import TopologyManagerPolicy, TopologyTieBreak
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy import cpu_policy, device_hints, memory_assignment
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.cpu_policy import cpu_hint_sets
from nri_plugin.policy.device_hints import Device, DeviceResource, device_hint_sets
from nri_plugin.policy.memory_assignment import memory_hint_sets
from nri_plugin.policy.memory_state import MemoryMachine, memory_state
from nri_plugin.policy.merge import merge
from nri_plugin.policy.search.mask_order import Distances, tie_break
from tests.property.machine_hints import (
    clustered_distances,
    hierarchical_distances,
    plane_distances,
    random_distances,
)
from tests.topology_rows import topology_of_rows

POLICIES = st.sampled_from(list(TopologyManagerPolicy))
RESOURCES = ("memory", "hugepages-2Mi")


@contextmanager
def searching():
    """Hint sets in the form of large machines."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (cpu_policy, memory_assignment, device_hints):
            patch.setattr(module, "LISTED_NODES", 0)
        yield


@st.composite
def machines(draw, nodes):
    """(tables, free CPUs, memory state, devices): two sockets, two caches of two CPUs on each node."""
    rows = [
        (cpu, cpu, int(2 * node >= nodes), node, cpu // 2)
        for node in range(nodes)
        for cpu in range(4 * node, 4 * node + 4)
    ]
    tables = cpu_tables(topology_of_rows(rows))
    free = CPUSet.from_ids(cpu for cpu, *_ in rows if draw(st.integers(0, 3)))
    ids = tuple(range(nodes))
    amounts = {name: {node: draw(st.sampled_from([0, 4, 8, 8])) for node in ids} for name in RESOURCES}
    used = [
        [MemoryBlock(NodeMask.of(node), "memory", draw(st.integers(0, amounts["memory"][node])))]
        for node in ids
        if draw(st.integers(0, 3)) == 0
    ]
    state = memory_state(MemoryMachine(ids, amounts, {}, amounts), used)
    places = st.sets(st.integers(0, nodes - 1), max_size=2).map(NodeMask.from_ids)
    devices = tuple(Device(str(n), nodes) for n, nodes in enumerate(draw(st.lists(places, max_size=2))))
    return tables, free, state, devices


@st.composite
def requests(draw):
    memory = draw(st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 30)))
    return draw(st.integers(0, 20)), memory, draw(st.booleans())


def distances_over(nodes):
    ids = range(nodes)
    return (
        st.none()
        | hierarchical_distances(ids)
        | plane_distances(ids)
        | clustered_distances(ids)
        | random_distances(ids)
    )


@given(st.data(), st.sampled_from([3, 5, 7, 8]), POLICIES, st.sampled_from(TopologyTieBreak))
def test_searching_and_listing_agree(data, nodes, policy, rule):
    tables, free, state, devices = data.draw(machines(nodes))
    count, memory, by_socket = data.draw(requests())
    rows = data.draw(distances_over(nodes))

    def hint():
        hint_sets = [
            device_hint_sets(range(nodes), [DeviceResource("gpu", devices)]),
            cpu_hint_sets(tables, count, free, align_by_socket=by_socket),
            memory_hint_sets(state, memory),
        ]
        return merge(
            policy,
            NodeMask((1 << nodes) - 1),
            hint_sets,
            distances=rows and Distances(rows),
            tie_break=tie_break(rule, tables, free, count),
        )

    with searching():
        searched = hint()
    assert searched == hint()
