"""Finds containers that run and that the runtime did not report: created around a registration, or their events were lost.

The slices bound Burstable and BestEffort containers in any case. A Guaranteed one lies directly below the kubelet's top
cgroup and would run on exclusive CPUs of others. So an unknown container is kept off them at once, by the drift watch. It
gets CPUs of its own with the next event that names it.

    a cgroup is made           inotify reports it; a container that was created in order is known by then
    Synchronize is answered    all cgroups of containers are read
    every half minute          the same, in portions between requests
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from nri_plugin.agent.repair.drift_watch import DriftWatch
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.core.drift import Target
from nri_plugin.core.pool import pins
from nri_plugin.core.reuse import live_keys
from nri_plugin.host.cgroup import ContainerCgroup, container_at, is_kubelet_folder, is_told
from nri_plugin.model.records import CgroupRef
from nri_plugin.process.logs import say
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import Synchronize

SWEEP_PAUSE_S = 30.0
"""Seconds between two sweeps: they read directories only."""

FOLDERS = 16
"""Cgroups of pods that are read without a break: a millisecond."""

AGAIN_S, LONGEST_AGAIN_S = 0.002, 0.1
"""Seconds until the next look at cgroups that are new; doubled each time."""

SANDBOX_S = 60.0
"""Seconds in which the only cgroup of a pod is taken for a sandbox, its first or a new one. The runtime reports it after its
start, on a node whose disk stalls more than ten seconds later, and the process in it only waits."""

FRESH_S = 62.0
"""Seconds for which a cgroup is new. One without a process until then is left to the sweep."""


class UnreportedContainers:
    """Watches for them, and has them kept off exclusive CPUs.

    Args:
        handler: has the state, and reads cgroups.
        loop: runs all work.
        log: takes one line for each.
        drift: keeps them off exclusive CPUs.
        is_connected: whether the runtime could have reported one.
        changed: called when one came or went.

    Attributes:
        names: their cgroups; replaced as a whole, so that another thread may read it.
    """

    def __init__(
        self,
        handler: Handler,
        loop: Loop,
        log: logging.Logger,
        drift: DriftWatch,
        is_connected: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self._handler, self._loop, self._log, self._drift = handler, loop, log, drift
        self._is_connected, self._changed = is_connected, changed
        self.names: tuple[str, ...] = ()
        self._found: dict[str, ContainerCgroup] = {}
        self._new: dict[str, tuple[ContainerCgroup, float]] = {}  # with the time at which it was seen first
        self._again_s = AGAIN_S
        self._folders: set[str] = set()  # above containers; they are watched
        self._walk: Iterator[str] = iter(())
        self._walked: set[str] = set()
        drift.made = self._made

    def __call__(self, outcome: RequestOutcome) -> None:
        """Observe an outcome: some may have been reported now, and CPUs that they run on may be exclusive now."""
        after = outcome.decision.state
        if self._found and after is not outcome.before:
            self._drop([path for path, one in self._found.items() if is_told(after, one)])
            if after.allocations is not outcome.before.allocations:
                self._drift.look_at_unreported()
        # Before the first one, containers that were created without an agent are not known either. The first pod tells where
        # the kubelet's cgroups are.
        if isinstance(outcome.event, Synchronize) or (after.pods and not outcome.before.pods):
            self._loop.set_timer("unreported", self._loop.clock(), self._sweep)

    def _sweep(self) -> None:
        self._walk, self._walked = self._handler.cpusets.folders(self._handler.state), set()
        self._step()

    def _step(self) -> None:
        """Read the next portion of the tree; at its end, forget what is gone."""
        portion = list(islice(self._walk, FOLDERS))
        for folder in portion:
            self._look_in(folder)
        self._walked.update(portion)
        if portion:
            self._loop.set_timer("unreported", self._loop.clock(), self._step)
        else:
            for gone in self._folders - self._walked:
                self._folders.discard(gone)
                self._drift.forget_folder(CgroupRef(gone))
            has_processes = self._handler.cpusets.has_processes
            self._drop([path for path, one in self._found.items() if not has_processes(one)])
            self._loop.set_timer("unreported", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)
        self._check()

    def _made(self, directories: set[str] | None) -> None:
        """Look at cgroups that were made; with None at all, because notices were lost."""
        if directories is None:
            self._loop.set_timer("unreported", self._loop.clock(), self._sweep)
            return
        for path in map(self._handler.cpusets.path_of, directories):
            # Below a container, others make cgroups that look the same.
            if os.path.dirname(path) not in self._folders:
                continue
            if is_kubelet_folder(path):
                self._look_in(path)
            elif one := container_at(path):
                self._note(one)
        self._check()

    def _look_in(self, folder: str) -> None:
        """Watch a cgroup above containers, and look at those in it."""
        self._folders.add(folder)
        self._drift.watch_folder(CgroupRef(folder))  # also where it was removed and made again
        for one in self._handler.cpusets.containers_in(folder):
            self._note(one)

    def _note(self, one: ContainerCgroup) -> None:
        if one.path not in self._found and not is_told(self._handler.state, one):
            self._new.setdefault(one.path, (one, self._loop.clock()))
            self._again_s = AGAIN_S

    def _check(self) -> None:
        """Decide which of the new cgroups are of containers that the runtime did not report."""
        state, now = self._handler.state, self._loop.clock()
        for path, (one, since) in list(self._new.items()):
            if is_told(state, one) or now - since > FRESH_S:
                del self._new[path]
            elif pins(self._handler.node, state) and self._is_unreported(one, now - since):
                del self._new[path]
                self._include(one)
        if self._new:
            self._loop.set_timer("unreported again", now + self._again_s, self._check)
            self._again_s = min(2 * self._again_s, LONGEST_AGAIN_S)

    def _is_unreported(self, one: ContainerCgroup, age_s: float) -> bool:
        cpusets = self._handler.cpusets
        if not cpusets.has_processes(one):
            return False
        if age_s >= SANDBOX_S or live_keys(self._handler.state, one.pod_uid):
            return True
        return len(cpusets.containers_in(os.path.dirname(one.path))) > 1

    def _include(self, one: ContainerCgroup) -> None:
        self._found[one.path] = one
        pod = self._handler.state.pods.get(one.pod_uid)
        say(
            self._log,
            logging.WARNING if self._is_connected() else logging.INFO,
            "the runtime did not report a container that runs; it is kept off exclusive CPUs",
            container=one.container_id,
            pod=f"{pod.namespace}/{pod.name}" if pod else one.pod_uid,
        )
        self._drift.include(target_of(one))
        self._tell()

    def _drop(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._drift.exclude(target_of(self._found.pop(path)))
        self._tell()

    def _tell(self) -> None:
        names = tuple(self._found)
        if names != self.names:
            self.names = names
            self._changed()


def target_of(one: ContainerCgroup) -> Target:
    """Return the cgroup of a container that is not known."""
    return Target(CgroupRef(f"/{os.path.dirname(one.path)}", f"/{one.path}"), one.container_id)
