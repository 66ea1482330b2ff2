"""Pods with resources of their own after their admission: resize, kernel settings, drift, CPUs that go offline."""

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import CpusetWrite
from nri_plugin.core.drift import CpusetsObserved, Observed, Target, targets
from nri_plugin.core.engine import decide
from nri_plugin.core.kernel_settings import NO_QUOTA, Partition, limits, partitions, quotas, sandboxes
from nri_plugin.core.placement import Placement, place
from nri_plugin.core.pods import MOST_CONTAINERS
from nri_plugin.core.requests import ContainerRequest
from nri_plugin.core.validator import partition_violations, write_violations
from nri_plugin.model.options import Isolation, Node, TopologyManagerPolicy
from nri_plugin.model.records import Allocation, Kind, PodRecord, allocation_key
from nri_plugin.model.refusals import RefusalKind
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri import events as nri
from tests.builders import GIB, container, cpu_resources, cpus, machine, node, pod
from tests.whole_pods import PodLife, part, pod_scope, whole

SHARING = part("mesh", 0.5, Kind.SIDECAR), part("app", 4), part("log", 0.5)


def running(**options: object) -> PodLife:
    """The pod owns CPUs 2-7: `app` 2-5, `mesh` and `log` share 6-7."""
    life = PodLife(pod_scope(**options), *SHARING, resources=whole(6))
    life.run("mesh", "app", "log")
    return life


# ----------------------------------------------------------------------------------------------------
# Resize.


@pytest.mark.parametrize("cpu", [3, 5, 4.5])
def test_the_slice_of_a_container_is_not_resized(cpu: float) -> None:
    life = running()
    before = life.state
    refusal = life.resize("app", cpu).refusal
    assert f"resize in place of the container from 4 to {cpu} CPUs is infeasible: " in str(refusal)
    assert "2-5 are a part of those of its pod" in str(refusal)
    assert life.state is before


@pytest.mark.parametrize(("name", "cpu", "memory"), [("log", 2, 0), ("mesh", 0.25, 0), ("app", 4, 3 * GIB)])
def test_other_amounts_change_nothing_but_what_the_runtime_writes(name: str, cpu: float, memory: int) -> None:
    life = running()
    before = life.held, life.runs_on(name), life.state.allocations
    assert life.resize(name, cpu, memory).refusal is None
    assert (life.held, life.runs_on(name), life.state.allocations) == before
    assert life.record(name).limit_milli == round(cpu * 1000)


@pytest.mark.parametrize(
    ("cpu", "memory", "words"),
    [
        (8, 0, "resize in place of the pod from 6 to 8 CPUs is infeasible: it owns CPUs 2-7"),
        (5, 0, "resize in place of the pod from 6 to 5 CPUs is infeasible: it owns CPUs 2-7"),
        (6, 9 * GIB, "bytes of memory is infeasible: it owns them on NUMA nodes 0"),
        (6, 7 * GIB, ""),
        (6, 0, ""),
    ],
)
def test_the_pod_keeps_what_it_was_admitted_with(cpu: float, memory: int, words: str) -> None:
    life = running()
    before = life.state.allocations
    refusal = life.resize_pod(cpu, memory).refusal
    assert words in str(refusal) if words else refusal is None
    assert life.state.allocations is before


def test_a_pod_that_owns_only_memory_may_ask_for_other_cpus() -> None:
    life = PodLife(pod_scope(), part("app", 0.5), resources=whole(4.5))
    life.run("app")
    assert life.held == {"": "", "app": ""}
    assert life.resize("app", 2).refusal is None
    assert life.resize_pod(8).refusal is None
    assert life.resize_pod(8, 20 * GIB).refusal is not None


def test_one_manager_alone_bounds_its_own_part() -> None:
    life = running(memory_manager_policy="None")
    assert life.resize_pod(6, 20 * GIB).refusal is None


def test_an_ended_init_container_does_not_keep_a_pod_large() -> None:
    """Its CPUs are not those of the app container; a pod of 4 CPUs has its app container grown to 4 and back."""
    whole_pod = pod("p", cpu=4)
    state = decide(node(), State(), nri.RunPodSandbox(whole_pod)).state
    for name, text, is_init in (("setup", "2-4", True), ("web", "5-6", False)):
        held = Allocation(cpus(text), cpu_milli=1000 * len(cpus(text)), is_init=is_init)
        state = state.with_allocation(allocation_key("p", name), held)
    asked = [
        decide(node(), state, nri.UpdatePodSandbox(whole_pod, resources=cpu_resources(cpu))).refusal
        for cpu in (3, 2)
    ]
    assert asked[0] is None
    assert "the 3 it was allocated at its start (2-4) stay" in str(asked[1])


# ----------------------------------------------------------------------------------------------------
# Quotas, partitions, sandboxes.


def quota_by_name(life: PodLife) -> dict[str, int]:
    return {
        write.target.path.rsplit("-", 2)[-2] if write.target.path else "": write.quota_us
        for write in quotas(life.on, life.state)
    }


