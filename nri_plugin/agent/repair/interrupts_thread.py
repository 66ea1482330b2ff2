"""Runs the passes of `quiet_cpus.py` in a thread of their own, with a loop of their own.

A write to an interrupt may wait in the kernel, and the runtime must never wait for that. The thread that answers the
runtime only derives what is wanted, after its answer, and posts it. The thread is started by the first container that
asks, so a node on which nobody asks reads and writes nothing.

Passes are made when what is wanted changes, when inotify reports that somebody else has written, and every `SWEEP_S`: the
kernel reports neither new interrupts, nor drivers that set them again, nor what it does itself when a CPU goes offline.
"""

import logging
import threading
from collections.abc import Callable, Mapping

from nri_plugin.agent.repair.interrupts import SWEEP_S, QuietCPUs, QuietReport
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.checkpoint.quiet_file import QuietFile
from nri_plugin.core.quiet import QuietWanted, may_ask_otherwise, wanted
from nri_plugin.core.requests import pod_uid
from nri_plugin.host.cgroup_watch import IN_Q_OVERFLOW, Inotify
from nri_plugin.host.devices import listed_addresses
from nri_plugin.host.interrupts import KernelSettingFiles
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import Node
from nri_plugin.model.records import allocation_key
from nri_plugin.model.state import State
from nri_plugin.process.logs import LogRateLimit, say, say_trace
from nri_plugin.process.loop import Loop, StartThread
from nri_plugin.wire.nri.events import CreateContainer, Synchronize
from nri_plugin.wire.nri.messages import Container

FOLLOW_S = 0.05
"""Seconds from an event to the pass for its consequences. A burst of events causes one."""

DEAF_S = 0.1
"""Seconds without listening after a notice: another writer that never stops costs ten short passes a second."""

ENDS_S = 2.0
"""Seconds that the end of the agent waits for a pass. A write that waits in the kernel must not keep the next agent away."""

AFFINITY_FILES = ("smp_affinity", "default_smp_affinity")
"""How the names of the files begin whose writes matter."""


class QuietCPUsThread:
    """Runs the passes in a thread of its own, from the first container on that asks.

    Args:
        handler: has node and state.
        loop: of the thread that answers the runtime.
        make: makes what runs in the thread.
        store: of the originals; a file of an earlier agent starts the thread, too.
        files: of the kernel, for what is watched.
        log: takes internal errors.
        hears_others: whether annotations of other programs count.
    """

    def __init__(
        self,
        handler: Handler,
        loop: Loop,
        make: Callable[[Callable[[], float]], QuietCPUs],
        store: QuietFile,
        files: KernelSettingFiles,
        log: logging.Logger,
        hears_others: Callable[[], bool] = lambda: True,
    ) -> None:
        self._handler, self._loop, self._make, self._store = handler, loop, make, store
        self._files, self._log, self._hears_others = files, log, hears_others
        self._node: Node | None = None
        self._state: State | None = None
        self._wish = QuietWanted()
        self._is_synchronized = self._is_due = self._has_other_devices = False
        self._devices: dict[str, tuple[str, ...]] = {}
        self._worker: _Worker | None = None

    @property
    def report(self) -> QuietReport:
        """What the last pass found."""
        return self._worker.passes.report if self._worker is not None else QuietReport()

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """(what, why) by number, since the start."""
        return dict(self._worker.passes.counts) if self._worker is not None else {}

    @property
    def askers(self) -> tuple[str, ...]:
        """Keys of the allocations that ask for quiet CPUs."""
        return tuple(one.key for one in self._wish.askers)

    def start(self) -> None:
        """Notice new configurations, too, which come without an event."""
        self._loop.repeat("quiet CPUs", SWEEP_S, self.follow)

    def __call__(self, outcome: RequestOutcome) -> None:
        """Observe an outcome: its consequences are written soon after the answer."""
        event = outcome.event
        if isinstance(event, Synchronize):
            self._is_synchronized = True
            uids = {pod.id: pod_uid(pod) for pod in event.pods}
            for one in event.containers:
                self._remember(uids.get(one.pod_id, ""), one)
        elif isinstance(event, CreateContainer):
            self._remember(pod_uid(event.pod), event.container)
        if isinstance(outcome.event, Synchronize) or outcome.decision.state is not outcome.before:
            self.follow_soon()

    def _remember(self, uid: str, container: Container) -> None:
        """Remember the container's own PCI devices: they are told at its creation, and by Synchronize."""
        key, addresses = allocation_key(uid, container.name), listed_addresses(container)
        if addresses and self._devices.get(key) != addresses:
            self._devices[key] = addresses
            self._has_other_devices = True

    def follow_soon(self) -> None:
        """Derive what is wanted after `FOLLOW_S`."""
        if not self._is_due:
            self._is_due = True
            self._loop.set_timer("quiet CPUs follow", self._loop.clock() + FOLLOW_S, self._follow_now)

    def _follow_now(self) -> None:
        self._is_due = False
        self.follow()

    def follow(self) -> None:
        """Derive what is wanted, and post it where it has changed.

        Before the runtime has told which containers run, nothing is given back: the checkpoint may be lost.
        """
        node, state = self._handler.node, self._handler.state
        if not self._is_synchronized:
            return
        if not self._has_news(node, state):
            self._state = state
            return
        is_first = self._state is None
        self._node, self._state, self._has_other_devices = node, state, False
        self._devices = {key: one for key, one in self._devices.items() if key in state.allocations}
        try:
            wish = wanted(node, state, hears_others=self._hears_others(), devices=self._devices)
        except Exception:  # noqa: BLE001 - an error here must not keep containers from being placed
            say_trace(self._log, "internal error, quiet CPUs are not derived")
            return
        if wish == self._wish and not is_first:
            return
        self._wish = wish
        if self._worker is None:
            if wish.is_nothing and not self._store.exists:
                return
            self._worker = _Worker(self._make, self._files, self._log, self._loop.start_thread)
        self._worker.apply(wish)

    def _has_news(self, node: Node, state: State) -> bool:
        """Whether something else may be wanted. The cost is that of what has changed."""
        if self._state is None or self._node is not node or self._has_other_devices:
            return True
        return self._state is not state and may_ask_otherwise(self._state, state)

    def close(self) -> None:
        """End the thread; nothing is given back."""
        if self._worker is not None:
            self._worker.close()


