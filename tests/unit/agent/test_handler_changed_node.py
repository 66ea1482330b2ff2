"""What was promised on a machine, or under options, that are no longer the same."""

from nri_plugin.core.engine import decide
from nri_plugin.model.options import CPUManagerPolicy
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.wire.nri.events import CreateContainer, CreateContainerResponse, StopPodSandbox, Synchronize
from nri_plugin.wire.nri.messages import Resources
from tests.agent_fakes import Bench
from tests.builders import GIB, container, cpus, machine, node, pod
from tests.topology_rows import topology_of_rows

A, B = pod("a"), pod("b")
A_C = container(A, cpu=2, cpus="2-3")


def shrunk(whole: Topology, *offline: int) -> Topology:
    """The machine with some CPUs taken offline."""
    rows = [(cpu, cpu // 2 * 2, cpu // 8, cpu // 8, cpu // 8) for cpu in whole.online if cpu not in offline]
    return topology_of_rows(rows, memory_bytes={0: 16 * GIB, 1: 16 * GIB})


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


def under_policy_none() -> Bench:
    """A node whose policy was static while container a/c got its CPUs, and a shared container beside it."""
    shared = (B, container(B, cpu=0.5, cpus="0-1,4-15"))
    state = decide(node(), State(), Synchronize((A, B), (A_C, shared[1]))).state
    return Bench(node(cpu_manager_policy=CPUManagerPolicy.NONE), state)


def test_under_policy_none_new_containers_stay_off_cpus_that_were_promised_before():
    bench = under_policy_none()
    answer = bench.ask(CreateContainer(pod("new"), container(pod("new"), cpu=2)))
    assert isinstance(answer.response, CreateContainerResponse)
    assert answer.response.resources == Resources(cpus="0-1,4-15")


def test_under_policy_none_a_container_born_unseen_is_taken_off_promised_cpus():
    bench = under_policy_none()
    born = container(B, "born", cpu=1, cpus="0-15")
    bench.ask(Synchronize((A, B), (A_C, born)))
    assert bench.cgroups.values[born.cgroups_path] == cpus("0-1,4-15")


def test_under_policy_none_all_get_all_cpus_when_the_last_promise_ends_and_are_left_alone_from_then_on():
    bench = under_policy_none()
    bench.ask(StopPodSandbox(A))
    assert bench.cgroups.values[container(B).cgroups_path] == cpus("0-15")
    answer = bench.ask(CreateContainer(pod("new"), container(pod("new"), cpu=2)))
    assert answer.response == CreateContainerResponse()


def test_a_pool_that_lost_its_last_cpu_is_written_nowhere_and_takes_nobody_in():
    small = machine(nodes=1, cores=4)
    state = decide(node(small), State(), Synchronize((A,), (container(A, cpu=6, cpus="2-7"),))).state
    bench = Bench(node(shrunk(small, 0, 1)), state)
    running = container(B, cpu=0.5, cpus="0-1")
    bench.ask(Synchronize((A, B), (container(A, cpu=6, cpus="2-7"), running)))
    assert bench.lines.texts("ERROR") == []
    assert running.cgroups_path not in bench.cgroups.values
    answer = bench.ask(CreateContainer(pod("new"), container(pod("new"), cpu=0.5)))
    assert "all online CPUs 2-7 are exclusive" in answer.refusal
