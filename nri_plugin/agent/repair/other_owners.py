"""Other CPU managers on the node, as far as an NRI plugin can see them.

The runtime does not report its other plugins, and a pod sees neither the kubelet's process nor its configuration. Three
kinds of evidence remain:

* Containers arrive with a cpuset, and updates bring one. The kubelet does both under `cpuManagerPolicy: static` and
  neither under `none`. So may an NRI plugin that the runtime asks before this one.
* Creations fail after this plugin set the cpuset: two plugins that set it collide. The other one is asked later.
* The kubelet's state file names its policy, where the agent can read it.

Source: containerd/nri 0.12 pkg/adaptation/result.go, `plugins X and Y both tried to set CPUSetCPUs`.
"""

import logging
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.model.errors import NriPinError
from nri_plugin.process.logs import LogRateLimit, say
from nri_plugin.wire.nri.events import (
    CreateContainer,
    CreateContainerResponse,
    PostCreateContainer,
    PostStartContainer,
    RemoveContainer,
    RemovePodSandbox,
    StartContainer,
    StopContainer,
    StopPodSandbox,
    Synchronize,
    UpdateContainer,
)

KUBELET_STATE = "/var/lib/kubelet/cpu_manager_state"
"""Not mounted into the agent's pod; there when the agent runs on the host."""

MOST_BYTES = 16 << 20

REMEDY = (
    "let only one of them pin: remove the other plugin, or switch the kubelet's managers off by the steps that nri-pin "
    "doctor prints"
)


class OwnerEvidence(StrEnum):
    """The kinds of evidence."""

    CREATION = "creation"
    """A container came with a cpuset: of the kubelet's static CPU manager, or of an NRI plugin that is asked before."""
    UPDATE = "update"
    """An update brought a cpuset, and perhaps more."""
    KUBELET_UPDATE = "kubelet-update"
    """An update brought a cpuset and nothing else, as the kubelet's static CPU manager sends it."""
    FAILED_CREATION = "failed-creation"
    """Creations in a row failed after the agent had set the cpuset: an NRI plugin that is asked later sets it, too."""


WHO = {
    OwnerEvidence.CREATION: "the kubelet's static CPU manager, or an NRI plugin that is asked before this one",
    OwnerEvidence.UPDATE: "the kubelet's static CPU manager, or another client that updates containers through the runtime",
    OwnerEvidence.KUBELET_UPDATE: "the kubelet's static CPU manager",
    OwnerEvidence.FAILED_CREATION: "an NRI plugin that is asked after this one: the runtime's log and the pod's events then "
    "say that both tried to set CPUSetCPUs; nri-pin doctor on the node lists plugins",
}

IN_A_ROW = 2
"""Failed creations before a warning. One may fail by a full disk or a time limit; a collision of plugins fails all."""

MOST_WAITING = 1024
"""The most creations that are tracked at once; a kubelet asks for far fewer."""


