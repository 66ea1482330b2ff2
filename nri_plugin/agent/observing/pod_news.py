"""Asks the exporter about pods between two requests: for facts that no creation of a container brought, and for their end.

A thread asks, because an answer may take long and the loop has requests to answer. The loop takes the answers, so the state
changes in its own thread only.

* After Synchronize, and when the exporter is there again, Guaranteed pods may run in part whose facts are unknown. With
  the facts, their other containers are placed as a whole (`core/pod_news.py`).
* A pod may end before all its containers were created, and the end of its sandbox may come late or never.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread

from nri_plugin.agent.observing.status_client import RejectRow
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.agent.serving.pod_facts import NoAnswerError, allocates, asks_for_hints
from nri_plugin.core.decision import ExporterAnswer
from nri_plugin.core.pod_news import PodFactsTold, PodHasEnded, PodRejected, could_be_completed, not_created
from nri_plugin.core.requests import has_too_many_devices
from nri_plugin.core.reuse import live_keys
from nri_plugin.model.options import Node
from nri_plugin.model.records import PodRecord, PodRefusal, pod_of
from nri_plugin.model.state import State
from nri_plugin.process.logs import say
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import Synchronize
from nri_plugin.wire.nri.messages import Pod

PAUSE_S = 10.0
"""Seconds between two rounds, and before a pod is asked about again the first time; that pause doubles."""

LONGEST_PAUSE_S = 320.0

SOON_S = 0.5
"""Seconds from Synchronize to a round."""

LEFT_FOR_S = 30.0
"""Seconds without a live container before a pod is asked about: between two containers of a pod there are images to pull,
and the back-off of a crash loop."""

LIMIT_S = 1.0
"""Time limit of a question. No request waits for it."""

MOST_PODS = 64
"""Pods in a round; the others have their turn in the next one."""

Ask = Callable[[Pod, float, bool], ExporterAnswer]
Run = Callable[[Callable[[], None]], None]


class PodNewsWatch:
    """Asks by the clock, and passes the answers to the handler.

    Invariant: at most one round is under way.

    Args:
        handler: has the state, and takes the news.
        ask: the exporter, about a pod, within seconds, with devices or without; raises `NoAnswerError`.
        loop: has the clock.
        log: for questions without an answer, at debug level.
        run: runs the questions of a round; a thread by default.
    """

    def __init__(
        self, handler: Handler, ask: Ask, loop: Loop, log: logging.Logger, run: Run | None = None
    ) -> None:
        self._handler, self._ask, self._loop, self._log = handler, ask, loop, log
        self._run = run or self._in_thread
        self._is_asking = False
        self._left_since: dict[str, float] = {}
        self._pauses: dict[str, tuple[float, float]] = {}

    def start(self, pause_s: float = PAUSE_S) -> None:
        """Begin a round after `pause_s`, and by the clock from then on."""
        self._loop.set_timer("pod news", self._loop.clock() + pause_s, self._look)

    def __call__(self, outcome: RequestOutcome) -> None:
        """Ask about all pods soon when the runtime has listed them."""
        if isinstance(outcome.event, Synchronize):
            self._pauses.clear()
            self.start(SOON_S)

    def _look(self) -> None:
        self.start()
        node, state, now = self._handler.node, self._handler.state, self._loop.clock()
        left = left_pods(state)
        self._left_since = {uid: self._left_since.get(uid, now) for uid in left}
        wanted = [
            *(uid for uid, since in self._left_since.items() if now - since >= LEFT_FOR_S),
            *incomplete_pods(node, state),
        ]
        self._pauses = {uid: pause for uid, pause in self._pauses.items() if uid in wanted}
        # Pods that were not asked about come first, so that each has its turn.
        due_by_uid = {uid: self._pauses.get(uid, (0.0, 0.0))[0] for uid in wanted}
        due = sorted((uid for uid, when in due_by_uid.items() if when <= now), key=due_by_uid.__getitem__)
        if due and not self._is_asking:
            self._is_asking = True
            pods = [_message(state.pods[uid]) for uid in due[:MOST_PODS]]
            self._run(partial(self._questions, pods, asks_for_hints(node)))

    def _in_thread(self, work: Callable[[], None]) -> None:
        self._loop.start_thread(Thread(target=work, name="pod news", daemon=True))

    def _questions(self, pods: Sequence[Pod], devices: bool) -> None:
        """Ask about each pod, in the thread; the first failure ends the round."""
        answers: list[tuple[Pod, ExporterAnswer]] = []
        error = None
        for pod in pods:
            try:
                answers.append((pod, self._ask(pod, LIMIT_S, devices)))
            except NoAnswerError as caught:
                error = caught
                break
        self._loop.post(partial(self._take, answers, error))

    def _take(self, answers: Sequence[tuple[Pod, ExporterAnswer]], error: NoAnswerError | None) -> None:
        """Pass the answers on, in the loop."""
        self._is_asking = False
        now = self._loop.clock()
        for pod, answer in answers:
            _, pause_s = self._pauses.get(pod.uid, (0.0, PAUSE_S))
            self._pauses[pod.uid] = now + pause_s, min(pause_s * 2, LONGEST_PAUSE_S)
            self._tell(pod, answer)
        if error is not None:
            # Once it is back it knows pods that it did not know before.
            self._pauses.clear()
            say(self._log, logging.DEBUG, "no news of pods, the exporter does not answer", err=error)

    def _tell(self, pod: Pod, answer: ExporterAnswer) -> None:
        """Post what the answer says, as far as it still matters."""
        node, state = self._handler.node, self._handler.state
        if answer.has_ended:
            # A container may have been created since the question.
            if pod.uid in left_pods(state):
                self._handler.take(PodHasEnded(pod))
        elif answer.facts is not None and pod.uid in incomplete_pods(node, state):
            given = answer.devices_by_container
            is_too_much = has_too_many_devices(*(devices for _, devices in given))
            self._handler.take(PodFactsTold(pod, answer.facts, () if is_too_much else given))


def reject_pod(handler: Handler, row: RejectRow) -> None:
    """Pass on that the exporter wants to set a pod to Failed."""
    pod = handler.state.pods.get(row.reject_pod)
    if pod is not None:
        handler.take(PodRejected(_message(pod), PodRefusal(row.reason, row.message)))


def incomplete_pods(node: Node, state: State) -> list[str]:
    """Return the uids of Guaranteed pods of which facts could place containers that are not created."""
    if not allocates(node):
        return []
    return [
        pod.uid
        for pod in state.guaranteed_pods
        if state.containers_of(pod.uid) and could_be_completed(node, state, pod)
    ]


def left_pods(state: State) -> list[str]:
    """Return the uids of pods that have allocations of containers that are not created, and no live container."""
    return [
        uid
        for uid in dict.fromkeys(map(pod_of, state.allocations))
        if uid in state.pods and not live_keys(state, uid) and not_created(state, uid)
    ]


def _message(pod: PodRecord) -> Pod:
    """Return the pod as events name it."""
    return Pod(id=pod.sandbox_id, uid=pod.uid, name=pod.name, namespace=pod.namespace)
