"""irqbalance: tells each one that runs to leave quiet CPUs alone, and gives it back the CPUs that it had banned by itself.

Source: irqbalance 1.9, its socket: a ban is in force until the process ends, and counts from its next round.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from nri_plugin.core.quiet import QuietWanted
from nri_plugin.host.irqbalance import IRQBalanceProcess
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.process.logs import LogRateLimit, say

OBEYS_S = 60.0
"""Seconds until irqbalance is told again: its rounds have 10 s unless it was started with others."""


class Balancers:
    """Tells every irqbalance of the machine.

    Args:
        running: returns every irqbalance that runs.
        bans: those that were told before, as stored.
        log: takes a line when one is told other CPUs, and for trouble.
        clock: seconds, monotonic.

    Attributes:
        bans: by socket: the CPUs that each one that is told had banned by itself. To be stored before it is told.
    """

    def __init__(
        self,
        running: Callable[[], Iterable[IRQBalanceProcess]],
        bans: Mapping[str, str],
        log: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        self._running, self._log, self._clock = running, log, clock
        self.bans = dict(bans)
        self._told: dict[str, tuple[CPUSet, float]] = {}
        self._trouble = LogRateLimit()

    def look(self, wish: QuietWanted) -> None:
        """Remember which CPUs each irqbalance has banned by itself, before it is told others."""
        if not wish.tells_irqbalance and not self.bans:
            return
        running = {one.path: one for one in self._running()}
        for path in self.bans.keys() - running.keys():
            del self.bans[path]  # it has ended, and what it was told with it
            self._told.pop(path, None)
        for path, one in running.items():
            if path not in self.bans and wish.quiet and wish.tells_irqbalance:
                try:
                    self.bans[path] = str(one.banned())
                except HostError as error:
                    self._warn(error)

    def tell(self, wish: QuietWanted) -> None:
        """Tell each one of `bans` which CPUs to leave alone, or that it may use them again."""
        if not self.bans:
            return
        running = {one.path: one for one in self._running()}
        for path, ban in list(self.bans.items()):
            one, own = running.get(path), CPUSet.parse(ban)
            if one is None:
                continue
            leaves = wish.quiet if wish.tells_irqbalance else NO_CPUS
            try:
                self._tell(one, own, leaves)
            except HostError as error:
                self._warn(error)
                continue
            if not leaves:
                del self.bans[path]

    def _tell(self, one: IRQBalanceProcess, own: CPUSet, leaves: CPUSet) -> None:
        """Tell one its CPUs, once: it obeys with its next round, and shows the former ones until then.

        Raises:
            HostError: it does not answer.
        """
        desired, now = own | leaves, self._clock()
        told, at = self._told.get(one.path, (None, 0.0))
        if (told == desired and now < at + OBEYS_S) or one.banned() == desired:
            return
        one.ban(desired)
        self._told[one.path] = desired, now
        if told != desired:
            text = "irqbalance told which CPUs to leave alone"
            say(self._log, logging.INFO, text, cpus=desired or "none")

    def _warn(self, error: HostError) -> None:
        if self._trouble.is_due(str(error), self._clock()):
            say(
                self._log,
                logging.WARNING,
                "irqbalance cannot be told to leave quiet CPUs alone",
                todo="set IRQBALANCE_BANNED_CPULIST in its configuration, or stop it",
                err=error,
            )
