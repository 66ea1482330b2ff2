import pytest

from nri_plugin.core.decision import CpusetWrite, Decision, InformedCreate
from nri_plugin.core.kernel_settings import Partition
from nri_plugin.core.validator import (
    checked,
    new_violations,
    opening_violations,
    partition_violations,
    write_violations,
)
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import (
    CreateContainer,
    CreateContainerResponse,
    NRIResponse,
    StopContainerResponse,
    SynchronizeResponse,
    UpdateContainer,
    UpdateContainerResponse,
)
from nri_plugin.wire.nri.messages import ContainerUpdate, Resources
from tests.builders import container, cpus, node, pod

NODE = node()
POD = pod("p", cpu=2)
EVENT = CreateContainer(POD, container(POD, "c", cpu=2))
PROMISED = State().with_allocation("p/c", Allocation(cpus=cpus("2-3"), cpu_milli=2000))
SLICE = CgroupRef("/kubepods/burstable")


def granting(text: str, state: State = PROMISED) -> Decision:
    return Decision(state, CreateContainerResponse(resources=Resources(cpus=text)))


def test_a_sound_decision_has_nothing_against_it():
    assert new_violations(NODE, State(), EVENT, granting("2-3")) == []


def test_a_container_may_not_be_given_what_is_exclusive_to_another():
    decision = granting("2-5", PROMISED.with_allocation("q/c", Allocation(cpus=cpus("4-5"))))
    assert new_violations(NODE, State(), EVENT, decision) == [
        "container c would run on CPUs that are exclusive to others: 4-5"
    ]


def test_nothing_may_be_given_that_is_not_online():
    assert new_violations(NODE, State(), EVENT, granting("2-3,99")) == [
        "container c would be given CPUs that are not online: 99"
    ]


def test_a_slice_may_not_cover_exclusive_cpus():
    decision = Decision(PROMISED, writes=(CpusetWrite(SLICE, cpus("0-15")),))
    assert new_violations(NODE, PROMISED, EVENT, decision) == [
        "cgroup /kubepods/burstable would run on CPUs that are exclusive to others: 2-3"
    ]


def test_an_empty_cpuset_may_not_be_written():
    decision = Decision(PROMISED, writes=(CpusetWrite(SLICE, CPUSet()),))
    assert new_violations(NODE, PROMISED, EVENT, decision) == [
        "cgroup /kubepods/burstable would be given no CPU"
    ]


def test_a_running_container_may_be_written_its_own_cpus():
    record = ContainerRecord("id", "p", "c", Phase.RUNNING, CgroupRef("/kubepods/podp", "/x"))
    decision = Decision(
        PROMISED.with_container(record), writes=(CpusetWrite(record.cgroup, cpus("2-3"), "id"),)
    )
    assert new_violations(NODE, PROMISED, EVENT, decision) == []


def test_a_state_that_breaks_an_invariant_is_told_and_an_old_flaw_is_not():
    flawed = State().with_allocation("old/c", Allocation(cpus=cpus("0")))  # reserved
    worse = flawed.with_allocation("p/c", Allocation(cpus=cpus("1")))
    assert new_violations(NODE, flawed, EVENT, Decision(flawed)) == []
    assert new_violations(NODE, flawed, EVENT, Decision(worse)) == ["reserved CPU 1 is exclusive to p/c"]


def test_a_slice_may_not_mix_strictly_reserved_cpus_with_others():
    strict = node(strict_cpu_reservation=True)
    sound = Decision(PROMISED, writes=(CpusetWrite(SLICE, cpus("4-15")), CpusetWrite(SLICE, cpus("0-1"))))
    assert new_violations(strict, PROMISED, EVENT, sound) == []
    mixed = Decision(PROMISED, writes=(CpusetWrite(SLICE, cpus("0,4-15")),))
    assert new_violations(strict, PROMISED, EVENT, mixed) == [
        "cgroup /kubepods/burstable would run on CPUs that are strictly reserved: 0"
    ]


@pytest.mark.parametrize(
    "kind", [CreateContainerResponse, UpdateContainerResponse, StopContainerResponse, SynchronizeResponse]
)
def test_the_runtime_may_not_be_asked_either_to_let_others_run_on_exclusive_cpus(
    kind: type[NRIResponse],
) -> None:
    beside = ContainerRecord("id", "q", "web", Phase.RUNNING, CgroupRef("/kubepods/podq"))
    state = PROMISED.with_container(beside)

    def asking(text: str) -> Decision:
        return Decision(state, kind(updates=(ContainerUpdate("id", Resources(cpus=text)),)))

    event = UpdateContainer(POD, container(POD, "c", cpu=2), Resources())
    assert new_violations(NODE, state, event, asking("4-15")) == []
    assert new_violations(NODE, state, event, asking("")) == []
    assert new_violations(NODE, state, event, asking("3-15")) == [
        "container web would run on CPUs that are exclusive to others: 3"
    ]


