"""What is decided for one setting of the kernel: its original, its value, and what somebody else made of it."""

from dataclasses import replace

import pytest

from nri_plugin.core.quiet import (
    Asker,
    Claim,
    Interrupt,
    KeptSetting,
    QuietWanted,
    SettledSetting,
    latency_text,
    narrowed_cpus,
    settle,
    settle_interrupt,
    settle_latency,
    settle_steering,
)
from nri_plugin.model.options import IRQWish
from nri_plugin.model.sets import CPUSet
from tests.builders import cpus

WISH = QuietWanted(
    quiet=cpus("2-3"),
    online=cpus("0-7"),
    housekeeping=cpus("0,4"),
    cpus_by_node=((0, cpus("0-3")), (1, cpus("4-7"))),
)
KEPT = KeptSetting("irq/24", "0-7", chip="MSI 1", actions=("eth0",))


def line(own: str, **more: object) -> Interrupt:
    return Interrupt(24, ("eth0",), "MSI 1", cpus(own), **more)  # type: ignore[arg-type]


def settled(
    found: Interrupt,
    kept: KeptSetting | None = KEPT,
    default: KeptSetting | None = None,
    wish: QuietWanted = WISH,
) -> SettledSetting:
    return settle_interrupt(wish, kept, found, default)


def test_it_keeps_its_other_cpus() -> None:
    done = settled(line("0-7"))
    assert (done.write, done.kept.written, done.undone) == ("0-1,4-7", ("0-1,4-7",), "")
    assert settled(line("0-7"), None).kept.original == "0-7"


@pytest.mark.parametrize(
    ("own", "node", "result"),
    [("2", 0, "0"), ("2", 1, "4"), ("2", -1, "0,4"), ("2", 9, "0,4"), ("5", 0, "5"), ("8", 0, "0-1,4-7")],
)
def test_without_a_cpu_it_goes_to_housekeeping_cpus(own: str, node: int, result: str) -> None:
    assert narrowed_cpus(WISH, cpus(own), WISH.quiet, node) == cpus(result)


def test_without_housekeeping_cpus_it_goes_anywhere_and_without_any_it_stays() -> None:
    none = replace(WISH, housekeeping=CPUSet())
    assert narrowed_cpus(none, cpus("2"), none.quiet) == cpus("0-1,4-7")
    all_quiet = replace(WISH, quiet=cpus("0-7"), housekeeping=CPUSet())
    assert settled(line("0-7"), wish=all_quiet).write is None


def test_a_value_of_ours_is_right_until_something_else_is_wanted() -> None:
    ours = replace(KEPT, written=("0-1,4-7",))
    assert settled(line("0-1,4-7"), ours) == SettledSetting(ours)
    more = settled(line("0-1,4-7"), ours, wish=replace(WISH, quiet=cpus("1-3")))
    # After a crash before the write the former value is known as ours, too.
    assert (more.write, more.kept.written) == ("0,4-7", ("0-1,4-7", "0,4-7"))
    back = settled(line("0-1,4-7"), ours, wish=replace(WISH, quiet=CPUSet()))
    assert back.write == "0-7"
    assert (
        settled(
            line("0-7"), replace(ours, written=("0-1,4-7", "0-7")), wish=replace(WISH, quiet=CPUSet())
        ).kept.written
        == ()
    )


def test_a_value_of_somebody_else_is_kept_off_the_quiet_cpus_and_undone_on_them() -> None:
    ours = replace(KEPT, written=("0-1,4-7",))
    kept = settled(line("5"), ours)
    assert (kept.write, kept.kept.original, kept.kept.is_changed) == (None, "5", True)
    undone = settled(line("2"), ours)
    assert (undone.write, undone.undone, undone.kept.original) == ("0-1,4-7", "2", "0-7")


def test_a_controller_that_shows_less_than_was_written_is_right() -> None:
    shown = replace(KEPT, written=("0-1,4-7",), shown="0")
    assert settled(line("0"), shown) == SettledSetting(shown)
    assert settled(line("0"), shown, wish=replace(WISH, quiet=cpus("3"))).write == "0-2,4-7"


def test_what_the_kernel_refuses_is_not_written_again() -> None:
    refused = replace(KEPT, refused="EIO")
    assert settled(line("0-7"), refused) == SettledSetting(refused)


