"""Two living pods of one uid, as `crictl` makes them from its examples, and a node that was restored from a copy."""

import pytest
from msgspec.structs import replace

from nri_plugin.core.requests import told_apart
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import (
    Configure,
    CreateContainer,
    NRIEvent,
    PostCreateContainer,
    RemovePodSandbox,
    RunPodSandbox,
    StartContainer,
    StopContainer,
    StopPodSandbox,
    Synchronize,
)
from nri_plugin.wire.nri.messages import Container, Pod
from tests.agent_fakes import Bench
from tests.builders import container, node, pod

WARNING = "another living pod has the same uid; this one is placed as a pod of its own"
A = pod("a")
B = replace(A, id="sb-b", name="b")


def container_of(sandbox: Pod, cpu: int, cpus: str = "") -> Container:
    one = container(sandbox, cpu=cpu, cpus=cpus)
    return replace(
        one, id=f"{one.id}-{sandbox.id}", pod_id=sandbox.id, cgroups_path=f"{one.cgroups_path}-{sandbox.id}"
    )


def runs(bench: Bench, sandbox: Pod, cpu: int) -> str:
    """Run a pod with one container; return its CPUs."""
    one = container_of(sandbox, cpu)
    bench.ask(RunPodSandbox(sandbox))
    reply = bench.ask(CreateContainer(sandbox, one))
    assert not reply.refusal
    bench.ask(PostCreateContainer(sandbox, one))
    bench.ask(StartContainer(sandbox, one))
    return cpus_of(bench, sandbox)


def cpus_of(bench: Bench, sandbox: Pod) -> str:
    state = bench.handler.state
    (record,) = [one for one in state.containers.values() if one.id.endswith(sandbox.id)]
    return str(state.desired_cpus(bench.handler.node, record))


@pytest.mark.parametrize(
    "second",
    [B, replace(A, id="sb-b", namespace="other"), replace(A, id="sb-b", name="b", namespace="other")],
)
def test_the_second_is_pinned_by_itself_and_the_first_is_not_moved(second: Pod) -> None:
    bench = Bench(node())
    first = runs(bench, A, 4)
    own = runs(bench, second, 6)
    assert cpus_of(bench, A) == first
    assert CPUSet.parse(own).isdisjoint(CPUSet.parse(first))
    assert (len(CPUSet.parse(first)), len(CPUSet.parse(own))) == (4, 6)
    assert bench.lines.texts("WARNING").count(WARNING) == 1


@pytest.mark.parametrize("ends", [A, B])
def test_the_end_of_one_releases_what_is_its_own(ends: Pod) -> None:
    bench = Bench(node())
    cpus = {A.id: runs(bench, A, 4), B.id: runs(bench, B, 6)}
    bench.ask(StopContainer(ends, container_of(ends, 4)))
    bench.ask(StopPodSandbox(ends))
    bench.ask(RemovePodSandbox(ends))
    (left,) = {A.id, B.id} - {ends.id}
    assert str(bench.handler.state.exclusive) == cpus[left]
    assert len(bench.handler.state.pods) == 1


@pytest.mark.parametrize("anew", [A, B])
def test_a_sandbox_made_anew_is_the_same_pod(anew: Pod) -> None:
    bench = Bench(node())
    for one in (A, B) if anew is B else (A,):
        runs(bench, one, 4)
    state = bench.handler.state
    again = replace(anew, id="sb-2")
    bench.ask(RunPodSandbox(again))
    bench.ask(CreateContainer(again, container_of(again, 4)))
    assert bench.handler.state.allocations == state.allocations
    assert bench.handler.state.pods.keys() == state.pods.keys()
    assert bench.lines.texts("WARNING").count(WARNING) == (anew is B)


@pytest.mark.parametrize("keeps_checkpoint", [True, False])
@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_after_a_restart_both_run_where_they_ran(order: tuple[Pod, Pod], keeps_checkpoint: bool) -> None:
    before = Bench(node())
    cpus = {A.id: runs(before, A, 4), B.id: runs(before, B, 6)}
    after = Bench(node(), before.handler.state if keeps_checkpoint else State())
    listed = {A.id: container_of(A, 4, cpus[A.id]), B.id: container_of(B, 6, cpus[B.id])}
    for _ in range(2):
        after.ask(Synchronize(order, tuple(listed[one.id] for one in order)))
    assert {one.id: cpus_of(after, one) for one in order} == cpus
    assert len(after.handler.state.exclusive) == 10
    assert after.lines.texts("WARNING").count(WARNING) == (not keeps_checkpoint)


UNNAMED = replace(A, id="sb-x", name="")


@pytest.mark.parametrize(
    "event",
    [
        RunPodSandbox(A),
        RunPodSandbox(UNNAMED),
        RunPodSandbox(replace(B, uid="")),
        RunPodSandbox(replace(B, uid="another")),
        Configure("", "containerd", "v2.1.0"),
        Synchronize((A, UNNAMED, replace(B, uid="another"), replace(B, uid=""))),
        Synchronize((B,)),
    ],
)
def test_all_others_keep_their_uids(event: NRIEvent) -> None:
    """An import may not know the name of a pod, and a pod that is not listed has ended."""
    state = Bench(node())
    runs(state, A, 4)
    assert told_apart(state.handler.state, event) is event
