"""CPUs of a resource claim: left alone, kept from everybody else, and never with a second owner."""

from typing import Any

import pytest
from msgspec.structs import replace

from nri_plugin.core.claims import NO_CLAIM, CPUClaim, claim_in
from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.core.kernel_settings import partitions, quotas
from nri_plugin.core.outdated import outdated
from nri_plugin.core.pod_news import PodFactsTold
from nri_plugin.core.validator import new_violations
from nri_plugin.model.options import CPUManagerPolicy, Isolation, Node
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.refusals import RefusalKind
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod, Resources
from tests.builders import container, cpu_resources, cpus, node, pod
from tests.whole_pods import PodLife, part, pod_scope, whole

CLAIM = "dra.k8s.io/cpu=claim-u1"


def claiming(of: Pod, which: str, *, name: str = "c", cpu: float = 0, uid: str = "u1") -> Container:
    """A container that a DRA driver gave the CPUs `which`."""
    return replace(container(of, name, cpu=cpu), env=(f"DRA_CPUSET_{uid}={which}",))


def create(on: Node, state: State, of: Pod, what: Container, facts: PodFacts | None = None) -> Decision:
    event = nri.CreateContainer(of, what)
    decision = decide(on, state, InformedCreate(event, facts=facts) if facts else event)
    assert new_violations(on, state, event, decision) == []
    return decision


def run(on: Node, state: State, of: Pod, what: Container) -> State:
    decision = create(on, state, of, what)
    assert decision.refusal is None, decision.refusal
    for kind in (nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer):
        decision = decide(on, decision.state, kind(of, what))
    assert violations(on, decision.state) == []
    return decision.state


def refusal(decision: Decision) -> str:
    assert decision.refusal is not None
    assert decision.refusal.kind is RefusalKind.TWO_OWNERS
    assert decision.refusal.advice is None
    return str(decision.refusal)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((), NO_CLAIM),
        (("PCIDEVICE_A=0000:00:01.0",), NO_CLAIM),
        (("DRA_CPUSET_u1=nonsense",), NO_CLAIM),
        (("DRA_CPUSET_u1=",), NO_CLAIM),
        (("DRA_CPUSET_u1=2-3",), CPUClaim(CLAIM, cpus("2-3"))),
        (
            ("DRA_CPUSET_u1=2", "X=1", "DRA_CPUSET_u2=5"),
            CPUClaim(f"{CLAIM},dra.k8s.io/cpu=claim-u2", cpus("2,5")),
        ),
    ],
)
def test_a_claim_is_what_the_driver_s_variables_tell(lines: tuple[str, ...], found: CPUClaim) -> None:
    assert claim_in(lines) == found


@pytest.mark.parametrize("qos", ["Guaranteed", "Burstable", "BestEffort"])
def test_a_container_with_a_claim_is_left_alone_and_its_cpus_are_nobody_else_s(qos: str) -> None:
    on, of = node(), pod(qos=qos)
    decision = create(on, State(), of, claiming(of, "4-7"))
    assert isinstance(decision.response, nri.CreateContainerResponse)
    assert (decision.response.resources, decision.steps) == (None, ("claimed",))
    state = decision.state
    assert state.shared_pool(on) == cpus("0-3,8-15")
    assert state.available(on).isdisjoint(cpus("4-7"))
    assert state.allocations["p1/c"].claim == CLAIM


def test_other_containers_get_other_cpus() -> None:
    on, of = node(), pod()
    state = run(on, State(), of, claiming(of, "2-5"))
    for number in range(3):
        other = pod(f"o{number}")
        state = run(on, state, other, container(other, cpu=2))
    assert all(one.cpus.isdisjoint(cpus("2-5")) for key, one in state.allocations.items() if key != "p1/c")


def test_cpus_that_are_reserved_here_may_be_those_of_a_claim() -> None:
    on, of = node(reserved="0-1"), pod(qos="BestEffort")
    state = run(on, State(), of, claiming(of, "1-2"))
    assert state.shared_pool(on) == cpus("0,3-15")


def test_a_request_of_as_many_cpus_as_the_claim_has_is_the_claim_s() -> None:
    on, of = node(), pod()
    assert run(on, State(), of, claiming(of, "4-7", cpu=4)).allocations["p1/c"].cpus == cpus("4-7")


@pytest.mark.parametrize("cpu", [2, 8])
def test_a_container_that_asks_for_ours_too_is_refused_with_both_names(cpu: int) -> None:
    on, of = node(), pod()
    text = refusal(create(on, State(), of, claiming(of, "4-7", cpu=cpu)))
    assert CLAIM in text
    assert f"asks nri-pin for {cpu} exclusive CPUs" in text


