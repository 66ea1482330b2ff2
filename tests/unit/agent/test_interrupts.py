"""The passes over a played kernel: what is written, in which order, and what is left when nobody asks any more."""

import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from nri_plugin.agent.observing.status_socket import quiet_row
from nri_plugin.agent.repair import interrupts_thread
from nri_plugin.agent.repair.interrupts import (
    LONGEST_PAUSE_S,
    PATIENT,
    SWEEP_S,
    QuietCPUs,
    QuietReport,
    give_back,
)
from nri_plugin.agent.repair.interrupts_thread import QuietCPUsThread
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.checkpoint.quiet_file import QuietFile
from nri_plugin.core.engine import decide
from nri_plugin.core.quiet import Claim, QuietWanted
from nri_plugin.host.interrupts import KernelSettingFiles
from nri_plugin.model.errors import CheckpointError, HostError
from nri_plugin.model.options import IRQs, Node
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri import events as nri
from tests.builders import container, node, pod
from tests.builders import machine as topology
from tests.played_interrupts import PlayedKernel, machine
from tests.unit.agent.test_drift_watch import FakeLoop

LOG = logging.getLogger("quiet")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def wish(quiet: str, **more: object) -> QuietWanted:
    every, left = CPUSet.parse("0-3"), CPUSet.parse("0-3") - CPUSet.parse(quiet)
    defaults = {"online": every, "housekeeping": left, "cpus_by_node": ((0, every),)}
    return QuietWanted(quiet=CPUSet.parse(quiet), **(defaults | more))  # type: ignore[arg-type]


NOTHING = wish("")
Make = Callable[[PlayedKernel], QuietCPUs]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(tmp_path: Path, clock: Clock) -> Make:
    return lambda kernel: QuietCPUs(kernel, QuietFile(str(tmp_path), "boot"), LOG, clock)  # type: ignore[arg-type]


def value(kernel: PlayedKernel, number: int) -> str:
    return str(kernel.lines[number].cpus)


def test_interrupts_leave_quiet_cpus_and_come_back(make: Make, tmp_path: Path) -> None:
    kernel = machine()
    before = kernel.snapshot()
    quiet = make(kernel)
    quiet.apply(wish("2-3", no_workqueues=CPUSet.parse("2-3"), latency_us=((2, 20), (3, 0))))
    assert (value(kernel, 24), value(kernel, 25), value(kernel, 28)) == ("0-1", "0-1", "1")
    assert (
        kernel.values["default"]
        == kernel.values["workqueue/"]
        == kernel.values["workqueue/writeback"]
        == "0-1"
    )
    assert (kernel.values["latency/1"], kernel.values["latency/2"], kernel.values["latency/3"]) == (
        "0",
        "20",
        "n/a",
    )
    quiet.apply(NOTHING)
    assert kernel.snapshot() == before
    assert not (tmp_path / "quiet.json").exists()


STEERED, UNSTEERED = "rps/eth0/queues/rx-0", "rps/eth0/queues/rx-1"


def test_received_packets_are_steered_elsewhere_and_then_as_before(make: Make) -> None:
    kernel = machine()
    before = kernel.snapshot()
    quiet = make(kernel)
    quiet.apply(wish("", no_steering=CPUSet.parse("2-3")))
    assert (kernel.values[STEERED], kernel.values[UNSTEERED]) == ("0-1", "")
    quiet.apply(wish("", no_steering=CPUSet.parse("0-3")))
    assert kernel.values[STEERED] == ""  # off: packets stay where the interrupt comes
    kernel.foreign(STEERED, "1-2")
    quiet.apply(wish("", no_steering=CPUSet.parse("2-3")))
    assert kernel.values[STEERED] == "0-1"
    quiet.apply(NOTHING)
    assert kernel.snapshot() == before
    assert {name for name, _ in kernel.writes} == {STEERED}


def test_a_missing_capability_keeps_only_the_steering_from_being_written(make: Make) -> None:
    kernel = machine()
    kernel.refuse[STEERED] = errno.EPERM
    quiet = make(kernel)
    quiet.apply(wish("2-3", no_steering=CPUSet.parse("2-3")))
    assert "NET_ADMIN" in quiet.report.trouble
    assert (kernel.values["default"], value(kernel, 24), kernel.values[STEERED]) == ("0-1", "0-1", "0-3")
    kernel.refuse.clear()
    quiet.look()
    assert (quiet.report.trouble, kernel.values[STEERED]) == ("", "0-1")