class FailedCreations:
    """Counts creations in a row that failed after the agent's answer.

    After a failure, containerd stops and removes the container. CRI-O reports nothing, and the kubelet creates the same
    container of the pod again, under another id.

    Attributes:
        in_a_row: since the last that succeeded; safe to read from any thread.
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self._waiting: dict[str, tuple[str, str]] = {}

    def __call__(self, outcome: RequestOutcome) -> bool:
        """Observe one event; return whether it reports a failed creation."""
        event = outcome.event
        if isinstance(event, Synchronize):
            self._waiting.clear()
        elif isinstance(event, StopPodSandbox | RemovePodSandbox):
            uid = event.pod.uid
            self._waiting = {name: key for name, key in self._waiting.items() if key[0] != uid}
        elif isinstance(event, CreateContainer):
            return self._began(outcome, event)
        elif isinstance(event, PostCreateContainer | StartContainer | PostStartContainer):
            if self._waiting.pop(event.container.id, None) is not None:
                self.in_a_row = 0
        elif isinstance(event, StopContainer | RemoveContainer):
            return self._failed(event.container.id)
        return False

    def _began(self, outcome: RequestOutcome, event: CreateContainer) -> bool:
        key = event.pod.uid, event.container.name
        before = next((name for name, other in self._waiting.items() if other == key), None)
        has_failed = before is not None and before != event.container.id and self._failed(before)
        response = outcome.decision.response
        sets_cpus = isinstance(response, CreateContainerResponse) and bool(
            response.resources and response.resources.cpus
        )
        if sets_cpus and not outcome.refusal and not outcome.failed:
            self._waiting[event.container.id] = key
            if len(self._waiting) > MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
        return has_failed

    def _failed(self, container_id: str) -> bool:
        if self._waiting.pop(container_id, None) is None:
            return False
        self.in_a_row += 1
        return True


class OtherOwners:
    """Reports other CPU managers, at most every ten minutes.

    Args:
        log: takes the warnings.
        clock: seconds.
        count: called with every piece of evidence.
        failures: notices creations that fail.
    """

    def __init__(
        self,
        log: logging.Logger,
        clock: Callable[[], float],
        count: Callable[[OwnerEvidence], None] | None = None,
        failures: FailedCreations | None = None,
    ) -> None:
        self._log, self._clock, self._count = log, clock, count
        self._failures = failures or FailedCreations()
        self._limits = {evidence: LogRateLimit() for evidence in OwnerEvidence}

    def __call__(self, outcome: RequestOutcome) -> None:
        """Observe one event."""
        has_failed = self._failures(outcome)
        if has_failed and self._failures.in_a_row >= IN_A_ROW:
            self._seen(OwnerEvidence.FAILED_CREATION)
        evidence = evidence_of(outcome)
        if evidence is not None:
            self._seen(evidence)

    def _seen(self, evidence: OwnerEvidence) -> None:
        if self._count is not None:
            self._count(evidence)
        if self._limits[evidence].is_due(evidence, self._clock()):
            say(
                self._log,
                logging.WARNING,
                "another CPU manager also gives CPUs to containers",
                seen_at=evidence,
                looks_like=WHO[evidence],
                todo=REMEDY,
            )


def evidence_of(outcome: RequestOutcome) -> OwnerEvidence | None:
    """Return the evidence in an event, None without any; a cpuset that equals the desired one is none."""
    event = outcome.event
    if isinstance(event, CreateContainer):
        return OwnerEvidence.CREATION if event.container.resources.cpus else None
    if not isinstance(event, UpdateContainer) or not event.resources.cpus:
        return None
    record = outcome.before.containers.get(event.container.id)
    if record and event.resources.cpus == str(outcome.before.desired_cpus(outcome.node, record)):
        return None
    # The kubelet's CPU manager sets only CPUs; absent values arrive as zeros.
    of = event.resources
    is_more = of.cpu_shares or of.cpu_quota_us or of.memory_limit_bytes or of.mems
    return OwnerEvidence.UPDATE if is_more else OwnerEvidence.KUBELET_UPDATE


def kubelet_policy(path: str = KUBELET_STATE) -> str:
    """Return the last policy of the kubelet's CPU manager; empty where its state file cannot be read."""
    from nri_plugin.checkpoint.kubelet_files import parse

    try:
        with Path(path).open("rb") as file:
            return str(parse(file.read(MOST_BYTES)).get("policyName", ""))
    except (OSError, NriPinError):
        return ""


def warn_of_kubelet(log: logging.Logger, policy: str) -> None:
    """Warn at the start when the kubelet's state file names the static policy."""
    if policy == "static":
        say(
            log,
            logging.WARNING,
            "the kubelet's CPU manager is static: it and this agent would overwrite each other's cpusets",
            file=KUBELET_STATE,
            todo="nri-pin doctor prints the steps that import its allocations and switch it off",
        )