def test_an_annotation_that_asks_for_ours_is_refused_whatever_its_number() -> None:
    on = node(annotation_namespaces=frozenset({"default"}))
    of = replace(pod(qos="Burstable"), annotations={"nri-pin/exclusive-cpus.pod": "4"})
    assert "asks nri-pin for 4" in refusal(create(on, State(), of, claiming(of, "4-7", cpu=4)))


def test_a_claim_with_cpus_of_ours_is_refused_with_both_names() -> None:
    on, of, other = node(), pod(), replace(pod("o"), name="db")
    state = run(on, State(), other, container(other, cpu=2))
    held = state.allocations["o/c"].cpus
    text = refusal(create(on, state, of, claiming(of, str(held))))
    assert CLAIM in text
    assert f"nri-pin gave {held} to default/db/c" in text


def test_a_claim_that_is_used_twice_is_refused_with_both_claims() -> None:
    on, of, other = node(), pod(), pod("o")
    state = run(on, State(), other, claiming(other, "4-7"))
    assert f"the claim {CLAIM} gave 5 to default/o/c" in refusal(
        create(on, state, of, claiming(of, "5", uid="u2"))
    )


def test_a_claim_passes_from_an_ended_container_of_the_pod_to_the_next() -> None:
    on, of = node(), pod()
    first, second = claiming(of, "4-7", name="setup"), claiming(of, "4-7", name="app")
    state = run(on, State(), of, first)
    assert f"the claim {CLAIM} gave 4-7 to default/p1/setup" in refusal(create(on, state, of, second))
    state = decide(on, state, nri.StopContainer(of, first)).state
    assert state.shared_pool(on).isdisjoint(cpus("4-7"))
    state = run(on, state, of, second)
    assert {key: one.cpus for key, one in state.allocations.items()} == {"p1/app": cpus("4-7")}


def test_the_last_cpus_of_the_shared_pool_are_no_claim_s() -> None:
    on, of = node(), pod()
    decision = create(on, State(), of, claiming(of, "0-15"))
    assert decision.refusal is not None
    assert "last CPUs of the shared pool" in str(decision.refusal)


def test_a_container_of_a_pod_that_was_placed_as_a_whole_gives_up_what_it_has_of_us() -> None:
    """The claims of later containers are not known when the first one is created."""
    on, of = node(), pod()
    two = Amounts(2000, 2000, 1 << 30, 1 << 30)
    facts = PodFacts(
        "p1",
        QOSClass.GUARANTEED,
        (ContainerFacts("a", Kind.APP, two), ContainerFacts("b", Kind.APP, two)),
    )
    state = create(on, State(), of, container(of, "a", cpu=2), facts).state
    held = state.allocations["p1/b"].cpus
    assert len(held) == 2
    after = create(on, state, of, claiming(of, "12-13", name="b", cpu=2), facts).state
    assert after.allocations["p1/b"].cpus == cpus("12-13")
    assert held <= after.shared_pool(on)


def in_a_pod_of_its_own(on: Node) -> tuple[Pod, PodFacts]:
    """A pod with 6 CPUs of its own, and its facts; its container `app` asks for as many CPUs as a claim has."""
    life = PodLife(on, part("app", 4), part("log", 0.5), resources=whole(6))
    return life.of, life.facts


def test_the_cpus_of_a_claim_never_become_those_of_its_pod() -> None:
    """A container that the specification does not name looks at the CPUs of the whole pod."""
    on = pod_scope()
    of, facts = in_a_pod_of_its_own(on)
    app = claiming(of, "12-15", name="app", cpu=4)
    state = create(on, State(), of, container(of, "log", cpu=0.5), facts).state
    state = create(on, state, of, app, facts).state
    state = create(on, state, of, container(of, "debug"), facts).state
    assert state.allocations["p1/"].cpus.isdisjoint(cpus("12-15"))
    assert state.owned["p1/app"] == cpus("12-15")
    assert create(on, state, of, app, facts).refusal is None


def test_facts_of_a_found_pod_do_not_make_a_claim_one_of_ours() -> None:
    on = pod_scope()
    of, facts = in_a_pod_of_its_own(on)
    app = replace(
        claiming(of, "12-15", name="app", cpu=4), resources=Resources(cpu_shares=4096, cpus="12-15")
    )
    log = container(of, "log", cpu=0.5, cpus="2-3")
    state = decide(on, State(), nri.Synchronize((of,), (app, log))).state
    assert state.allocations["p1/app"].claim == CLAIM
    after = decide(on, state, PodFactsTold(of, facts)).state
    assert after.allocations["p1/app"].claim == CLAIM
    assert create(on, after, of, app, facts).refusal is None