def test_a_device_that_is_gone_is_forgotten(make: Make) -> None:
    kernel = machine()
    quiet = make(kernel)
    quiet.apply(wish("", no_steering=CPUSet.parse("2-3")))
    del kernel.values[STEERED]
    quiet.apply(NOTHING)
    assert quiet.is_idle


def test_nothing_asked_is_not_one_read_and_not_one_write(make: Make) -> None:
    kernel = machine()
    quiet = make(kernel)
    quiet.apply(NOTHING)
    quiet.look()
    assert (kernel.reads, kernel.writes) == (0, [])


@pytest.mark.parametrize("name", ["irq/24", "default", "workqueue/", STEERED])
def test_a_foreign_value_right_behind_our_write_is_not_taken_for_ours(make: Make, name: str) -> None:
    kernel = machine()
    quiet = make(kernel)
    kernel.races[name] = "2"
    both = CPUSet.parse("2-3")
    quiet.apply(wish("2-3", no_workqueues=both, no_steering=both))
    quiet.look()
    assert kernel.snapshot()[name] == "0-1"


def test_a_second_pass_writes_nothing(make: Make) -> None:
    kernel = machine()
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    kernel.writes.clear()
    quiet.look()
    assert kernel.writes == []


@pytest.mark.parametrize("shows_mode", [True, False])
def test_managed_interrupts_are_tried_at_most_once_also_by_the_next_agent(
    make: Make, *, shows_mode: bool
) -> None:
    kernel = machine(shows_mode=shows_mode)
    for quiet in (make(kernel) for _ in range(2)):
        for one in ("2-3", "", "1-3", "3"):
            quiet.apply(wish(one))
            quiet.look()
    tried = [name for name, _ in kernel.writes if name in ("irq/0", "irq/26", "irq/27")]
    assert len(tried) == len(set(tried)) == (0 if shows_mode else 3)
    reasons = {one.number: one.reason for one in quiet.report.reaches}
    assert reasons == {0: "kernel-managed", 27: "kernel-managed"}
    quiet.apply(NOTHING)
    assert quiet.is_idle


