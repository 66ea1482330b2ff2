"""Replays recorded events under another configuration, as the runtime would have sent them.

The messages of a runtime depend on the agent's answers. The recorded life has the recorded answers, the other life those
of the other configuration. The rules:

* A cpuset that the runtime stored from a recorded answer becomes the one from the other answer. A cpuset from another
  writer stays.
* A container that is refused in the other life does not exist there: its later events are skipped.
* A container that was refused only in the recording runs in the other life until its pod ends, because its real end is
  unknown. Further attempts of the runtime to create it are skipped.
* A resize that was refused only in the recording is done in the other life.
* An event that failed for another reason than policy fails in both lives.
* A restart of the agent ends neither life. If the recorded one continues from another state than it ended in, because
  lines or the checkpoint were lost, the other one starts again from that state.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from nri_plugin.core.decision import Decision, InformedCreate, UnsavedStart
from nri_plugin.core.drift import CpusetsObserved, MachineChanged
from nri_plugin.core.engine import decide
from nri_plugin.core.requests import pod_uid
from nri_plugin.model.options import Node
from nri_plugin.model.records import ContainerRecord
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.recording.reader import Moment
from nri_plugin.recording.rows import Event
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod, Resources

NodeFor = Callable[[Node, Node | None], Node]
"""Makes the node of the other life from the recorded node and the other life's former one."""


@dataclass(frozen=True, slots=True)
class _Extra:
    """A container that exists only in the other life."""

    pod: Pod
    container: Container


@dataclass(frozen=True, slots=True)
class Met:
    """One event in both lives.

    Attributes:
        moment: the recorded event.
        event: the event of the other life.
        node: the node of the other life.
        before: the other life's state before the event.
        decision: of the other life; None if the event does not happen there.
        after: the other life's state after the event.
    """

    moment: Moment
    event: Event
    node: Node
    before: State
    decision: Decision | None
    after: State


