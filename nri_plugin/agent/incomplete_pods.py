"""Pods that run in part: a container was refused while others of the pod exist, or what the pod owns as a whole is lost.

A refused decision changes no state, so the agent keeps this record beside it: from the refusal until the container is
created, or until the pod ends. It is empty after a restart of the agent. The kubelet tries a refused container again and
again, so it fills itself. What a pod lacks that was found running (`nri_plugin.core.found_pods`) follows from the state.
"""

import logging
from dataclasses import dataclass, field, replace

from nri_plugin.agent.outcome import RequestOutcome
from nri_plugin.agent.status_client import IncompletePodRow, RefusedContainerRow, siblings_of, siblings_text
from nri_plugin.core.pod_news import PodFactsTold
from nri_plugin.core.requests import lacks_its_resources, owned_as_whole, pod_uid
from nri_plugin.model.options import Node
from nri_plugin.model.quantity import format_bytes
from nri_plugin.model.records import PodRecord
from nri_plugin.model.refusals import UNEXPECTED
from nri_plugin.model.state import State
from nri_plugin.process.logs import LOGGER_NAME, say
from nri_plugin.wire.nri.events import CreateContainer, StopPodSandbox, Synchronize

MOST_PODS = 256
"""The oldest record is dropped. A node runs at most 110 pods by default, and the kubelet tries refused ones again."""

MOST_CONTAINERS = 128
"""Refused containers that are kept of one pod."""

BEGINNINGS = (Synchronize, PodFactsTold)
"""Events beside a creation with which a pod may become incomplete."""


def lacking(node: Node, pod: PodRecord) -> str:
    """Return the CPUs and memory that the pod should own as a whole and that could not be rebuilt; empty for none."""
    if pod.facts is None or not lacks_its_resources(node.options, pod):
        return ""
    count, amounts = owned_as_whole(node.options, pod.facts)
    cpus = [f"{count} {'CPU' if count == 1 else 'CPUs'}"] if count else []
    return ", ".join([*cpus, *(f"{name} {format_bytes(size)}" for name, size in amounts.items())])


@dataclass(frozen=True, slots=True)
class MissingOfPod:
    """What is missing of one pod.

    Attributes:
        refused: by name, the latest refusal of each.
        is_incomplete: other containers of the pod existed at some time since the first refusal.
        lacks: as in `IncompletePodRow`.
    """

    uid: str
    namespace: str
    pod: str
    refused: dict[str, RefusedContainerRow] = field(default_factory=dict)
    is_incomplete: bool = False
    lacks: str = ""


class IncompletePods:
    """Observes outcomes in the thread that answers the runtime.

    Args:
        log: takes a line when a pod becomes incomplete, and one when it is complete again.

    Attributes:
        records: of incomplete pods, the oldest first; replaced as a whole, so that other threads may read it.
    """

    def __init__(self, log: logging.Logger | None = None) -> None:
        self._log = log or logging.getLogger(LOGGER_NAME)
        self._by_uid: dict[str, MissingOfPod] = {}
        self.records: tuple[MissingOfPod, ...] = ()

    def __call__(self, outcome: RequestOutcome) -> None:
        """Keep a refusal and what a pod lacks, and drop it when it is over."""
        event = outcome.event
        is_creation = isinstance(event, CreateContainer)
        if not self._by_uid and not (is_creation or isinstance(event, BEGINNINGS)):
            return
        state = outcome.before if outcome.refusal or outcome.failed else outcome.decision.state
        if isinstance(event, Synchronize):
            self._by_uid = {uid: one for uid, one in self._by_uid.items() if uid in state.pods}
            for pod in state.pods.values():
                self._look(outcome.node, pod)
            for uid in list(self._by_uid):
                self._settle(uid, state)
        elif (of := getattr(event, "pod", None)) is not None:
            uid = pod_uid(of)
            if isinstance(event, CreateContainer):
                self._created(uid, event, outcome)
            if (isinstance(event, StopPodSandbox) or uid not in state.pods) and not is_creation:
                self._by_uid.pop(uid, None)
            elif uid in state.pods:
                self._look(outcome.node, state.pods[uid])
            self._settle(uid, state)
        self.records = tuple(one for one in self._by_uid.values() if one.is_incomplete)

    def rows(self, state: State) -> tuple[IncompletePodRow, ...]:
        """Return the incomplete pods, with the other containers of each as they are in `state`."""
        return tuple(
            IncompletePodRow(
                pod_uid=one.uid,
                namespace=one.namespace,
                pod=one.pod,
                refused=tuple(one.refused.values()),
                siblings=siblings_of(state, one.uid, one.refused),
                lacks=one.lacks,
            )
            for one in self.records
        )

    def _created(self, uid: str, event: CreateContainer, outcome: RequestOutcome) -> None:
        """Note a refused container, or that a container was created."""
        name = event.container.name
        known = self._by_uid.get(uid)
        if not outcome.refusal:
            if known is not None and name in known.refused:
                left = {key: row for key, row in known.refused.items() if key != name}
                self._by_uid[uid] = replace(known, refused=left)
            return
        refusal = outcome.decision.refusal
        row = RefusedContainerRow(name, refusal.reason if refusal else UNEXPECTED, outcome.refusal)
        known = known or MissingOfPod(uid, event.pod.namespace, event.pod.name)
        if name in known.refused or len(known.refused) < MOST_CONTAINERS:
            self._keep(replace(known, refused={**known.refused, name: row}))

    def _look(self, node: Node, pod: PodRecord) -> None:
        """Record what the pod lacks."""
        known = self._by_uid.get(pod.uid) or MissingOfPod(pod.uid, pod.namespace, pod.name)
        lacks = lacking(node, pod)
        if lacks != known.lacks:
            self._keep(replace(known, lacks=lacks))

    def _keep(self, one: MissingOfPod) -> None:
        self._by_uid[one.uid] = one
        if len(self._by_uid) > MOST_PODS:
            del self._by_uid[next(iter(self._by_uid))]

    def _settle(self, uid: str, state: State) -> None:
        """Log a pod that became incomplete or complete."""
        one = self._by_uid.get(uid)
        if one is None:
            return
        name = f"{one.namespace}/{one.pod}"
        if not (one.refused or one.lacks):
            del self._by_uid[uid]
            if one.is_incomplete:
                say(self._log, logging.INFO, "the pod is complete again", pod=name)
        elif not one.is_incomplete and (siblings := siblings_of(state, uid, one.refused)):
            self._by_uid[uid] = replace(one, is_incomplete=True)
            say(
                self._log,
                logging.WARNING,
                "the pod is incomplete: it runs without what it should own as a whole"
                if one.lacks
                else "the pod is incomplete: it runs without a container that was refused",
                pod=name,
                lacks=one.lacks,
                refused=",".join(one.refused),
                others=siblings_text(siblings),
            )
