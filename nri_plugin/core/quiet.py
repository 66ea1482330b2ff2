"""Quiet CPUs: which CPUs interrupts and other kernel work leave, and where each setting of the kernel goes then.

`wanted` derives from the state what containers ask for. `settle` decides for one setting: what it was before, what it
should be now, and whether it has to be written. Both are pure; `nri_plugin.agent.repair.interrupts` reads and writes.

The rules, for an interrupt, for the mask of later interrupts and for the masks of workqueues alike:

* **Original**: the value that the setting would have without us. It is what was found before the first write, and from
  then on what anybody else set to a value that touches no quiet CPU. Such a value is kept, and never written over.
* **Quiet**: the value is the original without the quiet CPUs. Where none of it is online, it is the housekeeping CPUs of
  the interrupt's NUMA node, else all housekeeping CPUs. It is never wider than the original otherwise.
* **Claimed**: an interrupt that a container claims goes exactly to the CPUs of that container.
* **Undone**: a value that touches quiet CPUs, and one that the kernel makes (all online CPUs after the last CPU of an
  interrupt went offline; the mask for later interrupts where a device was added again), is not an original.
* **Steering** of received packets only loses CPUs, and is off where it would lose all.
* **Given back**: without a quiet CPU and a claim, a value of ours becomes the original again. A value of somebody else
  stays.

Source: kernel Documentation/core-api/irq/irq-affinity.rst; kernel/irq/proc.c and kernel/irq/cpuhotplug.c of Linux 6.12.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from types import MappingProxyType

from nri_plugin.core.annotations import irq_claim, irq_mask, irq_wish, wake_latency_us
from nri_plugin.model.options import IRQHousekeeping, IRQs, IRQWish, Node, ReceiveSteering, Workqueues
from nri_plugin.model.records import Allocation, is_whole_pod, owner_of
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology

# ----------------------------------------------------------------------------------------------------
# What containers ask for.


@dataclass(frozen=True, slots=True)
class Asker:
    """A container that asks for quiet CPUs.

    Attributes:
        key: of its allocation.
        wish: what it asks for.
        cpus: its exclusive CPUs.
        housekeeping: those of them that keep interrupts: its first core, where it asks for that.
    """

    key: str
    wish: IRQWish
    cpus: CPUSet
    housekeeping: CPUSet = NO_CPUS

    @property
    def quiet(self) -> CPUSet:
        """The CPUs that interrupts leave."""
        return self.cpus - self.housekeeping if self.wish is not IRQWish.ANY else NO_CPUS


@dataclass(frozen=True, slots=True)
class Claim:
    """Interrupts that go to the CPUs of one container.

    Attributes:
        key: of its allocation.
        patterns: of names of handlers, or PCI addresses.
        cpus: where they go.
    """

    key: str
    patterns: tuple[str, ...]
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class Mask(Claim):
    """Interrupts that leave the CPUs of one container.

    Attributes:
        wins: also where a container claims them.
    """

    wins: bool = False


@dataclass(frozen=True, slots=True)
class QuietWanted:
    """What all containers of a node ask for together.

    Attributes:
        askers: the containers, in the order of their allocations.
        claims: interrupts that have a place of their own.
        masks: interrupts that leave the CPUs of a container though others may stay.
        quiet: CPUs that interrupts leave.
        no_workqueues: CPUs that unbound kernel work leaves.
        no_steering: CPUs that received packets are not steered to.
        latency_us: (CPU, longest time to wake up in us) where a container asks for one.
        online: CPUs that are online.
        housekeeping: online CPUs for interrupts that have no other.
        cpus_by_node: online CPUs by NUMA node.
        controlled: patterns of interrupts that may be moved; empty for all.
        left_alone: patterns of interrupts that are never moved.
        tells_irqbalance: whether a running irqbalance is told about the quiet CPUs.
        narrows_to_housekeeping: whether interrupts keep only housekeeping CPUs, of those that were theirs.
    """

    askers: tuple[Asker, ...] = ()
    claims: tuple[Claim, ...] = ()
    masks: tuple[Mask, ...] = ()
    quiet: CPUSet = NO_CPUS
    no_workqueues: CPUSet = NO_CPUS
    no_steering: CPUSet = NO_CPUS
    latency_us: tuple[tuple[int, int], ...] = ()
    online: CPUSet = NO_CPUS
    housekeeping: CPUSet = NO_CPUS
    cpus_by_node: tuple[tuple[int, CPUSet], ...] = ()
    controlled: tuple[str, ...] = ()
    left_alone: tuple[str, ...] = ()
    tells_irqbalance: bool = True
    narrows_to_housekeeping: bool = False

    @property
    def is_nothing(self) -> bool:
        """Whether nobody asks for anything."""
        sets = self.quiet | self.no_workqueues | self.no_steering
        return not (sets or self.claims or self.masks or self.latency_us)


NO_DEVICES: Mapping[str, tuple[str, ...]] = MappingProxyType({})


def wanted(
    node: Node,
    state: State,
    *,
    hears_others: bool = True,
    devices: Mapping[str, tuple[str, ...]] = NO_DEVICES,
) -> QuietWanted:
    """What the containers of `state` ask for.

    An allocation asks from the moment it is made until its pod ends, also while its container is restarted: interrupts
    leave before the container runs, and do not come and go with its crashes.

    Args:
        node: the node.
        state: the state.
        hears_others: whether annotations of other programs count; they do not where the runtime acts on them itself.
        devices: PCI addresses of the containers' own devices, by key of their allocations.
    """
    options, online = node.options, node.topology.kernel_online
    steers_anywhere = options.receive_steering is ReceiveSteering.NONE
    if options.irqs is IRQs.NONE and options.workqueues is Workqueues.NONE and steers_anywhere:
        return QuietWanted(online=online)
    held = [(key, state.allocations[key]) for key in state.holders if not is_whole_pod(key)]
    askers = tuple(_askers(node, state, held, hears_others=hears_others))
    quiet = _union(one.quiet for one in askers)
    all_exclusive = _union(one.in_force for _, one in held)
    shared = node.topology.online - all_exclusive - quiet
    reserved = (node.reserved & online) - quiet
    to_reserved = options.irq_housekeeping is IRQHousekeeping.RESERVED and bool(reserved)
    return QuietWanted(
        askers=tuple(one for one in askers if one.quiet),
        claims=tuple(_claims(node, state, askers, devices)),
        masks=tuple(_masks(node, state, askers)),
        quiet=quiet,
        no_workqueues=all_exclusive if options.workqueues is Workqueues.EXCLUSIVE else NO_CPUS,
        no_steering=NO_CPUS if steers_anywhere else all_exclusive,
        latency_us=tuple(sorted(_latencies(node, state, held, hears_others=hears_others).items())),
        online=online,
        housekeeping=reserved if to_reserved else shared | reserved or online - quiet,
        cpus_by_node=tuple((one.id, one.cpus) for one in node.topology.nodes if one.cpus),
        controlled=options.irqs_controlled,
        left_alone=options.irqs_left_alone,
        tells_irqbalance=options.irqbalance.value == "socket",
        narrows_to_housekeeping=to_reserved,
    )


def may_ask_otherwise(before: State, after: State) -> bool:
    """Whether containers may ask for something else than before, on the same node. The cost is that of the changes.

    Only CPUs of allocations count, and pods of containers that have some.
    """
    changes = after.changes_from(before)
    if any((one.before and one.before.cpus) or (one.after and one.after.cpus) for one in changes.allocations):
        return True
    return any(held.cpus for one in changes.pods for held in after.allocations_of(one.key).values())


def _askers(
    node: Node, state: State, held: Iterable[tuple[str, Allocation]], *, hears_others: bool
) -> Iterator[Asker]:
    options = node.options
    if options.irqs is IRQs.NONE:
        return
    default = IRQWish.QUIET if options.irqs is IRQs.EXCLUSIVE else IRQWish.ANY
    for key, one in held:
        uid, name = owner_of(key)
        pod = state.pods.get(uid)
        said = irq_wish(options, pod, name, hears_others=hears_others) if pod is not None else None
        wish = said or default
        first = first_core(node.topology, one.in_force) if wish is IRQWish.HOUSEKEEPING else NO_CPUS
        yield Asker(key, wish, one.in_force, first)


def first_core(topology: Topology, cpus: CPUSet) -> CPUSet:
    """Those of `cpus` that are threads of the core of the lowest one.

    Source: CRI-O, the housekeeping CPUs of `irq-load-balancing.crio.io: housekeeping`.
    """
    lowest = CPUSet(cpus.mask & -cpus.mask)
    return topology.whole_cores(lowest) & cpus | lowest


HOUSEKEEPING_VARIABLES = ("NRI_PIN_HOUSEKEEPING_CPUS", "OPENSHIFT_HOUSEKEEPING_CPUS")
"""Environment variables of a container that say which of its CPUs keep interrupts; the second is CRI-O's name."""


