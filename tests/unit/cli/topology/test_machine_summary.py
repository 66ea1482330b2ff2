"""A machine in one line."""

from nri_plugin.cli.topology.machine_view import summary
from nri_plugin.simulator.machine.machine import build_topology, parse
from tests.topology_rows import topology_of_rows


def test_the_summary_says_when_memory_is_unknown() -> None:
    assert summary(topology_of_rows([(0, 0, 0, 0, 0)])).endswith("1 CPU (SMT 1), memory unknown")


def test_the_summary_says_when_there_is_no_l3() -> None:
    assert "no L3 cache" in summary(build_topology(parse("pack:1 numa:1 core:1 pu:1")))


def test_the_summary_counts_only_what_is_an_l3() -> None:
    assert "1 uncore cache (2 CPUs without), " in summary(
        build_topology(parse("topology: pack:1 numa:1 l3:1 core:4 pu:1\nwithout_l3: 2-3"))
    )
    assert "2 uncore caches, " in summary(build_topology(parse("pack:1 numa:1 l3:2 core:2 pu:1")))
