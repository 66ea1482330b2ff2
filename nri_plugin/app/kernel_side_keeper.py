"""Keeps quotas, sandboxes and partitions as the state has them: soon after every change, and by a slow sweep.

Nothing of this is in the way of an answer: a failure is said and tried again.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from nri_plugin.app.handler import Handler
from nri_plugin.app.logs import say, say_trace
from nri_plugin.app.loop import Loop
from nri_plugin.app.outcome import Outcome
from nri_plugin.app.quota_keeper import REMEDY, SLICE, QuotaKeeper
from nri_plugin.app.reminder import Reminder
from nri_plugin.cpuset import NO_CPUS, CPUSet
from nri_plugin.errors import HostError
from nri_plugin.host.cgroup import Cgroups
from nri_plugin.host.partitions import Partitions
from nri_plugin.kernel_side import Partition, partitions, promised, quotas, sandboxes
from nri_plugin.nri.events import (
    PostUpdateContainer,
    PostUpdatePodSandbox,
    Synchronize,
    UpdateContainer,
    UpdatePodSandbox,
)
from nri_plugin.nri.messages import Pod
from nri_plugin.state import CgroupRef, State

SWEEP_PAUSE_S = 10.0
"""Between two looks at everything."""

FOLLOW_S = 0.05
"""What follows from an event is looked at this soon after it; a burst is one change."""

UPDATES = (UpdateContainer, PostUpdateContainer, UpdatePodSandbox, PostUpdatePodSandbox)
"""Who asks for one has written, or lets the runtime write, quotas."""

SANDBOX_STAYS = "the cpuset of a pod's sandbox could not be written: it may run on exclusive CPUs of others"
PARTITION_STAYS = "a partition could not be ended or mended: its CPUs may be kept from whom they belong to"

MOST_SWEEPS = 30
"""What the kernel refused is tried at ever fewer sweeps, in the end every five minutes."""


@dataclass(slots=True)
class Refused:
    """A partition that the kernel did not grant.

    Attributes:
        partition: what it was asked for.
        trouble: its words.
        pause: sweeps from one try to the next.
        left: how many of them are still to come.
    """

    partition: Partition
    trouble: str
    pause: int = 1
    left: int = 1


class KernelSideKeeper:
    """Writes what `nri_plugin.kernel_side` says, where it is not so; in slices, between which the runtime is answered.

    Args:
        handler: knows the state.
        loop: where it runs.
        log: a line for what changes, and for what fails.
        cgroups: the cpusets.
        cpu_quotas: None where the node has none that we see.
        own_domains: partitions.

    The counts may be read by any thread.
    """

    def __init__(
        self,
        handler: Handler,
        loop: Loop,
        log: logging.Logger,
        cgroups: Cgroups,
        cpu_quotas: QuotaKeeper | None,
        own_domains: Partitions,
    ) -> None:
        self._handler, self._loop, self._log = handler, loop, log
        self._cgroups, self._quotas, self._domains = cgroups, cpu_quotas, own_domains
        self._former: State | None = handler.state  # an agent that ended may have made partitions for these
        self._refused: dict[CgroupRef, Refused] = {}
        self._steps: Iterator[None] = iter(())
        self._is_due = False
        self._sandboxes_done: dict[CgroupRef, CPUSet] = {}
        self._trouble = Reminder()

    @property
    def lifted(self) -> int:
        """Cgroups without the CPU quota they would have."""
        return self._quotas.lifted if self._quotas is not None else 0

    @property
    def watches(self) -> int:
        """Watches the kernel holds for us."""
        return self._quotas.watches if self._quotas is not None else 0

    @property
    def partitions(self) -> int:
        """Partitions that are made."""
        return len(self._domains)

    @property
    def refused(self) -> int:
        """Partitions that the kernel did not grant."""
        return len(self._refused)

    def start(self) -> None:
        """Begin the sweep, and to listen."""
        if self._quotas is not None:
            self._quotas.start()
        self._loop.set_timer("kernel side sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def __call__(self, outcome: Outcome) -> None:
        """Be told of an outcome: what follows from it is written soon after the answer."""
        if isinstance(outcome.event, Synchronize):
            self._former = self._former or self._handler.state
            self.look_again()
        elif outcome.decision.state is not outcome.before:
            self.look_again()
        if self._quotas is not None and isinstance(outcome.event, UPDATES):
            self._quotas.updated(_cgroup_parent(outcome.decision.state, outcome.event.pod))

    def look_again(self) -> None:
        """Soon; something changed that may have ended a partition: a cpuset beside it, the machine."""
        if not self._is_due:
            self._is_due = True
            self._loop.set_timer("kernel side", self._loop.clock() + FOLLOW_S, self._begin)

    def _sweep(self) -> None:
        """Everything is looked at, also what was right before; a look that is under way comes after it anew."""
        self._sandboxes_done = dict.fromkeys(self._sandboxes_done, NO_CPUS)
        if self._quotas is not None:
            self._quotas.doubt_all()
        for one in self._refused.values():
            one.left -= 1
        self._begin()
        self._loop.set_timer("kernel side sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def _begin(self) -> None:
        """Look at the state as it is now; what was done before is not done again."""
        self._is_due = False
        self._steps = self._keep()
        self._go_on()

    def _go_on(self) -> None:
        try:
            taken = sum(1 for _ in islice(self._steps, SLICE))
        except Exception:  # noqa: BLE001 - whatever is wrong here, containers go on being placed
            say_trace(self._log, "internal error while quotas, sandboxes and partitions were put right")
            return
        if taken == SLICE:
            self._loop.set_timer("kernel side slice", self._loop.clock(), self._go_on)

    def _keep(self) -> Iterator[None]:
        """A step is a file or a few."""
        node, state = self._handler.node, self._handler.state
        pool, rest = state.shared_pool(node), dict(sandboxes(node, state))
        domains = {one.target: one for one in partitions(node, state)}
        self._end_domains(self._domains, domains)  # before a sandbox gets their CPUs
        yield from self._keep_sandboxes(pool, rest)
        yield from self._make_domains(self._domains, domains)
        if self._quotas is not None:
            yield from self._quotas.keep(quotas(node, state))

    def _end_domains(self, ours: Partitions, wanted: dict[CgroupRef, Partition]) -> None:
        if self._former is not None:
            known = dict(promised(self._former)) | dict(promised(self._handler.state))
            for trouble in ours.adopt(known.items()):
                self._say(PARTITION_STAYS, trouble)
            self._former = None
        online, now_s = self._handler.node.topology.online, self._loop.clock()
        for trouble in (*ours.end_others(wanted), *ours.mend(online, now_s)):
            self._say(PARTITION_STAYS, trouble)

    def _make_domains(self, ours: Partitions, wanted: dict[CgroupRef, Partition]) -> Iterator[None]:
        """What was refused is tried again by the sweep, and said when the kernel's words change."""
        for ref in [ref for ref, one in self._refused.items() if wanted.get(ref) != one.partition]:
            del self._refused[ref]
        waiting = {ref for ref, one in self._refused.items() if one.left > 0}
        due = {ref: one for ref, one in wanted.items() if ref not in waiting}
        for settled in ours.make(due):
            one, refused = settled.partition, self._refused.get(settled.partition.target)
            if not settled.trouble:
                self._refused.pop(one.target, None)
                self._tell_domain(logging.INFO, "partition made", one)
            elif refused is not None and refused.trouble == settled.trouble:
                refused.pause = refused.left = min(2 * refused.pause, MOST_SWEEPS)
            else:
                self._refused[one.target] = Refused(one, settled.trouble)
                self._tell_domain(
                    logging.WARNING, "no partition, it has an ordinary cpuset", one, err=settled.trouble
                )
            yield

    def _tell_domain(self, level: int, text: str, one: Partition, **fields: object) -> None:
        say(self._log, level, text, container=one.container_id, cpus=one.cpus, kind=one.kind, **fields)

    def _keep_sandboxes(self, pool: CPUSet, wanted: dict[CgroupRef, CPUSet]) -> Iterator[None]:
        """Some runtimes make no sandbox, and then there is nothing to write until the next sweep either.

        One that is not ours to keep any more is left with the pool of now, which is every CPU where nobody pins.
        """
        done = self._sandboxes_done
        for ref in done.keys() - wanted.keys():
            del done[ref]
            if pool:
                self._write_sandbox(ref, pool)
            yield
        for ref, cpus in wanted.items():
            if done.get(ref) != cpus:
                if self._write_sandbox(ref, cpus):
                    done[ref] = cpus
                yield

    def _write_sandbox(self, ref: CgroupRef, cpus: CPUSet) -> bool:
        try:
            self._cgroups.write_cpus(ref, cpus)
        except HostError as error:
            self._say(SANDBOX_STAYS, error)
            return False
        return True

    def _say(self, text: str, error: HostError) -> None:
        if self._trouble.is_due(str(error), self._loop.clock()):
            say(self._log, logging.WARNING, text, todo=REMEDY, err=error)


def _cgroup_parent(state: State, told: Pod) -> str:
    """The pod's cgroup, also when the event brings only the sandbox id; empty for an unknown pod."""
    pod = state.pods.get(told.uid)
    pod = pod or next((one for one in state.pods.values() if one.sandbox_id == told.id), None)
    return pod.cgroup_parent if pod is not None else ""
