"""Replays a recording under another configuration: the recorded events, as they would have come.

The messages of a runtime depend on the answers it had, so the recorded events cannot be taken as they are. The rules:

* A cpuset that the runtime had from the recorded decisions is the one it would have had from the others; one that
  somebody else wrote stays as it is.
* A container that is refused here does not exist: its later events are passed over.
* A container that was refused only in the recording runs here until its pod ends; how long it would have run is unknown.
  Further tries of the runtime to create it are passed over.
* A resize that was refused only in the recording is done here.
* An event that failed for another reason than policy fails here, too.
* When the agent restarts, both histories go on. Where the recorded one goes on from another state than it ended in,
  because lines or the checkpoint were lost, the other one begins anew from there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from nri_plugin.core.decision import Decision, InformedCreate, UnsavedStart
from nri_plugin.core.drift import CpusetsObserved, MachineChanged
from nri_plugin.core.engine import decide
from nri_plugin.core.requests import pod_uid
from nri_plugin.model.options import Node
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import ContainerRecord, State
from nri_plugin.recording.reader import Moment
from nri_plugin.recording.rows import Event
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod, Resources

NodeFor = Callable[[Node, Node | None], Node]
"""The node of the other life, from the recorded one and the other one so far."""


@dataclass(frozen=True, slots=True)
class _Extra:
    """A container that only the other life has."""

    pod: Pod
    container: Container


@dataclass(frozen=True, slots=True)
class Met:
    """One event in both lives.

    Attributes:
        moment: as it was recorded.
        event: as it would have come.
        node: decided for in the other life.
        before: the other life's state.
        decision: what would have come of it; None where it would not have come.
        after: the other life's state from then on.
    """

    moment: Moment
    event: Event
    node: Node
    before: State
    decision: Decision | None
    after: State


class OtherLife:
    """Lives recorded moments under another configuration.

    Args:
        node_for: makes the node.

    Attributes:
        restarts: how often it had to begin anew from the recorded state.
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
        """Both lives, event by event.

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
        """Begin, or go on: on the machine as it is now, from the recorded state where that is not what it was."""
        if moment.node is not self._recorded_node:
            self._node = self._node_for(moment.node, self._node)
            self._recorded_node = moment.node
        if moment.begins and self._reached != moment.state_before:
            self.restarts += self._reached is not None
            self._state, self._absent, self._extra = moment.state_before, set(), {}

    # ------------------------------------------------------------------ events

    def _as_it_would_come(self, moment: Moment) -> Event | None:
        event = moment.event
        if isinstance(event, UnsavedStart):  # a disk that was full there need not be full here
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
        changed = replace(event, container=self._stored(moment, container))  # type: ignore[arg-type] # those have one
        if isinstance(changed, nri.UpdateContainer):
            return replace(changed, resources=self._told(moment, container.id, changed.resources))
        return changed

    def _create(self, moment: Moment, event: nri.CreateContainer) -> nri.CreateContainer | None:
        """A further try of a container that runs here already is passed over; once it succeeds, they are one."""
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
        """Resources with the cpuset of this life, where they have that of the recorded one."""
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

    # ------------------------------------------------------------- what follows

    def _note(self, moment: Moment, event: Event, decision: Decision) -> None:
        """Keep book of who exists in only one of the lives."""
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
        """Return the container as the runtime would have reported it after its creation."""
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
        assert self._node is not None  # made before anything is lived
        return self._node


def _is(kind: type[CPUSet] | type[NodeMask], text: str, stored: CPUSet | NodeMask) -> bool:
    try:
        return kind.parse(text) == stored
    except ValueError:
        return False


def _with_stored(container: Container, record: ContainerRecord) -> Container:
    stored = replace(container.resources, cpus=str(record.stored_cpus), mems=str(record.stored_mems))
    return replace(container, resources=stored)
