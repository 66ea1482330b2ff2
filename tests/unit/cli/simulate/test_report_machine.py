"""The machine of a report as nested boxes."""

import re

from nri_plugin.simulator.machine.machine import shipped
from tests import simulation_samples as samples
from tests.report_pages import machine as drawn


def cpu(page: str, number: int) -> str:
    found = re.search(
        rf'<span class="([^"]*)" data-cpu="{number}"( data-c="[^"]*")? aria-label="([^"]*)"[^>]*><b>(.)</b>',
        page,
    )
    assert found, number
    return f"{found[4]} {found[1]}{found[2] or ''}: {found[3]}"


def test_every_machine_that_is_shipped_is_drawn_with_every_cpu_once() -> None:
    for name in shipped():
        simulation = samples.sample(name, [("a/a/a", 2)])
        shown = [int(number) for number in re.findall(r'data-cpu="(\d+)"', drawn(simulation))]
        assert sorted(shown) == list(simulation["machine"]["online"]), name


def test_cpus_say_whose_they_are_by_letter_class_and_name() -> None:
    page = drawn(samples.sample())
    assert cpu(page, 3) == 'A cpu exclusive k0 data-c="0": CPU 3: net/filter/filter'
    assert cpu(page, 40) == '· cpu shared data-c="p0": CPU 40: shared'
    assert cpu(page, 0) == '= cpu reserved data-c="p0": CPU 0: reserved'


def test_reserved_cpus_outside_the_pool_do_not_belong_to_it() -> None:
    simulation = samples.sample()
    simulation["totals"]["shared_pool"] = "15-63"
    assert cpu(drawn(simulation), 0) == "= cpu reserved: CPU 0: reserved"


def test_isolated_cpus_are_marked_also_where_a_container_has_them() -> None:
    simulation = samples.sample()
    simulation["machine"]["isolated"] = (3, 40)
    simulation["owners"][40]["kind"] = "isolated"
    page = drawn(simulation)
    assert cpu(page, 3).startswith("A cpu exclusive k0 isolated")
    assert cpu(page, 40).startswith(": cpu isolated")
    assert "isolated by the kernel" in page


def test_nodes_tell_memory_and_what_is_available() -> None:
    assert "<b>NUMA 1</b> <small>64Gi, 9 of 16 available</small>" in drawn(samples.sample())


def test_node_over_two_sockets_appears_in_each_with_its_part() -> None:
    page = drawn(samples.sample("2-sockets-1-numa", []))
    assert page.count("<b>NUMA 0 (part)</b>") == 2


def test_nodes_without_cpus_are_told_together_by_their_memory() -> None:
    page = drawn(samples.sample("gb200-34-numa", []))
    assert "NUMA 2,10,18,26: no CPUs, 184Gi" in page
    assert "NUMA 3-9,11-17,19-25,27-33: no CPUs, no memory" in page


def test_offline_cpus_are_told() -> None:
    simulation = samples.sample()
    simulation["machine"]["offline"] = (64, 65)
    assert "Offline: CPU 64-65" in drawn(simulation)


def test_caches_that_are_only_sockets_have_no_name() -> None:
    simulation = samples.sample()
    assert "L3 0" in drawn(simulation)
    simulation["machine"]["caches_known"] = False
    assert "L3 0" not in drawn(simulation)


def test_cpus_that_share_no_l3_are_not_said_to() -> None:
    simulation = samples.sample()
    caches = simulation["machine"]["caches"]
    simulation["machine"]["without_l3"] = caches[0]["cpus"]
    page = drawn(simulation)
    assert "L3 0" not in page
    assert "no L3" in page
    assert "L3 1" in page


def test_machines_with_many_cpus_are_drawn_small() -> None:
    assert 'class="machine cpus"' in drawn(samples.sample("epyc7742-2p-64c-smt-nps4", []))
    simulation = samples.sample("epyc7742-2p-64c-smt-nps4", [])
    simulation["machine"]["online"] = tuple(range(257))
    assert 'class="machine cpus many"' in drawn(simulation)
