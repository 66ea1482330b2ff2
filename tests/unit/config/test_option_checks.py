"""What the kubelet refuses at start; its answers to hundreds of cases are in the recorded ones."""

import itertools

import pytest

from nri_plugin.config.option_checks import (
    GATES,
    NEVER_TOGETHER,
    machine_refusals,
    no_reserved_memory,
    node_refusals,
    none_refusal,
    option_flag,
    option_value,
    option_values,
    refusals,
    socket_refusals,
)
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.option_rows import CPU_MANAGER, TOPOLOGY_MANAGER
from nri_plugin.model.options import (
    REGISTRY,
    CPUManagerPolicy,
    Options,
    ReservedMemory,
    TopologyManagerPolicy,
    TopologyTieBreak,
    UncoreCacheFit,
    options_of,
)
from nri_plugin.model.sets import NUMANodeID
from tests.builders import machine
from tests.oracles.kubelet_start import check_reserved_cpus, topology_manager_refusals
from tests.topology_rows import topology_of_rows

CPU_OPTIONS = options_of(CPU_MANAGER)
ALL_GATES = dict.fromkeys(GATES, True)
GIVEN = [
    dict(zip(CPU_OPTIONS, values, strict=True))
    for values in itertools.product(("true", "false"), repeat=len(CPU_OPTIONS))
]


def said(check, *of, **more):
    """What a check refuses with; it knows no place in a file."""
    with pytest.raises(ConfigError) as refusal:
        check(*of, **more)
    assert refusal.value.where == ""
    return refusal.value.detail


@pytest.mark.parametrize(
    "given", GIVEN, ids=lambda given: ",".join(n for n, v in given.items() if v == "true")
)
def test_every_combination_is_accepted_but_for_the_pairs_that_exclude_each_other(given):
    on = {name for name, value in given.items() if value == "true"}
    clashes = [pair for pair in NEVER_TOGETHER if set(pair) <= on]
    options = Options(**option_values(CPU_MANAGER, given, ALL_GATES))
    assert {name for name, row in CPU_OPTIONS.items() if row.value(options)} == on
    expected = [
        f"static policy options {one} and {other} can not be used at the same time; remove one"
        for one, other in clashes[:1]
    ]
    assert [detail for _, detail in refusals(options)] == expected


HIDDEN = "-level Options not enabled, but option"
ON = "true or remove the option"


@pytest.mark.parametrize(
    ("manager", "given", "gates", "text"),
    [
        (
            CPU_MANAGER,
            {"nonsense": "true"},
            {},
            (
                'unknown CPU Manager Policy option: "nonsense"; known are full-pcpus-only, strict-cpu-reservation, '
                "prefer-align-cpus-by-uncorecache, distribute-cpus-across-numa, "
            ),
        ),
        (
            CPU_MANAGER,
            {"full-pcpus-only": "yes"},
            {},
            (
                'bad value for option "full-pcpus-only": strconv.ParseBool: parsing "yes": invalid syntax; '
                "expected true or false"
            ),
        ),
        (
            CPU_MANAGER,
            {"align-by-socket": "true"},
            {},
            (
                f'CPU Manager Policy Alpha{HIDDEN} "align-by-socket" provided; '
                f"set featureGates CPUManagerPolicyAlphaOptions: {ON}"
            ),
        ),
        (
            CPU_MANAGER,
            {"distribute-cpus-across-cores": "0"},
            {},
            (
                f'CPU Manager Policy Alpha{HIDDEN} "distribute-cpus-across-cores" provided; '
                f"set featureGates CPUManagerPolicyAlphaOptions: {ON}"
            ),
        ),
        (
            CPU_MANAGER,
            {"distribute-cpus-across-numa": "1"},
            {"CPUManagerPolicyBetaOptions": False},
            (
                f'CPU Manager Policy Beta{HIDDEN} "distribute-cpus-across-numa" provided; '
                f"set featureGates CPUManagerPolicyBetaOptions: {ON}"
            ),
        ),
        (
            CPU_MANAGER,
            {"full-pcpus-only": "1", "align-by-socket": "t"},
            {"CPUManagerPolicyOptions": False},
            (
                "CPU Manager policy options map[align-by-socket:t full-pcpus-only:1] require feature gates "
                '"CPUManagerPolicyOptions" enabled'
            ),
        ),
        (
            TOPOLOGY_MANAGER,
            {"nonsense": "true"},
            {},
            (
                'unknown Topology Manager Policy option: "nonsense"; known are prefer-closest-numa-nodes, '
                "max-allowable-numa-nodes"
            ),
        ),
        (
            TOPOLOGY_MANAGER,
            {"prefer-closest-numa-nodes": "true"},
            {"TopologyManagerPolicyOptions": False},
            (
                "Topology Manager policy options map[prefer-closest-numa-nodes:true] require feature gates "
                '"TopologyManagerPolicyOptions" enabled'
            ),
        ),
    ],
)
def test_options_the_kubelet_does_not_know_or_hides_are_refused(manager, given, gates, text):
    assert said(option_values, manager, given, gates).startswith(text)


