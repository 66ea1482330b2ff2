"""Quiet CPUs beside others: irqbalance, an isolated partition, and what `nri-pin noise` tells before and after."""

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from . import interrupts
from .irqbalance import IRQBalance
from .node import Node
from .noise_side import Json, measure
from .observe import cpuset_directory, parse_list
from .pods import guaranteed
from .quiet_facts import SOON_S, mask, metrics, nothing_reaches, quiet_cpus, rng_line, timed, wait_until_quiet
from .waiting import wait_for

_OWN = {3}
_PF_KTHREAD, _PF_NO_SETAFFINITY = 0x00200000, 0x04000000
"""Source: Linux, include/linux/sched.h."""


def irqbalance_is_told(node: Node) -> None:
    """Debian's irqbalance, which has a ban of its own."""
    balancer = IRQBalance("3")
    balancer.start()
    try:
        timed(node, lambda: balancer.banned() == _OWN, "irqbalance leaves alone what its configuration says")
        pod = node.run(guaranteed("db", 1))
        cpus = quiet_cpus(node)
        both = cpus | _OWN
        timed(node, lambda: balancer.banned() == both, "irqbalance leaves quiet CPUs alone, too")
        wait_until_quiet(cpus)
        balancer.end()
        balancer.start()
        timed(node, lambda: balancer.banned() == both, "irqbalance leaves them alone after its restart")
        wait_until_quiet(cpus)
        interrupts.draw_random(500)
        node.equal("it has put no interrupt on quiet CPUs", nothing_reaches(cpus), [])
        node.expect("it still runs", balancer.is_running)
        node.agent.stop()
        status, said = node.agent.release()
        node.expect("release succeeds", status == 0, said)
        timed(node, lambda: balancer.banned() == _OWN, "its own ban is back after a release")
        node.agent.start()
        timed(node, lambda: balancer.banned() == both, "the next agent tells it again")
        node.remove(pod)
        timed(node, lambda: balancer.banned() == _OWN, "its own ban is back after the last container")
        node.expect("it still runs in the end", balancer.is_running)
    finally:
        balancer.end()


_FIFO = Path("/run/lab/blocks")


def a_setting_that_blocks_delays_no_creation(node: Node) -> None:
    """A FIFO lies over the file of an interrupt: whoever opens it waits, and containers come and go meanwhile."""
    before = interrupts.settings()
    first = node.run(guaranteed("db", 1))
    wait_until_quiet(quiet_cpus(node))
    file = interrupts.IRQS / str(rng_line().number) / "smp_affinity_list"
    value = file.read_bytes()
    _FIFO.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(_FIFO, 0o644)
    subprocess.run(["mount", "--bind", str(_FIFO), str(file)], check=True)
    try:
        wait_for(lambda: _opens(node.agent.pid), SOON_S, "the agent waits for the setting")
        late = node.run(guaranteed("late", 1))
        own = node.observe(late.id).allowed_cpus
        node.equal("a container gets its exclusive CPU meanwhile", len(own), 1)
        node.equal("which is not that of the other one", own & node.observe(first.id).allowed_cpus, set())
        node.expect("the agent still waits for the setting", _opens(node.agent.pid))
    finally:
        subprocess.run(["umount", "--lazy", str(file)], check=True)
        descriptor = os.open(_FIFO, os.O_RDWR)
        os.write(descriptor, value)  # to the agent, which gets what the interrupt has
        wait_for(lambda: not _opens(node.agent.pid), SOON_S, "the agent has opened it")
        os.close(descriptor)
        _FIFO.unlink()
    wait_until_quiet(quiet_cpus(node))
    node.remove(late)
    node.remove(first)
    timed(node, lambda: interrupts.settings() == before, "every setting is byte for byte as before")


_OPENAT = "257 "
"""Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl: openat."""


def _opens(pid: int) -> bool:
    """Whether a thread of a process waits in the opening of a file, now and a moment later."""
    first = _syscalls(pid)
    time.sleep(0.5)
    last = _syscalls(pid)
    return any(text.startswith(_OPENAT) and last.get(thread) == text for thread, text in first.items())


def _syscalls(pid: int) -> dict[str, str]:
    """What each thread waits in; without threads that have just ended."""
    found = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found[thread.name] = (thread / "syscall").read_text()
    return found


