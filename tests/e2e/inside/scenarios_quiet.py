"""Quiet CPUs on a real kernel: where interrupts come is read from the kernel, never from the agent."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from . import interrupts
from .node import Node
from .observe import parse_list
from .pods import guaranteed
from .quiet_facts import (
    QUIET_FILE,
    SOON_S,
    mask,
    metrics,
    nothing_reaches,
    quiet_cpus,
    rng,
    rng_line,
    settings_watch,
    timed,
    wait_until_quiet,
)
from .waiting import wait_for
from .write_watch import WriteWatch


def nobody_asks_and_nothing_is_written(node: Node) -> None:
    """The configuration has irqs on, and no container asks."""
    node.figure(
        "interrupts",
        [f"{one.number} {one.actions} {sorted(one.cpus)} {one.is_movable}" for one in interrupts.lines()],
    )
    node.expect("there is no file of originals", not QUIET_FILE.exists())


def nothing_asked_is_not_one_write(node: Node) -> None:
    """With `irqs: none` no setting is written, whatever comes and goes."""
    own = {name: node.agent.config[name] for name in ("irqs", "workqueues")}
    node.agent.stop()
    with closing(settings_watch()) as watch:
        node.agent.config |= dict.fromkeys(own, "none")
        node.agent.start()
        node.remove(node.run(guaranteed("db", 2)))
        node.agent.stop()
        node.equal("not one setting of the kernel is written", watch.writes(), [])
        node.agent.config |= own
        node.agent.start()
        pod = node.run(guaranteed("db", 2))
        wait_until_quiet(quiet_cpus(node))
        heard = set(watch.writes())
        node.figure("settings that are written where irqs is exclusive", len(heard))
        masks = {str(file) for file in (interrupts.DEFAULT_MASK, *interrupts.WORKQUEUES)}
        node.expect("the watch hears of writes", masks <= heard, sorted(heard))
    node.remove(pod)


def interrupts_leave_exclusive_cpus_and_come_back(node: Node) -> None:
    """Values and counters while a container runs, and every setting byte for byte as before after the last one."""
    interrupts.network()
    before = interrupts.settings()
    pod = node.run(guaranteed("db", 2))
    cpus = quiet_cpus(node)
    node.figure("quiet CPUs", sorted(cpus))
    wait_until_quiet(cpus)
    node.expect("the mask for later interrupts names none of them", not mask(interrupts.DEFAULT_MASK) & cpus)
    for file in interrupts.WORKQUEUES:
        node.expect(f"{file.parent.name}/{file.name} names none of them", not mask(file) & cpus)
    interrupts.draw_random(20)  # a line without remapping moves at its next interrupt
    interrupts.ping(5)
    waiting = {one.number for one in interrupts.lines() if one.is_movable and one.effective & cpus}
    first = interrupts.movable_counts(cpus)
    quiet_before = interrupts.counts(rng_line().number)
    interrupts.draw_random(10_000)
    node.figure("packets that were answered", interrupts.ping(_PACKETS))
    interrupts.read_disk("nvme0n1", 0)
    after = interrupts.movable_counts(cpus)
    came = {name: count - first.get(name, 0) for name, count in after.items()}
    # The first interrupt of a line that has not moved yet still comes to its old CPU.
    moved = {name: count for name, count in came.items() if count > (int(name.split()[0]) in waiting)}
    node.figure("interrupts that wait for their next occurrence", sorted(waiting))
    node.equal("10,000 random reads later no movable interrupt has come to a quiet CPU", moved, {})
    total = sum(interrupts.counts(rng_line().number)) - sum(quiet_before)
    node.expect("the generator has interrupted other CPUs", total > 9000, total)
    node.figure("interrupts of the generator by CPU", interrupts.counts(rng_line().number))
    node.remove(pod)
    wait_for(lambda: interrupts.settings() == before, SOON_S, "every setting is byte for byte as before")
    left = json.loads(QUIET_FILE.read_text())["body"]["kept"] if QUIET_FILE.exists() else []
    refused = [one["name"] for one in left if one["refused"]]
    # Before Linux 6.12 only a write tells which interrupts nobody may set, and that is remembered until the next boot.
    node.equal("the file of originals holds nothing but what the kernel refuses", len(left), len(refused))


_PACKETS = 300


def a_foreign_write_is_undone(node: Node) -> None:
    """Another writer puts an interrupt onto a quiet CPU."""
    pod = node.run(guaranteed("db", 2))
    cpus = quiet_cpus(node)
    wait_until_quiet(cpus)
    number = rng_line().number
    interrupts.write(_affinity(number), str(min(cpus)))
    timed(node, lambda: not _reaches(number, cpus), "a foreign write is undone")
    node.remove(pod)


def _affinity(number: int) -> Path:
    return interrupts.IRQS / str(number) / "smp_affinity_list"


def _reaches(number: int, cpus: set[int]) -> bool:
    return bool(parse_list(_affinity(number).read_text()) & cpus)


_PATIENT = 10
LONGEST_PAUSE_S = 300
_AGAIN = "another program sets an interrupt again and again"


def a_writer_that_goes_on_is_named(node: Node) -> None:
    """Ten foreign writes in a row, then the agent backs off and names the interrupt."""
    pod = node.run(guaranteed("db", 2))
    cpus = quiet_cpus(node)
    wait_until_quiet(cpus)
    number = rng_line().number
    undone = 'nri_pin_quiet_writes_total{of="irq",result="undone"}'
    before, took = metrics().get(undone, 0), []
    for _ in range(_PATIENT + 2):
        interrupts.write(_affinity(number), str(max(cpus)))
        began = time.monotonic()
        wait_for(lambda: not _reaches(number, cpus), SOON_S, "a foreign write is undone")
        took.append(round(time.monotonic() - began, 2))
    node.figure("seconds until each of twelve foreign writes in a row is undone", took)
    wait_for(lambda: metrics()["nri_pin_quiet_rivals"] == 1, SOON_S, "the metric counts the rival")
    node.equal("each is counted", metrics()[undone] - before, _PATIENT + 2)
    said = [line for line in node.agent.lines() if _AGAIN in line]
    node.equal("the agent says so once", len(said), 1)
    node.expect("and names the interrupt", all(f"setting=irq/{number} " in line for line in said), said)
    with _writing_on(
        number, max(cpus)
    ):  # an emulated CPU needs longer for doctor than the rival is remembered
        status, text = node.agent.doctor()
    node.expect("doctor names it, too", f"irq/{number}" in text, (status, text))
    calm = "the rival that ended is not named any more"
    wait_for(lambda: not metrics()["nri_pin_quiet_rivals"], 2 * LONGEST_PAUSE_S, calm)
    node.agent.excuse(said)
    node.remove(pod)


@contextmanager
def _writing_on(number: int, cpu: int) -> Iterator[None]:
    """Somebody else goes on writing meanwhile."""
    ends = threading.Event()

    def write() -> None:
        while not ends.wait(0.5):
            interrupts.write(_affinity(number), str(cpu))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ends.set()
        writer.join()


def a_cpu_that_goes_offline_throws_its_interrupts_nowhere_quiet(node: Node) -> None:
    """The kernel gives an interrupt without a CPU all online ones."""
    before = interrupts.settings()
    pod = node.run(guaranteed("db", 2))
    cpus = quiet_cpus(node)
    wait_until_quiet(cpus)
    victim = max({0, 1, 2, 3} - cpus)
    interrupts.write(_affinity(rng_line().number), str(victim))
    interrupts.draw_random(20)
    interrupts.write(Path(f"/sys/devices/system/cpu/cpu{victim}/online"), "0")
    thrown = nothing_reaches(cpus)
    node.expect("the kernel has thrown interrupts onto quiet CPUs", bool(thrown), thrown)
    timed(node, lambda: not nothing_reaches(cpus), "interrupts of an offline CPU leave the quiet CPUs")
    interrupts.write(Path(f"/sys/devices/system/cpu/cpu{victim}/online"), "1")
    wait_for(lambda: not nothing_reaches(cpus), SOON_S, "none comes with the CPU")
    node.remove(pod)
    changed = {name for name, text in interrupts.settings().items() if before.get(name) != text}
    node.figure("settings that differ after a foreign write", sorted(changed))
    node.agent.excuse([line for line in node.agent.complaints() if "the machine changed" in line])


def a_device_that_is_added_again_stays_away(node: Node) -> None:
    """Its interrupts may have the same numbers, and a network driver asks for CPUs of its own."""
    pod = node.run(guaranteed("db", 2))
    cpus = quiet_cpus(node)
    wait_until_quiet(cpus)
    number = rng_line().number
    _add_again(Path("/sys/bus/virtio/devices", rng()).resolve().parent, "-input")
    node.figure("number before and after", (number, rng_line().number))
    left = "interrupts of a device that was added again leave the quiet CPUs"
    timed(node, lambda: not nothing_reaches(cpus), left)
    _add_again(Path("/sys/class/net", interrupts.network(), "device").resolve().parent, "-input.")
    hinted = interrupts.named("-input.").number
    hint = (interrupts.IRQS / str(hinted) / "affinity_hint").read_text().strip()
    interrupts.network()
    node.figure("interrupt of the network device, and the driver's hint", (hinted, hint))
    left = "interrupts of a network device that was added again leave the quiet CPUs"
    timed(node, lambda: not nothing_reaches(cpus), left)
    node.remove(pod)


def _add_again(device: Path, ending: str) -> None:
    """Remove a PCI device and let the kernel find it again, until it has an interrupt with such a name."""
    interrupts.write(device / "remove", "1")
    interrupts.write(Path("/sys/bus/pci/rescan"), "1")
    wait_for(
        lambda: any(_is_of(one, ending) for one in interrupts.lines()), SOON_S, "the device is there again"
    )


def _is_of(line: interrupts.Line, ending: str) -> bool:
    return ending in line.actions if ending.endswith(".") else line.actions.endswith(ending)


def a_container_keeps_interrupts_on_its_first_core(node: Node) -> None:
    """Housekeeping, and a claim by the PCI address of a device."""
    number = rng_line().number
    device = Path("/sys/bus/virtio/devices", rng()).resolve().parent
    own = {int(file.name) for file in (device / "msi_irqs").iterdir()}
    stale = interrupts.IRQS / (device / "irq").read_text().strip() / "smp_affinity_list"
    was = stale.read_text() if stale.exists() else ""
    node.figure(
        "the device, its interrupts, and the line that it does not use",
        (device.name, sorted(own), str(stale)),
    )
    spec = replace(
        guaranteed("db", 2),
        namespace="trusted",
        annotations={"nri-pin/irqs.pod": "housekeeping", "nri-pin/irq-claim.pod": device.name},
    )
    pod = node.run(spec)
    first, *rest = sorted(quiet_cpus(node))
    wait_for(
        lambda: not nothing_reaches(set(rest)), SOON_S, "interrupts leave the CPUs behind the first core"
    )
    environ = Path(f"/proc/{node.pid(pod.id)}/environ").read_bytes().decode().split("\0")
    node.expect(
        "the environment says which CPU keeps them",
        f"OPENSHIFT_HOUSEKEEPING_CPUS={first}" in environ,
        environ,
    )
    lines = interrupts.lines_by_number()
    node.equal(
        "the interrupts of the claimed device are on the first core",
        {one: lines[one].cpus for one in own if one in lines},
        {one: frozenset({first}) for one in own if one in lines},
    )
    node.expect("the one that comes is among them", number in own, own)
    if stale.exists() and int(stale.parent.name) not in lines:
        node.equal("a line that the device does not use is not touched", stale.read_text(), was)
    before = interrupts.counts(number)[first]
    interrupts.draw_random(200)
    node.expect("it comes there", interrupts.counts(number)[first] - before >= 190, interrupts.counts(number))
    node.remove(pod)


def annotations_are_obeyed_in_named_namespaces_only(node: Node) -> None:
    """Elsewhere they change nothing, and two that contradict each other are refused with both names."""
    pod = node.run(replace(guaranteed("db", 2), annotations={"nri-pin/irqs.pod": "any"}))
    cpus = quiet_cpus(node)
    wait_for(lambda: not nothing_reaches(cpus), SOON_S, "interrupts leave its CPUs although it says any")
    node.remove(pod)
    both = {"nri-pin/irqs.pod": "quiet", "irq-load-balancing.crio.io": "housekeeping"}
    said = node.refusal_of(replace(guaranteed("db", 2), namespace="trusted", annotations=both))
    node.expect("a contradiction is refused with both names", all(name in said for name in both), said)
    node.agent.excuse([line for line in node.agent.complaints() if "contradicts" in line])


def interrupts_that_only_the_kernel_moves_are_counted(node: Node) -> None:
    """Those of the disk's queues, which are never written twice."""
    pod = node.run(guaranteed("db", 2))
    cpus = quiet_cpus(node)
    wait_until_quiet(cpus)
    node.figure("metrics", metrics())
    # Quiet lines that have not fired since may still come once to their old CPU, and count, too.
    lines = interrupts.lines()
    fixed = [one for one in lines if not one.is_movable and one.cpus & cpus]
    waiting = [one for one in lines if one.is_movable and one.effective & cpus]
    node.equal(
        "metrics count them", metrics()["nri_pin_quiet_reaching_interrupts"], len(fixed) + len(waiting)
    )
    managed = sum(not one.is_movable for one in lines)
    failed = [value for name, value in metrics().items() if 'result="failed"' in name]
    node.expect("none is written twice", sum(failed) <= managed, (failed, managed))
    node.remove(pod)