def test_the_gates_are_those_of_v1_36_with_their_defaults():
    off = {"CPUManagerPolicyAlphaOptions", "TopologyManagerPolicyAlphaOptions"}
    managers = ("CPUManagerPolicy", "TopologyManagerPolicy")
    names = [f"{manager}{level}Options" for manager in managers for level in ("", "Alpha", "Beta")]
    assert {**dict.fromkeys(names, True), "TopologyManager": True, **dict.fromkeys(off, False)} == GATES


def test_booleans_are_read_as_go_reads_them():
    texts = ("1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False")
    assert [option_flag("x", text) for text in texts] == [True] * 6 + [False] * 6


def test_an_option_may_be_a_choice_between_words():
    option = REGISTRY["topology_tie_break"]
    assert option_value(option, "spread") is TopologyTieBreak.SPREAD
    assert said(option_value, option, "far") == (
        'bad value for option "topologyTieBreak": expected packed, spread, best-fit, found far'
    )


@pytest.mark.parametrize("gate", ["CPUManagerPolicyAlphaOptions", "CPUManagerPolicyBetaOptions"])
def test_stable_options_need_no_gate(gate):
    given = dict.fromkeys(
        ("full-pcpus-only", "strict-cpu-reservation", "prefer-align-cpus-by-uncorecache"), "T"
    )
    assert set(option_values(CPU_MANAGER, given, {gate: False}).values()) == {True}


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({}, {}),
        ({"prefer-closest-numa-nodes": "t"}, {"prefer_closest_numa_nodes": True}),
        ({"prefer-closest-numa-nodes": "F"}, {"prefer_closest_numa_nodes": False}),
        ({"max-allowable-numa-nodes": "8"}, {"max_allowable_numa_nodes": 8}),
        ({"max-allowable-numa-nodes": "+16"}, {"max_allowable_numa_nodes": 16}),
    ],
)
def test_topology_options_are_read(given, values):
    assert option_values(TOPOLOGY_MANAGER, given) == values


@pytest.mark.parametrize("text", ["7", "-1", "+0"])
def test_a_limit_of_numa_nodes_below_eight_is_refused(text):
    assert said(option_values, TOPOLOGY_MANAGER, {"max-allowable-numa-nodes": text}) == (
        f'the minimum value of "max-allowable-numa-nodes" should not be less than 8, found {int(text)}; '
        "remove it for no limit at all"
    )


@pytest.mark.parametrize(
    "text", ["", "abc", "8.0", "0x10", "-", "+-9", "--9", "1_0", "٩", "-9a", "9 ", "+", "-+9"]
)
def test_a_limit_of_numa_nodes_is_a_number(text):
    assert said(option_values, TOPOLOGY_MANAGER, {"max-allowable-numa-nodes": text}) == (
        'unable to convert policy option to integer "max-allowable-numa-nodes": '
        f'strconv.Atoi: parsing "{text}": invalid syntax; expected a number of at least 8'
    )


@pytest.mark.parametrize("text", ["9", "+9", "09"])
def test_a_limit_of_numa_nodes_may_be_written_as_go_reads_numbers(text):
    assert option_values(TOPOLOGY_MANAGER, {"max-allowable-numa-nodes": text}) == {
        "max_allowable_numa_nodes": 9
    }


def node_texts(nodes, *, distances_known=False, **options):
    return list(node_refusals(Options(**options), nodes, distances_known=distances_known))


def test_a_machine_may_have_as_many_numa_nodes_as_the_limit_says():
    assert node_texts(9, max_allowable_numa_nodes=9) == []
    assert node_texts(64) == []
    assert node_texts(64, prefer_closest_numa_nodes=True, distances_known=True) == []
    assert node_texts(10, max_allowable_numa_nodes=9) == [
        (
            "unsupported on machines with more than 9 NUMA Nodes: this one has 10; "
            "raise max-allowable-numa-nodes or remove it"
        )
    ]


def test_what_is_closest_is_known_only_where_distances_are():
    assert node_texts(2, prefer_closest_numa_nodes=True) == [
        (
            "cannot discover NUMA topology: error getting NUMA distances from cadvisor, which "
            "prefer-closest-numa-nodes needs: this machine tells none; remove the option"
        )
    ]


def test_alignment_by_socket_goes_with_every_policy_but_single_numa_node():
    found = {
        policy: list(refusals(Options(align_by_socket=True, topology_manager_policy=policy)))
        for policy in TopologyManagerPolicy
    }
    assert found.pop(TopologyManagerPolicy.SINGLE_NUMA_NODE) == [
        (
            "cpuManagerPolicyOptions",
            (
                "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option; "
                "remove it or choose another topologyManagerPolicy"
            ),
        )
    ]
    assert not any(found.values())


