"""Containers that have the CPU affinity of the runtime, and with it only a part of their CPUs.

At the start of a container its program has not set a mask yet, so a mask of the runtime is inherited and is reset. A sweep
finds containers that started without the agent. Each is reset once: a program that sets the same mask later keeps it.

Where the agent sees no processes of the node, as in a pod, nothing is found here. `nri-pin doctor` looks at the runtime.
"""

import logging
from collections.abc import Callable, Iterable

from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.core.pool import pins
from nri_plugin.host.task_affinity import InheritedAffinity, reset
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import Phase
from nri_plugin.process.logs import LogRateLimit, say
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import PostStartContainer, StartContainer, Synchronize

SWEEP_PAUSE_S = 60.0
"""Seconds between two sweeps. Where no process is seen, a sweep reads one empty file of each container."""

SLICE = 8
"""Containers that are looked at without a break: a millisecond."""

RESET, LEFT = RESULTS = ("reset", "left")


class InheritedAffinities:
    """Looks for them and resets them.

    Args:
        handler: has the state, and reads cgroups.
        loop: runs all work.
        log: takes a line for the first, and one for each reason why one is left.

        count: called with one of `RESULTS` for each container whose CPUs were narrowed.
    """

    def __init__(
        self, handler: Handler, loop: Loop, log: logging.Logger, count: Callable[[str], None]
    ) -> None:
        self._handler, self._loop, self._log, self._count = handler, loop, log, count
        self._done: set[str] = set()
        self._queue: dict[str, None] = {}
        self._said = LogRateLimit()

    def __call__(self, outcome: RequestOutcome) -> None:
        """Observe an outcome: a container that starts, or all of them after Synchronize."""
        event = outcome.event
        if isinstance(event, StartContainer | PostStartContainer):
            self._enqueue([event.container.id])
        elif isinstance(event, Synchronize):
            self._sweep()

    def _sweep(self) -> None:
        running = [one.id for one in self._handler.state.containers.values() if one.phase is Phase.RUNNING]
        self._done.intersection_update(running)
        self._enqueue(one for one in running if one not in self._done)
        self._loop.set_timer("affinity sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def _enqueue(self, ids: Iterable[str]) -> None:
        self._queue.update(dict.fromkeys(ids))
        if self._queue:
            self._loop.set_timer("affinity", self._loop.clock(), self._look)

    def _look(self) -> None:
        for container_id in list(self._queue)[:SLICE]:
            del self._queue[container_id]
            self._look_at(container_id)
        self._enqueue(())

    def _look_at(self, container_id: str) -> None:
        record = self._handler.state.containers.get(container_id)
        if record is None or container_id in self._done or not record.cgroup.path:
            return
        if not pins(self._handler.node, self._handler.state):
            return
        try:
            found = self._handler.cpusets.inherited_affinity(record.cgroup)
        except HostError as error:
            say(self._log, logging.DEBUG, "cgroup unreadable", err=error)
            return
        if found is None:
            return
        self._done.add(container_id)
        refused = ""
        try:
            reset(found)
        except HostError as error:
            refused = str(error)
        if found.is_narrow:
            self._tell(record.name, found, refused)

    def _tell(self, name: str, found: InheritedAffinity, refused: str) -> None:
        result = LEFT if refused else RESET
        self._count(result)
        # Every container that the runtime starts is one: the first tells all there is to know.
        is_due = self._said.is_due(result, self._loop.clock())
        say(
            self._log,
            logging.WARNING if is_due else logging.DEBUG,
            "a container ran on a part of its CPUs, because it has the CPU affinity of the runtime; nri-pin doctor says more",
            name=name,
            ran_on=found.cpus,
            of=found.granted,
            result=result,
            err=refused or None,
        )
