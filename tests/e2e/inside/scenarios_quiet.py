"""Quiet CPUs on a real kernel: where interrupts come is read from the kernel, never from the agent."""

import urllib.request
from dataclasses import replace
from pathlib import Path

from . import interrupts
from .node import Node
from .pods import guaranteed
from .waiting import wait_for

QUIET_FILE = Path("/run/nri-pin/quiet.json")
_SOON_S = 120
"""Emulated CPUs are slow; the agent itself needs less than five seconds."""

_RNG_ID = "0x0004"
"""Source: virtio specification, device types."""


def _quiet(node: Node) -> set[int]:
    """The CPUs of the exclusive containers, as the kernel has them."""
    found: set[int] = set()
    for name, identity in node.running().items():
        if name.startswith("loud"):
            continue
        found |= node.observe(identity).allowed_cpus
    return found


def _rng() -> str:
    """The virtio device that generates random numbers, as `virtio1`."""
    files = Path("/sys/bus/virtio/devices").glob("*/device")
    return next(file.parent.name for file in files if file.read_text().strip() == _RNG_ID)


def _rng_line() -> interrupts.Line:
    return interrupts.named(f"{_rng()}-input")


def _nothing_reaches(cpus: set[int]) -> list[str]:
    """Movable interrupts that may come to these CPUs."""
    return [f"{one.number} {one.actions}" for one in interrupts.lines() if one.is_movable and one.cpus & cpus]


def nobody_asks_and_nothing_is_written(node: Node) -> None:
    """The configuration has irqs on, and no container asks."""
    node.figure(
        "interrupts",
        [f"{one.number} {one.actions} {sorted(one.cpus)} {one.is_movable}" for one in interrupts.lines()],
    )
    node.expect("there is no file of originals", not QUIET_FILE.exists())


def interrupts_leave_exclusive_cpus_and_come_back(node: Node) -> None:
    """Lines 1, 2 and 7 of the acceptance: smp_affinity_list, counters, byte for byte."""
    before = interrupts.settings()
    pod = node.run(guaranteed("db", 2))
    cpus = _quiet(node)
    node.figure("quiet CPUs", sorted(cpus))
    wait_for(lambda: not _nothing_reaches(cpus), _SOON_S, "movable interrupts leave the quiet CPUs")
    node.expect("the mask for later interrupts names none of them", not _mask(interrupts.DEFAULT_MASK) & cpus)
    for file in interrupts.WORKQUEUES:
        node.expect(f"{file.parent.name}/{file.name} names none of them", not _mask(file) & cpus)
    interrupts.draw_random(20)  # a line without remapping moves at its next interrupt
    first = interrupts.movable_counts(cpus)
    quiet_before = interrupts.counts(_rng_line().number)
    interrupts.draw_random(2000)
    interrupts.read_disk("nvme0n1", 0)
    after = interrupts.movable_counts(cpus)
    moved = {name: count - first.get(name, 0) for name, count in after.items() if count != first.get(name, 0)}
    node.equal("2,000 random reads later no movable interrupt has come to a quiet CPU", moved, {})
    total = sum(interrupts.counts(_rng_line().number)) - sum(quiet_before)
    node.expect("the generator has interrupted other CPUs", total > 1000, total)
    node.figure("interrupts of the generator by CPU", interrupts.counts(_rng_line().number))
    node.remove(pod)
    wait_for(lambda: interrupts.settings() == before, _SOON_S, "every setting is byte for byte as before")
    node.expect("the file of originals is gone", not QUIET_FILE.exists())


def _mask(file: Path) -> set[int]:
    mask = int(file.read_text().strip().replace(",", ""), 16)
    return {cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1}


def a_foreign_write_is_undone(node: Node) -> None:
    """Line 10: another writer puts an interrupt onto a quiet CPU."""
    pod = node.run(guaranteed("db", 2))
    cpus = _quiet(node)
    wait_for(lambda: not _nothing_reaches(cpus), _SOON_S, "movable interrupts leave the quiet CPUs")
    rng = _rng_line().number
    interrupts.write(interrupts.IRQS / str(rng) / "smp_affinity_list", str(min(cpus)))
    wait_for(lambda: not _nothing_reaches(cpus), _SOON_S, "the interrupt leaves the quiet CPU again")
    node.remove(pod)


def a_cpu_that_goes_offline_throws_its_interrupts_nowhere_quiet(node: Node) -> None:
    """Line 6: the kernel gives an interrupt without a CPU all online ones."""
    before = interrupts.settings()
    pod = node.run(guaranteed("db", 2))
    cpus = _quiet(node)
    wait_for(lambda: not _nothing_reaches(cpus), _SOON_S, "movable interrupts leave the quiet CPUs")
    rng = _rng_line().number
    victim = max({0, 1, 2, 3} - cpus)
    interrupts.write(interrupts.IRQS / str(rng) / "smp_affinity_list", str(victim))
    interrupts.draw_random(20)
    interrupts.write(Path(f"/sys/devices/system/cpu/cpu{victim}/online"), "0")
    thrown = _nothing_reaches(cpus)
    node.expect("the kernel has thrown interrupts onto quiet CPUs", bool(thrown), thrown)
    wait_for(lambda: not _nothing_reaches(cpus), _SOON_S, "they leave the quiet CPUs")
    interrupts.write(Path(f"/sys/devices/system/cpu/cpu{victim}/online"), "1")
    wait_for(lambda: not _nothing_reaches(cpus), _SOON_S, "none comes with the CPU")
    node.remove(pod)
    changed = {name for name, text in interrupts.settings().items() if before.get(name) != text}
    node.figure("settings that differ after a foreign write", sorted(changed))
    node.agent.excuse([line for line in node.agent.complaints() if "the machine changed" in line])


