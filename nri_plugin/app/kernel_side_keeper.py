"""Keeps quotas and sandboxes as the state has them: soon after every change, and by a slow sweep.

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
from nri_plugin.kernel_side import NO_QUOTA, QuotaWrite, quotas, sandboxes
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
    """

    def __init__(
        self,
        handler: Handler,
        loop: Loop,
        log: logging.Logger,
        cgroups: Cgroups,
        cpu_quotas: CPUQuotas | None,
    ) -> None:
        self._handler, self._loop, self._log = handler, loop, log
        self._cgroups, self._quotas = cgroups, cpu_quotas
        self._sandboxes_done: dict[CgroupRef, CPUSet] = {}
        self._quotas_done: dict[CgroupRef, int] = {}
        self._trouble = Reminder()

    def start(self) -> None:
        """Begin the sweep."""
        self._loop.set_timer("kernel side sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def __call__(self, outcome: Outcome) -> None:
        """Be told of an outcome: what follows from it is written once the answer is out."""
        if outcome.decision.state is not outcome.before:
            self._loop.set_timer("kernel side", self._loop.clock(), self._keep)

    def _sweep(self) -> None:
        self._sandboxes_done.clear()
        self._quotas_done.clear()
        self._keep()
        self._loop.set_timer("kernel side sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def _keep(self) -> None:
        node, state = self._handler.node, self._handler.state
        self._keep_sandboxes(dict(sandboxes(node, state)))
        if self._quotas is not None:
            self._keep_quotas(self._quotas, list(quotas(node, state)))

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
