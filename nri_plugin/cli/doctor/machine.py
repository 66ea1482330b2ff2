"""The checks of `nri-pin doctor` on the machine, its kernel, its cgroup tree, and what else reaches exclusive CPUs."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce, wraps
from operator import or_
from typing import TypeVar

from nri_plugin.cli.doctor.evidence import TREE, CgroupDir, Evidence, Kernel, Tree, linux_of
from nri_plugin.cli.doctor.findings import Finding, advice, fine, not_visible, to_do
from nri_plugin.cli.doctor.kubelet import culprit
from nri_plugin.cli.doctor.settings import CGROUP_DRIVER, RESERVED_CPUS, KubeletSettings
from nri_plugin.cli.doctor.support import LINUX, caveat
from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.cli.output import count_of
from nri_plugin.host.cgroup import MENDED
from nri_plugin.host.kernel_work import KernelThread, ReachingInterrupt
from nri_plugin.model.options import REGISTRY, IsolatedCPUs, Isolation
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.topology import Topology

T = TypeVar("T")

ON_REQUEST = f"{REGISTRY['isolated_cpus'].name}: {IsolatedCPUs.ON_REQUEST}"
FIRST_V2_CPUSET = (5, 0)
"""Source: Linux 5.0, the cpuset controller of cgroup v2."""


Check = Callable[[Evidence], Finding | None]


def _with(part: str, kind: type[T]) -> Callable[[Callable[[Evidence, T], Finding | None]], Check]:
    """Make a check of a function that judges one part of the evidence, which says nothing where that part is not known."""

    def check(judge: Callable[[Evidence, T], Finding | None]) -> Check:
        @wraps(judge)
        def judge_known(seen: Evidence) -> Finding | None:
            found = getattr(seen, part)
            return judge(seen, found) if isinstance(found, kind) else None

        return judge_known

    return check


of_topology = _with("topology", Topology)
of_kernel = _with("kernel", Kernel)
of_tree = _with("tree", Tree)


@of_kernel
def irqbalance(seen: Evidence, _kernel: Kernel) -> Finding | None:
    """Whether irqbalance leaves exclusive CPUs alone."""
    spared, exclusive = seen.spared, seen.exclusive_cpus
    if not seen.runs_irqbalance:
        return None
    if spared and exclusive <= spared:
        return fine(f"runs, and leaves CPUs {spared} alone")
    says = "irqbalance runs and sends interrupts to exclusive CPUs as well"
    return advice(
        says, "set irqs, so that the agent tells it, or name the CPUs to spare in IRQBALANCE_BANNED_CPULIST"
    )


def machine(seen: Evidence) -> Finding:
    """Whether CPUs and NUMA nodes can be read."""
    topology = seen.topology
    if isinstance(topology, Hidden):
        return not_visible(topology, "the machine's CPUs and NUMA nodes cannot be seen")
    if isinstance(topology, str):
        return to_do(topology, "report it with the output of hack/record-machine")
    nodes, cpus = len(topology.nodes), len(topology.online)
    return fine(
        f"{cpus} CPU{'s' * (cpus != 1)} ({topology.online}) on {nodes} NUMA node{'s' * (nodes != 1)}",
    )


@of_topology
def offline_cpus(_seen: Evidence, topology: Topology) -> Finding:
    """Whether all CPUs are online."""
    if not topology.offline:
        return fine("none")
    return advice(
        f"CPUs {topology.offline} are offline and never allocated",
        "bring them online where that is not meant",
        f"for c in {' '.join(map(str, topology.offline))}; do echo 1 > /sys/devices/system/cpu/cpu$c/online; done",
    )


@of_topology
def numa_nodes(_seen: Evidence, topology: Topology) -> Finding:
    """Whether all NUMA nodes have memory."""
    bare = [str(node.id) for node in topology.nodes if not node.has_memory]
    without = [str(node.id) for node in topology.nodes if not node.cpus]
    if bare:
        return advice(
            f"NUMA node {', '.join(bare)} has no memory: containers there use that of other nodes",
            "populate its memory slots, or leave it to containers that do not mind",
        )
    if without:
        return fine(f"all have memory; {', '.join(without)} has no CPUs")
    return fine("all have memory")


@of_topology
def reserved_cores(seen: Evidence, topology: Topology) -> Finding | None:
    """Half a core that is kept for the system leaves a half that is never part of a whole core."""
    reserved = seen.reserved
    if not reserved:
        return None
    whole = topology.whole_cores(reserved)
    if whole == reserved:
        return fine(f"CPUs {reserved} are kept for the system, whole cores")
    return advice(
        f"CPUs {reserved} are kept for the system and CPUs {whole - reserved} are the other threads of their cores: "
        "these can never be given as whole cores, and share their core with the system",
        f'write {RESERVED_CPUS}: "{whole}" into the configurations of the agent and of the kubelet',
    )


def kernel(seen: Evidence) -> Finding:
    """Whether the kernel is recent enough, and was tried."""
    if isinstance(seen.kernel, Hidden):
        return not_visible(seen.kernel, "the kernel's command line cannot be seen")
    release = seen.kernel.release
    version = linux_of(release)
    if version is None:
        hidden = Hidden("/proc/sys/kernel/osrelease", why="says no version")
        return not_visible(hidden, "the kernel's version")
    if version < FIRST_V2_CPUSET:
        return advice(f"Linux {release} has no cpusets in cgroup v2", "use Linux 5.0 or later")
    untried = caveat(LINUX, (*version, 0))
    return fine(f"Linux {release}{f'; {untried}' if untried else ''}")


@of_kernel
def isolated_cpus(seen: Evidence, kernel: Kernel) -> Finding:
    """Whether boot options keep the scheduler off CPUs."""
    topology, reserved = seen.known_topology, seen.reserved
    if kernel.unread:
        name, value = next(iter(kernel.unread.items()))
        return not_visible(
            Hidden(""),
            f"{name}={value} of the kernel's command line is a form that is not read here",
            "compare with the shared pool by hand: cat /sys/devices/system/cpu/isolated",
        )
    options = dict(kernel.options)
    if topology is not None:
        told = options.get("isolcpus", CPUSet()) | options.get("nohz_full", CPUSet())
        if topology.isolated - told:
            options["isolcpus"] = options.get("isolcpus", CPUSet()) | (topology.isolated - told)
    if not options:
        return fine("no CPU is kept from the kernel's scheduler")
    words = ", ".join(f"{name}={cpus}" for name, cpus in options.items())
    isolated = options.get("isolcpus", CPUSet())
    if reserved is not None and reserved & isolated:
        return to_do(
            f"CPUs {reserved & isolated} are kept for the system and isolated from it ({words})",
            "reserve others, or take them out of isolcpus",
        )
    if not isolated:
        return fine(f"{words}; none is isolated from the scheduler")
    return advice(
        f"{words}: on isolated CPUs the kernel balances no load, so that the threads of a container with several of "
        "them stay where they start",
        f"nothing, where only containers run there that pin their threads; else {ON_REQUEST} gives them only "
        "to those that ask, or boot without isolcpus: exclusive CPUs need none",
    )


@of_kernel
def numa_balancing(seen: Evidence, kernel: Kernel) -> Finding:
    """Whether the kernel moves memory of pinned containers."""
    topology = seen.known_topology
    several = topology is not None and len(topology.nodes) > 1
    if several and isinstance(kernel.numa_balancing, Hidden):
        return not_visible(kernel.numa_balancing, "whether the kernel moves memory about")
    if not kernel.numa_balancing or not several:
        return fine("off" if several and kernel.numa_balancing is False else "moves nothing here")
    return advice(
        "on: the kernel samples memory of pinned containers, too, which costs page faults and moves nothing useful",
        "switch it off where containers are pinned",
        "sysctl -w kernel.numa_balancing=0",
    )


FREE_PARTITIONS = ("", "member")
QOS_ENDINGS = ("burstable", "besteffort", "burstable.slice", "besteffort.slice")
MOST_NAMED = 3
NOT_ISOLATED = f"{REGISTRY['isolation'].name}: {Isolation.NONE}"
BOOT_WITH_V2 = "grubby --update-kernel=ALL --args=systemd.unified_cgroup_hierarchy=1"


def cgroups(seen: Evidence) -> Finding:
    """The version of the cgroup tree."""
    tree = seen.tree
    if isinstance(tree, Hidden):
        return not_visible(tree, "the node's cgroup tree cannot be seen")
    if isinstance(tree, str):
        return to_do(f"{TREE}: {tree}", "boot with cgroup v2", BOOT_WITH_V2)
    if tree.version == 2:
        options = "" if tree.options is None else f", mounted with {','.join(tree.options)}"
        return fine(f"version 2{options}")
    return advice(
        "version 1: placements hold, but there is no floor under the shared pool while the agent is away",
        "boot with cgroup v2, the kernel option systemd.unified_cgroup_hierarchy=1",
    )


@of_tree
def cgroup_driver(seen: Evidence, tree: Tree) -> Finding:
    """Whether kubelet, runtime and tree agree on the driver."""
    runtime_systemd = seen.known_nri.systemd_cgroup if seen.known_nri else None
    runtime = {None: "", True: "systemd", False: "cgroupfs"}[runtime_systemd]
    driver = seen.kubelet.by_key.get(CGROUP_DRIVER) if isinstance(seen.kubelet, KubeletSettings) else None
    by_tree = {"kubepods.slice": "systemd", "kubepods": "cgroupfs"}.get(tree.top, "")
    told = {"the kubelet": driver.value if driver else "", "the runtime": runtime}
    different = {driver for driver in (*told.values(), by_tree) if driver}
    if len(different) > 1:
        words = [f"{who} uses {driver}" for who, driver in told.items() if driver]
        words += [f"{TREE}/{tree.top} is of {by_tree}"] if by_tree else []
        return to_do(
            " and ".join(words),
            "let the kubelet (cgroupDriver) and the runtime (SystemdCgroup, cgroup_manager) use the same, best systemd",
        )
    if different:
        return fine(different.pop())
    return fine("no pod has run yet, and no cgroup driver is chosen")


def _is_slice(group: CgroupDir) -> bool:
    """Whether it is above pods: the root, the top, a QoS slice."""
    depth = group.path.count("/")
    return not depth or (depth == 1 and group.path.endswith(QOS_ENDINGS))


def _is_without_pods(group: CgroupDir, tree: Tree) -> bool:
    """Whether it is a QoS slice with nothing below: systemd takes the controller from it with its last pod."""
    return "/" in group.path and not any(one.path.startswith(f"{group.path}/") for one in tree.groups)


@of_tree
def cpuset_delegation(_seen: Evidence, tree: Tree) -> Finding:
    """Whether pods have cpuset files."""
    above = [group for group in tree.groups if _is_slice(group)]
    lacking = [group for group in above if not group.passes_on and not _is_without_pods(group, tree)]
    if not lacking:
        below = f"down to the pods of {tree.top}" if tree.top else "to those below the root"
        return fine(f"the cpuset controller is passed on {below}")
    path = f"{tree.directory}/{lacking[0].path}".rstrip("/")
    names = ", ".join(group.path or "the root" for group in lacking[:MOST_NAMED])
    return to_do(
        f"the cpuset controller is not passed on by {names}, so that containers below have no cpuset",
        "pass it on; the agent does so where it runs",
        f"echo +cpuset > {shlex.quote(path)}/cgroup.subtree_control",
    )


@of_tree
def cpuset_width(seen: Evidence, tree: Tree) -> Finding:
    """No group above containers may be narrower than the one above it, but by CPUs that containers have to themselves."""
    if seen.known_topology is None:
        return not_visible(
            Hidden("/sys/devices/system/cpu", "/host/sys/devices/system/cpu"),
            "the machine's CPUs cannot be seen",
        )
    online = above = seen.known_topology.online
    ours = _cpus_of([one for one in tree.groups if one.path and one.partition in ("root", "isolated")])
    for group in filter(_is_slice, tree.groups):
        # The floor is below kubepods. From there up, only partitions of ours may take CPUs.
        missing = (
            above - (ours if group.path in ("", tree.top) else seen.allocated) - (group.effective or above)
        )
        if missing and not group.path:
            return _narrow_root(group, missing)
        if missing:
            return _narrow(group, missing, tree, above)
        above = above if group.path.endswith(QOS_ENDINGS) else above & (group.effective or above) | ours
    if not tree.top:
        return fine("no pod has run on this node yet")
    return fine(f"{tree.top} and its QoS groups reach all of {online - seen.allocated}")


def _cpus_of(groups: Sequence[CgroupDir]) -> CPUSet:
    return reduce(or_, (one.effective or NO_CPUS for one in groups), NO_CPUS)


def _narrow_root(group: CgroupDir, missing: CPUSet) -> Finding:
    return advice(
        f"the root reaches only CPUs {group.effective}: this node is a container that has no others, or a partition of another "
        f"program has CPUs {missing}; they are allocated to no pod",
        f"nothing; no setting of this node can widen the root. For CPUs {missing}, give them to the container from outside "
        "(limits.cpu of LXD, docker update --cpuset-cpus), or end the partition (CPUSetPartition= of a unit, "
        "cpuset.cpus.partition of a cgroup)",
    )


def _narrow(group: CgroupDir, missing: CPUSet, tree: Tree, above: CPUSet) -> Finding:
    says = f"{group.path} reaches only CPUs {group.effective}: {missing} cannot be used below it"
    if group.cpus and missing <= group.cpus:
        return advice(
            f"{says}, because a partition of another program below it has them", "end that partition"
        )
    path = f"{tree.directory}/{group.path}"
    unit = group.path.rpartition("/")[2]
    by_hand = f"echo {above} > {shlex.quote(path)}/cpuset.cpus"
    command = (
        f"systemctl set-property --runtime {unit} AllowedCPUs={above}" if unit.endswith(".slice") else by_hand
    )
    return to_do(
        says,
        "widen it, and find the setting that narrowed it (AllowedCPUs= of a unit, the kubelet's cgroupRoot)",
        command,
    )


@of_tree
def pool_floor(seen: Evidence, tree: Tree) -> Finding | None:
    """Whether the slices keep containers that are created while no agent runs off exclusive CPUs."""
    config = seen.config.config
    has_floor = config is not None and config.options.pool_floor
    if not (has_floor and seen.allocated) or tree.version == 1:
        return None
    slices = [group for group in tree.groups if group.path.endswith(QOS_ENDINGS) and _is_slice(group)]
    reached = [group for group in slices if group.effective and group.effective & seen.allocated]
    if reached:
        names = ", ".join(f"{group.path.rpartition('/')[2]} on {group.effective}" for group in reached)
        return advice(
            f"no floor on {names}: a container that is created below it while no agent runs may run on exclusive CPUs "
            f"{seen.allocated}",
            "see that the agent runs; it writes the floor with the next pod, and within seconds where a pod exists",
        )
    empty = [one.path for one in slices if _is_without_pods(one, tree)]
    if tree.top == "kubepods.slice" and empty:
        names = " and ".join(path.rpartition("/")[2] for path in empty)
        return fine(
            f"on all QoS slices; systemd clears it for {names} with the first pod there, which runs on all CPUs if no agent "
            "runs then"
        )
    return fine("on all QoS slices")


@of_tree
def foreign_cpusets(seen: Evidence, tree: Tree) -> Finding | None:
    """Containers that another program has pinned, on a node where no agent of ours ever ran."""
    if seen.is_ours or seen.known_topology is None:
        return None
    online = seen.known_topology.online
    containers = (group for group in tree.groups if group.path.count("/") > 1)
    found = [group for group in containers if group.cpus and online - group.cpus]
    if not found:
        return None
    names = ", ".join(f"{group.path.rpartition('/')[2]} on {group.cpus}" for group in found[:MOST_NAMED])
    says = f"{len(found)} pods or containers are pinned, and not by an agent of ours: {names}"
    culprits = [*filter(None, [culprit(seen)]), *seen.rivals]
    if culprits:
        return to_do(f"{says}; what does it: {' and '.join(culprits)}", "let only one of them pin")
    return to_do(
        says,
        "find the writer (the kubelet's CPU Manager, another plugin, an administrator), and let only one of them pin",
    )


@of_tree
def partitions(seen: Evidence, tree: Tree) -> Finding:
    """Whether partitions are valid and ours."""
    found = [group for group in tree.groups if group.partition not in FREE_PARTITIONS and group.path]
    broken = [group for group in found if "invalid" in group.partition]
    if broken:
        group = broken[0]
        return to_do(
            f"{group.path} wants to be a partition and is none: {group.partition}",
            "end it, or give it exclusive CPUs",
            f"echo member > {shlex.quote(f'{tree.directory}/{group.path}')}/cpuset.cpus.partition",
        )
    others = [group for group in found if not group.effective or group.effective - seen.allocated]
    if others:
        names = ", ".join(
            f"{group.path} ({group.partition}, CPUs {group.effective})" for group in others[:MOST_NAMED]
        )
        return advice(f"{names} keep CPUs to themselves", "see that they are meant to")
    if found:
        return fine(f"only of our containers, on their allocated CPUs: {_cpus_of(found)}")
    return fine("no pod keeps CPUs to itself by a partition")


@of_tree
def isolation(seen: Evidence, tree: Tree) -> Finding | None:
    """Whether containers that should be partitions can be: here, by the kernel, by the agent's rights."""
    if not tree.is_spoilt:
        return _can_partition(seen, tree) if seen.wants_partitions else None
    tell = to_do if seen.wants_partitions else advice
    return tell(
        f"{tree.directory}/{MENDED}: a container was removed while its partition was invalid, and this kernel may "
        "fall over the next one, so that the agent makes none",
        "boot the node anew; the mark goes with it",
    )


