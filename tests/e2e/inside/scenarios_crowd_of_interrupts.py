"""Hundreds of movable interrupts: the vector table of the last housekeeping CPU is full, and creations go on as before."""

import contextlib
import itertools
import re
import statistics
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from . import interrupts
from .node import Node
from .pods import guaranteed
from .quiet_facts import SOON_S, metrics, quiet_cpus, settings_watch
from .waiting import wait_for
from .write_watch import WriteWatch

_FAILED = 'nri_pin_quiet_writes_total{of="ENOSPC",result="failed"}'
_LOOKS_S, _EVERY_S = 90.0, 5.0
_CREATIONS = 6


def a_full_vector_table_is_survived(node: Node) -> None:
    """All CPUs quiet but one, and more interrupts than that one takes."""
    before = interrupts.settings()
    movable = [one for one in interrupts.lines() if one.is_movable]
    node.figure("movable interrupts", len(movable))
    node.expect("there are more than a CPU has vectors for", len(movable) > 256, len(movable))
    chips = Counter(
        Path(f"/sys/kernel/irq/{one.number}/chip_name").read_text().strip().partition("-0000")[0]
        for one in movable
    )
    node.figure("controllers", dict(chips))
    # Elsewhere a write only says where the next interrupt goes, and no vector is looked for before that.
    node.expect("the machine remaps interrupts", any(chip.startswith("IR-") for chip in chips), chips)
    pods = [node.run(guaranteed(f"db-{number}", 1)) for number in range(3)]
    cpus = quiet_cpus(node)
    node.equal("all CPUs are quiet but one", len(cpus), 3)
    try:
        wait_for(
            lambda: _FAILED in metrics(),
            3 * SOON_S,
            "the kernel has no vectors left, and the agent counts that",
        )
    finally:
        node.figure("metrics", metrics())
    wait_for(lambda: not _could_move(cpus), SOON_S, "what finds a vector has moved")
    node.figure("seconds between retries", _pauses())
    lines = [one for one in interrupts.lines() if one.is_movable]
    left = [one for one in lines if one.cpus & cpus]
    node.figure("interrupts that left, and that could not", (len(lines) - len(left), len(left)))
    node.expect("some have left", len(left) < len(lines) - 100, (len(left), len(lines)))
    (finding,) = [
        line for line in node.agent.doctor()[1].splitlines() if "quiet" in line and "ENOSPC" in line
    ] or [""]
    node.expect("doctor names the reason", "ENOSPC" in finding, finding)
    node.figure("doctor says", finding[:400])
    said = node.agent.complaints()
    node.figure("what the agent complains of", said)
    node.expect("it says so only once", len(said) <= 1, said)
    node.agent.excuse(said)
    for pod in pods:
        node.remove(pod)
    wait_for(lambda: interrupts.settings() == before, SOON_S, "every setting is byte for byte as before")


def _could_move(cpus: set[int]) -> bool:
    """Whether an interrupt has left meanwhile: the number of those that have not is another one a little later."""
    first = _on(cpus)
    time.sleep(_EVERY_S)
    return _on(cpus) != first


def _pauses() -> list[float]:
    """Seconds between the moments at which the agent tried again."""
    first, at, count = time.monotonic(), [], metrics()[_FAILED]
    while time.monotonic() < first + _LOOKS_S:
        now = metrics()[_FAILED]
        if now != count and (not at or time.monotonic() > at[-1] + 1):
            at.append(time.monotonic())
        count = now
        time.sleep(0.2)
    return [round(later - sooner, 1) for sooner, later in itertools.pairwise(at)]


def _on(cpus: set[int]) -> int:
    return sum(one.is_movable and bool(one.cpus & cpus) for one in interrupts.lines())


def creations_wait_for_no_interrupt(node: Node) -> None:
    """The time of CreateContainer, without and with quiet CPUs, in turn; each begins when all settings are written."""
    took: dict[str, list[float]] = {"none": [], "exclusive": []}
    answered: dict[str, list[float]] = {"none": [], "exclusive": []}
    written: dict[str, list[int]] = {"none": [], "exclusive": []}
    with closing(settings_watch()) as watch:
        for word in [*took] * 2:
            node.agent.stop()
            node.agent.config["irqs"] = node.agent.config["workqueues"] = word
            node.agent.start()
            logged = len(node.agent.lines())
            for number in range(_CREATIONS):
                _settle(watch)
                took[word].append(_creation_ms(node, f"made-{number}"))
                written[word].append(_settle(watch))
                node.remove_all()
            found = map(_ANSWERED.search, node.agent.lines()[logged:])
            answered[word] += [int(match[1]) / 1000 for match in found if match]
    node.agent.config["irqs"] = node.agent.config["workqueues"] = "exclusive"
    for word, times in took.items():
        node.equal(f"{word}: the agent answered each creation", len(answered[word]), len(times))
        node.figure(f"ms of CreateContainer, irqs: {word}: median, least, most", _spread(times))
        node.figure(f"ms that the agent needed, irqs: {word}: median, least, most", _spread(answered[word]))
        node.figure(f"settings written for a creation, irqs: {word}", written[word])
    node.equal("without quiet CPUs no setting is written", sum(written["none"]), 0)
    node.expect("with quiet CPUs some are", sum(written["exclusive"]) > 0, written["exclusive"])
    with contextlib.suppress(OSError):
        node.figure("interrupts", len([*Path("/proc/irq").iterdir()]))


_ANSWERED = re.compile(r" event=CreateContainer pod=default/made-.* took_us=(\d+)")
_SETTLED_S = 2.0


def _settle(watch: WriteWatch) -> int:
    """Wait until nothing has been written for a while; return how many writes were heard."""
    total = 0
    while True:
        watch.wait(_SETTLED_S)
        heard = len(watch.writes())
        if not heard:
            return total
        total += heard


def _spread(times: list[float]) -> list[float]:
    return [round(one, 1) for one in (statistics.median(times), min(times), max(times))]


def _creation_ms(node: Node, name: str) -> float:
    """Create a container with an exclusive CPU."""
    spec = guaranteed(name, 1)
    pod = node.sandbox(spec)
    began = time.perf_counter()
    node.create(pod, spec.containers[0])
    return (time.perf_counter() - began) * 1000