def test_alignment_by_socket_needs_a_numa_node_a_socket():
    assert list(socket_refusals(2, 2)) == []
    assert list(socket_refusals(3, 2)) == [
        (
            "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA: "
            "3 sockets, 2 NUMA nodes; remove align-by-socket"
        )
    ]


UNKNOWN = "unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: "
NOT_AS_MANY = "unable to reserve the required amount of CPUs (size of {} did not equal {}); "


@pytest.mark.parametrize(
    ("listed", "count", "text"),
    [
        ({0, 9}, 2, f"{UNKNOWN}9; reserve CPUs that are online"),
        ({80, 9, 33, 0}, 4, f"{UNKNOWN}9, 33, 80; reserve CPUs that are online"),
        ({0, 1}, 3, NOT_AS_MANY.format(2, 3) + "reserve fewer, or list as many as are wanted"),
        ({0, 1}, 1, NOT_AS_MANY.format(2, 1) + "reserve fewer, or list as many as are wanted"),
        (set(), 5, NOT_AS_MANY.format(4, 5) + "reserve fewer, or list as many as are wanted"),
    ],
)
def test_reserved_cpus_must_be_there_and_as_many_as_asked_for(listed, count, text):
    assert said(check_reserved_cpus, frozenset(listed), frozenset(range(4)), count) == text


def test_any_number_of_cpus_up_to_all_may_be_reserved():
    check_reserved_cpus(frozenset(), frozenset(range(4)), 4)
    check_reserved_cpus(frozenset(), frozenset(range(4)), 2)
    check_reserved_cpus(frozenset({3}), frozenset(range(4)), 1)


def test_static_memory_needs_ordinary_memory_reserved():
    rows = [
        ReservedMemory(NUMANodeID(0), "hugepages-2Mi", 1 << 21),
        ReservedMemory(NUMANodeID(1), "memory", 0),
    ]
    assert list(no_reserved_memory(rows)) == [
        (
            "you should specify the system reserved memory: Static needs memory kept for the system on at least one "
            "NUMA node; add reservedMemory"
        )
    ]
    assert not list(no_reserved_memory([*rows, ReservedMemory(NUMANodeID(1), "memory", 1)]))


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


def test_a_limit_among_the_options_goes_before_the_usual_one():
    given = {"max-allowable-numa-nodes": "16"}
    found = list(topology_manager_refusals("restricted", "pod", given, 12, distances_known=True, limit=8))
    assert found == []


def refused(**options):
    return list(refusals(Options(**options)))


BEST = UncoreCacheFit.BEST


def test_values_that_go_together_are_not_refused():
    assert refused() == []
    assert refused(align_by_socket=True, distribute_cpus_across_numa=True) == []
    assert refused(full_pcpus_only=True, uncore_cache_fit=BEST, strict_uncore_cache=True) == []


def test_values_that_do_not_go_together_name_the_key_and_why():
    assert refused(strict_uncore_cache=True) == [
        ("strictUncoreCache", "goes only with uncoreCacheFit: best; set that too")
    ]
    for spreading in ("distribute-cpus-across-numa", "distribute-cpus-across-cores"):
        assert refused(**{CPU_OPTIONS[spreading].attribute: True, "uncore_cache_fit": BEST}) == [
            ("uncoreCacheFit", f"best packs CPUs and {spreading} spreads them; turn one of them off")
        ]


def test_the_none_policy_names_the_options_it_does_not_start_with():
    assert none_refusal({"b": "true", "a": "1"}) == (
        "None policy: received unsupported options=map[a:1 b:true]; set cpuManagerPolicy: static or remove them"
    )
    ((key, why),) = refused(cpu_manager_policy=CPUManagerPolicy.NONE, full_pcpus_only=True)
    assert (key, why) == ("cpuManagerPolicyOptions", none_refusal({"full-pcpus-only": "true"}))


def test_what_a_machine_cannot_have_names_the_key():
    both = machine(nodes=2)
    assert not list(machine_refusals(Options(), both))
    assert not list(machine_refusals(Options(align_by_socket=True, prefer_closest_numa_nodes=True), both))
    two_sockets = topology_of_rows([(cpu, cpu, cpu // 4, 0, cpu // 4) for cpu in range(8)])
    ((key, why),) = machine_refusals(Options(align_by_socket=True), two_sockets)
    assert (key, "2 sockets, 1 NUMA nodes" in why) == ("cpuManagerPolicyOptions", True)
    nine = Options(max_allowable_numa_nodes=8, topology_manager_policy=TopologyManagerPolicy.RESTRICTED)
    ((key, why),) = machine_refusals(nine, machine(nodes=9))
    assert (key, "this one has 9" in why) == ("topologyManagerPolicyOptions", True)


def test_the_topology_policy_none_never_looks_at_its_options():
    assert not list(machine_refusals(Options(max_allowable_numa_nodes=8), machine(nodes=9)))