def release_gives_interrupts_back(node: Node) -> None:
    """An agent that stops changes nothing; nri-pin release gives everything back without one."""
    before = interrupts.settings()
    pod = node.run(guaranteed("db", 2))
    cpus = quiet_cpus(node)
    wait_until_quiet(cpus)
    node.agent.stop()
    node.equal("an agent that stops changes nothing", nothing_reaches(cpus), [])
    status, said = node.agent.release()
    node.equal("release succeeds", status, 0)
    node.figure("it says", said)
    node.equal("every setting is byte for byte as before", interrupts.settings(), before)
    node.remove(pod)
    node.agent.start()


def killing_the_agent_keeps_them_quiet(node: Node) -> None:
    """SIGKILL with and without a container that asks, and what the next agent does."""
    before = interrupts.settings()
    pod = node.run(guaranteed("db", 2))
    cpus = quiet_cpus(node)
    wait_until_quiet(cpus)
    node.agent.kill()
    node.equal("nothing has come back", nothing_reaches(cpus), [])
    node.agent.start()
    node.equal("nothing has come back with the next agent", nothing_reaches(cpus), [])
    node.agent.kill()
    node.remove(pod)
    node.agent.start()
    wait_for(lambda: interrupts.settings() == before, SOON_S, "every setting is byte for byte as before")