def test_only_containers_with_cpus_of_their_own_lose_their_quota_in_a_pod_that_others_share() -> None:
    life = running()
    assert quota_by_name(life) == {"app": NO_QUOTA, "": 600_000}
    assert {write.quota_us for write in limits(life.state)} == {400_000, 600_000}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((part("app", 4), part("db", 2)), {"app": NO_QUOTA, "db": NO_QUOTA, "": NO_QUOTA}),
        ((part("setup", 0.5, Kind.INIT), part("app", 6)), {"app": NO_QUOTA, "": 600_000}),
        ((part("setup", 2, Kind.INIT), part("app", 6)), {"app": NO_QUOTA, "": NO_QUOTA}),
    ],
    ids=["all exclusive", "an ended init container shared", "an ended init container did not"],
)
def test_the_pod_loses_its_quota_where_no_container_shares(parts, expected) -> None:
    life = PodLife(pod_scope(), *parts, resources=whole(6))
    for one in parts:
        life.run(one.name)
        if one.kind is Kind.INIT:
            life.tell(nri.StopContainer(life.of, life.message(one.name)))
    assert quota_by_name(life) == expected


def isolating(*parts, **options: object) -> PodLife:
    return PodLife(pod_scope(isolation=Isolation.ISOLATED, **options), *parts, resources=whole(6))


def partition_names(life: PodLife) -> dict[str, str]:
    found = list(partitions(life.on, life.state))
    assert partition_violations(life.on, life.state, found) == {}
    return {life.state.containers[one.container_id].name: str(one.cpus) for one in found}


def test_only_containers_with_cpus_of_their_own_are_partitions() -> None:
    life = isolating(*SHARING)
    life.run("mesh", "app", "log")
    assert partition_names(life) == {"app": "2-5"}


def test_an_init_container_on_cpus_of_a_sidecar_is_no_partition() -> None:
    life = isolating(part("mesh", 0.5, Kind.SIDECAR), part("setup", 6, Kind.INIT), part("app", 4))
    life.run("mesh", "setup")
    assert life.held["setup"] == "2-7"
    assert partition_names(life) == {}
    record = life.record("setup")
    wrong = Partition(record.cgroup, cpus("2-7"), "isolated", record.id)
    assert partition_violations(life.on, life.state, [wrong]) == {
        record.cgroup: ["a partition with CPUs that are not exclusive to its container: 6-7"]
    }
    alone = isolating(part("setup", 6, Kind.INIT), part("app", 4), part("log", 0.5))
    alone.run("setup")
    assert partition_names(alone) == {"setup": "2-7"}


def test_the_sandbox_of_a_pod_stays_off_the_cpus_of_its_containers() -> None:
    life = running(pool_floor=False)
    assert {ref.path: str(own) for ref, own in sandboxes(life.on, life.state)} == {"/p1/pause": "0-1,8-15"}


# ----------------------------------------------------------------------------------------------------
# The cpuset of the pod's shared pool.


def test_the_containers_of_a_pods_shared_pool_are_watched_and_repaired() -> None:
    life = running()
    record = life.record("log")
    assert Target(record.cgroup, record.id) in targets(life.on, life.state)
    seen = Observed(Target(record.cgroup, record.id), cpus("0-15"), cpus("0-15"))
    (write,) = life.tell(CpusetsObserved((seen,))).writes
    assert (write.target, str(write.cpus)) == (record.cgroup, "6-7")


@pytest.mark.parametrize(
    ("gone", "app", "log"),
    [
        ("5", "2-4", "6-7"),
        ("2-5", "6-7", "6-7"),
        ("6", "2-5", "7"),
        ("6-7", "2-5", "0-1,8-15"),
        ("2-7", "0-1,8-15", "0-1,8-15"),
    ],
)
def test_containers_that_lose_their_cpus_stay_in_their_pod_as_long_as_it_shares_some(
    gone: str, app: str, log: str
) -> None:
    life = running()
    writes = {one.container_id: str(one.cpus) for one in life.lose(gone).writes if one.container_id}
    assert (life.runs_on("app"), life.runs_on("log")) == (app, log)
    assert (writes[life.record("app").id], writes[life.record("log").id]) == (app, log)
    life.lose("")
    assert (life.runs_on("app"), life.runs_on("log")) == ("2-5", "6-7")


def test_an_ended_init_container_leaves_its_cpus_to_those_that_lost_theirs() -> None:
    life = PodLife(pod_scope(), part("setup", 6, Kind.INIT), *SHARING[1:], resources=whole(6))
    life.run("setup")
    life.tell(nri.StopContainer(life.of, life.message("setup")))
    life.run("app", "log")
    life.lose("2-5")
    assert (life.held["setup"], life.runs_on("app"), life.runs_on("log")) == ("2-7", "6-7", "6-7")


