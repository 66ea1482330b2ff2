"""The fields of a description, and what is refused with file, line and what is expected."""

import pytest

from nri_plugin.model import bits
from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine.description import parse


def cores(text: str) -> list[tuple[int, ...]]:
    return [core.cpus for core in parse(text).cores]


def test_threads_of_a_core_are_numbered_together_unless_said_otherwise() -> None:
    assert cores("pack:1 numa:1 l3:1 core:2 pu:2(indexes=core)") == [(0, 2), (1, 3)]
    assert cores("pack:1 numa:1 l3:1 core:2 pu:2") == [(0, 1), (2, 3)]


def test_cores_with_fewer_threads_are_passed_over_in_later_rounds() -> None:
    assert cores(
        "topology: pack:1 numa:1 l3:1 core:3 pu:2(indexes=core)\nkinds: [{cores: 1, threads: 2}, {cores: 2, threads: 1}]"
    ) == [(0, 3), (1,), (2,)]
    assert cores(
        "topology: pack:1 numa:1 l3:1 core:3 pu:2\nkinds: [{cores: 1, threads: 2}, {cores: 2, threads: 1}]"
    ) == [(0, 1), (2,), (3,)]


def test_numbers_go_round_over_the_named_level() -> None:
    assert cores("pack:2 numa:1 l3:1 core:2 pu:2(indexes=pack:core)") == [(0, 4), (2, 6), (1, 5), (3, 7)]
    assert cores("pack:2 l3:1 numa:2 core:1 pu:1(indexes=1*1:1*4:1*1)") == [(0,), (1,), (2,), (3,)]


def test_levels_nest_in_the_order_written() -> None:
    wide_cache = parse("pack:2 l3:1 numa:2 core:1 pu:1")
    assert [(core.socket, core.node, core.cache) for core in wide_cache.cores] == [
        (0, 0, 0),
        (0, 1, 0),
        (1, 2, 1),
        (1, 3, 1),
    ]
    wide_node = parse("numa:1 pack:2 l3:1 core:1 pu:1")
    assert [(core.socket, core.node, core.cache) for core in wide_node.cores] == [(0, 0, 0), (1, 0, 1)]


def test_a_string_without_caches_or_nodes_has_no_l3_and_one_node() -> None:
    machine = parse("pack:2 core:2 pu:1")
    assert (machine.with_l3, [node.cpus for node in machine.nodes]) == (0, [0b1111])


def test_core_numbers_start_again_in_every_socket() -> None:
    assert [core.number for core in parse("pack:2 numa:1 l3:1 core:2 pu:1").cores] == [0, 1, 0, 1]


def test_ids_are_given_in_the_order_of_the_shape_and_nodes_listed_by_id() -> None:
    machine = parse(
        "topology: pack:2 numa:1(indexes=4,1) l3:1 core:1 pu:1\nsockets: [9, 3]\nnodes:\n  1: {memory: 1Gi}\n  4: {memory: 2Gi}"
    )
    assert [(core.socket, core.node) for core in machine.cores] == [(9, 4), (3, 1)]
    assert [(node.id, node.cpus, node.memory_kb >> 20) for node in machine.nodes] == [
        (1, 0b10, 1),
        (4, 0b01, 2),
    ]


def test_distances_follow_what_two_nodes_have_in_common() -> None:
    machine = parse(
        "topology: pack:2 l3:1 numa:2 core:1 pu:1\ndistances: {socket: 11, remote: 30, cpuless: 80}\nnodes:\n  9: {cpus: none, memory: 16Gi}"
    )
    assert [node.distances for node in machine.nodes] == [
        (10, 11, 30, 30, 80),
        (11, 10, 30, 30, 80),
        (30, 30, 10, 11, 80),
        (30, 30, 11, 10, 80),
        (80, 80, 80, 80, 10),
    ]


def test_nodes_without_cpus_are_remote_unless_said_otherwise() -> None:
    assert parse("topology: pack:1 numa:1 l3:1 core:1 pu:1\nnodes:\n  5: {cpus: none, memory: 16Gi}").nodes[
        0
    ].distances == (10, 21)


def test_every_node_shows_every_page_size() -> None:
    machine = parse(
        "topology: pack:2 numa:1 l3:1 core:1 pu:1\nnodes:\n  7: {cpus: none, memory: 16Gi, hugepages: {1Gi: 1}}\n  0-1: {hugepages: {2Mi: 4}}"
    )
    assert [dict(node.hugepages) for node in machine.nodes] == [
        {2048: 4, 1048576: 0},
        {2048: 4, 1048576: 0},
        {2048: 0, 1048576: 1},
    ]


def test_offline_cpus_are_present() -> None:
    machine = parse("topology: pack:1 numa:1 l3:1 core:4 pu:1\noffline: 1\nwithout_l3: 2")
    assert (machine.present, machine.online, machine.with_l3) == (0b1111, 0b1101, 0b1011)


def test_kinds_are_those_of_the_innermost_object_around_cores() -> None:
    text = "topology: pack:2 core:2 l1:1 pu:2\nkinds: [{cores: 1, threads: 2}, {cores: 1, threads: 1}]"
    assert cores(text) == [(0, 1), (2,), (3, 4), (5,)]
    assert cores("topology: pack:2 core:1 pu:2\nkinds: [{cores: 1, threads: 2}]") == [(0, 1), (2, 3)]


def test_every_cpu_number_is_given_once() -> None:
    machine = parse(
        "topology: pack:2 numa:3 l3:2 core:3 pu:4(indexes=numa:core)\nkinds: [{cores: 2, threads: 4}, {cores: 1, threads: 2}]"
    )
    assert sorted(cpu for core in machine.cores for cpu in core.cpus) == list(bits.iterate(machine.present))