def test_a_claim_wins_and_interrupts_that_are_left_alone_get_their_own_value() -> None:
    claim = Claim("u/c", ("eth*",), cpus("2-3"))
    assert settled(line("0-7"), wish=replace(WISH, claims=(claim,))).write == "2-3"
    ours = replace(KEPT, written=("0-1,4-7",))
    assert settled(line("0-1,4-7"), ours, wish=replace(WISH, left_alone=("eth0",))).write == "0-7"
    assert settled(line("0-7"), wish=replace(WISH, controlled=("sda",))).write is None
    assert settled(line("0-7"), wish=replace(WISH, controlled=("0000:*",))).write is None
    assert settled(line("0-7", device="0000:3b:00.0"), wish=replace(WISH, controlled=("0000:*",))).write


@pytest.mark.parametrize(
    ("found", "node", "original"),
    [("0-1,4-7", -1, "0-7"), ("0-1", 0, "0-3"), ("4-7", 1, "4-7"), ("5", -1, "5"), ("0-7", -1, "0-7")],
)
def test_a_new_interrupt_is_given_back_what_it_would_have_got_without_us(
    found: str, node: int, original: str
) -> None:
    default = KeptSetting("default", "0-7", ("0-1,4-7",))
    done = settled(line(found, node=node), None, default)
    assert done.kept.original == original
    assert done.kept.is_ours(found) == (found != original)


def test_a_default_mask_of_cpus_that_are_offline_counts_for_nothing() -> None:
    default = KeptSetting("default", "9", ("8",))
    assert settled(line("0-1"), None, default).kept.original == "0-1"


def test_another_interrupt_under_its_number_has_an_original_of_its_own() -> None:
    known = replace(KEPT, written=("0-1",))
    assert known.is_of(line("0-1"))
    assert known.is_of(replace(line("5"), actions=("eth0", "usb")))
    assert not known.is_of(replace(line("5"), chip="MSI 2"))
    assert not known.is_of(replace(line("5"), actions=("usb",)))
    assert known.is_of(
        replace(line("0-1"), actions=("usb",))
    )  # a line that was requested again keeps our value
    assert settled(replace(line("5"), chip="MSI 2"), known).kept.original == "5"


def test_latencies_are_words_of_the_kernel() -> None:
    assert (latency_text(0), latency_text(20)) == ("n/a", "20")
    kept = KeptSetting("latency/2", "0")
    asked = settle_latency(kept, "0", 20)
    assert asked.write == "20"
    assert settle_latency(asked.kept, "20", 20).write is None
    assert settle_latency(asked.kept, "20", None).write == "0"
    shorter = settle_latency(asked.kept, "5", 20)
    assert (shorter.write, shorter.kept.original) == (None, "5")
    assert settle_latency(asked.kept, "n/a", 20).kept.original == "n/a"
    assert settle_latency(asked.kept, "100", 20).write == "20"
    assert settle_latency(kept, "7", None).kept.original == "7"


def test_packets_are_steered_to_the_other_cpus_of_the_original_or_nowhere() -> None:
    wish, kept = replace(WISH, no_steering=cpus("2-3")), KeptSetting("steering/eth0/rx-0", "0-3")
    first = settle_steering(wish, kept, cpus("0-3"))
    assert first.write == "0-1"
    assert settle_steering(wish, first.kept, cpus("0-1")).write is None
    undone = settle_steering(wish, first.kept, cpus("1-2"))
    assert (undone.write, undone.undone) == ("0-1", "1-2")
    taken = settle_steering(wish, first.kept, cpus("1"))
    assert (taken.write, taken.kept.original) == (None, "1")
    assert settle_steering(wish, KeptSetting("steering/eth0/rx-0", "2"), cpus("2")).write == ""
    assert settle_steering(WISH, first.kept, cpus("0-1")).write == "0-3"


def test_a_value_that_is_right_already_is_confirmed() -> None:
    assert settle(replace(KEPT, written=("1", "2")), "2", "2", undo=True).kept.written == ("2",)
    assert QuietWanted().is_nothing
    assert not WISH.is_nothing


def test_a_container_that_wants_any_interrupt_has_no_quiet_cpus() -> None:
    assert Asker("k", IRQWish.ANY, cpus("2")).quiet == CPUSet()
    assert Asker("k", IRQWish.HOUSEKEEPING, cpus("2-3"), cpus("2")).quiet == cpus("3")
