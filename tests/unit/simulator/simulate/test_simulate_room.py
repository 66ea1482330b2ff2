"""What a node as a whole has for pods."""

import pytest

from nri_plugin.model.records import Amounts
from nri_plugin.simulator.machine.source import machine_from
from nri_plugin.simulator.simulate.config import choose
from nri_plugin.simulator.simulate.device_manager import NotAdmittedError
from nri_plugin.simulator.simulate.node import NodeRoom, node_room, pod_requests
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec, hugepages_name

GIB = 1 << 30


def pod(name: str, cpu_milli: int, memory: int = 0, *more: ContainerSpec) -> PodSpec:
    spec = ContainerSpec("c", cpu_milli, cpu_milli, memory, memory)
    return PodSpec(name, containers=(spec, *more))


def test_a_node_has_what_is_neither_reserved_nor_kept_nor_in_huge_pages() -> None:
    text = "topology: pack:2 l3:1 numa:1(memory=4GiB) core:2 pu:2(indexes=core)\nnodes:\n  0-1: {hugepages: {1Gi: 2, 2Mi: 8}}"
    topology = machine_from(text.encode(), "x", "x").topology
    chosen = choose(
        topology,
        sets={"systemReserved": "{cpu: 500m, memory: 1Gi}", "evictionHard": "{memory.available: 1Gi}"},
    )
    assert node_room(chosen.node, chosen.config.reserved_cpu_count).allocatable == {
        "cpu": 7000,  # one whole CPU is kept
        "memory": 8 * GIB - 2 * (2 * GIB + 8 * (2 << 20)) - 2 * GIB,
        "hugepages-1Gi": 4 * GIB,
        "hugepages-2Mi": 16 * (2 << 20),
    }


def test_a_machine_of_unknown_memory_counts_none() -> None:
    topology = machine_from(b"pack:1 numa:1(memory=0) l3:1 core:2 pu:1", "x", "x").topology
    chosen = choose(topology)
    assert node_room(chosen.node, chosen.config.reserved_cpu_count).allocatable["memory"] == 0


@pytest.mark.parametrize(
    ("size_kb", "name"), [(4, "4Ki"), (64, "64Ki"), (2048, "2Mi"), (1 << 20, "1Gi"), (16 << 20, "16Gi")]
)
def test_page_sizes_have_the_names_of_kubernetes(size_kb: int, name: str) -> None:
    assert hugepages_name(size_kb) == f"hugepages-{name}"


def test_pods_are_taken_in_until_one_is_too_many() -> None:
    room = NodeRoom({"cpu": 3000})
    for name in ("a", "b", "c"):
        room.check(pod(name, 1000))
        room.take(pod(name, 1000))
    with pytest.raises(NotAdmittedError) as caught:
        room.check(pod("d", 500))
    assert str(caught.value) == (
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 500, used: 3000, capacity: 3000"
    )
    room.give_back("default/b")
    room.check(pod("d", 500))


def test_a_pod_that_comes_again_takes_the_place_of_the_first() -> None:
    room = NodeRoom({"cpu": 1000})
    room.take(pod("a", 1000))
    room.check(pod("a", 1000))
    room.take(pod("a", 400))
    assert room.used["cpu"] == 400
    room.give_back("default/nobody")
    assert room.used["cpu"] == 400


def test_what_is_not_counted_keeps_nobody_out_but_pages_that_are_not_there_do() -> None:
    room = NodeRoom({"cpu": 1000})
    room.check(pod("a", 100, 99 * GIB))
    pages = ContainerSpec("p", hugepages=(("hugepages-2Mi", 2 << 20),))
    with pytest.raises(NotAdmittedError, match=r"OutOfhugepages-2Mi: .* capacity: 0"):
        room.check(pod("a", 100, 0, pages))


def test_a_copy_is_another() -> None:
    room = NodeRoom({"cpu": 1000})
    room.take(pod("a", 600))
    other = room.copy()
    other.give_back("default/a")
    assert (room.used["cpu"], other.used["cpu"]) == (600, 0)


def test_a_pod_requests_its_peak_or_what_it_says_as_a_whole_and_its_overhead() -> None:
    early = (ContainerSpec("i", 5000), ContainerSpec("s", 500, is_sidecar=True))
    plain = PodSpec("p", containers=(ContainerSpec("c", 1000),), init_containers=early)
    assert pod_requests(plain) == {"cpu": 5000}
    whole = PodSpec(
        "p",
        containers=(ContainerSpec("c", 1000),),
        whole=Amounts(3000, 3000, GIB, GIB),
        overhead=(("cpu", 250),),
    )
    assert pod_requests(whole) == {"cpu": 3250, "memory": GIB}