def _can_partition(seen: Evidence, tree: Tree) -> Finding:
    if tree.version == 1:
        return to_do(
            "asked for, and cgroup v1 has no partitions: containers have ordinary cpusets",
            f"boot with cgroup v2, or set {NOT_ISOLATED}",
            BOOT_WITH_V2,
        )
    if tree.nests_partitions is False:
        return to_do(
            "asked for, and this kernel has no partitions below the root: containers have ordinary cpusets",
            f"use Linux 6.7 or later, or set {NOT_ISOLATED}",
        )
    if seen.may_partition is False:
        return to_do(
            "asked for, and the agent lacks the capability SYS_ADMIN, without which the kernel grants no partition",
            f"give it (chart: agent.partitions: true), or set {NOT_ISOLATED}",
        )
    return fine("asked for, and nothing that is seen here is in its way")


UNBOUND_WORKERS = "/sys/devices/virtual/workqueue/cpumask"
_STEMS = (
    (re.compile(r"kworker/u\d+:.*"), "kworker/u*"),
    (re.compile(r"kworker/R-.*"), "kworker/R-*"),
    (re.compile(r"kworker/\d+:.*"), "kworker/N:*"),
    (re.compile(r"(.*?)[/-]?\d+$"), r"\1/N"),
)
"""Kernel threads of one kind have one line."""


