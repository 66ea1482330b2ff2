"""What containers ask for, from state, configuration and annotations."""

import pytest
from msgspec.structs import replace

from nri_plugin.core.engine import decide
from nri_plugin.core.quiet import Interrupt, QuietWanted, first_core, may_ask_otherwise, narrowed_cpus, wanted
from nri_plugin.model import bounds
from nri_plugin.model.options import IRQHousekeeping, IRQs, Node, Workqueues
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from tests.builders import container, cpus, machine, node, pod

TRUSTING = frozenset({"trusted"})


def running(
    on: Node, *, namespace: str = "trusted", uid: str = "p", state: State | None = None, **annotations: str
) -> tuple[State, nri.CreateContainerResponse, str]:
    """The state with one container of four CPUs, what it was answered, and why it was refused."""
    given = {key.replace("__", "/"): value for key, value in annotations.items()}
    of = replace(pod(uid, cpu=4, namespace=namespace), annotations=given)
    made = decide(on, state or State(), nri.CreateContainer(of, container(of, cpu=4)))
    assert isinstance(made.response, nri.CreateContainerResponse | nri.NRIResponse)
    return made.state, made.response, str(made.refusal or "")  # type: ignore[return-value]


def on(irqs: IRQs = IRQs.EXCLUSIVE, **more: object) -> Node:
    return node(machine(), irqs=irqs, annotation_namespaces=TRUSTING, **more)


def asked(of: Node, hears_others: bool = True, **annotations: str) -> QuietWanted:
    return wanted(of, running(of, **annotations)[0], hears_others=hears_others)


IRQ, CRIO, OF_C = "nri-pin/irqs.pod", "irq-load-balancing.crio.io", "nri-pin/irqs.container.c"


def test_every_container_with_exclusive_cpus_asks_where_the_configuration_says_so() -> None:
    one = asked(on())
    assert one.quiet == cpus("2-5")
    assert one.housekeeping == cpus("0-1,6-15")
    assert one.no_workqueues == CPUSet()
    assert asked(on(workqueues=Workqueues.EXCLUSIVE)).no_workqueues == cpus("2-5")


def test_nobody_asks_without_the_option() -> None:
    annotations = {IRQ: "quiet", "nri-pin/wake-latency-us.pod": "5"}
    assert asked(on(IRQs.NONE), **annotations).is_nothing
    alone = asked(on(IRQs.NONE, workqueues=Workqueues.EXCLUSIVE), **annotations)
    assert (alone.no_workqueues, alone.quiet, alone.latency_us) == (cpus("2-5"), CPUSet(), ())


@pytest.mark.parametrize(
    ("annotations", "quiet"),
    [
        ({}, ""),
        ({IRQ: "quiet"}, "2-5"),
        ({IRQ: "any"}, ""),
        ({IRQ: "any", OF_C: "quiet"}, "2-5"),
        ({IRQ: "housekeeping"}, "4-5"),
        ({CRIO: "disable"}, "2-5"),
        ({CRIO: "true"}, "2-5"),
        ({CRIO: "housekeeping"}, "4-5"),
        ({CRIO: "enable"}, ""),
        ({CRIO: "housekeeping", f"{CRIO}/c": "disable"}, "2-5"),
        ({f"{CRIO}/other": "disable"}, ""),
    ],
)
def test_on_request_annotations_decide(annotations: dict[str, str], quiet: str) -> None:
    assert asked(on(IRQs.ON_REQUEST), **annotations).quiet == cpus(quiet)


def test_annotations_of_other_programs_count_only_where_the_runtime_does_not_act_on_them() -> None:
    one = asked(on(IRQs.ON_REQUEST), False, **{CRIO: "disable", "cpu-c-states.crio.io": "max_latency:7"})
    assert one.is_nothing


def test_a_namespace_that_is_not_named_is_not_heard() -> None:
    of = on()
    state, _, _ = running(of, namespace="default", **{IRQ: "any"})
    assert wanted(of, state).quiet == cpus("2-5")


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({IRQ: "quiet", CRIO: "housekeeping"}, (IRQ, CRIO)),
        ({OF_C: "any", f"{CRIO}/c": "disable"}, (OF_C, f"{CRIO}/c")),
        ({IRQ: "loud"}, (IRQ, "quiet, housekeeping, any")),
        ({"nri-pin/irq-claim.pod": "a b"}, ("nri-pin/irq-claim.pod",)),
        ({"nri-pin/wake-latency-us.pod": "-1"}, ("nri-pin/wake-latency-us.pod",)),
        (
            {"nri-pin/wake-latency-us.pod": "5", "cpu-c-states.crio.io": "max_latency:9"},
            ("nri-pin/wake-latency-us.pod", "cpu-c-states.crio.io"),
        ),
    ],
)
def test_a_contradiction_and_a_wrong_word_are_refused_by_name(
    annotations: dict[str, str], words: tuple[str, ...]
) -> None:
    refusal = running(on(), **annotations)[2]
    assert all(word in refusal for word in words), refusal


def test_two_annotations_that_agree_are_no_contradiction() -> None:
    assert asked(on(), **{IRQ: "housekeeping", CRIO: "housekeeping"}).quiet == cpus("4-5")


