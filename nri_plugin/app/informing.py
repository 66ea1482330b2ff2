"""What else is known of a container that is about to be created: asked for before the decision, within bounds."""

import logging
from collections import Counter
from collections.abc import Callable

from nri_plugin.app.logs import say
from nri_plugin.facts import InformedCreate
from nri_plugin.host.devices import DeviceLocator
from nri_plugin.host.pod_resources_client import NoAnswerError, PodResourcesClient
from nri_plugin.nri.events import CreateContainer, NRIEvent, Request
from nri_plugin.options import Node, TopologyManagerPolicy

EXPORTER_LIMIT_S = 0.1
"""An exporter that has the answer gives it in a millisecond; without one there is another way."""

SHARE_OF_TIME = 0.25
"""Of what is left of the request's time, when that is shorter."""

LATE_PAUSE_S = 5.0
"""An exporter that was late is not asked again for so long: a hanging one must not slow down every container."""


class Informant:
    """Finds the devices of containers.

    Args:
        locator: goes by what the runtime says and the host's sysfs.
        client: asks the exporter, which knows what the kubelet has given.
        log: the reasons for going without the exporter, at debug level.
        clock: seconds, monotonic, the one deadlines are in.

    Attributes:
        outcomes: how often the exporter `answered`, did not know the container (`unknown`), `failed`, or
            was not asked because it had been late (`paused`).
    """

    def __init__(
        self,
        locator: DeviceLocator,
        client: PodResourcesClient,
        log: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self._locator = locator
        self._client = client
        self._log = log
        self._clock = clock
        self._paused_until = clock()

    def __call__(self, node: Node, request: Request) -> NRIEvent | InformedCreate:
        """The event to decide on; where no topology policy asks for hints nobody is asked."""
        event = request.event
        if not isinstance(event, CreateContainer):
            return event
        if node.options.topology_manager_policy is TopologyManagerPolicy.NONE:
            return event
        return self._asked(event, request.deadline) or InformedCreate(
            event, self._locator.resources(event.container)
        )

    def _asked(self, event: CreateContainer, deadline: float | None) -> InformedCreate | None:
        """What the exporter knows, None when it does not, or not in time."""
        limit_s = self._limit(deadline)
        if limit_s <= 0 or self._clock() < self._paused_until:
            self.outcomes["paused"] += 1
            return None
        try:
            known = self._client.ask(event, limit_s)
        except NoAnswerError as error:
            self.outcomes["failed"] += 1
            say(self._log, logging.DEBUG, "going by device nodes, the exporter did not answer", err=error)
            if error.late:
                self._paused_until = self._clock() + LATE_PAUSE_S
            return None
        self.outcomes["answered" if known else "unknown"] += 1
        return known

    def _limit(self, deadline: float | None) -> float:
        if deadline is None:
            return EXPORTER_LIMIT_S
        return min(EXPORTER_LIMIT_S, (deadline - self._clock()) * SHARE_OF_TIME)
