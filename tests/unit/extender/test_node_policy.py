"""Which policy a node applies, by its object."""

import pytest

from nri_plugin.extender.nodes import NodePolicy, node_policy
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology
from nri_plugin.model.options import TopologyManagerPolicy as Policy
from nri_plugin.model.options import TopologyManagerScope as Scope


def of(*attributes, legacy=()):
    return node_policy(NodeResourceTopology("n", attributes=attributes, topology_policies=legacy))


def test_a_node_that_says_nothing_aligns_nothing():
    assert of() == NodePolicy(Policy.NONE, Scope.CONTAINER, 8, prefers_closest=False)


def test_the_first_legacy_entry_counts_and_attributes_override_it():
    legacy = ("SingleNUMANodePodLevel", "BestEffortContainerLevel")
    assert of(legacy=legacy) == NodePolicy(Policy.SINGLE_NUMA_NODE, Scope.POD)
    assert of(("topologyManagerPolicy", "restricted"), legacy=legacy) == NodePolicy(
        Policy.RESTRICTED, Scope.POD
    )


def test_of_two_attributes_of_one_name_the_later_counts():
    assert of(("topologyManagerScope", "pod"), ("topologyManagerScope", "container")).scope is Scope.CONTAINER


@pytest.mark.parametrize(
    ("value", "most"),
    [("16", 16), ("+16", 16), ("1", 8), ("-4", 8), (" 16", 8), ("1_6", 8), ("4096", 1024), ("9" * 19, 8)],
)
def test_the_divisor_is_a_plain_number_from_2_to_1024(value, most):
    assert of(("topologyManagerMaxNUMANodes", value)).max_numa_nodes == most


@pytest.mark.parametrize("value", ["Single-NUMA-node", "", "none "])
def test_what_is_not_understood_says_nothing(value):
    assert (
        of(("topologyManagerPolicy", "restricted"), ("topologyManagerPolicy", value)).policy
        is Policy.RESTRICTED
    )


def test_a_node_can_say_that_it_prefers_close_numa_nodes():
    assert of(("nri-pin/topologyManagerPolicyOptions", "a=b, prefer-closest-numa-nodes=true")).prefers_closest
    assert not of(("nri-pin/topologyManagerPolicyOptions", "prefer-closest-numa-nodes=false")).prefers_closest
