"""Who else gives CPUs to containers on this node, as far as an NRI plugin can see.

The runtime does not tell which plugins it has, and a pod sees neither the kubelet's process nor its configuration.
What can be seen: containers that come with a cpuset already chosen, and updates that bring one. The kubelet does both
under `cpuManagerPolicy: static` and neither under `none`; so may another NRI plugin that is asked before us. Where
the kubelet's state file can be read, it says by itself.
"""

import logging
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from nri_plugin.app.logs import say
from nri_plugin.app.outcome import Outcome
from nri_plugin.app.reminder import Reminder
from nri_plugin.errors import NriPinError
from nri_plugin.nri.events import CreateContainer, UpdateContainer
from nri_plugin.nri.messages import Resources

KUBELET_STATE = "/var/lib/kubelet/cpu_manager_state"
"""Not mounted into the agent's pod; there when the agent runs on the host."""

MOST_BYTES = 16 << 20

REMEDY = "let only one of them pin: set cpuManagerPolicy none in the kubelet, or take the other plugin away"


class Evidence(StrEnum):
    """What was seen."""

    CREATION = "creation"
    """A container came with a cpuset: the kubelet's static CPU manager or an NRI plugin before us."""
    UPDATE = "update"
    """An update brought a cpuset, and perhaps more."""
    KUBELET_UPDATE = "kubelet-update"
    """An update brought a cpuset and nothing else, which is what the kubelet's static CPU manager sends."""


WHO = {
    Evidence.CREATION: "the kubelet's static CPU manager, or an NRI plugin that is asked before this one",
    Evidence.UPDATE: "the kubelet's static CPU manager, or whoever updates containers through the runtime",
    Evidence.KUBELET_UPDATE: "the kubelet's static CPU manager",
}


class Rivals:
    """Names who else pins CPUs, at most every ten minutes.

    Args:
        log: where.
        clock: seconds.
        count: told of every piece of evidence.
    """

    def __init__(
        self,
        log: logging.Logger,
        clock: Callable[[], float],
        count: Callable[[Evidence], None] | None = None,
    ) -> None:
        self._log, self._clock, self._count = log, clock, count
        self._reminders = {evidence: Reminder() for evidence in Evidence}

    def __call__(self, outcome: Outcome) -> None:
        """Look at one event."""
        evidence = evidence_of(outcome)
        if evidence is None:
            return
        if self._count is not None:
            self._count(evidence)
        if self._reminders[evidence].is_due(evidence, self._clock()):
            say(
                self._log,
                logging.WARNING,
                "somebody else gives CPUs to containers, too",
                seen_at=evidence,
                looks_like=WHO[evidence],
                todo=REMEDY,
            )


def evidence_of(outcome: Outcome) -> Evidence | None:
    """What the event tells of others who pin CPUs; a cpuset that is ours already tells nothing."""
    event = outcome.event
    if isinstance(event, CreateContainer):
        return Evidence.CREATION if event.container.resources.cpus else None
    if not isinstance(event, UpdateContainer) or not event.resources.cpus:
        return None
    record = outcome.before.containers.get(event.container.id)
    if record and event.resources.cpus == str(outcome.before.desired_cpus(outcome.node, record)):
        return None
    return Evidence.KUBELET_UPDATE if _brings_nothing_else(event.resources) else Evidence.UPDATE


def _brings_nothing_else(resources: Resources) -> bool:
    """Whether nothing but CPUs is set: absent values come as zeros."""
    return not (
        resources.cpu_shares or resources.cpu_quota_us or resources.memory_limit_bytes or resources.mems
    )


def kubelet_policy(path: str = KUBELET_STATE) -> str:
    """The policy the kubelet's CPU manager last ran under, empty where that cannot be read."""
    from nri_plugin.host.kubelet_checkpoint import parse  # needed once, and only on the host

    try:
        with Path(path).open("rb") as file:
            return str(parse(file.read(MOST_BYTES)).get("policyName", ""))
    except (OSError, NriPinError):
        return ""


def warn_of_kubelet(log: logging.Logger, policy: str) -> None:
    """Say at the start that the kubelet pins, where its state file says so."""
    if policy == "static":
        say(
            log,
            logging.WARNING,
            "the kubelet's CPU manager is static: it and this agent would undo each other's work",
            file=KUBELET_STATE,
            todo="set its cpuManagerPolicy to none and remove the file; nri-pin state import takes its promises over",
        )