def test_a_container_that_lost_its_cpus_never_runs_on_those_of_another_one() -> None:
    life = PodLife(pod_scope(), part("app", 3), part("db", 2), resources=whole(6))
    life.run("app", "db")
    life.lose("2-4")
    assert life.runs_on("app") == "5", "the CPU that is left over in the pod"
    record = life.record("app")
    foreign = CpusetWrite(record.cgroup, cpus("5-7"), record.id)
    assert write_violations(life.on, life.state, foreign) == [
        "container app would run on CPUs that are exclusive to others: 6-7"
    ]
    life.lose("")
    early = CpusetWrite(record.cgroup, cpus("2-5"), record.id)
    assert write_violations(life.on, life.state, early) == [
        "container app would run on CPUs that are exclusive to others: 5"
    ]


def test_no_pod_takes_the_last_cpu_of_the_shared_pool() -> None:
    taking = PodLife(pod_scope(reserved="0-1"), part("app", 13), part("log", 1), resources=whole(14))
    taking.run("app")
    assert str(taking.state.shared_pool(taking.on)) == "0-1"
    strict = PodLife(
        pod_scope(strict_cpu_reservation=True), part("app", 13), part("log", 1), resources=whole(14)
    )
    strict.run("app", "log")
    # Differs from the kubelet, whose shared pool is empty then.
    assert str(strict.state.shared_pool(strict.on)) == "0-1"
    refused = PodLife(pod_scope(reserved=""), part("app", 15), part("log", 0.5), resources=whole(16))
    refusal = refused.create("app").refusal
    assert refusal is not None
    assert (refusal.kind, refused.held) == (RefusalKind.CPUS, {})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("6-7", []),
        ("", ["p1/log shares the CPUs of its pod, and there are none"]),
        ("7-8", ["p1/log shares CPUs that its pod does not own: 8"]),
        ("5-6", ["CPU 5 is exclusive to both p1/app and p1/log"]),
    ],
)
def test_a_pods_shared_pool_has_cpus_of_the_pod_that_no_container_has_for_itself(
    text: str, found: list[str]
) -> None:
    life = running()
    key = allocation_key("p1", "log")
    state = life.state.with_allocation(key, replace(life.state.allocations[key], cpus=cpus(text)))
    assert [str(one) for one in violations(life.on, state)] == found


def test_a_shared_pool_without_its_pod_is_found() -> None:
    state = State(allocations={"p1/log": Allocation(cpus("6-7"), is_pod_shared=True)})
    assert [str(one) for one in violations(node(), state)] == [
        "p1/log shares CPUs that its pod does not own: 6-7"
    ]


def test_a_cpu_of_two_pods_is_found_between_all_their_containers() -> None:
    life = running()
    state = life.state.with_allocation("p2/c", Allocation(cpus("5-6")))
    assert {str(one) for one in violations(life.on, state)} == {
        "CPU 5 is exclusive to both p1/ and p2/c",
        "CPU 5 is exclusive to both p1/app and p2/c",
        "CPU 6 is exclusive to both p1/ and p2/c",
        "CPU 6 is exclusive to both p1/mesh and p2/c",
        "CPU 6 is exclusive to both p1/log and p2/c",
    }


def test_the_refusal_of_a_pod_of_128_containers_takes_a_bounded_number_of_placements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The runtime waits meanwhile: each of the few alternatives in the advice places the whole pod once."""
    tried: list[str] = []

    def counting(on: Node, state: State, of: PodRecord, request: ContainerRequest) -> Placement:
        tried.append(request.name)
        return place(on, state, of, request)

    monkeypatch.setattr("nri_plugin.core.pods.place", counting)
    on = node(machine(nodes=8, cores=16), topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)
    state = decide(on, State(), nri.CreateContainer(pod("other"), container(pod("other"), cpu=16))).state
    parts = [
        part(f"c{number}", 1 if number < MOST_CONTAINERS - 1 else 33) for number in range(MOST_CONTAINERS)
    ]
    life = PodLife(on, *parts, resources=None, state=state)
    refusal = life.create("c0").refusal
    assert refusal is not None
    assert (refusal.container, life.held) == (f"c{MOST_CONTAINERS - 1}", {})
    assert "would fit" in str(refusal)
    assert MOST_CONTAINERS <= len(tried) <= 8 * MOST_CONTAINERS


@pytest.mark.parametrize("is_run_seen", [True, False])
def test_a_pod_with_a_new_sandbox_is_admitted_as_a_whole_beside_its_ended_containers(
    is_run_seen: bool,
) -> None:
    life = PodLife(node(), part("a", 2), part("b", 4), resources=None)
    life.run("a", "b")
    life.tell(nri.StopPodSandbox(life.of))
    assert life.held == {}
    life.of = replace(life.of, id="new")
    if is_run_seen:
        life.tell(nri.RunPodSandbox(life.of))
    life.run("a")
    assert life.held == {"a": "2-3", "b": "4-7"}
