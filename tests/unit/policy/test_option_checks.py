"""What the kubelet refuses at start; its answers to hundreds of cases are in the recorded ones."""

import itertools

import pytest

from nri_plugin.errors import ConfigError
from nri_plugin.ids import NUMANodeID
from nri_plugin.options import ReservedMemory, TopologyManagerPolicy
from nri_plugin.policy.option_checks import (
    CPU_OPTIONS,
    GATES,
    NEVER_TOGETHER,
    TopologyChoice,
    check_align_by_socket,
    check_nodes,
    check_reserved_cpus,
    check_reserved_memory,
    check_sockets,
    cpu_options_on,
    topology_manager_refusals,
    topology_options_on,
)

ALL_GATES = dict.fromkeys(GATES, True)
GIVEN = [
    dict(zip(CPU_OPTIONS, values, strict=True))
    for values in itertools.product(("true", "false"), repeat=len(CPU_OPTIONS))
]


@pytest.mark.parametrize(
    "given", GIVEN, ids=lambda given: ",".join(n for n, v in given.items() if v == "true")
)
def test_every_combination_is_accepted_but_for_four_pairs(given):
    on = {name for name, value in given.items() if value == "true"}
    clashes = [pair for pair in NEVER_TOGETHER if set(pair) <= on]
    if not clashes:
        assert cpu_options_on(given, ALL_GATES) == on
        return
    one, other = clashes[0]
    with pytest.raises(ConfigError, match=f"{one} and {other} can not be used at the same time"):
        cpu_options_on(given, ALL_GATES)


@pytest.mark.parametrize(
    ("given", "gates", "error"),
    [
        ({"nonsense": "true"}, {}, 'unknown CPU Manager Policy option: "nonsense"'),
        (
            {"full-pcpus-only": "yes"},
            {},
            'bad value for option "full-pcpus-only": strconv.ParseBool: parsing "yes"',
        ),
        ({"align-by-socket": "true"}, {}, 'Alpha-level Options not enabled, but option "align-by-socket"'),
        ({"distribute-cpus-across-cores": "0"}, {}, "Alpha-level Options not enabled"),
        (
            {"distribute-cpus-across-numa": "1"},
            {"CPUManagerPolicyBetaOptions": False},
            "Beta-level Options not enabled",
        ),
        (
            {"full-pcpus-only": "1", "align-by-socket": "t"},
            {"CPUManagerPolicyOptions": False},
            r"policy options map\[align-by-socket:t full-pcpus-only:1\] require feature gates",
        ),
    ],
)
def test_cpu_options_the_kubelet_does_not_know_or_hides_are_refused(given, gates, error):
    with pytest.raises(ConfigError, match=error):
        cpu_options_on(given, gates)


@pytest.mark.parametrize("gate", ["CPUManagerPolicyAlphaOptions", "CPUManagerPolicyBetaOptions"])
def test_stable_options_need_no_gate(gate):
    given = dict.fromkeys(
        ("full-pcpus-only", "strict-cpu-reservation", "prefer-align-cpus-by-uncorecache"), "T"
    )
    assert cpu_options_on(given, {gate: False}) == set(given)


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({}, TopologyChoice()),
        ({"prefer-closest-numa-nodes": "t"}, TopologyChoice(prefer_closest=True)),
        ({"prefer-closest-numa-nodes": "F"}, TopologyChoice()),
        ({"max-allowable-numa-nodes": "8"}, TopologyChoice(node_limit=8)),
        ({"max-allowable-numa-nodes": "+16"}, TopologyChoice(node_limit=16)),
    ],
)
def test_topology_options_are_read(given, choice):
    assert topology_options_on(given) == choice


@pytest.mark.parametrize("text", ["7", "-1", "+0"])
def test_a_limit_of_numa_nodes_below_eight_is_refused(text):
    with pytest.raises(ConfigError, match=f"should not be less than 8, found {int(text)}"):
        topology_options_on({"max-allowable-numa-nodes": text})


@pytest.mark.parametrize("text", ["", "abc", "8.0", "0x10", "-", "+-9", "--9", "1_0", "٩"])
def test_a_limit_of_numa_nodes_is_a_number(text):
    with pytest.raises(ConfigError, match="unable to convert policy option to integer"):
        topology_options_on({"max-allowable-numa-nodes": text})


def test_a_machine_may_have_as_many_numa_nodes_as_the_limit_says():
    check_nodes(TopologyChoice(node_limit=9), 9, distances_known=False)
    check_nodes(TopologyChoice(), 64, distances_known=False)
    check_nodes(TopologyChoice(prefer_closest=True), 64, distances_known=True)
    with pytest.raises(ConfigError, match="more than 9 NUMA Nodes: this one has 10"):
        check_nodes(TopologyChoice(node_limit=9), 10, distances_known=False)


def test_alignment_by_socket_goes_with_every_policy_but_single_numa_node():
    for policy in set(TopologyManagerPolicy) - {TopologyManagerPolicy.SINGLE_NUMA_NODE}:
        check_align_by_socket(policy)
    with pytest.raises(ConfigError, match="single-numa-node policy is incompatible"):
        check_align_by_socket(TopologyManagerPolicy.SINGLE_NUMA_NODE)


def test_alignment_by_socket_needs_a_numa_node_a_socket():
    check_sockets(2, 2)
    with pytest.raises(ConfigError, match="3 sockets, 2 NUMA nodes"):
        check_sockets(3, 2)


@pytest.mark.parametrize(
    ("listed", "count", "error"),
    [
        ({0, 9}, 2, "unknown CPU ID: 9"),
        ({0, 1}, 3, r"size of 2 did not equal 3"),
        ({0, 1}, 1, r"size of 2 did not equal 1"),
        (set(), 5, r"size of 4 did not equal 5"),
    ],
)
def test_reserved_cpus_must_be_there_and_as_many_as_asked_for(listed, count, error):
    with pytest.raises(ConfigError, match=error):
        check_reserved_cpus(frozenset(listed), frozenset(range(4)), count)


def test_any_number_of_cpus_up_to_all_may_be_reserved():
    check_reserved_cpus(frozenset(), frozenset(range(4)), 4)
    check_reserved_cpus(frozenset({3}), frozenset(range(4)), 1)


def test_static_memory_needs_ordinary_memory_reserved():
    rows = [
        ReservedMemory(NUMANodeID(0), "hugepages-2Mi", 1 << 21),
        ReservedMemory(NUMANodeID(1), "memory", 0),
    ]
    with pytest.raises(ConfigError, match="you should specify the system reserved memory"):
        check_reserved_memory(rows)
    check_reserved_memory([*rows, ReservedMemory(NUMANodeID(1), "memory", 1)])


@pytest.mark.parametrize(
    ("policy", "scope", "nodes", "limit", "said"),
    [
        ("none", "bogus", 99, 8, []),
        ("restricted", "pod", 9, None, []),
        ("restricted", "pod", 9, 8, ["unsupported on machines with more than 8 NUMA Nodes"]),
        ("bogus", "pod", 2, 8, ['unknown policy: "bogus"']),
        ("restricted", "bogus", 2, 8, ['unknown scope: "bogus"']),
        ("bogus", "bogus", 9, 8, ["unsupported on machines", "unknown policy", "unknown scope"]),
    ],
)
def test_a_topology_manager_says_what_it_refuses_in_the_order_of_the_kubelet(
    policy, scope, nodes, limit, said
):
    found = list(topology_manager_refusals(policy, scope, {}, nodes, distances_known=True, limit=limit))
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))
