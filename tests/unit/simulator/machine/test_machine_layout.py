import pytest

from nri_plugin.model import bits
from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine.layout import Layout, lay_out
from nri_plugin.simulator.machine.text import parse


def layout(text: str) -> Layout:
    return lay_out(parse(text))


def cores(text: str) -> list[tuple[int, ...]]:
    return [core.cpus for core in layout(text).cores]


def test_threads_are_numbered_apart_unless_said_otherwise() -> None:
    assert cores("2 cores, SMT 2") == [(0, 2), (1, 3)]
    assert cores("2 cores, SMT 2, siblings adjacent") == [(0, 1), (2, 3)]


def test_cores_with_fewer_threads_are_passed_over_in_later_rounds() -> None:
    assert cores("1 cores SMT 2 + 2 cores") == [(0, 3), (1,), (2,)]
    assert cores("1 cores SMT 2 + 2 cores, siblings adjacent") == [(0, 1), (2,), (3,)]


def test_numbers_go_round_over_the_named_level() -> None:
    assert cores("2 sockets, 2 cores, SMT 2, interleaved by sockets") == [(0, 4), (2, 6), (1, 5), (3, 7)]
    assert cores("2 sockets, 2 nodes, 1 core, interleaved by nodes") == [(0,), (1,), (2,), (3,)]


def test_levels_nest_in_the_order_written() -> None:
    wide_cache = layout("2 sockets, 1 L3 each, 2 NUMA each, 1 core each")
    assert [(core.socket, core.node, core.cache) for core in wide_cache.cores] == [
        (0, 0, 0),
        (0, 1, 0),
        (1, 2, 1),
        (1, 3, 1),
    ]
    wide_node = layout("1 NUMA, 2 sockets each, 1 core each")
    assert [(core.socket, core.node, core.cache) for core in wide_node.cores] == [(0, 0, 0), (1, 0, 1)]


def test_what_is_not_named_is_one_per_socket() -> None:
    assert [(core.node, core.cache) for core in layout("2 sockets, 1 core").cores] == [(0, 0), (1, 1)]


def test_core_numbers_start_again_in_every_socket() -> None:
    assert [core.number for core in layout("2 sockets, 2 cores").cores] == [0, 1, 0, 1]


def test_ids_are_given_in_the_order_of_the_shape_and_nodes_listed_by_id() -> None:
    machine = layout("2 sockets, 1 core, node ids 4,1, socket ids 9,3, memory 1Gi 2Gi")
    assert [(core.socket, core.node) for core in machine.cores] == [(9, 4), (3, 1)]
    assert [(node.id, node.cpus, node.memory_kb >> 20) for node in machine.nodes] == [
        (1, 0b10, 1),
        (4, 0b01, 2),
    ]


def test_distances_follow_what_two_nodes_have_in_common() -> None:
    machine = layout("2 sockets, 2 nodes, 1 core, cpu-less node 9, distances socket 11 remote 30 cpu-less 80")
    assert [node.distances for node in machine.nodes] == [
        (10, 11, 30, 30, 80),
        (11, 10, 30, 30, 80),
        (30, 30, 10, 11, 80),
        (30, 30, 11, 10, 80),
        (80, 80, 80, 80, 10),
    ]


def test_nodes_without_cpus_are_remote_unless_said_otherwise() -> None:
    assert layout("1 core, cpu-less node 5").nodes[0].distances == (10, 21)


def test_every_node_shows_every_page_size() -> None:
    machine = layout("2 sockets, 1 core, cpu-less node 7, hugepages 4 x 2Mi, hugepages 1 x 1Gi on 7")
    assert [dict(node.hugepages) for node in machine.nodes] == [
        {2048: 4, 1048576: 0},
        {2048: 4, 1048576: 0},
        {2048: 0, 1048576: 1},
    ]


def test_offline_cpus_are_present() -> None:
    machine = layout("4 cores, offline 1, no L3 on 2")
    assert (machine.present, machine.online, machine.with_l3) == (0b1111, 0b1101, 0b1011)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 cores, offline 0-1", "every cpu is offline; leave at least one online"),
        ("2 sockets, 1 core, node ids 3", "1 node ids for 2 nodes: give one for each"),
        ("1 core, socket ids 3,4", "2 socket ids for 1 sockets: give one for each"),
        ("1 core, node ids 1024", "node 1024 is above 1023, the highest the kernel can have"),
        ("1 core, cpu-less node 0", "cpu-less node 0 has cpus or was named before"),
        ("1 core, cpu-less node 5, cpu-less node 5", "cpu-less node 5 has cpus or was named before"),
        ("1 core, cpu-less node 2000", "cpu-less node 2000 is above 1023"),
        ("1 core, memory 1Gi 2Gi", "2 memory sizes for 1 nodes with cpus: give one, or one for each"),
        ("1 core, hugepages 1 x 2Mi on 0,4", "hugepages on 0,4: the nodes are 0"),
        ("1 core, distances 10 20 / 20 10", "2 rows of 2 distances for the 1 nodes 0: give a square table"),
        ("2 sockets, 1 core, distances 10 / 20 10", "2 rows of 1 or 2 distances for the 2 nodes 0-1: give a square table"),
        ("9000 cores", "the shape has more than the 8192 cpus the kernel can have"),
        ("8192 cores, SMT 2", "16384 cpus are more than the 8192 the kernel can have"),
        ("99999 sockets, 99999 cores", "the shape has more than the 8192 cpus the kernel can have"),
    ],
)  # fmt: skip
def test_clauses_that_do_not_fit_together_are_refused_with_both_sides(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lay_out(parse(text, "odd"))
    assert str(caught.value) == f"machine odd: {message}"


def test_every_cpu_number_is_given_once() -> None:
    machine = layout("2 sockets, 3 nodes, 2 L3, 2 cores SMT 4 + 1 core SMT 2, interleaved by nodes")
    assert sorted(cpu for core in machine.cores for cpu in core.cpus) == list(bits.iterate(machine.present))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 cores, offline 2", "m.txt:1:18: 'offline 2' names cpus beyond 0-1"),
        ("2 cores, isolated 0-9", "m.txt:1:19: 'isolated 0-9' names cpus beyond 0-1"),
        ("2 cores, nohz_full 2", "m.txt:1:20: 'nohz_full 2' names cpus beyond 0-1"),
        ("2 cores, no L3 on 7", "m.txt:1:19: 'no L3 on 7' names cpus beyond 0-1"),
        ("9000 cores", "m.txt: the shape has more than the 8192 cpus the kernel can have"),
        ("2 cores, isolated 0\noffline 1\n  offline 77", "m.txt:3:11: 'offline 1,77' names cpus beyond 0-1"),
    ],
)
def test_what_the_machine_cannot_have_is_refused_where_it_is_named(text: str, message: str):
    with pytest.raises(ConfigError) as caught:
        lay_out(parse(text, "m", source="m.txt"))
    assert str(caught.value) == message
