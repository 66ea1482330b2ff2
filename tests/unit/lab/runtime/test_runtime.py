from collections.abc import Callable

import pytest

from nri_plugin.model.sets import CPUSet
from nri_plugin.simulator.simulate.pods import ContainerSpec, Driver, PodSpec
from nri_plugin.wire.nri import events
from nri_plugin.wire.nri.messages import ContainerState, ContainerUpdate, Resources
from tests.builders import machine
from tests.lab.runtime.cgroup_tree import CgroupWriteError, CpusetFile
from tests.lab.runtime.profile import BEHAVIOURS
from tests.lab.runtime.runtime import PluginRefusedError, Runtime
from tests.simulated_node import SimulatedNode

GIB = 1 << 30
OWN = ContainerSpec("db", 2000, 2000, GIB, GIB)
POD = PodSpec("db", "shop", (OWN,))
WEB = PodSpec("web", "shop", (ContainerSpec("web", 500),))


class Script:
    """A plugin that answers by event type; an exception is raised, a function is called."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.asked: list[events.NRIEvent] = []

    @property
    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.asked]

    def ask(self, event: events.NRIEvent) -> events.NRIResponse | None:
        self.asked.append(event)
        answer = self.answers.get(type(event).__name__)
        if isinstance(answer, Exception):
            raise answer
        return answer(event) if callable(answer) else answer  # type: ignore[return-value]


def runtime(name: str = "containerd-2.1", plugin: Script | None = None, version: int = 2) -> Runtime:
    made = SimulatedNode(machine(), name, Driver.CGROUPFS, version).runtime
    made.plugin = plugin or Script()
    return made


def pinned(cpus: str, mems: str = "") -> events.CreateContainerResponse:
    return events.CreateContainerResponse(resources=Resources(cpus=cpus, mems=mems))


def run(made: Runtime, pod: PodSpec = POD) -> str:
    made.run_pod(pod)
    record = made.create(pod.key, pod.containers[0])
    made.start(record.key)
    return record.key


def test_a_life_is_told_in_the_order_of_a_real_runtime() -> None:
    plugin = Script()
    made = runtime(plugin=plugin)
    key = run(made)
    made.update(key, Resources(cpu_shares=512))
    made.remove_pod(POD.key)
    assert plugin.names == [
        "RunPodSandbox",
        "CreateContainer",
        "PostCreateContainer",
        "StartContainer",
        "PostStartContainer",
        "UpdateContainer",
        "PostUpdateContainer",
        "StopContainer",
        "StopPodSandbox",
        "RemoveContainer",
        "RemovePodSandbox",
    ]


def test_states_are_told_as_the_runtimes_do() -> None:
    plugin = Script()
    key = run(runtime(plugin=plugin))
    told = {type(event).__name__: event.container.state for event in plugin.asked[1:]}  # type: ignore[union-attr]
    assert told == {
        "CreateContainer": ContainerState.UNKNOWN,
        "PostCreateContainer": ContainerState.CREATED,
        "StartContainer": ContainerState.CREATED,
        "PostStartContainer": ContainerState.RUNNING,
    }
    assert key == "shop/db/db"


def test_a_cgroup_exists_from_before_start_to_the_end_of_the_container() -> None:
    seen: list[bool] = []
    made = runtime()

    def look(_event: events.NRIEvent) -> None:
        seen.append(made.records()[0].names.path in made.cgroups.mirror.tree if made.records() else False)

    made.plugin = Script(
        CreateContainer=look, PostCreateContainer=look, StartContainer=look, StopContainer=look
    )
    key = run(made)
    made.stop(key)
    assert seen == [False, False, True, False]


def test_the_adjustment_is_in_the_cgroup_before_the_first_instruction() -> None:
    made = runtime(plugin=Script(CreateContainer=pinned("4-5", "1")))
    key = run(made)
    placement = made.placements()[key]
    assert made.record(key).started_on == placement.effective == CPUSet.of(4, 5)
    assert (str(placement.mems), placement.stored) == ("1", "4-5")


def test_what_the_agent_writes_at_start_counts_for_the_first_instruction() -> None:
    made = runtime()

    def write(event: events.StartContainer) -> None:
        path = made.record("shop/db/db").names.path
        made.cgroups.mirror.tree.write(path, CpusetFile.CPUS, "6")

    made.plugin = Script(CreateContainer=pinned("4-5"), StartContainer=write)
    assert made.record(run(made)).started_on == CPUSet.of(6)


def test_without_a_plugin_containers_run_everywhere() -> None:
    made = runtime()
    made.disconnect()
    key = run(made)
    assert made.placements()[key].effective == machine().online


@pytest.mark.parametrize(("name", "undo"), [("containerd-1.7", 2), ("containerd-2.4", 2), ("cri-o", 0)])
def test_a_refused_creation_is_undone_by_containerd_only(name: str, undo: int) -> None:
    plugin = Script(CreateContainer=PluginRefusedError("no"))
    made = runtime(name, plugin)
    made.run_pod(POD)
    with pytest.raises(PluginRefusedError, match="no"):
        made.create(POD.key, OWN)
    assert plugin.names[2:] == ["StopContainer", "RemoveContainer"][:undo]
    assert made.records() == []


@pytest.mark.parametrize("name", sorted(BEHAVIOURS))
def test_an_error_at_start_stops_containerd_and_not_cri_o(name: str) -> None:
    made = runtime(name, Script(StartContainer=PluginRefusedError("no")))
    made.run_pod(POD)
    key = made.create(POD.key, OWN).key
    if name == "cri-o":
        made.start(key)
        assert made.record(key).message.state is ContainerState.RUNNING
        return
    with pytest.raises(PluginRefusedError):
        made.start(key)
    assert made.record(key).names.path not in made.cgroups.mirror.tree


def test_a_refused_sandbox_leaves_no_cgroup() -> None:
    made = runtime(plugin=Script(RunPodSandbox=PluginRefusedError("no")))
    before = list(made.cgroups.mirror.tree)
    with pytest.raises(PluginRefusedError):
        made.run_pod(POD)
    assert list(made.cgroups.mirror.tree) == before


def test_any_update_writes_the_stored_cpuset_again() -> None:
    made = runtime(plugin=Script(CreateContainer=pinned("0-15")))
    key = run(made, WEB)
    made.cgroups.mirror.tree.write(made.record(key).names.path, CpusetFile.CPUS, "0-7")
    made.update(key, Resources(cpu_shares=1024))
    assert made.placements()[key].own == CPUSet.parse("0-15")
    assert made.record(key).message.resources.cpu_shares == 1024


def test_an_own_update_in_the_answer_is_merged_over_the_request() -> None:
    def own(event: events.UpdateContainer) -> events.UpdateContainerResponse:
        update = ContainerUpdate(event.container.id, Resources(cpus="0-3"))
        return events.UpdateContainerResponse((update,))

    made = runtime(plugin=Script(UpdateContainer=own))
    key = run(made, WEB)
    made.update(key, Resources(cpu_shares=1024, cpus="8-9"))
    assert made.placements()[key].stored == "0-3"
    assert made.record(key).message.resources.cpu_shares == 1024


def test_updates_of_others_are_stored_even_before_they_have_a_cgroup() -> None:
    made = runtime()
    made.run_pod(WEB)
    waiting = made.create(WEB.key, WEB.containers[0])
    others = (
        ContainerUpdate(waiting.message.id, Resources(cpus="2-3")),
        ContainerUpdate("unknown", Resources()),
    )
    made.plugin = Script(CreateContainer=events.CreateContainerResponse(updates=others))
    run(made)
    made.start(waiting.key)
    assert made.placements()[waiting.key].own == CPUSet.of(2, 3)


@pytest.mark.parametrize(("ignore", "failed"), [(False, 1), (True, 0)])
def test_an_update_a_kernel_rejects_is_reported(ignore: bool, failed: int) -> None:
    made = runtime()
    record = made.record(run(made, WEB))
    update = ContainerUpdate(record.message.id, Resources(cpus="999"), ignore)
    assert len(made.apply((update,))) == failed
    assert [error.rule.name for error in made.take_rejections()] == ["range"]
    assert made.take_rejections() == []
    assert record.message.resources.cpus == ""


def test_a_cpuset_the_kernel_rejects_fails_the_start() -> None:
    made = runtime(plugin=Script(CreateContainer=pinned("999")))
    made.run_pod(POD)
    key = made.create(POD.key, OWN).key
    with pytest.raises(CgroupWriteError, match="ERANGE"):
        made.start(key)
    assert made.record(key).names.path not in made.cgroups.mirror.tree


def test_v1_cgroups_start_with_what_the_parent_has() -> None:
    made = runtime(version=1)
    key = run(made)
    assert made.placements()[key].own == machine().online


def test_synchronize_tells_created_and_running_containers() -> None:
    made = runtime()
    running = run(made)
    made.run_pod(WEB)
    made.create(WEB.key, WEB.containers[0])
    assert len(made.truth().containers) == 2
    made.stop(running)
    assert [each.name for each in made.truth().containers] == ["web"]
    assert len(made.truth().pods) == 2


@pytest.mark.parametrize(("name", "pods"), [("containerd-2.1", 1), ("cri-o", 0)])
def test_stopped_pods_are_told_by_containerd_only(name: str, pods: int) -> None:
    made = runtime(name)
    run(made)
    made.stop_pod(POD.key)
    assert len(made.truth().pods) == pods


@pytest.mark.parametrize(("name", "stored"), [("containerd-2.1", "2-3"), ("cri-o", "0-1")])
def test_cri_o_forgets_updates_when_it_restarts(name: str, stored: str) -> None:
    made = runtime(name, Script(CreateContainer=pinned("0-1")))
    key = run(made)
    made.update(key, Resources(cpus="2-3"))
    made.restart()
    assert made.placements()[key].stored == stored


@pytest.mark.parametrize(("name", "told"), [("containerd-2.1", False), ("cri-o", True)])
def test_containerd_does_not_tell_the_end_of_pods_older_than_itself(name: str, told: bool) -> None:
    made = runtime(name)
    run(made)
    made.restart()
    plugin = made.plugin = Script()
    made.remove_pod(POD.key)
    assert ("StopPodSandbox" in plugin.names) is told
    assert ("RemovePodSandbox" in plugin.names) is told
    assert "RemoveContainer" in plugin.names


def test_a_container_that_is_restarted_gets_a_new_id() -> None:
    made = runtime()
    key = run(made)
    first = made.record(key).message.id
    made.stop(key)
    assert made.create(POD.key, OWN).message.id != first
    assert made.record(key).message.state is ContainerState.CREATED


@pytest.mark.parametrize("ask", [Runtime.sandbox, Runtime.record, Runtime.start, Runtime.stop_pod])
def test_what_is_not_there_is_named(ask: Callable[[Runtime, str], object]) -> None:
    with pytest.raises(LookupError, match=r"there is no .* a/b"):
        ask(runtime(), "a/b")
