from dataclasses import replace

import pytest

from nri_plugin.core.requests import milli_from_shares
from nri_plugin.model.records import Amounts, Kind, QOSClass
from nri_plugin.simulator.simulate.pods import (
    ContainerSpec,
    Driver,
    PodSpec,
    RuntimeIdentity,
    container_resources,
    pod_facts,
    pod_resources,
    quota_from_milli,
    shares_from_milli,
    stable_id,
    stable_uid,
)
from nri_plugin.wire.nri.messages import ContainerState
from tests.lab.runtime.messages import container_message, oom_score_adj, pod_message
from tests.lab.runtime.profile import BEHAVIOURS

GIB = 1 << 30
WHOLE = ContainerSpec("app", 2000, 2000, GIB, GIB)
NOTHING = ContainerSpec("idle")


def who(runtime: str = "containerd-2.1", driver: Driver = Driver.SYSTEMD) -> RuntimeIdentity:
    return RuntimeIdentity(BEHAVIOURS[runtime], driver, 16 * GIB)


def made(pod: PodSpec, runtime: str = "containerd-2.1"):  # type: ignore[no-untyped-def]
    sandbox, names = pod_message(pod, stable_uid(pod.key), stable_id(pod.key), who(runtime))
    container, _ = container_message(pod, sandbox, names, pod.containers[0], "abc", who(runtime))
    return sandbox, container


@pytest.mark.parametrize(
    ("containers", "qos"),
    [
        ((WHOLE,), QOSClass.GUARANTEED),
        ((WHOLE, WHOLE), QOSClass.GUARANTEED),
        ((WHOLE, NOTHING), QOSClass.BURSTABLE),
        ((NOTHING,), QOSClass.BEST_EFFORT),
        ((ContainerSpec("app", 100),), QOSClass.BURSTABLE),
        ((ContainerSpec("app", 2000, 2000),), QOSClass.BURSTABLE),
        ((ContainerSpec("app", 1000, 2000, GIB, GIB),), QOSClass.BURSTABLE),
    ],
)
def test_qos_follows_from_requests_and_limits(containers: tuple[ContainerSpec, ...], qos: QOSClass) -> None:
    assert PodSpec("p", containers=containers).qos is qos


def test_a_forced_qos_overrules() -> None:
    assert PodSpec("p", containers=(WHOLE,), forced_qos=QOSClass.BURSTABLE).qos is QOSClass.BURSTABLE


@pytest.mark.parametrize(
    ("milli", "shares"), [(0, 2), (1, 2), (100, 102), (1500, 1536), (256_000, 262_144), (300_000, 262_144)]
)
def test_shares_round_down_between_their_ends(milli: int, shares: int) -> None:
    assert shares_from_milli(milli) == shares


def test_the_agent_reads_every_request_back_out_of_the_shares() -> None:
    assert all(milli_from_shares(shares_from_milli(milli)) == milli for milli in range(3, 256_001, 7))


@pytest.mark.parametrize(("milli", "quota"), [(0, 0), (5, 1000), (500, 50_000), (2000, 200_000)])
def test_quota_is_a_share_of_the_period(milli: int, quota: int) -> None:
    assert quota_from_milli(milli) == quota


@pytest.mark.parametrize(
    ("qos", "request_bytes", "score"),
    [
        (QOSClass.GUARANTEED, GIB, -997),
        (QOSClass.BEST_EFFORT, 0, 1000),
        (QOSClass.BURSTABLE, 0, 999),
        (QOSClass.BURSTABLE, 4 * GIB, 750),
        (QOSClass.BURSTABLE, 16 * GIB, 3),
    ],
)
def test_oom_score(qos: QOSClass, request_bytes: int, score: int) -> None:
    assert oom_score_adj(qos, request_bytes, 16 * GIB) == score


def test_the_sum_of_a_pod_is_sent_with_zeros_for_what_is_absent() -> None:
    resources = pod_resources(PodSpec("p", containers=(ContainerSpec("a", 100), ContainerSpec("b", 150))))
    assert (resources.cpu_shares, resources.cpu_quota_us, resources.memory_limit_bytes) == (256, 0, 0)