class OtherLife:
    """The other life of recorded moments.

    Args:
        node_for: makes the node.

    Attributes:
        restarts: how often it started again from the recorded state.
    """

    def __init__(self, node_for: NodeFor) -> None:
        self._node_for = node_for
        self._recorded_node: Node | None = None
        self._node: Node | None = None
        self._reached: State | None = None
        self._state = State()
        self._absent: set[str] = set()
        self._extra: dict[str, _Extra] = {}
        self.restarts = 0

    def live(self, moments: Iterable[Moment]) -> Iterator[Met]:
        """Return both lives, event by event.

        Raises:
            ConfigError: the other configuration does not fit the machine.
        """
        for moment in moments:
            self._follow(moment)
            event = self._as_it_would_come(moment)
            before, node = self._state, self._known_node
            decision = None
            if event is not None:
                decision = decide(node, before, event)
                self._state = decision.state
                self._note(moment, event, decision)
            self._reached = moment.state_after
            yield Met(moment, event or moment.event, node, before, decision, self._state)

    def _follow(self, moment: Moment) -> None:
        """Take over a new machine, and the recorded state where the recording continues from another one."""
        if moment.node is not self._recorded_node:
            self._node = self._node_for(moment.node, self._node)
            self._recorded_node = moment.node
        if moment.begins and self._reached != moment.state_before:
            self.restarts += self._reached is not None
            self._state, self._absent, self._extra = moment.state_before, set(), {}

    def _as_it_would_come(self, moment: Moment) -> Event | None:
        event = moment.event
        if isinstance(event, UnsavedStart):  # the disk of the other life is not full
            event = event.event
        if moment.outcome.failed or isinstance(event, CpusetsObserved):
            return None
        if isinstance(event, MachineChanged):
            return event
        if isinstance(event, nri.Synchronize):
            return self._synchronize(moment, event)
        if isinstance(event, InformedCreate):
            created = self._create(moment, event.event)
            return None if created is None else replace(event, event=created)
        if isinstance(event, nri.CreateContainer):
            return self._create(moment, event)
        container: Container | None = getattr(event, "container", None)
        if container is None:
            return event
        if container.id in self._absent:
            return None
        changed = dataclasses.replace(event, container=self._stored(moment, container))  # type: ignore[arg-type] # those have one
        if isinstance(changed, nri.UpdateContainer):
            return dataclasses.replace(changed, resources=self._told(moment, container.id, changed.resources))
        return changed

    def _create(self, moment: Moment, event: nri.CreateContainer) -> nri.CreateContainer | None:
        """Skip another attempt to create a container that runs here already.

        When the runtime succeeds in the recorded life, the new container replaces the one that ran here.
        """
        former = self._extra_of(event)
        if former is None:
            return event
        if moment.outcome.refusal:
            return None
        for ending in (
            nri.StopContainer(former.pod, former.container),
            nri.RemoveContainer(former.pod, former.container),
        ):
            self._state = decide(self._known_node, self._state, ending).state
        del self._extra[former.container.id]
        return event

    def _synchronize(self, moment: Moment, event: nri.Synchronize) -> nri.Synchronize:
        listed = [self._stored(moment, one) for one in event.containers if one.id not in self._absent]
        pods = {pod.id for pod in event.pods}
        self._extra = {key: one for key, one in self._extra.items() if one.pod.id in pods}
        return nri.Synchronize(event.pods, (*listed, *map(self._running, self._extra.values())))

    def _running(self, extra: _Extra) -> Container:
        record = self._state.containers.get(extra.container.id)
        stored = _with_stored(extra.container, record) if record else extra.container
        return replace(stored, state=ContainerState.RUNNING)

    def _stored(self, moment: Moment, container: Container) -> Container:
        """Return the container with the values that the runtime would have stored."""
        told = self._told(moment, container.id, container.resources)
        return replace(container, resources=told)

    def _told(self, moment: Moment, container_id: str, said: Resources) -> Resources:
        """The resources, with the cpuset of the recorded life replaced by that of the other one."""
        recorded = moment.state_before.containers.get(container_id)
        here = self._state.containers.get(container_id)
        if moment.observing or recorded is None or here is None:
            return said
        cpus, mems = said.cpus, said.mems
        if cpus and _is(CPUSet, cpus, recorded.stored_cpus):
            cpus = str(here.stored_cpus)
        if mems and _is(NodeMask, mems, recorded.stored_mems):
            mems = str(here.stored_mems)
        return said if (cpus, mems) == (said.cpus, said.mems) else replace(said, cpus=cpus, mems=mems)

    def _note(self, moment: Moment, event: Event, decision: Decision) -> None:
        """Note the containers that exist in only one of the lives."""
        if isinstance(event, InformedCreate):
            event = event.event
        refused_there, refused_here = bool(moment.outcome.refusal), decision.refusal is not None
        if isinstance(event, nri.CreateContainer):
            if refused_here:
                self._absent.add(event.container.id)
            elif refused_there and not moment.observing:
                self._extra[event.container.id] = _Extra(event.pod, event.container)
                self._start(event)
        elif isinstance(event, nri.UpdateContainer) and refused_there and not refused_here:
            done = nri.PostUpdateContainer(event.pod, event.container)
            self._state = decide(self._known_node, self._state, done).state
        elif isinstance(event, nri.RemoveContainer):
            self._absent.discard(event.container.id)
        elif isinstance(event, nri.StopPodSandbox | nri.RemovePodSandbox):
            gone = pod_uid(event.pod)
            self._extra = {key: one for key, one in self._extra.items() if pod_uid(one.pod) != gone}

    def _start(self, event: nri.CreateContainer) -> None:
        """Report the container as created and running, as the runtime would have done."""
        record = self._state.containers[event.container.id]
        container = _with_stored(event.container, record)
        for kind in (nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer):
            self._state = decide(self._known_node, self._state, kind(event.pod, container)).state

    def _extra_of(self, event: nri.CreateContainer) -> _Extra | None:
        who = pod_uid(event.pod), event.container.name
        return next(
            (one for one in self._extra.values() if (pod_uid(one.pod), one.container.name) == who), None
        )

    @property
    def _known_node(self) -> Node:
        assert self._node is not None  # `_follow` makes it before the first event
        return self._node


def _is(kind: type[CPUSet] | type[NodeMask], text: str, stored: CPUSet | NodeMask) -> bool:
    try:
        return kind.parse(text) == stored
    except ValueError:
        return False


def _with_stored(container: Container, record: ContainerRecord) -> Container:
    stored = replace(container.resources, cpus=str(record.stored_cpus), mems=str(record.stored_mems))
    return replace(container, resources=stored)