def a_device_that_is_added_again_stays_away(node: Node) -> None:
    """Line 5: its interrupts may have the same numbers."""
    pod = node.run(guaranteed("db", 2))
    cpus = _quiet(node)
    wait_for(lambda: not _nothing_reaches(cpus), _SOON_S, "movable interrupts leave the quiet CPUs")
    device = Path("/sys/bus/virtio/devices", _rng()).resolve().parent
    number = _rng_line().number
    interrupts.write(device / "remove", "1")
    interrupts.write(Path("/sys/bus/pci/rescan"), "1")
    wait_for(
        lambda: any("-input" in one.actions for one in interrupts.lines()),
        _SOON_S,
        "the device is there again",
    )
    node.figure("number before and after", (number, _rng_line().number))
    wait_for(lambda: not _nothing_reaches(cpus), _SOON_S, "its interrupts leave the quiet CPUs")
    node.remove(pod)


def a_container_keeps_interrupts_on_its_first_core(node: Node) -> None:
    """Lines 12, 13 and 17: housekeeping, a claim, and who is obeyed."""
    rng = _rng_line().number
    spec = replace(
        guaranteed("db", 2),
        namespace="trusted",
        annotations={"nri-pin/irqs.pod": "housekeeping", "nri-pin/irq-claim.pod": f"{_rng()}-*"},
    )
    pod = node.run(spec)
    first, *rest = sorted(_quiet(node))
    wait_for(
        lambda: not _nothing_reaches(set(rest)), _SOON_S, "interrupts leave the CPUs behind the first core"
    )
    environ = Path(f"/proc/{node.pid(pod.id)}/environ").read_bytes().decode().split("\0")
    node.expect(
        "the environment says which CPU keeps them",
        f"OPENSHIFT_HOUSEKEEPING_CPUS={first}" in environ,
        environ,
    )
    node.equal(
        "the claimed interrupt is on the first core",
        interrupts.lines_by_number()[rng].cpus,
        frozenset({first}),
    )
    before = interrupts.counts(rng)[first]
    interrupts.draw_random(200)
    node.expect("it comes there", interrupts.counts(rng)[first] - before >= 190, interrupts.counts(rng))
    node.remove(pod)


def annotations_are_obeyed_in_named_namespaces_only(node: Node) -> None:
    """Line 17."""
    pod = node.run(replace(guaranteed("db", 2), annotations={"nri-pin/irqs.pod": "any"}))
    cpus = _quiet(node)
    wait_for(lambda: not _nothing_reaches(cpus), _SOON_S, "interrupts leave its CPUs although it says any")
    node.remove(pod)
    both = {"nri-pin/irqs.pod": "quiet", "irq-load-balancing.crio.io": "housekeeping"}
    said = node.refusal_of(replace(guaranteed("db", 2), namespace="trusted", annotations=both))
    node.expect("a contradiction is refused with both names", all(name in said for name in both), said)
    node.agent.excuse([line for line in node.agent.complaints() if "contradicts" in line])


def interrupts_that_only_the_kernel_moves_are_counted(node: Node) -> None:
    """Line 3: those of the disk's queues."""
    pod = node.run(guaranteed("db", 2))
    cpus = _quiet(node)
    wait_for(lambda: not _nothing_reaches(cpus), _SOON_S, "movable interrupts leave the quiet CPUs")
    with urllib.request.urlopen("http://127.0.0.1:9900/metrics", timeout=60) as answer:
        shown = [line for line in answer.read().decode().splitlines() if line.startswith("nri_pin_quiet")]
    node.figure("metrics", shown)
    # Quiet lines that have not fired since may still come once to their old CPU, and count, too.
    lines = interrupts.lines()
    fixed = [one for one in lines if not one.is_movable and one.cpus & cpus]
    waiting = [one for one in lines if one.is_movable and one.effective & cpus]
    wanted = f"nri_pin_quiet_reaching_interrupts {len(fixed) + len(waiting)}.0"
    node.expect("metrics count them", wanted in shown, (wanted, shown))
    node.remove(pod)


def release_gives_interrupts_back(node: Node) -> None:
    """Line 11 and 7, without an agent."""
    before = interrupts.settings()
    pod = node.run(guaranteed("db", 2))
    cpus = _quiet(node)
    wait_for(lambda: not _nothing_reaches(cpus), _SOON_S, "movable interrupts leave the quiet CPUs")
    node.agent.stop()
    node.equal("an agent that stops changes nothing", _nothing_reaches(cpus), [])
    status, said = node.agent.release()
    node.equal("release succeeds", status, 0)
    node.figure("it says", said)
    node.equal("every setting is byte for byte as before", interrupts.settings(), before)
    node.remove(pod)
    node.agent.start()


def killing_the_agent_keeps_them_quiet(node: Node) -> None:
    """Line 8: SIGKILL, then the same again."""
    before = interrupts.settings()
    pod = node.run(guaranteed("db", 2))
    cpus = _quiet(node)
    wait_for(lambda: not _nothing_reaches(cpus), _SOON_S, "movable interrupts leave the quiet CPUs")
    node.agent.kill()
    node.equal("nothing has come back", _nothing_reaches(cpus), [])
    node.agent.start()
    node.equal("nothing has come back with the next agent", _nothing_reaches(cpus), [])
    node.agent.kill()
    node.remove(pod)
    node.agent.start()
    wait_for(lambda: interrupts.settings() == before, _SOON_S, "every setting is byte for byte as before")