def housekeeping_variables(node: Node, state: State, key: str) -> Mapping[str, str]:
    """The environment that tells a new container which of its CPUs keep interrupts; empty where none does."""
    held = state.allocations.get(key)
    if held is None or not held.cpus:
        return {}
    first = [one.housekeeping for one in _askers(node, state, [(key, held)], hears_others=True)]
    return dict.fromkeys(HOUSEKEEPING_VARIABLES, str(first[0])) if first and first[0] else {}


OWN_DEVICES = "devices"
"""In a claim: the PCI addresses of the container's own devices."""


def _claims(
    node: Node, state: State, askers: Iterable[Asker], devices: Mapping[str, tuple[str, ...]]
) -> Iterator[Claim]:
    for one in askers:
        uid, name = owner_of(one.key)
        pod = state.pods.get(uid)
        said = irq_claim(node.options, pod, name) if pod is not None else ()
        own = devices.get(one.key, ()) if OWN_DEVICES in said else ()
        patterns = (*(pattern for pattern in said if pattern != OWN_DEVICES), *own)
        cpus = (one.housekeeping or one.cpus) & node.topology.online
        if patterns and cpus:
            yield Claim(one.key, patterns, cpus)


def _masks(node: Node, state: State, askers: Iterable[Asker]) -> Iterator[Mask]:
    for one in askers:
        uid, name = owner_of(one.key)
        pod = state.pods.get(uid)
        patterns, wins = irq_mask(node.options, pod, name) if pod is not None else ((), False)
        if patterns:
            yield Mask(one.key, patterns, one.cpus, wins)