def test_an_ended_container_passes_no_cpus_of_a_claim_on() -> None:
    on, of = node(), pod()
    first = claiming(of, "2-3", name="a")
    state = run(on, State(), of, first)
    state = decide(on, state, nri.StopContainer(of, first)).state
    state = run(on, state, of, container(of, "b", cpu=2))
    assert state.allocations["p1/a"].cpus == cpus("2-3")
    assert state.allocations["p1/b"].cpus.isdisjoint(cpus("2-3"))


def test_a_resize_is_the_other_program_s() -> None:
    on, of = node(), pod()
    what = claiming(of, "4-7", cpu=4)
    state = run(on, State(), of, what)
    update = nri.UpdateContainer(of, what, Resources(cpu_shares=6144, cpus="4-9"))
    decision = decide(on, state, update)
    assert decision.refusal is None
    assert decision.response == nri.UpdateContainerResponse()
    assert decision.state.allocations["p1/c"].cpus == cpus("4-7")


@pytest.mark.parametrize("total", [2, 100])
def test_a_pod_whose_only_exclusive_cpus_are_a_claim_s_may_ask_for_any_total(total: int) -> None:
    on, of = node(), pod(cpu=5)
    state = run(on, State(), of, claiming(of, "4-7", cpu=4))
    asked = nri.UpdatePodSandbox(of, resources=cpu_resources(total))
    assert decide(on, state, asked).refusal is None


def test_neither_quota_nor_partition_is_set_for_it() -> None:
    on, of = node(lift_cpu_quota=True, isolation=Isolation.PARTITION), pod()
    what = claiming(of, "4-7", cpu=4)
    what = replace(what, resources=replace(what.resources, cpu_quota_us=400_000, cpu_period_us=100_000))
    state = run(on, State(), of, what)
    assert list(quotas(on, state)) == []
    assert list(partitions(on, state)) == []


@pytest.mark.parametrize("options", [{}, {"cpu_manager_policy": CPUManagerPolicy.NONE}])
def test_no_configuration_outdates_a_claim(options: dict[str, Any]) -> None:
    on, of = node(**options), pod(qos="BestEffort")
    assert outdated(on, run(on, State(), of, claiming(of, "1-2"))) == []


@pytest.mark.parametrize("qos", ["Guaranteed", "BestEffort"])
def test_a_first_start_beside_running_claims_knows_them(qos: str) -> None:
    on, of, other = node(), pod(qos=qos), pod("o")
    running = replace(claiming(of, "4-7"), resources=Resources(cpus="4-7"))
    event = nri.Synchronize((of, other), (running, container(other, cpu=2, cpus="2-3")))
    state = decide(on, State(), event).state
    assert {key: one.claim for key, one in state.allocations.items()} == {"p1/c": CLAIM, "o/c": ""}
    assert state.shared_pool(on) == cpus("0-1,8-15")


def test_a_running_claim_on_cpus_of_ours_is_told_and_takes_nothing() -> None:
    on, of, other = node(), pod(), pod("o")
    state = run(on, State(), other, container(other, cpu=2))
    held = state.allocations["o/c"].cpus
    running = replace(claiming(of, str(held)), resources=Resources(cpus=str(held)))
    event = nri.Synchronize((of, other), (running, container(other, cpu=2, cpus=str(held))))
    after = decide(on, state, event).state
    assert after.allocations["o/c"].cpus == held
    assert "p1/c" not in after.allocations
    assert CLAIM in after.containers["p1-c-0"].unplaced


def test_the_end_of_the_pod_gives_the_cpus_to_the_shared_pool() -> None:
    on, of = node(), pod()
    state = run(on, State(), of, claiming(of, "4-7"))
    state = decide(on, state, nri.StopPodSandbox(of)).state
    assert state.exclusive == CPUSet()


@pytest.mark.parametrize(
    ("handler", "kept"), [("", ""), ("runc", ""), ("kata-clh", "kata-clh"), ("crun-vm", "crun-vm")]
)
def test_a_pod_in_a_virtual_machine_is_known_as_one(handler: str, kept: str) -> None:
    of = replace(pod(), runtime_handler=handler)
    assert decide(node(), State(), nri.RunPodSandbox(of)).state.pods["p1"].vm_handler == kept
