"""Who gets which devices, as the kubelet's device manager decides it when a pod is admitted."""

from dataclasses import replace

import pytest

from nri_plugin.model.sets import NodeMask
from nri_plugin.simulator.machine.machine import load, parse
from nri_plugin.simulator.simulate.device_manager import DeviceManager, NotAdmittedError
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec

GPU = "nvidia.com/gpu"
PAIRS = [("0", "3"), ("1", "2"), ("4", "7"), ("5", "6")]


def manager(text: str = "") -> DeviceManager:
    described = parse(text) if text else load("kep693-8-gpus")
    return DeviceManager(described.devices, described.links)


def pod(name: str, *counts: int, init: tuple[int, ...] = (), resource: str = GPU) -> PodSpec:
    """Containers c0, c1, ... and init containers i0, i1, ... with that many devices each."""
    return PodSpec(name, containers=specs("c", counts, resource), init_containers=specs("i", init, resource))


def specs(prefix: str, counts: tuple[int, ...], resource: str) -> tuple[ContainerSpec, ...]:
    return tuple(
        ContainerSpec(f"{prefix}{number}", devices_asked=((resource, count),) if count else ())
        for number, count in enumerate(counts)
    )


def given(devices: DeviceManager, name: str, resource: str = GPU) -> dict[str, tuple[str, ...]]:
    return {key: each.get(resource, ()) for key, each in devices.containers(f"default/{name}").items()}


def test_pods_of_two_get_pairs_until_none_is_left() -> None:
    devices = manager()
    for number in range(4):
        devices.admit(pod(f"p{number}", 2))
    assert [given(devices, f"p{number}")["c0"] for number in range(4)] == PAIRS
    assert devices.available(GPU) == ()


def test_four_are_two_pairs_on_one_node() -> None:
    devices = manager()
    devices.admit(pod("small", 1))
    devices.admit(pod("large", 4))
    assert given(devices, "large")["c0"] == ("4", "5", "6", "7")


def test_one_is_taken_where_a_pair_is_broken_already() -> None:
    devices = manager()
    devices.admit(pod("a", 1))
    devices.admit(pod("b", 1))
    assert {*given(devices, "a")["c0"], *given(devices, "b")["c0"]} == {"0", "3"}


def test_containers_of_a_pod_have_different_devices() -> None:
    devices = manager()
    devices.admit(pod("p", 2, 0, 2))
    assert given(devices, "p") == {"c0": ("0", "3"), "c1": (), "c2": ("1", "2")}


def test_what_an_init_container_had_must_be_among_those_of_the_next() -> None:
    devices = manager()
    devices.admit(pod("x", 2))
    devices.admit(pod("p", 2, init=(1,)))
    assert given(devices, "p") == {"i0": ("1",), "c0": ("1", "2")}


def test_init_containers_hand_devices_on_to_each_other_and_then_to_one_container() -> None:
    devices = manager()
    devices.admit(pod("p", 1, 2, init=(1, 2)))
    assert given(devices, "p") == {"i0": ("0",), "i1": ("0", "3"), "c0": ("0",), "c1": ("1", "3")}


def test_a_sidecar_keeps_its_devices() -> None:
    devices = manager()
    both = pod("p", 1, init=(1,))
    devices.admit(replace(both, init_containers=(replace(both.init_containers[0], is_sidecar=True),)))
    had = given(devices, "p")
    assert set(had["i0"]).isdisjoint(had["c0"])


def test_reusable_devices_count_when_all_others_are_taken() -> None:
    devices = manager()
    devices.admit(pod("x", 6))
    devices.admit(pod("p", 2, init=(2,)))
    assert given(devices, "p")["c0"] == given(devices, "p")["i0"]


def test_a_pod_that_asks_for_more_than_there_is_gets_nothing_and_both_numbers() -> None:
    devices = manager()
    devices.admit(pod("x", 5))
    with pytest.raises(NotAdmittedError) as caught:
        devices.admit(pod("p", 2, 2))
    assert str(caught.value) == (
        "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for "
        "nvidia.com/gpu. Requested: 2, Available: 1, which is unexpected"
    )
    assert devices.containers("default/p") == {}
    assert len(devices.available(GPU)) == 3