def interrupts(seen: Evidence) -> Finding | None:
    """Interrupts that can reach exclusive CPUs, each with its reason."""
    found, exclusive = seen.interrupts, seen.exclusive
    if not exclusive:
        return None
    if isinstance(found, Hidden):
        return not_visible(found, "which interrupts can reach exclusive CPUs")
    cpus = seen.exclusive_cpus
    reaching = [one for one in found if one.allowed & cpus]
    if not reaching:
        return fine(f"none can reach exclusive CPUs {cpus}")
    movable = [one for one in reaching if one.is_movable]
    shared = [one for one in reaching if not one.is_movable and not _is_own(one, exclusive)]
    items = tuple(f"{one.number} {one.name}: {reason_of(one, exclusive)}" for one in reaching)
    says = (
        f"{count_of(len(reaching), 'interrupt')} can reach exclusive CPUs {cpus}: {len(movable)} movable, "
        f"{len(reaching) - len(movable)} kernel-managed"
    )
    if movable:
        do = "keep movable ones off by irqs: exclusive, or write another smp_affinity_list by hand"
        return replace(advice(says, do), items=items)
    if shared:
        do = "boot with isolcpus=managed_irq and these CPUs, or set preferWholeQueues: true"
        return replace(advice(says, do), items=items)
    return replace(fine(f"{says}, which fire only for the containers' own I/O"), items=items)