def an_isolated_partition_stays_one(node: Node) -> None:
    """`isolation: isolated` with quiet CPUs."""
    before = interrupts.settings()
    _restart(node, isolation="isolated")
    if not Path("/sys/fs/cgroup/kubepods/cpuset.cpus.exclusive").exists():
        _without_partitions(node)
        _restart(node, isolation="none")
        return
    try:
        pod = node.run(guaranteed("db", 2))
        cpus = quiet_cpus(node)
        partition = cpuset_directory(node.pid(pod.id)) / "cpuset.cpus.partition"
        timed(node, lambda: partition.read_text().strip() == "isolated", "the partition is isolated")
        timed(node, lambda: not nothing_reaches(cpus), "movable interrupts leave an isolated partition")
        for file in interrupts.WORKQUEUES:
            timed(
                node,
                lambda file=file: not mask(file) & cpus,
                f"{file.parent.name}/{file.name} leaves it, too",
            )
        movable, bound = _kernel_threads(cpus)
        node.equal("no kernel thread that can be moved may run there", movable, [])
        node.figure("kernel threads there that cannot", bound)
        interrupts.draw_random(500)
        node.equal("the partition is still valid", partition.read_text().strip(), "isolated")
        node.remove(pod)
        timed(node, lambda: interrupts.settings() == before, "every setting is as before the partition")
    finally:
        _restart(node, isolation="none")


def _without_partitions(node: Node) -> None:
    """Before Linux 6.7 there are none below the top: an ordinary cpuset, the reason in the log, and no interrupts."""
    logged = len(node.agent.lines())
    pod = node.run(guaranteed("db", 2))
    cpus = quiet_cpus(node)
    node.equal("without a partition the container has its CPUs", len(cpus), 2)
    timed(node, lambda: not nothing_reaches(cpus), "movable interrupts leave an ordinary cpuset")
    text = "no partition, it has an ordinary cpuset"

    def said() -> list[str]:
        return [line for line in node.agent.lines()[logged:] if text in line]

    timed(node, lambda: bool(said()), "the agent says that there is no partition, and why")
    node.figure("it says", said())
    node.remove(pod)


def _kernel_threads(cpus: set[int]) -> tuple[list[str], list[str]]:
    """Kernel threads that may run on some of these CPUs: those that can be moved, and the others."""
    movable, bound = [], []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (directory / "stat").read_text().rpartition(")")
            flags = int(rest.split()[6])
            status = (directory / "status").read_text()
        except OSError:
            continue
        allowed = parse_list(status.partition("Cpus_allowed_list:")[2].split()[0])
        if flags & _PF_KTHREAD and allowed & cpus:
            (bound if flags & _PF_NO_SETAFFINITY else movable).append(name.partition("(")[2])
    return sorted(movable), sorted(bound)


def packets_are_steered_elsewhere(node: Node) -> None:
    """`rps_cpus` of a device with hardware behind it and of one without, without the capability and with it."""
    own = Path(f"/sys/class/net/{interrupts.network()}/queues/rx-0/rps_cpus")
    other = Path("/sys/class/net/lo/queues/rx-0/rps_cpus")
    was = {file: file.read_text().strip() for file in (own, other)}
    try:
        for file in was:
            interrupts.write(file, "f")
        before = interrupts.settings()
        _with_steering(node, {"receiveSteering"}, own)
        wait_for(lambda: interrupts.settings() == before, SOON_S, "every setting is byte for byte as before")
        _with_steering(node, set(), own)
        wait_for(lambda: interrupts.settings() == before, SOON_S, "every setting is byte for byte as before")
        node.equal("a device without hardware is left alone", mask(other), {0, 1, 2, 3})
    finally:
        for file, text in was.items():
            interrupts.write(file, text)
        _restart(node, receiveSteering="none")


def _with_steering(node: Node, withheld: set[str], own: Path) -> None:
    node.agent.withheld = withheld
    _restart(node, receiveSteering="exclusive")
    pod = node.run(guaranteed("db", 2))
    cpus = quiet_cpus(node)
    timed(node, lambda: not nothing_reaches(cpus), "movable interrupts leave the quiet CPUs")
    if withheld:
        wait_for(lambda: metrics()["nri_pin_quiet_trouble"] == 1, SOON_S, "the metric tells of trouble")
        said = [line for line in node.agent.complaints() if "NET_ADMIN" in line]
        node.equal("without the capability the agent says once what it needs", len(said), 1)
        node.agent.excuse(said)
        node.equal("and the device steers as before", mask(own), {0, 1, 2, 3})
    else:
        timed(node, lambda: not mask(own) & cpus, "packets are steered elsewhere")
        node.equal("the rest of its CPUs stay", mask(own), {0, 1, 2, 3} - cpus)
    node.remove(pod)