def test_a_sidecar_adds_to_the_sum_of_a_pod_and_an_init_container_does_not() -> None:
    early = (ContainerSpec("fetch", 1000, 1000), ContainerSpec("mesh", 500, 500, is_sidecar=True))
    total = pod_resources(PodSpec("p", containers=(WHOLE,), init_containers=early))
    assert milli_from_shares(total.cpu_shares) == 2500


def test_facts_of_a_pod_are_what_an_exporter_tells() -> None:
    pages = ContainerSpec("app", 2000, 2000, GIB, GIB, hugepages=(("hugepages-2Mi", 4 << 20),))
    pod = PodSpec("p", containers=(pages,), init_containers=(ContainerSpec("mesh", is_sidecar=True),))
    facts = pod_facts(pod, "uid-1")
    assert [(one.name, one.kind) for one in facts.containers] == [("mesh", Kind.SIDECAR), ("app", Kind.APP)]
    assert facts.containers[1].amounts == Amounts(2000, 2000, GIB, GIB, (("hugepages-2Mi", 4 << 20),))
    assert (facts.uid, facts.qos) == ("uid-1", pod.qos)


def test_a_container_without_limits_looks_like_one_that_asks_for_those_of_its_pod() -> None:
    whole = Amounts(4000, 4000, GIB, GIB)
    given = made(PodSpec("p", containers=(NOTHING,), whole=whole))[1].resources
    assert (given.cpu_shares, given.cpu_quota_us, given.memory_limit_bytes) == (4096, 400_000, GIB)
    requested = made(PodSpec("p", containers=(ContainerSpec("app", 500),), whole=whole))[1].resources
    assert (requested.cpu_shares, requested.cpu_quota_us) == (512, 400_000)


def test_containerd_leaves_absent_limits_out_and_cri_o_sends_zeros() -> None:
    pod = PodSpec("p", containers=(NOTHING,))
    assert made(pod)[1].resources.cpu_quota_us is None
    assert made(pod, "cri-o")[1].resources.cpu_quota_us == 0


def test_containerd_annotates_with_names_and_ids() -> None:
    sandbox, container = made(PodSpec("p", "ns", containers=(WHOLE,)))
    assert sandbox.annotations["io.kubernetes.cri.sandbox-cpu-shares"] == "2048"
    assert container.annotations["io.kubernetes.cri.container-type"] == "container"
    assert container.annotations["io.kubernetes.cri.sandbox-uid"] == sandbox.uid


def test_cri_o_annotates_in_its_own_words() -> None:
    sandbox, container = made(PodSpec("p", "ns", containers=(WHOLE,)), "cri-o")
    assert not any("sandbox-id" in key for key in sandbox.annotations)
    assert container.annotations["io.kubernetes.cri-o.ContainerName"] == "app"
    assert container.cgroups_path.endswith(":crio:abc")


def test_a_container_that_is_not_yet_created_has_state_unknown_and_no_cpuset() -> None:
    _, container = made(PodSpec("p", containers=(WHOLE,)))
    assert container.state is ContainerState.UNKNOWN
    assert (container.resources.cpus, container.resources.mems) == ("", "")


def test_ids_are_the_same_in_every_run_and_long_as_a_runtimes() -> None:
    assert stable_id("a") == stable_id("a") != stable_id("b")
    assert len(stable_id("a")) == 64
    assert stable_uid("a") != stable_uid("b")


def test_a_container_is_limited_to_no_huge_pages_of_sizes_that_it_does_not_ask_for() -> None:
    node = replace(who(), page_sizes_kb=(2048, 1048576))
    asks = replace(WHOLE, hugepages=(("hugepages-1Gi", GIB),))
    assert container_resources(NOTHING, node).hugepage_limits == (("2MB", 0), ("1GB", 0))
    assert container_resources(asks, node).hugepage_limits == (("2MB", 0), ("1GB", GIB))
