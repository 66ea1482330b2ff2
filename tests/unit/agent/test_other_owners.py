"""Who else pins CPUs, told by what can be seen; and that nobody is accused for nothing."""

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.agent.repair.other_owners import (
    MOST_WAITING,
    WHO,
    FailedCreations,
    OtherOwners,
    OwnerEvidence,
    evidence_of,
    kubelet_policy,
    warn_of_kubelet,
)
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.core.decision import Decision
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase
from nri_plugin.model.state import State
from nri_plugin.process.logs import AGAIN_S
from nri_plugin.wire.nri.events import (
    CreateContainer,
    CreateContainerResponse,
    NRIEvent,
    PostCreateContainer,
    PostStartContainer,
    RemoveContainer,
    RemovePodSandbox,
    StartContainer,
    StopContainer,
    StopPodSandbox,
    Synchronize,
    UpdateContainer,
)
from nri_plugin.wire.nri.messages import Resources
from tests.agent_fakes import Clock, recording_log
from tests.builders import container, cpus, node, pod

POD = pod("p")
HELD = container(POD, "c")
STATE = State(
    containers={HELD.id: ContainerRecord(HELD.id, "u", "c", Phase.RUNNING, CgroupRef("/p", "/p/c"))},
    allocations={"u/c": Allocation(cpus("2-3"), cpu_milli=2000)},
)


def outcome(event: NRIEvent) -> RequestOutcome:
    return RequestOutcome(
        node=node(), event=event, before=STATE, decision=Decision(STATE), refusal="", failed=False,
        decide_s=0, total_s=0,
    )  # fmt: skip


def created(text: str) -> RequestOutcome:
    return outcome(CreateContainer(POD, replace(HELD, resources=Resources(cpu_shares=2, cpus=text))))


def updated(resources: Resources) -> RequestOutcome:
    return outcome(UpdateContainer(POD, HELD, resources))


@pytest.mark.parametrize(
    ("seen", "evidence"),
    [
        (created(""), None),
        (created("0-7"), OwnerEvidence.CREATION),
        (updated(Resources(cpu_shares=512)), None),
        (updated(Resources(cpu_shares=0, cpu_quota_us=0, memory_limit_bytes=0, cpus="0-7")), OwnerEvidence.KUBELET_UPDATE),
        (updated(Resources(cpu_shares=512, cpus="0-7")), OwnerEvidence.UPDATE),
        (updated(Resources(cpus="2-3")), None),
    ],
)  # fmt: skip
def test_only_a_foreign_cpuset_is_evidence(seen: RequestOutcome, evidence: OwnerEvidence | None) -> None:
    assert evidence_of(seen) is evidence


def test_rival_is_named_once_in_ten_minutes_and_counted_always() -> None:
    log, lines = recording_log()
    clock, counted = Clock(), []
    rivals = OtherOwners(log, clock, counted.append)
    for _ in range(3):
        rivals(created("0-7"))
    assert lines.texts("WARNING") == ["another CPU manager also gives CPUs to containers"]
    assert (
        lines.fields("another CPU manager also gives CPUs to containers")["looks_like"]
        == WHO[OwnerEvidence.CREATION]
    )
    assert counted == [OwnerEvidence.CREATION] * 3
    clock.now += AGAIN_S
    rivals(created("0-7"))
    assert len(lines.texts("WARNING")) == 2


def test_nothing_is_said_where_nothing_is_seen() -> None:
    log, lines = recording_log()
    OtherOwners(log, Clock())(created(""))
    assert lines.lines == []


def answered(name: str, cpus: str = "2-3", refusal: str = "") -> RequestOutcome:
    """A creation that we answered with these CPUs, of the pod's only container, under the id of that name."""
    event = CreateContainer(POD, replace(HELD, id=name))
    answer = CreateContainerResponse(resources=Resources(cpus=cpus) if cpus else None)
    found = outcome(event)
    return dataclasses.replace(found, decision=Decision(STATE, answer), refusal=refusal)


