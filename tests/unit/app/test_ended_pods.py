"""Pods that are over although the runtime did not say so."""

from nri_plugin.app.ended_pods import ended_pods, untold_removal
from nri_plugin.nri.events import CreateContainer, Synchronize
from nri_plugin.state import CgroupRef, State
from tests.agent_fakes import Bench
from tests.builders import container, cpus, machine, node, pod

SMALL = node(machine(nodes=1, cores=3), pool_floor=False)
A, B = pod("a"), pod("b")


def after_runtime_restart() -> Bench:
    """The runtime lists a pod that was promised all there is, without the container that ended before."""
    bench = Bench(SMALL)
    bench.ask(Synchronize((A,), (container(A, cpu=4, cpus="2-5"),)))
    bench.ask(Synchronize((A,), ()))
    bench.forget()
    return bench


def test_a_pod_between_two_instances_of_its_container_keeps_its_promise() -> None:
    bench = after_runtime_restart()
    assert not bench.handler.release_ended()
    assert "available=0" in bench.ask(CreateContainer(B, container(B, cpu=4))).refusal
    assert bench.handler.state.exclusive == cpus("2-5")


def test_a_pod_whose_cgroup_is_gone_is_let_go_by_the_clock() -> None:
    bench = after_runtime_restart()
    bench.cgroups.missing = {A.cgroup_parent}
    assert bench.handler.release_ended()
    assert bench.handler.state == State()
    assert bench.checkpoint.saved == State()
    assert not bench.handler.release_ended()


def test_nobody_is_refused_for_what_a_pod_holds_whose_cgroup_is_gone() -> None:
    bench = after_runtime_restart()
    bench.cgroups.missing = {A.cgroup_parent}
    assert bench.ask(CreateContainer(B, container(B, cpu=4))).refusal == ""
    assert bench.handler.state.allocations["b/c"].cpus == cpus("2-5")
    assert "a/c" not in bench.handler.state.allocations


def test_pods_without_promises_are_not_looked_at() -> None:
    state = Bench(SMALL).handler.state
    seen: list[CgroupRef] = []
    assert ended_pods(state, lambda ref: bool(seen.append(ref))) == []
    assert seen == []


def test_the_untold_removal_names_the_pod_and_its_sandbox() -> None:
    (pod_record,) = after_runtime_restart().handler.state.pods.values()
    told = untold_removal(pod_record).pod
    assert (told.id, told.uid, told.namespace, told.name) == ("sb-a", "a", "default", "a")
