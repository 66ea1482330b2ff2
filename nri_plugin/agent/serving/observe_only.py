"""An agent that only observes (`observe: true`): it decides, logs and counts, and changes nothing.

Every answer is empty, and no cgroup is written. A separate checkpoint holds the allocations that the agent would have
made. A container that it would have refused runs, and counts as one without an allocation.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import ClassVar

from nri_plugin.agent.cpusets import CheckedWrites, CpusetWriter
from nri_plugin.agent.serving.handler import Handler, RequestFlow
from nri_plugin.agent.serving.outcome import RequestReply
from nri_plugin.core.decision import CpusetWrite, Decision, InformedCreate
from nri_plugin.core.drift import targets
from nri_plugin.core.engine import unrefused
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.options import Node
from nri_plugin.model.records import Allocation, ContainerRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.logs import say
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import CreateContainer, Request, empty_response

LOOK_PAUSE_S = 10.0
SUMMARY_PAUSE_S = 600.0

EXCLUSIVE, POD_SHARED, SHARED = "exclusive", "pod-shared", "shared"
SAME, ELSEWHERE = "as-decided", "elsewhere"
KINDS = tuple(product((EXCLUSIVE, POD_SHARED, SHARED), (SAME, ELSEWHERE)))
"""Pairs of the decision for a container, and whether it runs on the decided CPUs."""


class CpusetReader(CpusetWriter):
    """Reads cgroups and writes none."""

    def apply(self, checked: CheckedWrites) -> list[HostError]:  # noqa: ARG002 - not carried out
        """Write nothing."""
        return []

    def attempt(self, checked: CheckedWrites) -> Iterator[HostError]:  # noqa: ARG002 - not carried out
        """Write nothing; no error can occur."""
        return iter(())

    def widen_kubepods(self, state: State, cpus: CPUSet) -> None:
        """Write nothing."""

    def undo(self, node: Node, before: State, done: Sequence[CpusetWrite]) -> Iterator[NriPinError]:  # noqa: ARG002
        """Write nothing: nothing was written before."""
        return iter(())


class ObservingHandler(Handler):
    """Answers every request with an empty response, and keeps the state of its decisions in memory and checkpoint."""

    marks: ClassVar[Mapping[str, object]] = {"observed": "yes"}
    writer: ClassVar[type[CpusetWriter]] = CpusetReader
    _unrefused: Decision | None = None

    def answer(self, request: Request) -> RequestReply:
        """Decide one event without any effect; never raises."""
        reply = super().answer(request)
        # The runtime creates a refused container all the same, so it is part of the state.
        decision, self._unrefused = self._unrefused, None
        if decision is not None and reply.refusal:
            self.state = decision.state
            self.keep_saved()
        return RequestReply(empty_response(request.event), failed=reply.failed)

    def _decide_on(self, flow: RequestFlow) -> None:
        super()._decide_on(flow)
        if flow.decision.refusal is not None and isinstance(flow.known, CreateContainer | InformedCreate):
            self._unrefused = unrefused(self.node, self.state, flow.known)


def kind_of(held: Allocation | None) -> str:
    """Return the kind of CPUs that a container with this allocation runs on: the first word of `KINDS`."""
    if held is None or not held.cpus:
        return SHARED
    return POD_SHARED if held.is_pod_shared else EXCLUSIVE


class ObservedWatch:
    """Compares the CPUs of running containers with the decided ones, by the clock.

    Args:
        handler: has the state, and reads cgroups.
        loop: has the clock.
        log: takes one line for each container on other CPUs, once for each pair of sets, and sums from time to time.

    Attributes:
        counts: running containers by `KINDS`.
    """

    def __init__(self, handler: Handler, loop: Loop, log: logging.Logger) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._handler, self._loop, self._log = handler, loop, log
        self._said: dict[str, tuple[CPUSet, CPUSet]] = {}
        self._summed: dict[str, int] = {}
        self._sum_at = loop.clock() + SUMMARY_PAUSE_S

    def start(self) -> None:
        """Start to compare by the clock."""
        self._loop.set_timer("observed", self._loop.clock() + LOOK_PAUSE_S, self._look)

    def count(self, kind: tuple[str, str]) -> float:
        """Return the number of running containers of this kind; safe from any thread."""
        return self.counts[kind]

    def look(self) -> None:
        """Compare every running container once."""
        node, state = self._handler.node, self._handler.state
        counts: Counter[tuple[str, str]] = Counter()
        seen = {}
        for target in targets(node, state):
            record = state.containers.get(target.container_id)
            runs_on = self._effective(record) if record else None
            if record is None or runs_on is None:
                continue
            desired = state.desired_cpus(node, record)
            would = kind_of(state.allocation_of(record))
            counts[would, SAME if runs_on == desired else ELSEWHERE] += 1
            seen[record.id] = (runs_on, desired)
            if would is not SHARED:  # the shared pool of the node changes too often for a line
                self._log_change(state, record, runs_on, desired)
        self._said = {key: pair for key, pair in self._said.items() if key in seen}
        self.counts = counts

    def _look(self) -> None:
        self.look()
        now = self._loop.clock()
        if now >= self._sum_at:
            self._sum_at = now + SUMMARY_PAUSE_S
            self._sum_up()
        self.start()

    def _log_change(self, state: State, record: ContainerRecord, runs_on: CPUSet, desired: CPUSet) -> None:
        """Log the CPUs of a container, once for each pair of effective and decided CPUs."""
        if self._said.get(record.id) == (runs_on, desired):
            return
        is_new_or_changed = runs_on != desired or record.id in self._said
        self._said[record.id] = (runs_on, desired)
        if is_new_or_changed:
            pod = state.pods.get(record.pod_uid)
            say(
                self._log,
                logging.INFO,
                "runs elsewhere than it would" if runs_on != desired else "runs where it would",
                observed="yes",
                name=f"{pod.namespace}/{pod.name}/{record.name}" if pod else record.id,
                runs_on=runs_on,
                would_have=desired,
            )

    def _sum_up(self) -> None:
        fields = {f"{would}_{runs}".replace("-", "_"): self.counts[would, runs] for would, runs in KINDS}
        if fields != self._summed:
            self._summed = fields
            say(
                self._log,
                logging.INFO,
                "count of running containers",
                observed="yes",
                **fields,
            )

    def _effective(self, record: ContainerRecord) -> CPUSet | None:
        try:
            return self._handler.cpusets.read_effective(record.cgroup)
        except HostError as error:
            say(self._log, logging.DEBUG, "cgroup unreadable", err=error)
            return None