def test_what_nobody_offers_is_out() -> None:
    with pytest.raises(NotAdmittedError, match=r"^OutOfamd\.com/gpu: Node didn't have enough .*requested: 3"):
        manager().admit(pod("p", 3, resource="amd.com/gpu"))


def test_devices_come_back_when_the_pod_ends_and_not_twice_when_it_is_admitted_again() -> None:
    devices = manager()
    devices.admit(pod("p", 8))
    devices.admit(pod("p", 8))
    assert devices.available(GPU) == ()
    devices.free("default/p")
    devices.free("default/p")
    assert len(devices.available(GPU)) == 8
    assert devices.given("default/p", "c0") == {}


@pytest.mark.parametrize(
    ("count", "expected"),
    [(2, ("4", "7")), (4, ("4", "5", "6", "7")), (5, ("0", "4", "5", "6", "7"))],
    ids=["fewer than aligned", "as many as aligned", "more than aligned"],
)
def test_devices_on_the_hint_of_a_topology_manager_go_first(count: int, expected: tuple[str, ...]) -> None:
    devices = manager()
    devices.admit(pod("p", count), affinity=NodeMask.of(1))
    assert given(devices, "p")["c0"] == expected


def test_a_hint_means_nothing_to_devices_that_are_nowhere() -> None:
    devices = manager("topology: pack:1 numa:1 l3:1 core:1 pu:1\ndevices:\n  - {resource: a/b, count: 3}")
    devices.admit(pod("p", 2, resource="a/b"), affinity=NodeMask.of(0))
    assert given(devices, "p", "a/b")["c0"] == ("0", "1")


def test_a_device_that_is_nowhere_goes_last_where_there_is_a_hint() -> None:
    devices = manager(
        "topology: pack:2 numa:1 l3:1 core:2 pu:1\ndevices:\n  - {resource: a/b, count: 1}\n  - {resource: a/b, count: 1, nodes: 1}\n  - {resource: a/b, count: 1, nodes: 0}"
    )
    devices.admit(pod("p", 1, resource="a/b"), affinity=NodeMask.of(0))
    assert given(devices, "p", "a/b")["c0"] == ("2",)


def test_the_heaviest_of_several_links_counts() -> None:
    text = "topology: pack:1 numa:1 l3:1 core:1 pu:1\ndevices:\n  - {resource: a/b, count: 3}\nlinks:\n  - {resource: a/b, weight: 9, groups: [[0, 2]]}\n  - {resource: a/b, weight: 1, groups: [[2, 0]]}\n  - {resource: a/b, weight: 5, groups: [[0, 1], [1, 2]]}"
    devices = manager(text)
    devices.admit(pod("p", 2, resource="a/b"))
    assert given(devices, "p", "a/b")["c0"] == ("0", "2")


def test_links_of_another_resource_do_not_count() -> None:
    devices = manager(
        "topology: pack:1 numa:1 l3:1 core:1 pu:1\ndevices:\n  - {resource: a/b, count: 3}\n  - {resource: a/c, count: 3}\nlinks:\n  - {resource: a/c, weight: 9, groups: [[1, 2]]}"
    )
    devices.admit(pod("p", 2, resource="a/b"))
    assert given(devices, "p", "a/b")["c0"] == ("0", "1")


def test_totals_are_of_the_machine_whoever_has_the_devices() -> None:
    devices = manager()
    devices.admit(pod("p", 5))
    assert devices.totals(GPU) == ((NodeMask.of(0), 4), (NodeMask.of(1), 4))
    assert (
        manager("topology: pack:1 numa:1 l3:1 core:1 pu:1\ndevices:\n  - {resource: a/b, count: 3}").totals(
            "a/b"
        )
        == ()
    )
