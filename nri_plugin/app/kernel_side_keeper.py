"""Keeps quotas, sandboxes and partitions as the state has them: soon after every change, and by a slow sweep.

Nothing of this is in the way of an answer: a failure is said and tried again.
"""

import logging

from nri_plugin.app.handler import Handler
from nri_plugin.app.logs import say
from nri_plugin.app.loop import Loop
from nri_plugin.app.outcome import Outcome
from nri_plugin.app.reminder import Reminder
from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import HostError
from nri_plugin.host.cgroup import Cgroups, WriteOutcome
from nri_plugin.host.cpu_quota import CPUQuotas
from nri_plugin.host.partitions import Partitions
from nri_plugin.kernel_side import NO_QUOTA, Partition, QuotaWrite, partitions, quotas, sandboxes
from nri_plugin.nri.events import Synchronize
from nri_plugin.state import CgroupRef

SWEEP_PAUSE_S = 10.0
"""Between two looks at everything; systemd puts a pod's quota back when it reloads, and tells nobody."""


class KernelSideKeeper:
    """Writes what `nri_plugin.kernel_side` says, where it is not so.

    Args:
        handler: knows the state.
        loop: where it runs.
        log: a line for each quota that was changed, and for what fails.
        cgroups: the cpusets.
        cpu_quotas: None where the node has none that we see.
        own_domains: partitions; None on cgroup v1, which has none.
    """

    def __init__(
        self,
        handler: Handler,
        loop: Loop,
        log: logging.Logger,
        cgroups: Cgroups,
        cpu_quotas: CPUQuotas | None,
        own_domains: Partitions | None = None,
    ) -> None:
        self._handler, self._loop, self._log = handler, loop, log
        self._cgroups, self._quotas, self._domains = cgroups, cpu_quotas, own_domains
        self._refused: dict[CgroupRef, str] = {}
        self._adopts = True
        self._is_sweeping = False
        self._sandboxes_done: dict[CgroupRef, CPUSet] = {}
        self._quotas_done: dict[CgroupRef, int] = {}
        self._trouble = Reminder()

    def start(self) -> None:
        """Begin the sweep."""
        self._loop.set_timer("kernel side sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def __call__(self, outcome: Outcome) -> None:
        """Be told of an outcome: what follows from it is written once the answer is out."""
        if isinstance(outcome.event, Synchronize) or outcome.decision.state is not outcome.before:
            self._loop.set_timer("kernel side", self._loop.clock(), self._keep)

    def _sweep(self) -> None:
        self._sandboxes_done.clear()
        self._quotas_done.clear()
        self._is_sweeping = True
        self._keep()
        self._is_sweeping = False
        self._loop.set_timer("kernel side sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def _keep(self) -> None:
        node, state = self._handler.node, self._handler.state
        if self._domains is None:
            self._keep_sandboxes(dict(sandboxes(node, state)))
        else:
            domains = {one.target: one for one in partitions(node, state)}
            self._end_domains(self._domains, domains)  # before a sandbox gets their CPUs
            self._keep_sandboxes(dict(sandboxes(node, state)))
            self._make_domains(self._domains, domains)
        if self._quotas is not None:
            self._keep_quotas(self._quotas, list(quotas(node, state)))

    def _end_domains(self, ours: Partitions, wanted: dict[CgroupRef, Partition]) -> None:
        try:
            if self._adopts:
                state = self._handler.state
                ours.adopt(one.cgroup for one in state.containers.values() if one.key in state.allocations)
                self._adopts = False
        except HostError as error:
            self._say(error)
        for trouble in ours.end_others(wanted):
            self._say(trouble)

    def _make_domains(self, ours: Partitions, wanted: dict[CgroupRef, Partition]) -> None:
        """What was refused is tried again by the sweep, and said when the kernel's words change."""
        for ref in self._refused.keys() - wanted.keys():
            del self._refused[ref]
        due = {ref: one for ref, one in wanted.items() if self._is_sweeping or ref not in self._refused}
        for settled in ours.make(due):
            one = settled.partition
            if not settled.trouble:
                self._refused.pop(one.target, None)
                self._tell_domain(logging.INFO, "partition made", one)
            elif self._refused.get(one.target) != settled.trouble:
                self._refused[one.target] = settled.trouble
                self._tell_domain(
                    logging.WARNING, "no partition, it has an ordinary cpuset", one, err=settled.trouble
                )

    def _tell_domain(self, level: int, text: str, one: Partition, **fields: object) -> None:
        say(self._log, level, text, container=one.container_id, cpus=one.cpus, kind=one.kind, **fields)

    def _keep_sandboxes(self, wanted: dict[CgroupRef, CPUSet]) -> None:
        done = self._sandboxes_done
        for ref, cpus in wanted.items():
            if done.get(ref) != cpus:
                try:
                    if self._cgroups.write_cpus(ref, cpus) is not WriteOutcome.MISSING:
                        done[ref] = cpus
                except HostError as error:
                    self._say(error)
        for ref in done.keys() - wanted.keys():
            del done[ref]

    def _keep_quotas(self, files: CPUQuotas, wanted: list[QuotaWrite]) -> None:
        done = self._quotas_done
        for one in wanted:
            if done.get(one.target) == one.quota_us:
                continue
            try:
                changed = files.set(one.target, one.quota_us)
            except HostError as error:
                self._say(error)
                continue
            done[one.target] = one.quota_us
            if changed:
                text = "CPU quota lifted" if one.quota_us == NO_QUOTA else "CPU quota put back"
                say(self._log, logging.INFO, text, cgroup=one.target.path or one.target.parent)
        for ref in done.keys() - {one.target for one in wanted}:
            del done[ref]

    def _say(self, error: HostError) -> None:
        if self._trouble.is_due(str(error), self._loop.clock()):
            say(self._log, logging.WARNING, "not as it should be beside the cpusets", err=error)
