"""Notices CPUs and memory nodes that come or go while the agent runs, and lets cgroups follow at once.

What is reserved stays as it was chosen at the start: choosing anew could take CPUs that somebody was promised.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from nri_plugin.app.handler import Handler
from nri_plugin.app.logs import say, say_trace
from nri_plugin.app.loop import Loop
from nri_plugin.app.reminder import Reminder
from nri_plugin.app.startup import warn_of_overcommitted
from nri_plugin.cpuset import CPUSet
from nri_plugin.drift import MachineChanged
from nri_plugin.errors import NriPinError
from nri_plugin.satisfaction import allocatable_memory, overcommitted
from nri_plugin.state import named
from nri_plugin.topology import Topology

LOOK_PAUSE_S = 0.5
"""Three small files, 30 us: the kernel's own notices do not reach every network namespace."""


class MachineWatch:
    """Compares the machine with the one decisions are made for.

    Args:
        handler: decides for the machine as it is now.
        outline: what changes whenever the machine does, cheap to read.
        discover: the machine.
        log: what came, what went, and who lost CPUs.
        changed: called when it did and cgroups have followed.
        seen: the outline of the machine that decisions are made for, where that is known: discovering takes longer.
    """

    def __init__(
        self,
        handler: Handler,
        outline: Callable[[], object],
        discover: Callable[[], Topology],
        log: logging.Logger,
        clock: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
        seen: object = None,
    ) -> None:
        self._handler, self._outline, self._discover = handler, outline, discover
        self._log, self._clock, self._changed = log, clock, changed
        self._seen = seen
        self._trouble = Reminder()

    def start(self, loop: Loop) -> None:
        """Look by the clock from now on."""

        def look() -> None:
            self.moved()
            loop.set_timer("machine", loop.clock() + LOOK_PAUSE_S, look)

        look()

    def moved(self) -> bool:
        """Look once; returns whether the machine is another one now, and then cgroups have followed."""
        try:
            outline = self._outline()
            if outline == self._seen:
                return False
            topology = self._discover()
            self._seen = outline
            self._trouble.forget()
            return self._follow(topology)
        except NriPinError as error:
            if self._trouble.is_due(str(error), self._clock()):
                say(self._log, logging.ERROR, "a change of the machine cannot be followed", err=error)
        except Exception:  # noqa: BLE001 - whatever is wrong here, containers go on being placed
            say_trace(self._log, "internal error, a change of the machine is not followed")
        return False

    def _follow(self, topology: Topology) -> bool:
        before = self._handler.node
        if topology == before.topology:
            return False
        lost = self._handler.state.lost(before)
        overcommitted_before = overcommitted(self._handler.state, allocatable_memory(before))
        node = replace(before, topology=topology)
        self._handler.change_node(node)
        self._say_what(before.topology, topology)
        self._say_who(lost)
        warn_of_overcommitted(node, self._handler.state, self._log, overcommitted_before)
        _, errors = self._handler.put_right(MachineChanged())
        for error in errors:
            say(self._log, logging.ERROR, "cpuset not written", event="MachineChanged", err=error)
        self._changed()
        return True

    def _say_what(self, before: Topology, after: Topology) -> None:
        say(
            self._log,
            logging.WARNING,
            "the machine changed",
            cpus_gone=before.online - after.online or None,
            cpus_come=after.online - before.online or None,
            memory_nodes_gone=before.nodes_with_memory - after.nodes_with_memory or None,
            memory_nodes_come=after.nodes_with_memory - before.nodes_with_memory or None,
            online=after.online,
        )

    def _say_who(self, former: Mapping[str, CPUSet]) -> None:
        node, state = self._handler.node, self._handler.state
        now = state.lost(node)
        for key, lost in now.items():
            if former.get(key) != lost:
                left = state.allocations[key].cpus - lost
                say(
                    self._log,
                    logging.WARNING,
                    "a container lost exclusive CPUs, they stay promised to it",
                    name=named(state.pods, key),
                    lost=lost,
                    runs_on=left or state.shared_pool(node),
                    confined="shared pool" if not left else None,
                )
        for key in (former.keys() - now.keys()) & state.allocations.keys():
            say(
                self._log,
                logging.INFO,
                "a container has all its exclusive CPUs again",
                name=named(state.pods, key),
                cpus=state.allocations[key].cpus,
            )