def _latencies(
    node: Node, state: State, held: Iterable[tuple[str, Allocation]], *, hears_others: bool
) -> Mapping[int, int]:
    """The shortest latency that an owner of each CPU asks for."""
    found: dict[int, int] = {}
    if node.options.irqs is IRQs.NONE:
        return found
    for key, one in held:
        uid, name = owner_of(key)
        pod = state.pods.get(uid)
        asked = (
            wake_latency_us(node.options, pod, name, hears_others=hears_others) if pod is not None else None
        )
        if asked is not None:
            for cpu in one.in_force & node.topology.online:
                found[cpu] = min(asked, found.get(cpu, asked))
    return found


def _union(sets: Iterable[CPUSet]) -> CPUSet:
    mask = 0
    for one in sets:
        mask |= one.mask
    return CPUSet(mask)


# ----------------------------------------------------------------------------------------------------
# The settings of the kernel, as they are found.


class SettingKind(StrEnum):
    """The kinds of settings; each begins the name of a setting."""

    IRQ = "irq"
    """One interrupt; its name is `irq/NUMBER`."""
    DEFAULT = "default"
    """The mask of interrupts that are requested later."""
    WORKQUEUE = "workqueue"
    """The mask of a workqueue; its name is `workqueue/NAME`, `workqueue/` for that of all unbound ones."""
    LATENCY = "latency"
    """The longest time for one CPU to wake up; its name is `latency/CPU`."""
    STEERING = "rps"
    """The CPUs that packets of a receive queue are steered to; its name is `rps/DEVICE/queues/rx-NUMBER`."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """One interrupt that somebody uses.

    Attributes:
        number: of `/proc/irq`; numbers are used again.
        actions: names of its handlers.
        chip: the controller, with the interrupt's number there.
        cpus: CPUs that it may be delivered to.
        effective: CPUs that it is delivered to; None where the kernel does not tell.
        is_settable: whether the file may be written (always, before Linux 6.12).
        node: its NUMA node; -1 for none.
        device: PCI address; empty for none or unknown.
    """

    number: int
    actions: tuple[str, ...]
    chip: str
    cpus: CPUSet
    effective: CPUSet | None = None
    is_settable: bool = True
    node: int = -1
    device: str = ""

    @property
    def name(self) -> str:
        """The name of its setting."""
        return f"{SettingKind.IRQ}/{self.number}"

    def matches(self, patterns: Iterable[str]) -> bool:
        """Whether a handler or the device has a name of this form, or the interrupt this number."""
        names = (*self.actions, str(self.number), *([self.device] if self.device else []))
        return any(map(_any_of(tuple(patterns)).match, names))


@lru_cache(maxsize=1024)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """What one of the patterns matches, found at once: thousands of interrupts meet those of many containers."""
    return re.compile("|".join(map(translate, patterns)) or r"(?!)")


@dataclass(frozen=True, slots=True)
class KeptSetting:
    """What is known of a setting beyond its value. It is stored before the setting is written.

    Attributes:
        name: of the setting.
        original: the value that it would have without us.
        written: values that we gave it, or were about to when this was stored; the latest last. After a crash it may
            have any of them.
        shown: what it shows since the latest was written, where that is not what was written.
        chip: of an interrupt; another one under the same number is another interrupt.
        actions: the same.
        refused: why the kernel lets nobody set it (`EIO`, `EPERM`); it is not written again until the next boot.
        is_changed: somebody else has set the value since.
    """

    name: str
    original: str
    written: tuple[str, ...] = ()
    shown: str = ""
    chip: str = ""
    actions: tuple[str, ...] = ()
    refused: str = ""
    is_changed: bool = False

    def is_of(self, found: Interrupt) -> bool:
        """Whether this is about that interrupt, and not about an earlier one with its number.

        Handlers of a shared line come and go. A driver that is bound again requests the same line, which keeps the
        value that we wrote.
        """
        same_handler = not self.actions or not set(self.actions).isdisjoint(found.actions)
        return self.chip == found.chip and (same_handler or self.is_ours(str(found.cpus)))

    def is_ours(self, value: str) -> bool:
        """Whether the value is one that we gave."""
        return value in self.written or (bool(self.shown) and value == self.shown)

    def with_value(self, value: str, found: str) -> "KeptSetting":
        """What to store before `value` is written over `found`."""
        former = (found,) if self.is_ours(found) and found != value else ()
        return replace(self, written=(*former, value), shown="")

    def confirmed(self, found: str) -> "KeptSetting":
        """The same once the setting has one of our values, or its original one."""
        if found == self.original:
            return replace(self, written=(), shown="")
        return replace(self, written=(found,)) if found in self.written else self


@dataclass(frozen=True, slots=True)
class SettledSetting:
    """The result for one setting.

    Attributes:
        kept: to be stored before the write.
        write: the value to be written; None for nothing.
        undone: what somebody else had set it to, which is written over.
    """

    kept: KeptSetting
    write: str | None = None
    undone: str = ""


def settle(kept: KeptSetting, found: str, desired: str, *, undo: bool) -> SettledSetting:
    """Decide for a setting that has one right value.

    Args:
        kept: what is known of it; `original` is the value without us.
        found: its value.
        desired: the right one; `original` to give it back.
        undo: whether a value of somebody else is written over; it is the original from now on otherwise.
    """
    if kept.refused:
        return SettledSetting(kept)
    undone = ""
    if found != kept.original and not kept.is_ours(found):
        if not undo:
            return SettledSetting(replace(kept, original=found, written=(), shown="", is_changed=True))
        undone = found
    is_shown_otherwise = kept.shown and found == kept.shown and kept.written[-1:] == (desired,)
    if found == desired or is_shown_otherwise:
        return SettledSetting(kept.confirmed(found))
    return SettledSetting(kept.with_value(desired, found), desired, undone)


def settle_cpus(
    wish: QuietWanted,
    kept: KeptSetting,
    found: CPUSet,
    leaves: CPUSet,
    *,
    claimed: CPUSet = NO_CPUS,
    made_by_kernel: Iterable[CPUSet] = (),
    node: int = -1,
) -> SettledSetting:
    """Decide for one setting that is a set of CPUs.

    Args:
        wish: what is wanted.
        kept: what is known of it.
        found: its value.
        leaves: the CPUs that it must not name; empty gives it its original.
        claimed: the CPUs that it must have instead; empty for none.
        made_by_kernel: values that nobody chose.
        node: its NUMA node.
    """
    is_free = found.isdisjoint(leaves) and not claimed and found not in made_by_kernel
    desired = claimed or narrowed_cpus(wish, CPUSet.parse(kept.original), leaves, node) or found
    return settle(kept, str(found), str(desired), undo=not is_free)


def narrowed_cpus(wish: QuietWanted, own: CPUSet, leaves: CPUSet, node: int = -1) -> CPUSet:
    """The CPUs for a setting whose own ones are `own`, when it leaves the CPUs `leaves`; empty where there is none."""
    online = wish.online
    if not own & online:
        own = online  # as the kernel has it
    if own.isdisjoint(leaves):
        return own
    rest = own - leaves
    if wish.narrows_to_housekeeping and rest & wish.housekeeping:
        rest &= wish.housekeeping
    if rest & online:
        return rest
    local = dict(wish.cpus_by_node).get(node, NO_CPUS) & wish.housekeeping
    return local - leaves or wish.housekeeping - leaves or online - leaves


def is_controlled(wish: QuietWanted, found: Interrupt) -> bool:
    """Whether the configuration lets the agent move it."""
    if found.matches(wish.left_alone):
        return False
    return not wish.controlled or found.matches(wish.controlled)


def claim_of(wish: QuietWanted, found: Interrupt) -> CPUSet:
    """The CPUs that containers claim it for; empty for no claim. Several claims share it."""
    winning = _union(one.cpus for one in wish.masks if one.wins and found.matches(one.patterns))
    return _union(one.cpus for one in wish.claims if found.matches(one.patterns)) - winning


def left_by(wish: QuietWanted, found: Interrupt) -> CPUSet:
    """The CPUs that it leaves: all quiet ones, and those of containers that mask it."""
    return wish.quiet | _union(one.cpus for one in wish.masks if found.matches(one.patterns))


def settle_interrupt(
    wish: QuietWanted, kept: KeptSetting | None, found: Interrupt, default: KeptSetting | None
) -> SettledSetting:
    """Decide for one interrupt that may be set.

    Args:
        wish: what is wanted.
        kept: what is known of it; None for one that was never looked at.
        found: the interrupt.
        default: what is known of the mask for later interrupts.
    """
    by_default = _given_by_default(wish, default, found) if default is not None else {}
    if kept is None or not kept.is_of(found):
        original = by_default.get(found.cpus, found.cpus)
        ours = (str(found.cpus),) if original != found.cpus else ()
        kept = KeptSetting(found.name, str(original), ours, chip=found.chip, actions=found.actions)
    moves = is_controlled(wish, found)
    return settle_cpus(
        wish,
        kept,
        found.cpus,
        left_by(wish, found) if moves else NO_CPUS,
        claimed=claim_of(wish, found) if moves else NO_CPUS,
        made_by_kernel=(wish.online, *by_default),
        node=found.node,
    )


def _given_by_default(wish: QuietWanted, default: KeptSetting, found: Interrupt) -> Mapping[CPUSet, CPUSet]:
    """What an interrupt got at its request from our mask for later interrupts, and what it would have got without us.

    Source: kernel/irq/manage.c, irq_setup_affinity: the online CPUs of the mask, of the device's NUMA node where there
        are any.
    """
    result: dict[CPUSet, CPUSet] = {}
    local = dict(wish.cpus_by_node).get(found.node, NO_CPUS)
    original = CPUSet.parse(default.original) & wish.online or wish.online
    for value in default.written:
        ours = CPUSet.parse(value) & wish.online
        result.setdefault(ours, original)
        if ours & local:
            result.setdefault(ours & local, original & local or original)
    return {ours: own for ours, own in result.items() if ours}


NO_LATENCY = "n/a"
"""Of `pm_qos_resume_latency_us`: no latency at all; "0" is no limit. Source: kernel Documentation/ABI/testing/sysfs-devices-power."""


def latency_text(latency_us: int) -> str:
    """The value of `pm_qos_resume_latency_us` for the longest time to wake up."""
    return str(latency_us) if latency_us else NO_LATENCY


def settle_latency(kept: KeptSetting, found: str, asked_us: int | None) -> SettledSetting:
    """Decide for the latency of one CPU. A shorter one of somebody else stays: it is as good for the container."""
    if asked_us is None:
        return settle(kept, found, kept.original, undo=False)
    is_shorter = found == NO_LATENCY or (found.isdigit() and 0 < int(found) <= asked_us)
    desired = latency_text(asked_us)
    if is_shorter and not kept.is_ours(found):
        return settle(kept, found, found, undo=False)
    return settle(kept, found, desired, undo=True)


def settle_steering(wish: QuietWanted, kept: KeptSetting, found: CPUSet) -> SettledSetting:
    """Decide for the steering of one receive queue.

    It is never widened. Where nothing else is left it is off: packets then stay on the CPU of the queue's interrupt.
    """
    desired = CPUSet.parse(kept.original) - wish.no_steering
    return settle(kept, str(found), str(desired), undo=not found.isdisjoint(wish.no_steering))