def _is_own(one: ReachingInterrupt, exclusive: Mapping[str, CPUSet]) -> bool:
    """Whether only one container's I/O raises a managed interrupt."""
    return any(one.allowed <= cpus for cpus in exclusive.values())


def reason_of(one: ReachingInterrupt, exclusive: Mapping[str, CPUSet]) -> str:
    """Why an interrupt can reach exclusive CPUs."""
    if one.is_movable:
        now = f", now delivered to {one.effective}" if one.effective else ""
        return f"movable, its affinity is CPUs {one.allowed}{now}"
    own = next((name for name, cpus in exclusive.items() if one.allowed <= cpus), "")
    whose = f", all of {own}" if own else ", not all of one container"
    return f"kernel-managed, fires only for I/O of CPUs {one.allowed}{whose}"


def kernel_threads(seen: Evidence) -> Finding | None:
    """Kernel threads that can reach exclusive CPUs, by kind."""
    found, cpus = seen.kernel_threads, seen.exclusive_cpus
    if not seen.exclusive:
        return None
    if isinstance(found, Hidden):
        return not_visible(found, "which kernel threads can reach exclusive CPUs")
    reaching = [one for one in found if one.allowed & cpus]
    if not reaching:
        return fine(f"none can reach exclusive CPUs {cpus}")
    movable = sum(not one.is_bound for one in reaching)
    says = (
        f"{count_of(len(reaching), 'kernel thread')} can reach exclusive CPUs {cpus}: {movable} movable, "
        f"{len(reaching) - movable} bound"
    )
    return replace(fine(says), items=tuple(_kinds(reaching, cpus)))