def _restart(node: Node, **changes: object) -> None:
    node.agent.stop()
    node.agent.config |= changes
    node.agent.start()


def a_container_gets_cpus_that_share_no_queue(node: Node) -> None:
    """The disk has two queues for four CPUs, of which one is reserved."""
    queues = {
        frozenset(parse_list(file.read_text().replace(" ", ""))) & {0, 1, 2, 3}
        for file in Path("/sys/block").glob("*/mq/*/cpu_list")
    }
    shared = sorted(map(sorted, (one for one in queues if 1 < len(one) < 4)))
    node.figure("queues that CPUs share", shared)
    for number, is_asked in enumerate((False, True)):
        _restart(node, preferWholeQueues=is_asked)
        pod = node.run(guaranteed(f"db-{number}", 2))
        cpus = quiet_cpus(node)
        split = [one for one in shared if set(one) & cpus and set(one) - cpus]
        node.figure(f"preferWholeQueues: {is_asked}: CPUs, and queues that they split", (sorted(cpus), split))
        if is_asked:
            node.equal("the container's CPUs split no queue", split, [])
        else:
            node.expect("without it they split some", bool(split), (sorted(cpus), shared))
            wait_until_quiet(cpus)
            status, text = node.agent.doctor()
            node.expect(
                "doctor names queues that are shared", "shared with other CPUs" in text, (status, text)
            )
        node.remove(pod)
    _restart(node, preferWholeQueues=False)


def noise_is_seen_where_cpus_are_not_quiet(node: Node) -> None:
    """A container whose CPUs are not quiet, under load; counters that wrap; a CPU that goes offline meanwhile."""
    node.figure("network device", interrupts.network())
    _restart(node, irqs="none")
    for load, part in (("random", "input"), ("network", "virtio")):
        pod = node.run(guaranteed("loud", 2))
        cpus = quiet_cpus(node)
        for line in _device_lines(load):
            interrupts.write(interrupts.IRQS / str(line) / "smp_affinity_list", str(min(cpus)))
        loud = _interruptions(measure(node, f"loud, {load}", pod, "main", load), part)
        node.expect(f"{load}: interrupts of devices are seen on CPUs that are not quiet", loud > 200, loud)
        if load == "random":
            wrapped = _interruptions(measure(node, "loud, counters wrap", pod, "main", "wrap"), part)
            node.expect("as many are seen where their counters wrap", wrapped > 200, wrapped)
            measure(node, "loud, a CPU goes offline", pod, "main", "hotplug")
            wait_for(
                lambda: "cpus_come=" in " ".join(node.agent.complaints()), SOON_S, "the CPU is seen again"
            )
            words = ("the machine changed", "lost exclusive CPUs")
            said = node.agent.complaints()
            node.agent.excuse([line for line in said if any(one in line for one in words)])
        node.remove(pod)
    _restart(node, irqs="exclusive")


def noise_is_gone_where_cpus_are_quiet(node: Node) -> None:
    """A container whose CPUs are quiet, under the same load."""
    node.figure("network device", interrupts.network())
    for load, part in (("random", "input"), ("network", "virtio"), ("disk", "virtio")):
        pod = node.run(guaranteed("quiet", 2))
        cpus = quiet_cpus(node)
        wait_until_quiet(cpus)
        interrupts.draw_random(20)  # a line without remapping moves at its next interrupt
        interrupts.ping(5)
        still = _interruptions(measure(node, f"quiet, {load}", pod, "main", load), part)
        node.equal(f"{load}: interrupts of these devices on quiet CPUs", still, 0)
        node.remove(pod)


def _device_lines(load: str) -> list[int]:
    """The interrupts of the device behind a load."""
    return [
        one.number
        for one in interrupts.lines()
        if one.is_movable and (one.actions.endswith("-input") or "-input." in one.actions)
        if ("." in one.actions) == (load == "network")
    ]


def _interruptions(found: Json, part: str) -> int:
    """How often movable interrupts of virtio devices came to the container's CPUs."""
    movable = {one.number for one in interrupts.lines() if one.is_movable}
    return sum(
        int(one["total"])
        for one in found["sources"]
        if one["kind"] == "device-interrupt" and part in one["name"] and one["interrupt"] in movable
    )
