"""The annotations of nri-plugins about interrupts, and contradictions with ours and CRI-O's."""

import pytest
from msgspec.structs import replace

from nri_plugin.core.annotations import NRI_IRQS, irq_claim
from nri_plugin.core.quiet import Interrupt, claim_of, left_by, settle_interrupt
from nri_plugin.model import bounds
from nri_plugin.model.options import IRQs
from nri_plugin.model.sets import NO_CPUS
from tests.builders import cpus
from tests.unit.core.test_quiet import CRIO, IRQ, asked, on, running

POD, OF_C, OF_D = f"{NRI_IRQS}/pod", f"{NRI_IRQS}/container.c", f"{NRI_IRQS}/container.d"
CLAIM = "nri-pin/irq-claim.pod"
SERIAL = Interrupt(4, ("ttyS0",), "", cpus("0-15"))
CLOCK = Interrupt(8, ("rtc0",), "", cpus("0-15"))


@pytest.mark.parametrize(
    ("annotations", "quiet"),
    [
        ({POD: 'mask: ["*"]'}, "2-5"),
        ({POD: "mask:\n- '*'"}, "2-5"),
        ({POD: 'mask: ["tty*"]'}, ""),
        ({POD: 'claim: ["*"]'}, ""),
        ({POD: 'claim: ["*"]', OF_C: 'mask: [ "*" ]'}, "2-5"),
        ({OF_D: 'mask: ["*"]'}, ""),
        ({IRQ: "quiet", POD: 'mask: ["tty*"]'}, "2-5"),
        ({IRQ: "housekeeping", POD: 'claim: ["tty*"]'}, "4-5"),
        ({CRIO: "disable", POD: 'mask: ["*"]'}, "2-5"),
    ],
)
def test_a_mask_of_everything_asks_for_quiet_cpus(annotations: dict[str, str], quiet: str) -> None:
    assert asked(on(IRQs.ON_REQUEST), **annotations).quiet == cpus(quiet)


def test_they_count_also_where_the_runtime_acts_on_its_own_annotations() -> None:
    assert asked(on(IRQs.ON_REQUEST), False, **{POD: 'mask: ["*"]', CRIO: "disable"}).quiet == cpus("2-5")


def test_a_mask_of_some_interrupts_is_for_these_only() -> None:
    wish = asked(on(IRQs.ON_REQUEST), **{POD: 'mask: ["tty*", 9]'})
    assert not wish.is_nothing
    assert (left_by(wish, SERIAL), left_by(wish, CLOCK)) == (cpus("2-5"), NO_CPUS)
    assert left_by(wish, Interrupt(9, ("acpi",), "", cpus("0"))) == cpus("2-5")
    assert settle_interrupt(wish, None, SERIAL, None).write == "0-1,6-15"
    assert settle_interrupt(wish, None, CLOCK, None).write is None


def test_a_claim_brings_interrupts_to_the_container() -> None:
    wish = asked(on(IRQs.ON_REQUEST), **{POD: "\nclaim:\n  - rtc0\n"})
    assert (claim_of(wish, CLOCK), claim_of(wish, SERIAL)) == (cpus("2-5"), NO_CPUS)
    assert asked(on(IRQs.ON_REQUEST), **{CLAIM: "rtc0", POD: 'claim: ["rtc0"]'}).claims == wish.claims


@pytest.mark.parametrize(("mode", "claimed"), [("", "2-5"), ("mask-first", "2-5"), ("claim-first", "")])
def test_a_claim_beats_a_mask_unless_claims_are_first(mode: str, claimed: str) -> None:
    text = f'claim: [rtc0]\nmask: ["*"]{mode and chr(10)}{mode and "mode: "}{mode}'
    assert claim_of(asked(on(IRQs.ON_REQUEST), **{POD: text}), CLOCK) == cpus(claimed)


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({IRQ: "any", POD: 'mask: ["tty*"]'}, (IRQ, POD)),
        ({IRQ: "any", POD: 'mask: ["*"]'}, (IRQ, POD)),
        ({IRQ: "housekeeping", POD: 'mask: ["*"]'}, (IRQ, POD)),
        ({CRIO: "housekeeping", OF_C: 'mask: ["*"]'}, (CRIO, OF_C)),
        ({CLAIM: "eth0-*", POD: 'claim: ["eth1-*"]'}, (CLAIM, POD)),
        ({POD: "mask: ['a b']"}, (POD, "expected lines")),
        ({POD: "masks: ['*']"}, (POD, "expected lines")),
        ({POD: "- '*'"}, (POD, "expected lines")),
        ({POD: "mode: mask-first"}, (POD, "expected lines")),
        ({POD: "mask: ['*']\nmode: first"}, (POD, "expected lines")),
        ({POD: "mask: ['*']\nmode:"}, (POD, "expected lines")),
        ({POD: f"mask: [{'a' * 99}]"}, (POD, "less than 64 characters")),
        ({CLAIM: ",".join(["eth0-*"] * 99)}, (CLAIM, "less than 64 characters")),
    ],
)
def test_a_contradiction_and_what_cannot_be_read_are_refused_by_name(
    annotations: dict[str, str], words: tuple[str, ...]
) -> None:
    cut = {key: value[: bounds.ANNOTATION_VALUE_CHARS] for key, value in annotations.items()}
    refusal = running(on(), **cut)[2]
    assert all(word in refusal for word in words), refusal


def test_what_cannot_be_read_asks_for_nothing_where_it_is_not_refused() -> None:
    wish = asked(on(IRQs.ON_REQUEST), **{OF_D: "what"})
    assert wish.is_nothing
    of = on(IRQs.ON_REQUEST)
    pod = replace(running(of)[0].pods["p"], annotations=((POD, "what"),))
    assert irq_claim(of.options, pod, "c") == ()


def test_the_agent_keeps_them() -> None:
    assert f"{NRI_IRQS}/pod".startswith(bounds.HEARD_ANNOTATIONS)