class _Worker:
    """The thread: a loop, the passes, and the watch of foreign writes."""

    def __init__(
        self,
        make: Callable[[Callable[[], float]], QuietCPUs],
        files: KernelSettingFiles,
        log: logging.Logger,
        start: StartThread,
    ) -> None:
        self._loop, self._files, self._log = Loop(), files, log
        self.passes = make(self._loop.clock)
        self._watch: Inotify | None = None
        self._number_by_watch: dict[int, int | None] = {}
        self._no_watch = LogRateLimit()
        self._thread = threading.Thread(target=self._run, name="quiet CPUs", daemon=True)
        start(self._thread)

    def apply(self, wish: QuietWanted) -> None:
        """Make a pass for it; returns at once."""
        self._loop.post(lambda: self._safely(lambda: self.passes.apply(wish)))

    def close(self) -> None:
        """End the thread, or leave it to the end of the process where a write waits in the kernel."""
        self._loop.post(lambda: self._loop.stop(0))
        if self._thread.is_alive():
            self._thread.join(ENDS_S)

    def _run(self) -> None:
        self._loop.repeat("sweep", SWEEP_S, lambda: self._safely(self.passes.look))
        self._loop.run()
        self._loop.close()

    def _safely(self, do: Callable[[], None]) -> None:
        try:
            do()
            self._follow_watches()
        except Exception:  # noqa: BLE001 - the next pass may go well, and containers are placed in any case
            say_trace(self._log, "internal error, quiet CPUs are not kept quiet")

    def _follow_watches(self) -> None:
        """Watch every interrupt that matters; the kernel keeps a watch as long as the interrupt exists."""
        try:
            if self.passes.is_idle:
                self._stop_watching()
                return
            if self._watch is None:
                self._watch = Inotify()
                self._loop.watch(self._watch, self._on_watch)
            for number in (None, *self.passes.watched):
                watch = self._watch.add(self._files.directory(number))
                if watch is not None:
                    self._number_by_watch[watch] = number
        except HostError as error:
            if self._no_watch.is_due(str(error), self._loop.clock()):
                text = "interrupts cannot be watched; only the periodic sweep finds other writers"
                say(self._log, logging.WARNING, text, err=error)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._loop.forget(self._watch)
            self._watch.close()
            self._watch, self._number_by_watch = None, {}

    def _on_watch(self) -> None:
        if self._watch is None:
            return
        notices = self._watch.read()
        self._loop.forget(self._watch)
        self._loop.set_timer("listen", self._loop.clock() + DEAF_S, self._listen)
        if any(one.mask & IN_Q_OVERFLOW for one in notices):
            self._safely(self.passes.look)
            return
        numbers = {
            self._number_by_watch.get(one.watch) for one in notices if one.name.startswith(AFFINITY_FILES)
        }
        if None in numbers:  # the mask for later interrupts
            self._safely(self.passes.look)
        elif numbers:
            self._safely(lambda: self.passes.look(one for one in numbers if one is not None))

    def _listen(self) -> None:
        if self._watch is not None:
            self._loop.watch(self._watch, self._on_watch)
