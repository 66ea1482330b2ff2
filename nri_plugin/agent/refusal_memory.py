"""Refusals that are answered from memory while nothing has changed that could change them.

With `--on-refusal retry` the kubelet creates a refused container again and again. Placement and advice are then looked for
each time, while the runtime waits. Deciding is pure: the same node, the same state and the same request give the same
refusal. Only a container that is created again has another id.

Invariant: a refusal is remembered for one state and one node, by identity. The agent replaces the state with every event
that changes something, and the node with every reload of the configuration and every change of the machine. So all is
forgotten then, and after a restart of the agent.
"""

import dataclasses
from types import MappingProxyType
from typing import TypeAlias

from msgspec.structs import replace

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.model.options import Node
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import CreateContainer
from nri_plugin.wire.nri.messages import ContainerState

MOST_REFUSALS = 256
"""Containers whose refusal is remembered. On a full node, more than these seldom wait at once."""

Creation: TypeAlias = CreateContainer | InformedCreate


class RefusalMemory:
    """The last refusals; the oldest is forgotten first."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._state: State | None = None
        self._refused: dict[tuple[str, str], tuple[InformedCreate, Decision]] = {}

    def recall(self, node: Node, state: State, creation: Creation) -> Decision | None:
        """The decision on the same request; None where there is none, or anything has changed since."""
        if node is not self._node or state is not self._state:
            return None
        request = _without_ids(creation)
        known, decision = self._refused.get(_key(request), (None, None))
        return decision if known == request else None

    def keep(self, node: Node, state: State, creation: Creation, decision: Decision) -> None:
        """Remember the decision, if it is a refusal.

        Providers of hints from other packages may answer otherwise the next time, so a node that has any is always asked.
        """
        if decision.refusal is None or node.hint_providers:
            return
        if node is not self._node or state is not self._state:
            self._node, self._state, self._refused = node, state, {}
        request = _without_ids(creation)
        self._refused.pop(_key(request), None)
        self._refused[_key(request)] = request, decision
        if len(self._refused) > MOST_REFUSALS:
            del self._refused[next(iter(self._refused))]


def _key(request: InformedCreate) -> tuple[str, str]:
    return request.event.pod.id, request.event.container.name


def _without_ids(creation: Creation) -> InformedCreate:
    """The request without the fields that are new with each try; no decision reads them, or the labels of a container."""
    known = creation if isinstance(creation, InformedCreate) else InformedCreate(creation)
    container = replace(
        known.event.container,
        id="",
        cgroups_path="",
        pid=0,
        state=ContainerState.UNKNOWN,
        labels=_NONE,
        annotations=_NONE,
    )
    return replace(known, event=dataclasses.replace(known.event, container=container))


_NONE: MappingProxyType[str, str] = MappingProxyType({})