def _kinds(reaching: Sequence[KernelThread], cpus: CPUSet) -> Iterator[str]:
    """A line for each kind of thread: how many, where, and why."""
    kinds: dict[tuple[str, str], list[KernelThread]] = {}
    for one in reaching:
        kinds.setdefault((stem_of(one.name), _why(one)), []).append(one)
    for (stem, why), threads in sorted(kinds.items()):
        where = reduce(or_, (one.allowed & cpus for one in threads))
        name = threads[0].name if len(threads) == 1 else f"{stem} ({len(threads)})"
        yield f"{name} on CPUs {where}: {why}"


def stem_of(name: str) -> str:
    """The kind of a kernel thread by its name."""
    for pattern, stem in _STEMS:
        found = pattern.fullmatch(name)
        if found is not None:
            return found.expand(stem)
    return name


def _why(one: KernelThread) -> str:
    if one.name.startswith("irq/"):
        return "handles an interrupt, and follows it"
    if not one.is_bound:
        return "movable, by its affinity (taskset -p)"
    if one.name.startswith("kworker/u"):
        return f"a worker of unbound workqueues, by {UNBOUND_WORKERS}"
    if len(one.allowed) == 1:
        return "bound, does the kernel's own work for this CPU"
    return "bound, its affinity cannot be set"
