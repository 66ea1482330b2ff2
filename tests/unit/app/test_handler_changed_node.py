"""What was promised on a machine, or under options, that are no longer the same."""

from nri_plugin.engine import decide
from nri_plugin.nri.events import CreateContainer, Synchronize
from nri_plugin.state import State
from nri_plugin.topology import Topology
from tests.agent_fakes import Bench
from tests.builders import GIB, container, cpus, node, pod

A, B = pod("a"), pod("b")
A_C = container(A, cpu=2, cpus="2-3")


def shrunk(machine: Topology, *offline: int) -> Topology:
    """The machine with some CPUs taken offline."""
    rows = [(cpu, cpu // 2 * 2, cpu // 8, cpu // 8, cpu // 8) for cpu in machine.online if cpu not in offline]
    return Topology.from_rows(rows, memory_bytes={0: 16 * GIB, 1: 16 * GIB})


def test_an_exclusive_cpu_that_went_offline_does_not_keep_synchronize_from_being_acted_on():
    bench = Bench(node(), decide(node(), State(), Synchronize((A,), (A_C,))).state)
    bench.handler.change_node(node(shrunk(node().topology, 3)))
    born = container(B, cpu=4, cpus="8-11")
    bench.ask(Synchronize((A, B), (A_C, born)))
    assert bench.lines.texts("ERROR") == []
    assert bench.handler.state.allocations["a/c"].cpus == cpus("2-3")
    assert bench.handler.state.allocations["b/c"].cpus == cpus("8-11")
    assert bench.cgroups.values[A_C.cgroups_path] == cpus("2")


def test_while_none_of_its_cpus_is_online_an_exclusive_container_runs_in_the_shared_pool():
    bench = Bench(node(), decide(node(), State(), Synchronize((A,), (A_C,))).state)
    bench.handler.change_node(node(shrunk(node().topology, 2, 3)))
    bench.ask(Synchronize((A,), (A_C,)))
    assert bench.cgroups.values[A_C.cgroups_path] == cpus("0-1,4-15")
    assert bench.handler.state.allocations["a/c"].cpus == cpus("2-3")


def test_promised_cpus_that_became_strictly_reserved_are_kept_and_hinder_nobody():
    bench = Bench(node(), decide(node(), State(), Synchronize((A,), (A_C,))).state)
    bench.handler.change_node(node(reserved="0-2", strict_cpu_reservation=True))
    bench.ask(Synchronize((A,), (A_C,)))
    assert bench.lines.texts("ERROR") == []
    assert bench.cgroups.values[A_C.cgroups_path] == cpus("2-3")
    again = container(A, cpu=2, number=1)
    assert bench.ask(CreateContainer(A, again)).refusal == ""