_KILLS = (1, 4, 9)


def a_kill_behind_a_write_loses_nothing(node: Node) -> None:
    """SIGKILL behind the first, the fourth and the ninth write, on the way there and back."""
    before = interrupts.settings()
    first = node.run(guaranteed("db", 1))
    own = node.observe(first.id).allowed_cpus
    wait_until_quiet(own)
    between = interrupts.settings()
    with closing(settings_watch()) as watch:
        for count in _KILLS:
            pod = node.sandbox(guaranteed("late", 1))
            with _killed_behind(node, watch, count, "on the way there"):
                node.create(pod, pod.spec.containers[0])
            node.agent.start()
            node.start(pod)
            cpus = quiet_cpus(node)
            wait_until_quiet(cpus)
            masks = [file for file in (interrupts.DEFAULT_MASK, *interrupts.WORKQUEUES) if mask(file) & cpus]
            node.equal(f"{count}: masks that name quiet CPUs with the next agent", masks, [])
            with _killed_behind(node, watch, count, "on the way back"):
                node.remove(pod)
            node.agent.start()
            back = f"{count}: the next agent gives back what is left"
            timed(node, lambda: interrupts.settings() == between, back)
            node.equal(f"{count}: the other container has its CPUs", node.observe(first.id).allowed_cpus, own)
    node.remove(first)
    timed(node, lambda: interrupts.settings() == before, "every setting is byte for byte as before")


@contextmanager
def _killed_behind(node: Node, watch: WriteWatch, count: int, where: str) -> Iterator[None]:
    """The agent is killed as soon as so many of its writes are heard of, while something makes it write."""
    watch.writes()

    def kill() -> int:
        seen, ends = 0, time.monotonic() + SOON_S
        while seen < count and time.monotonic() < ends:
            watch.wait(1)
            seen += len(watch.writes())
        node.agent.kill()
        return seen + len(watch.writes())

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(kill)
        yield
        written = found.result()
    node.expect(f"{where}: the agent was killed behind write {count} or later", written >= count, written)
    node.figure(f"{where}, {count}: writes until the agent was dead", written)