def test_the_environment_tells_a_container_which_cpus_keep_interrupts() -> None:
    response = running(on(), **{IRQ: "housekeeping"})[1]
    assert response.env == {
        "NRI_PIN_HOUSEKEEPING_CPUS": "2-3",
        "OPENSHIFT_HOUSEKEEPING_CPUS": "2-3",
    }
    assert running(on())[1].env == {}


def test_a_claim_goes_to_the_container_or_to_its_first_core() -> None:
    claim = {"nri-pin/irq-claim.container.c": "eth0-*, 0000:3b:00.0"}
    (one,) = asked(on(), **claim).claims
    assert (one.patterns, one.cpus) == (("eth0-*", "0000:3b:00.0"), cpus("2-5"))
    (one,) = asked(on(), **claim, **{IRQ: "housekeeping"}).claims
    assert one.cpus == cpus("2-3")
    assert Interrupt(1, ("x",), "", cpus("0"), device="0000:3b:00.0").matches(one.patterns)
    assert not Interrupt(1, ("eth1-rx",), "", cpus("0")).matches(one.patterns)


@pytest.mark.parametrize(
    ("patterns", "is_matched"),
    [
        ((), False),
        (("eth1-*", "eth0-?x"), True),
        (("24",), True),
        (("[z-a]", "[", "eth0"), False),
        (("eth[!1]-rx",), True),
        (("ETH0-RX",), False),
        (("*",), True),
    ],
)
def test_one_pattern_that_matches_a_whole_name_is_enough(
    patterns: tuple[str, ...], *, is_matched: bool
) -> None:
    assert Interrupt(24, ("other", "eth0-rx"), "", cpus("0")).matches(patterns) is is_matched


def test_a_claim_of_its_own_devices_is_one_of_their_addresses() -> None:
    of = on()
    state, _, _ = running(of, **{"nri-pin/irq-claim.pod": "devices,eth0"})
    (one,) = wanted(of, state, devices={"p/c": ("0000:3b:00.1",)}).claims
    assert one.patterns == ("eth0", "0000:3b:00.1")
    state, _, _ = running(of, **{"nri-pin/irq-claim.pod": "devices"})
    assert wanted(of, state).claims == ()


def test_the_shortest_latency_that_is_asked_for_counts() -> None:
    of = on()
    assert asked(of, **{"nri-pin/wake-latency-us.pod": "5"}).latency_us == tuple(
        (cpu, 5) for cpu in range(2, 6)
    )
    assert asked(of, **{"cpu-c-states.crio.io": "max_latency:20"}).latency_us[0] == (2, 20)
    assert asked(of, **{"cpu-c-states.crio.io": "disable"}).latency_us == ()


def test_an_allocation_asks_until_it_ends_also_while_its_container_is_stopped() -> None:
    of = on()
    state, _, _ = running(of)
    made = pod("p", cpu=4, namespace="trusted")
    state = decide(of, state, nri.StopContainer(made, container(made, cpu=4))).state
    assert wanted(of, state).quiet == cpus("2-5")
    state = decide(of, state, nri.StopPodSandbox(made)).state
    state = decide(of, state, nri.RemovePodSandbox(made)).state
    assert wanted(of, state).is_nothing


def test_reserved_cpus_take_all_interrupts_where_the_configuration_says_so() -> None:
    one = asked(on(irq_housekeeping=IRQHousekeeping.RESERVED))
    assert one.housekeeping == cpus("0-1")
    assert narrowed_cpus(one, cpus("0-15"), one.quiet) == cpus("0-1")
    assert narrowed_cpus(one, cpus("4-9"), one.quiet) == cpus("6-9")


def test_the_first_core_is_that_of_the_lowest_cpu() -> None:
    topology = machine()
    assert first_core(topology, cpus("2-5")) == cpus("2-3")
    assert first_core(topology, cpus("3,8-9")) == cpus("3")
    assert first_core(topology, CPUSet()) == CPUSet()


def test_foreign_annotations_do_not_crowd_out_ours() -> None:
    many = {f"irq-load-balancing.crio.io/{number}": "disable" for number in range(100)}
    kept, is_cut = bounds.own_annotations({**many, "nri-pin/irqs.pod": "any"})
    assert is_cut
    assert "nri-pin/irqs.pod" in kept


def test_only_exclusive_cpus_and_their_pods_can_change_what_is_asked() -> None:
    of = on()
    empty, asking = State(), running(of)[0]
    shared = replace(pod("s", cpu=0), annotations={IRQ: "quiet"})
    beside = decide(of, asking, nri.CreateContainer(shared, container(shared))).state
    assert may_ask_otherwise(empty, asking)
    assert may_ask_otherwise(asking, empty)
    assert not may_ask_otherwise(asking, beside)
    assert wanted(of, asking) == wanted(of, beside)
    other = beside.with_pod(replace(beside.pods["s"], annotations=((IRQ, "any"),)))
    assert not may_ask_otherwise(beside, other)
    annotated = asking.with_pod(replace(asking.pods["p"], annotations=((IRQ, "any"),)))
    assert may_ask_otherwise(asking, annotated)
    assert wanted(of, asking) != wanted(of, annotated)