def test_the_first_comment_is_the_title() -> None:
    assert parse("\n# A small one\n# and more\npu:1").title == "A small one"


def test_an_attached_node_is_described_by_its_id() -> None:
    text = "topology: pack:2 [numa] [numa(memory=1GiB)] core:1 pu:1\nnodes: {2: {memory: 0}}"
    assert [node.memory_kb >> 20 for node in parse(text).nodes] == [16, 1, 0, 1]


def test_a_kernel_may_show_neither_nodes_nor_distances() -> None:
    machine = parse("topology: pack:2 numa:1 pu:1\nnuma: none\ndistances: none")
    assert (machine.has_numa, [node.distances for node in machine.nodes]) == (False, [None, None])


TOPOLOGY = "topology: pack:2 numa:1 l3:1 core:2 pu:1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("toplogy: pu:1", "m.yaml:1:1: toplogy: unknown key; did you mean topology?"),
        ("offline: 1", "m.yaml:1:1: topology is missing: an hwloc synthetic string such as pack:2 core:4 pu:2"),
        ("", "m.yaml:1:1: topology is missing: an hwloc synthetic string such as pack:2 core:4 pu:2"),
        (TOPOLOGY + "offline: x", "m.yaml:2:10: offline: expected CPUs such as 0-3,8, found x"),
        (TOPOLOGY + "offline: 0-3", "m.yaml:2:10: offline: every CPU is offline; leave at least one online"),
        (TOPOLOGY + "isolated: 3-9", "m.yaml:2:11: isolated: there is no CPU 4-9; the machine has 0-3"),
        (TOPOLOGY + "nohz_full: 4", "m.yaml:2:12: nohz_full: there is no CPU 4; the machine has 0-3"),
        (TOPOLOGY + "without_l3: 7", "m.yaml:2:13: without_l3: there is no CPU 7; the machine has 0-3"),
        (TOPOLOGY + "queues: {0-9: 1}", "m.yaml:2:10: queues.0-9: there is no CPU 4-9; the machine has 0-3"),
        (TOPOLOGY + "queues: {0-1: 2}", "m.yaml:2:15: queues.0-1: expected one of the CPUs 0-1, found 2"),
        (TOPOLOGY + "queues: {0-1: x}", "m.yaml:2:15: queues.0-1: expected CPUs such as 0-3,8, found x"),
        (TOPOLOGY + "sockets: [3]", "m.yaml:2:10: sockets: expected 2 ids, each once, found [3]"),
        (TOPOLOGY + "kinds: [{cores: 2}]", "m.yaml:2:9: kinds[0]: expected {cores: COUNT, threads: COUNT}"),
        (TOPOLOGY + "kinds: [{cores: 3, threads: 1}]", "m.yaml:2:8: kinds: expected kinds for the 2 cores of an innermost object, with up to 1 threads"),
        (TOPOLOGY + "kinds: [{cores: 999999999999999, threads: 1}]", "m.yaml:2:8: kinds: expected kinds for the 2 cores of an innermost object, with up to 1 threads"),
        (TOPOLOGY + "nodes: {0: {cpus: none}}", "m.yaml:2:9: nodes.0: NUMA node 0 is in the topology; remove 'cpus: none'"),
        (TOPOLOGY + "nodes: {5: {memory: 1Gi}}", "m.yaml:2:9: nodes.5: there is no NUMA node 5; 'cpus: none' adds one"),
        (TOPOLOGY + "nodes: {0-1: {}, 1: {}}", "m.yaml:2:18: nodes.1: expected each NUMA node once, found 1"),
        (TOPOLOGY + "nodes: {2000: {cpus: none}}", "m.yaml:2:9: nodes.2000: expected ids up to 1023, found 2000"),
        (TOPOLOGY + "nodes: {0: {memory: 64G}}", "m.yaml:2:21: nodes.0.memory: expected a size such as 64Gi or 0, found 64G"),
        (TOPOLOGY + "nodes: {0: {hugepages: {0: 1}}}", "m.yaml:2:25: nodes.0.hugepages.0: expected a page size such as 2Mi"),
        (TOPOLOGY + "nodes: {0: {cpus: 3}}", "m.yaml:2:19: nodes.0.cpus: expected none, found 3, which YAML reads as a number"),
        (TOPOLOGY + "distances: {far: 30}", "m.yaml:2:13: distances.far: unknown key; known are local, socket, remote or cpuless"),
        (TOPOLOGY + "distances: {local: 9}", "m.yaml:2:20: distances.local: expected a distance from 10 to 255, found 9"),
        (TOPOLOGY + "distances: [[10], [20, 10]]", "m.yaml:2:12: distances: 2 rows of 1 or 2 distances for the 2 NUMA nodes 0-1: expected a square table"),
        (TOPOLOGY + "distances: far", "m.yaml:2:12: distances: expected none, found far"),
        (TOPOLOGY + "numa: no", "m.yaml:2:7: numa: expected none, found no, which YAML reads as a boolean"),
        ("3 wheels", "m.yaml:1:1: 3: expected LEVEL:COUNT such as core:4, or [numa], as in 'pack:2 numa:2 core:4 pu:2'"),
        ("topology: [pu:1", "m.yaml:2:1: not YAML: did not find expected ',' or ']'"),
    ],
)  # fmt: skip
def test_errors_name_file_line_and_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "m", source="m.yaml")
    assert str(caught.value) == message