def told(kind: type, name: str) -> RequestOutcome:
    return outcome(kind(POD, replace(HELD, id=name)))


def in_a_row(*events: RequestOutcome) -> int:
    failures = FailedCreations()
    for event in events:
        failures(event)
    return failures.in_a_row


def test_a_container_that_goes_before_it_is_created_has_failed() -> None:
    as_containerd = [answered("a"), told(StopContainer, "a"), told(RemoveContainer, "a")]
    assert in_a_row(*as_containerd) == 1
    assert in_a_row(*as_containerd, answered("b"), told(RemoveContainer, "b")) == 2


def test_where_the_runtime_says_nothing_the_next_try_tells() -> None:
    assert in_a_row(answered("a"), answered("b"), answered("c")) == 2
    assert in_a_row(answered("a"), answered("a")) == 0


@pytest.mark.parametrize("kind", [PostCreateContainer, StartContainer, PostStartContainer])
def test_one_that_succeeds_ends_the_row(kind: type) -> None:
    failed = [answered("a"), told(RemoveContainer, "a")]
    created = [answered("b"), told(kind, "b"), told(StopContainer, "b"), told(RemoveContainer, "b")]
    assert in_a_row(*failed, *created) == 0
    assert in_a_row(*failed, *created, *failed) == 1


@pytest.mark.parametrize(
    "events",
    [
        [answered("a", refusal="no CPUs"), told(RemoveContainer, "a")],
        [answered("a", cpus=""), told(RemoveContainer, "a")],
        [answered("a"), outcome(StopPodSandbox(POD)), told(RemoveContainer, "a")],
        [answered("a"), outcome(RemovePodSandbox(POD)), answered("b")],
        [answered("a"), outcome(Synchronize()), answered("b")],
    ],
    ids=["refused", "nothing set", "pod ended", "pod removed", "connected again"],
)
def test_what_is_no_failure_of_a_creation_is_not_counted(events: list[RequestOutcome]) -> None:
    assert in_a_row(*events) == 0


def test_what_is_remembered_of_creations_is_bounded() -> None:
    failures = FailedCreations()
    for number in range(3 * MOST_WAITING):
        pod_of_its_own = replace(POD, uid=str(number))
        found = answered(str(number))
        failures(
            dataclasses.replace(found, event=CreateContainer(pod_of_its_own, replace(HELD, id=str(number))))
        )
    assert len(failures._waiting) == MOST_WAITING
    assert failures.in_a_row == 0


def test_a_plugin_that_is_asked_later_is_suspected_at_the_second_failure() -> None:
    log, lines = recording_log()
    counted: list[OwnerEvidence] = []
    rivals = OtherOwners(log, Clock(), counted.append)
    rivals(answered("a"))
    rivals(told(RemoveContainer, "a"))
    assert (lines.lines, counted) == ([], [])
    for name in ("b", "c"):
        rivals(answered(name))
        rivals(told(RemoveContainer, name))
    assert counted == [OwnerEvidence.FAILED_CREATION] * 2
    assert lines.texts("WARNING") == ["another CPU manager also gives CPUs to containers"]
    fields = lines.fields("another CPU manager also gives CPUs to containers")
    assert "both tried to set CPUSetCPUs" in str(fields["looks_like"])


def test_kubelets_own_word_is_read_where_it_can_be(tmp_path: Path) -> None:
    file = tmp_path / "cpu_manager_state"
    assert kubelet_policy(str(file)) == ""
    file.write_text('{"policyName":"static","defaultCpuSet":"0-7","checksum":1}')
    assert kubelet_policy(str(file)) == "static"
    file.write_text("{")
    assert kubelet_policy(str(file)) == ""


def test_static_kubelet_is_warned_of_at_the_start() -> None:
    log, lines = recording_log()
    warn_of_kubelet(log, "none")
    warn_of_kubelet(log, "")
    assert lines.lines == []
    warn_of_kubelet(log, "static")
    assert len(lines.texts("WARNING")) == 1