def test_originals_are_on_disk_before_the_first_write(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = machine()
    seen: list[bool] = []

    def write(kernel: PlayedKernel, name: str, text: str) -> None:
        stored = QuietFile(str(tmp_path), "boot").load().kept[name]
        seen.append(text in stored.written and stored.original == kernel.read(name))

    monkeypatch.setattr(PlayedKernel, "write", write)
    make(kernel).apply(wish("2-3"))
    assert seen
    assert all(seen)


def test_nothing_is_written_while_originals_cannot_be_stored(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = machine()
    quiet = make(kernel)

    def fail(*_: object) -> None:
        raise CheckpointError("quiet.json", "cannot be written: no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(QuietFile, "save", fail)
        quiet.apply(wish("2-3"))
    assert kernel.writes == []
    assert "no space left" in quiet.report.trouble
    quiet.look()
    assert value(kernel, 24) == "0-1"
    assert not quiet.report.trouble


def test_a_killed_agent_leaves_them_quiet_and_the_next_gives_them_back(make: Make) -> None:
    kernel = machine()
    before = kernel.snapshot()
    make(kernel).apply(wish("2-3"))
    successor = make(kernel)
    assert not successor.is_idle
    kernel.writes.clear()
    successor.apply(wish("2-3"))
    assert kernel.writes == []
    successor.apply(NOTHING)
    assert kernel.snapshot() == before


def test_originals_of_another_boot_are_not_written(tmp_path: Path, clock: Clock) -> None:
    kernel = machine()
    QuietCPUs(kernel, QuietFile(str(tmp_path), "boot 1"), LOG, clock).apply(wish("2-3"))  # type: ignore[arg-type]
    after_boot = machine()
    after_boot.foreign("irq/24", "1")
    later = QuietCPUs(after_boot, QuietFile(str(tmp_path), "boot 2"), LOG, clock)  # type: ignore[arg-type]
    later.apply(NOTHING)
    assert after_boot.writes == []
    assert not (tmp_path / "quiet.json").exists()


def test_a_damaged_file_is_kept_aside(make: Make, tmp_path: Path) -> None:
    (tmp_path / "quiet.json").write_text('{"checksum":1,"body":{}}')
    kernel = machine()
    make(kernel).apply(NOTHING)
    assert kernel.writes == []
    assert (tmp_path / "quiet.json.damaged-1").exists()


def test_a_foreign_write_onto_a_quiet_cpu_is_undone_and_counted(make: Make) -> None:
    kernel = machine()
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    kernel.foreign("irq/24", "3")
    quiet.look([24])
    assert value(kernel, 24) == "0-1"
    assert quiet.counts["undone", "irq"] == 1


def test_a_rival_is_named_and_written_over_less_often(
    make: Make, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = machine()
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            kernel.foreign("irq/24", "3")
            quiet.look([24])
            clock.now += 0.01
    assert PATIENT < quiet.counts["undone", "irq"] < PATIENT + 5
    quiet.look()
    assert quiet.report.rivals == ("irq/24",)
    assert [one.reason for one in quiet.report.reaches if one.number == 24] == ["rival"]
    assert sum("again and again" in line.message for line in caplog.records) == 1
    clock.now += 2 * LONGEST_PAUSE_S
    quiet.look()
    clock.now += 2 * LONGEST_PAUSE_S
    quiet.look()
    assert quiet.report.rivals == ()


def test_a_foreign_value_off_the_quiet_cpus_stays_and_is_reported(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = machine()
    before = kernel.snapshot()
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    kernel.foreign("irq/24", "0")
    quiet.look()
    assert quiet.report.changed == 1
    with caplog.at_level(logging.INFO):
        quiet.apply(NOTHING)
    assert kernel.snapshot() == before | {"irq/24": "0"}
    assert any("stay as they are" in line.message for line in caplog.records)


def test_interrupts_thrown_onto_quiet_cpus_by_a_hotplug_are_moved_and_given_back(make: Make) -> None:
    kernel = machine()
    before = kernel.snapshot()
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    kernel.set_online(CPUSet.parse("0,2-3"))  # line 28 is on CPU 1 alone
    assert value(kernel, 28) == "0,2-3"
    quiet.apply(wish("2-3", online=CPUSet.parse("0,2-3"), housekeeping=CPUSet.parse("0")))
    assert value(kernel, 28) == "0"
    kernel.set_online(kernel.present)
    quiet.apply(wish("2-3"))
    assert value(kernel, 28) == "1"
    quiet.apply(NOTHING)
    assert kernel.snapshot() == before


def test_an_original_whose_cpus_are_offline_is_given_back_once_one_is_online(
    make: Make, tmp_path: Path
) -> None:
    kernel = machine()
    kernel.foreign("irq/24", "3")
    kernel.foreign("default", "3")
    before = kernel.snapshot()
    quiet = make(kernel)
    quiet.apply(wish("3"))
    online = CPUSet.parse("0-2")
    kernel.set_online(online)
    quiet.apply(wish("", online=online, housekeeping=online))
    assert (value(kernel, 24), kernel.values["default"]) == ("0-2", "0-2")
    assert {name: quiet.awaits_cpus[name] for name in ("irq/24", "default")} == {
        "irq/24": "3",
        "default": "3",
    }
    assert not quiet.is_idle
    later = make(kernel)  # also an agent that was started since gives them back
    later.apply(wish("", online=online, housekeeping=online))
    assert value(kernel, 24) == "0-2"
    kernel.set_online(kernel.present)
    later.apply(NOTHING)
    assert kernel.snapshot() == before
    assert later.is_idle
    assert not (tmp_path / "quiet.json").exists()


def test_a_value_of_somebody_else_stays_while_an_original_waits_for_its_cpus(make: Make) -> None:
    kernel = machine()
    kernel.foreign("irq/24", "3")
    quiet, online = make(kernel), CPUSet.parse("0-2")
    quiet.apply(wish("3"))
    kernel.set_online(online)
    quiet.apply(wish("", online=online, housekeeping=online))
    kernel.foreign("irq/24", "1")
    kernel.set_online(kernel.present)
    quiet.apply(NOTHING)
    assert value(kernel, 24) == "1"
    assert quiet.is_idle


def test_release_says_which_cpus_an_original_waits_for(make: Make, tmp_path: Path, clock: Clock) -> None:
    kernel, online = machine(), CPUSet.parse("0-2")
    kernel.foreign("irq/24", "3")
    make(kernel).apply(wish("3"))
    kernel.set_online(online)
    _, troubles = give_back(kernel, QuietFile(str(tmp_path), "boot"), online, LOG, clock, tuple)  # type: ignore[arg-type]
    assert troubles == [
        "irq/24 was 3 before, and none of these CPUs is online; bring one online and try again"
    ]


def test_a_new_interrupt_gets_back_what_it_would_have_had_without_us(make: Make) -> None:
    kernel = machine()
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    kernel.add(30, "new")
    kernel.add(31, "hinted", "0-3")
    assert value(kernel, 30) == "0-1"
    quiet.look()
    assert value(kernel, 31) == "0-1"
    quiet.apply(NOTHING)
    assert (value(kernel, 30), value(kernel, 31)) == ("0-3", "0-3")


def test_a_new_interrupt_waits_while_cpus_are_online_that_the_wish_does_not_know(make: Make) -> None:
    kernel = machine()
    quiet = make(kernel)
    kernel.set_online(CPUSet.parse("0-2"))
    stale = wish("2", online=CPUSet.parse("0-2"), housekeeping=CPUSet.parse("0-1"))
    quiet.apply(stale)
    kernel.set_online(CPUSet.parse("0-3"))
    kernel.add(30, "new")
    quiet.look()
    assert 30 not in quiet.watched
    quiet.apply(wish("2"))
    assert (value(kernel, 30), 30 in quiet.watched) == ("0-1,3", True)
    quiet.apply(NOTHING)
    assert value(kernel, 30) == "0-3"


def test_an_interrupt_keeps_its_own_cpus_while_the_default_mask_cannot_be_given_back(
    make: Make, clock: Clock
) -> None:
    kernel = machine()
    kernel.foreign("irq/24", "0-1")
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    kernel.refuse["default"] = errno.ENOSPC
    for _ in range(3):
        quiet.apply(NOTHING)
        clock.now += 100
    kernel.refuse.clear()
    quiet.apply(NOTHING)
    assert (value(kernel, 24), kernel.values["default"]) == ("0-1", "0-3")
    assert quiet.left == ()


def test_a_reused_number_is_another_interrupt(make: Make) -> None:
    kernel = machine()
    kernel.foreign("irq/24", "2")
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    assert value(kernel, 24) == "0-1"
    kernel.add(24, "somebody", "1").chip = "PCI-MSIX other"
    quiet.look()
    quiet.apply(NOTHING)
    assert value(kernel, 24) == "1"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EBUSY, errno.EAGAIN, errno.ENOMEM, errno.EINVAL])
def test_a_refused_write_is_counted_tried_less_often_and_named(make: Make, clock: Clock, number: int) -> None:
    kernel = machine()
    kernel.refuse["irq/24"] = number
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    for _ in range(100):
        clock.now += SWEEP_S
        quiet.look()
    tries = sum(name == "irq/24" for name, _ in kernel.writes)
    assert 3 < tries < 12
    assert quiet.counts["failed", errno.errorcode[number]] == tries
    assert (value(kernel, 25), value(kernel, 28)) == ("0-1", "1")
    assert [one.reason for one in quiet.report.reaches if one.number == 24] == [errno.errorcode[number]]
    kernel.refuse.clear()
    clock.now += 1000
    quiet.look()
    assert value(kernel, 24) == "0-1"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_mount_ends_the_pass_with_a_reason(make: Make, number: int) -> None:
    kernel = machine()
    kernel.refuse["*"] = number
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    assert len(kernel.writes) == 1
    assert errno.errorcode[number] in quiet.report.trouble


def test_a_freed_interrupt_is_no_failure(make: Make) -> None:
    kernel = machine()
    kernel.refuse["irq/24"] = errno.ENOENT
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    assert not any(what == "failed" for what, _ in quiet.counts)


def test_an_interrupt_that_is_still_there_is_given_back_after_a_write_that_did_not_find_it(
    make: Make,
) -> None:
    kernel = machine()
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    kernel.refuse["irq/24"] = errno.ENOENT
    quiet.apply(NOTHING)
    kernel.refuse.clear()
    quiet.look()
    assert value(kernel, 24) == "0-3"


def test_a_missing_mount_is_said_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    kernel = machine()
    kernel.lacks = "/host/proc/irq/default_smp_affinity is not there"
    quiet = make(kernel)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            quiet.apply(wish("2-3"))
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert quiet.report.trouble == kernel.lacks


def test_a_claimed_interrupt_goes_to_its_container_and_only_that(make: Make) -> None:
    kernel = machine()
    before = kernel.snapshot()
    quiet = make(kernel)
    quiet.apply(wish("2-3", claims=(Claim("u/c", ("eth0-*",), CPUSet.parse("2-3")),)))
    assert (value(kernel, 24), value(kernel, 25)) == ("0-1", "2-3")
    kernel.foreign("irq/25", "0")
    quiet.look()
    assert value(kernel, 25) == "2-3"
    quiet.apply(NOTHING)
    assert kernel.snapshot() == before


def test_only_what_the_configuration_names_is_moved(make: Make) -> None:
    kernel = machine()
    make(kernel).apply(wish("2-3", controlled=("eth*", "rng"), left_alone=("rng",)))
    assert (value(kernel, 24), value(kernel, 25), value(kernel, 28)) == ("0-3", "0-1", "1,3")


def test_a_controller_that_keeps_one_cpu_is_not_written_again(make: Make) -> None:
    kernel = machine()
    kernel.lines[24].keeps_one = True
    kernel.foreign("irq/24", "3")
    quiet = make(kernel)
    quiet.apply(wish("2-3"))
    assert value(kernel, 24) == "0"
    kernel.writes.clear()
    quiet.look()
    quiet.look()
    assert kernel.writes == []
    quiet.apply(NOTHING)
    assert value(kernel, 24) == "3"


def test_without_an_online_cpu_of_its_own_it_goes_to_housekeeping_cpus_of_its_node(make: Make) -> None:
    kernel = PlayedKernel.of(8)
    kernel.add(24, "rng", "6", node=1)
    kernel.add(25, "eth", "6-7", node=-1)
    nodes = ((0, CPUSet.parse("0-3")), (1, CPUSet.parse("4-7")))
    one = QuietWanted(
        quiet=CPUSet.parse("6-7"),
        online=CPUSet.parse("0-7"),
        housekeeping=CPUSet.parse("0,4"),
        cpus_by_node=nodes,
    )
    make(kernel).apply(one)
    assert (value(kernel, 24), value(kernel, 25)) == ("4", "0,4")


def test_all_cpus_quiet_leaves_interrupts_where_they_are(make: Make) -> None:
    kernel = machine()
    make(kernel).apply(wish("0-3", housekeeping=NO_CPUS))
    assert not [name for name, _ in kernel.writes]


def test_a_shorter_latency_of_somebody_else_stays(make: Make) -> None:
    kernel = machine()
    quiet = make(kernel)
    quiet.apply(wish("2-3", latency_us=((2, 20),)))
    kernel.foreign("latency/2", "5")
    quiet.look()
    assert kernel.values["latency/2"] == "5"
    kernel.foreign("latency/2", "0")
    quiet.look()
    assert kernel.values["latency/2"] == "20"


class PlayedBalancer:
    """An irqbalance in memory."""

    def __init__(self, path: str, own: str = "0") -> None:
        self.path, self.own = path, CPUSet.parse(own)
        self.now, self.is_deaf, self.is_slow, self.told = self.own, False, False, 0

    def banned(self) -> CPUSet:
        if self.is_deaf:
            raise HostError(self.path, "irqbalance does not answer: timed out")
        return self.now

    def ban(self, cpus: CPUSet) -> None:
        self.told += 1
        if not self.is_slow:
            self.now = cpus or self.own


def test_irqbalance_is_told_again_after_its_restart_and_gets_its_own_ban_back(
    tmp_path: Path, clock: Clock
) -> None:
    one = PlayedBalancer("irqbalance1.sock")
    there = [one]
    quiet = QuietCPUs(machine(), QuietFile(str(tmp_path), "boot"), LOG, clock, lambda: there)  # type: ignore[arg-type,return-value]
    quiet.apply(wish("2-3"))
    assert one.now == CPUSet.parse("0,2-3")
    quiet.apply(wish("3"))
    assert one.now == CPUSet.parse("0,3")
    there[:] = [PlayedBalancer("irqbalance2.sock", "1")]
    quiet.look()
    assert there[0].now == CPUSet.parse("1,3")
    successor = QuietCPUs(machine(), QuietFile(str(tmp_path), "boot"), LOG, clock, lambda: there)  # type: ignore[arg-type,return-value]
    successor.apply(NOTHING)
    assert there[0].now == CPUSet.parse("1")
    assert successor.is_idle


def test_irqbalance_obeys_late_and_is_not_told_at_every_pass(tmp_path: Path, clock: Clock) -> None:
    one = PlayedBalancer("irqbalance1.sock", "")
    one.is_slow = True
    quiet = QuietCPUs(machine(), QuietFile(str(tmp_path), "boot"), LOG, clock, lambda: [one])  # type: ignore[arg-type,list-item]
    quiet.apply(wish("2-3"))
    for _ in range(5):
        clock.now += SWEEP_S
        quiet.look()
    assert one.told == 1
    clock.now += 100
    quiet.look()
    assert one.told == 2
    one.now = CPUSet.parse("2-3")
    quiet.apply(NOTHING)
    assert one.told == 3


def test_an_irqbalance_that_does_not_answer_is_said_once(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    one = PlayedBalancer("irqbalance1.sock")
    one.is_deaf = True
    quiet = QuietCPUs(machine(), QuietFile(str(tmp_path), "boot"), LOG, clock, lambda: [one])  # type: ignore[arg-type,list-item]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            quiet.apply(wish("2-3"))
    assert len(caplog.records) == 1
    assert "IRQBALANCE_BANNED_CPULIST" in str(caplog.records[0].__dict__)


def test_release_gives_back_without_an_agent(make: Make, tmp_path: Path, clock: Clock) -> None:
    kernel = machine()
    before = kernel.snapshot()
    store = QuietFile(str(tmp_path), "boot")
    arguments = (kernel, store, CPUSet.parse("0-3"), LOG, clock, tuple)
    assert give_back(*arguments) == (0, [])  # type: ignore[arg-type]
    make(kernel).apply(wish("2-3"))
    kernel.refuse["irq/24"] = errno.EBUSY
    assert give_back(*arguments)[1] == ["irq/24 was not given back"]  # type: ignore[arg-type]
    kernel.refuse.clear()
    assert give_back(*arguments) == (1, [])  # type: ignore[arg-type]
    assert kernel.snapshot() == before


class Tree:
    """The real files of a machine in a directory, and their watch."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for number in (24, 25):
            for name, text in (
                ("smp_affinity_list", "0-3"),
                ("effective_affinity_list", "0"),
                ("node", "-1"),
            ):
                self.put(f"proc/irq/{number}/{name}", text)
            for name, text in (("actions", f"dev{number}"), ("chip_name", "chip"), ("hwirq", str(number))):
                self.put(f"sys/kernel/irq/{number}/{name}", text)
        self.put("proc/irq/default_smp_affinity", "f")
        self.put("sys/bus/pci/devices/0000:3b:00.0/msi_irqs/25", "msix")
        self.written = threading.Semaphore(0)

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def files(self) -> KernelSettingFiles:
        def write(path: str, text: str) -> None:
            Path(path).write_text(text)
            self.written.release()

        return KernelSettingFiles(str(self.root), write)

    def await_writes(self, count: int) -> None:
        for _ in range(count):
            assert self.written.acquire(timeout=60)

    def value(self, number: int) -> str:
        return (self.root / f"proc/irq/{number}/smp_affinity_list").read_text()


class Place:
    """A handler as far as it is looked at."""

    def __init__(self, node: Node, state: State) -> None:
        self.node, self.state = node, state


def outcome_of(place: Place, event: object, before: State) -> RequestOutcome:
    decision = SimpleNamespace(state=place.state)
    return cast("RequestOutcome", SimpleNamespace(event=event, decision=decision, before=before))


def test_the_thread_follows_events_and_foreign_writes_and_starts_for_the_first_asker(tmp_path: Path) -> None:
    tree, loop = Tree(tmp_path / "machine"), FakeLoop(Clock())
    place = Place(
        node(
            topology(1, 4, 1), reserved="0", irqs=IRQs.EXCLUSIVE, annotation_namespaces=frozenset({"default"})
        ),
        State(),
    )
    (tmp_path / "state").mkdir()
    store = QuietFile(str(tmp_path / "state"), "boot")
    quiet = QuietCPUsThread(
        cast("Handler", place),
        cast("Loop", loop),
        lambda clock: QuietCPUs(tree.files(), store, LOG, clock),
        store,
        tree.files(),
        LOG,
    )
    threads = threading.active_count()
    quiet(outcome_of(place, nri.Synchronize((), ()), place.state))
    loop.advance(1.0)
    assert threading.active_count() == threads
    assert quiet.report.quiet == NO_CPUS
    of, before = replace(pod("p", cpu=2), annotations={"nri-pin/irq-claim.pod": "devices"}), place.state
    with_device = replace(container(of, cpu=2), env=("PCIDEVICE_X=0000:3B:00.0",))
    event = nri.CreateContainer(of, with_device)
    place.state = decide(place.node, before, event).state
    quiet(outcome_of(place, event, before))
    loop.advance(1.0)
    tree.await_writes(3)
    assert (tree.value(24), tree.value(25)) == ("0,3", "1-2")
    # A container that is created anew may have another device, with the same CPUs.
    before = place.state
    other = replace(with_device, id="again", env=("PCIDEVICE_X=0000:ff:00.0",))
    event = nri.CreateContainer(of, other)
    place.state = decide(place.node, before, event).state
    quiet(outcome_of(place, event, before))
    loop.advance(1.0)
    tree.await_writes(1)
    assert tree.value(25) == "0,3"
    # Another writer is noticed at once. The watch is set at the end of a pass; a second write finds it in any case.
    while not tree.written.acquire(timeout=0.2):
        (tmp_path / "machine/proc/irq/24/smp_affinity_list").write_text("1")
    assert tree.value(24) == "0,3"
    before, place.state = place.state, State()
    quiet(outcome_of(place, object(), before))
    loop.advance(1.0)
    tree.await_writes(3)
    quiet.close()
    assert (tree.value(24), tree.value(25)) == ("0-3", "0-3")


def test_a_write_that_waits_in_the_kernel_delays_neither_answers_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts_thread, "ENDS_S", 0.01)
    tree, loop = Tree(tmp_path / "machine"), FakeLoop(Clock())
    waits, goes_on = threading.Event(), threading.Event()

    def write(_path: str, _text: str) -> None:
        waits.set()
        goes_on.wait()

    files = KernelSettingFiles(str(tree.root), write)
    place = Place(node(topology(1, 4, 1), reserved="0", irqs=IRQs.EXCLUSIVE), State())
    store = QuietFile(str(tmp_path), "boot")
    quiet = QuietCPUsThread(
        cast("Handler", place),
        cast("Loop", loop),
        lambda clock: QuietCPUs(files, store, LOG, clock),
        store,
        files,
        LOG,
    )
    quiet(outcome_of(place, nri.Synchronize((), ()), place.state))
    for name in ("p", "q"):
        of, before = pod(name, cpu=1), place.state
        event = nri.CreateContainer(of, container(of, cpu=1))
        place.state = decide(place.node, before, event).state
        quiet(outcome_of(place, event, before))
        loop.advance(1.0)
        assert waits.wait(60)
    assert len(quiet.askers) == 2
    (thread,) = (one for one in threading.enumerate() if one.name == "quiet CPUs")
    try:
        quiet.close()
        assert thread.is_alive()
    finally:
        goes_on.set()
        thread.join(60)


def test_nothing_is_given_back_before_the_runtime_has_told_what_runs(make: Make, tmp_path: Path) -> None:
    kernel, loop = machine(), FakeLoop(Clock())
    make(kernel).apply(wish("2-3"))
    place, store = Place(node(), State()), QuietFile(str(tmp_path), "boot")
    quiet = QuietCPUsThread(
        cast("Handler", place),
        cast("Loop", loop),
        lambda _: make(kernel),
        store,
        cast("KernelSettingFiles", kernel),
        LOG,
    )
    quiet.start()
    loop.advance(60.0)
    assert store.exists
    assert quiet.askers == ()


def test_the_report_becomes_a_row_of_the_status_and_stays_the_same_object(make: Make) -> None:
    quiet = make(machine())
    quiet.apply(wish("2-3"))
    first = quiet.report
    quiet.look()
    assert quiet.report is first
    row = quiet_row(first)
    assert row is not None
    assert (row.cpus, row.reaching) == ("2-3", 2)
    # Without remapping an interrupt moves with its next occurrence; where it comes to until then is said.
    assert [(one.number, one.reason) for one in row.reaches] == [
        (0, "kernel-managed"),
        (27, "kernel-managed"),
    ]
    assert quiet_row(QuietReport()) is None