def test_a_container_may_be_updated_to_its_own_cpus_and_an_unknown_one_to_the_pool_alone() -> None:
    record = ContainerRecord("id", "p", "c", Phase.RUNNING, CgroupRef("/kubepods/podp", "/x"))
    state = PROMISED.with_container(record)
    event = UpdateContainer(POD, container(POD, "c", cpu=2), Resources())
    own = UpdateContainerResponse((ContainerUpdate("id", Resources(cpus="2-3")),))
    stranger = UpdateContainerResponse((ContainerUpdate("x", Resources(cpus="2-3")),))
    assert new_violations(NODE, state, event, Decision(state, own)) == []
    assert new_violations(NODE, state, event, Decision(state, stranger)) == [
        "container x would run on CPUs that are exclusive to others: 2-3"
    ]


def test_an_answer_without_resources_gives_nothing():
    assert new_violations(NODE, State(), EVENT, Decision(PROMISED, CreateContainerResponse())) == []


def test_a_write_taken_back_is_judged_like_any_other():
    assert write_violations(NODE, PROMISED, CpusetWrite(SLICE, cpus("0-1,4-15"))) == []
    assert write_violations(NODE, PROMISED, CpusetWrite(SLICE, cpus("0-2"))) == [
        "cgroup /kubepods/burstable would run on CPUs that are exclusive to others: 2"
    ]


ONLINE = NODE.topology.online
OWN = CgroupRef("/kubepods/podp", "/kubepods/podp/id")


@pytest.mark.parametrize(
    ("state", "write", "found"),
    [
        (PROMISED, CpusetWrite(SLICE, ONLINE), []),
        (State(), CpusetWrite(OWN, ONLINE, "id"), []),
        (State(), CpusetWrite(SLICE, cpus("0-3")), ["would be given 0-3 and not all online CPUs 0-15"]),
        (PROMISED, CpusetWrite(OWN, ONLINE, "id"), ["would run on CPUs that are exclusive to others: 2-3"]),
    ],
    ids=[
        "a slice while CPUs are exclusive",
        "a container at a release",
        "a part",
        "a container while CPUs are exclusive",
    ],
)
def test_all_cpus_are_given_to_slices_or_where_nothing_is_exclusive(
    state: State, write: CpusetWrite, found: list[str]
):
    name = f"cgroup {write.target.path or write.target.parent}"
    assert opening_violations(ONLINE, state, write) == [f"{name} {problem}" for problem in found]


def partition(text: str, target: CgroupRef = OWN) -> Partition:
    return Partition(target, cpus(text), "isolated", "id")


HOLDER = PROMISED.with_container(ContainerRecord("id", "p", "c", Phase.RUNNING, OWN))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (partition("2-3"), []),
        (partition(""), ["a partition without CPUs"]),
        (partition("2-4"), ["a partition with CPUs that are not exclusive to its container: 4"]),
        (
            partition("2-3", CgroupRef("/kubepods/podp", "/kubepods/podp/another")),
            ["a partition with CPUs that are not exclusive to its container: 2-3"],
        ),
    ],
    ids=["its own", "none", "one too many", "of another cgroup"],
)
def test_a_partition_has_exclusive_cpus_of_its_container(wanted: Partition, found: list[str]):
    assert partition_violations(NODE, HOLDER, [wanted]) == ({wanted.target: found} if found else {})


def test_a_partition_has_online_cpus_and_shares_none():
    offline = HOLDER.with_allocation("p/c", Allocation(cpus=cpus("2-3,99"), cpu_milli=3000))
    assert partition_violations(NODE, offline, [partition("2-3,99")]) == {
        OWN: ["a partition with CPUs that are not online: 99"]
    }
    assert partition_violations(NODE, HOLDER, [partition("2-3"), partition("3")]) == {
        OWN: ["a partition with CPUs of another one: 3"]
    }


def test_a_partition_of_a_container_that_is_gone_is_refused():
    assert partition_violations(NODE, PROMISED, [partition("2-3")]) == {
        OWN: ["a partition with CPUs that are not exclusive to its container: 2-3"]
    }


def test_an_init_container_that_runs_beside_one_on_its_cpus_is_found_although_no_allocation_changed():
    app = ContainerRecord("app", "p", "c", Phase.RUNNING, OWN)
    before = PROMISED.with_container(app).with_allocation(
        "p/setup", Allocation(cpus=cpus("3-4"), is_init=True)
    )
    after = before.with_container(ContainerRecord("init", "p", "setup", Phase.RUNNING, OWN))
    assert new_violations(NODE, State(), EVENT, Decision(before)) == []
    assert new_violations(NODE, before, EVENT, Decision(after)) == [
        "CPU 3 is exclusive to both p/c and p/setup"
    ]


def test_a_decision_that_breaks_an_invariant_becomes_the_refusal_of_the_agent():
    reserved = State().with_allocation("p/c", Allocation(cpus=cpus("0"), cpu_milli=1000))
    refused = checked(NODE, State(), InformedCreate(EVENT), granting("0", reserved))
    assert refused.state == State()
    assert "decision would break an invariant: reserved CPU 0 is exclusive to p/c" in str(refused.refusal)
    sound = granting("2-3")
    assert checked(NODE, State(), InformedCreate(EVENT), sound) is sound
    assert checked(NODE, State(), EVENT, refused) is refused
