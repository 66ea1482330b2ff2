"""Counting with zones."""

from nri_plugin.extender.nodes import fitting, numa_zones
from tests.kube_builders import amounts, topology, zone


def test_zones_are_found_by_name_whatever_their_order_and_gaps():
    found = numa_zones(topology("n", {130: {"cpu": "1"}, 2: {"cpu": "2"}}))
    assert [(one.id, one.available["cpu"]) for one in found] == [(130, 1000), (2, 2000)]


def test_a_request_fits_where_all_of_it_is():
    zones = (zone(0, cpu="4", memory="1Gi"), zone(1, cpu="8", memory="8Gi"), zone(2, cpu="8", memory="1Gi"))
    request = amounts({"cpu": "8", "memory": "2Gi"})
    assert fitting(request, zones, is_guaranteed=True) == {1}


def test_a_pod_that_is_not_guaranteed_needs_cpus_listed_not_available():
    zones = (zone(0, cpu="0"), zone(1))
    assert fitting(amounts({"cpu": "8"}), zones, is_guaranteed=False) == {0}


def test_devices_are_compared_for_every_pod():
    zones = (zone(0, vendor__gpu="1"), zone(1, vendor__gpu="2"))
    assert fitting(amounts({"vendor/gpu": "2"}), zones, is_guaranteed=False) == {1}


def test_a_device_that_no_zone_lists_has_no_numa_node_but_memory_without_one_is_nowhere():
    zones = (zone(0, cpu="1"),)
    assert fitting(amounts({"vendor/gpu": "2"}), zones, is_guaranteed=True) is None
    assert fitting(amounts({"memory": "2"}), zones, is_guaranteed=True) == frozenset()


def test_nothing_asked_needs_nothing():
    assert fitting(amounts({"cpu": "0"}), (), is_guaranteed=True) is None


def test_a_charge_takes_no_zone_below_zero():
    charges = amounts({"cpu": "2", "memory": "1"})
    assert [dict(zone(0, cpu=have).less(charges).available) for have in ("4", "1")] == [
        {"cpu": 2000},
        {"cpu": 0},
    ]
