"""News of a pod that no event of the runtime brings: its facts came late, it has ended, or it is set to Failed.

The exporter knows all three. The agent asks it between two requests, or hears from it, and these are events of our own,
decided and recorded like those of the runtime. None moves a container.

* `PodFactsTold`: the containers of the pod that are not created are placed as a whole around what the pod holds. Where
  they do not fit, the pod stays as it is, and its containers are admitted when they are created.
* `PodHasEnded`: allocations of containers that the runtime does not have end. Those of other containers end with the
  runtime's word alone, because a container may run after its pod was deleted by force.
* `PodRejected`: the exporter wants to set a refused pod to Failed. From then on no container of it is admitted, and the
  exporter writes the status only when it sees that. So no container starts in a pod that is set to Failed. A pod with a
  container that lives and is no init container is not rejected.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from nri_plugin.core.decision import Decision
from nri_plugin.core.found_pods import with_facts
from nri_plugin.core.pods import Unfit, admit_rest, admits_whole
from nri_plugin.core.pool import pool_writes
from nri_plugin.core.requests import (
    informed,
    is_of_its_size,
    lacks_its_resources,
    pod_uid,
    remembered,
    without_admission,
)
from nri_plugin.core.reuse import inits_known, lives
from nri_plugin.model.options import Node
from nri_plugin.model.records import (
    Phase,
    PodFacts,
    PodRecord,
    PodRefusal,
    Regime,
    allocation_key,
    is_whole_pod,
)
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import DeviceResource
from nri_plugin.wire.nri.messages import Pod


@dataclass(frozen=True, slots=True)
class PodFactsTold:
    """Event: the facts of a pod that has containers came.

    Attributes:
        pod: its uid, sandbox, namespace and name.
        facts: from the pod's object.
        devices_by_container: the devices of its containers, by name; empty when they are not known.
    """

    pod: Pod
    facts: PodFacts
    devices_by_container: tuple[tuple[str, tuple[DeviceResource, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class PodHasEnded:
    """Event: the phase of the pod is a final one, or its object is deleted.

    Attributes:
        pod: its uid, sandbox, namespace and name.
    """

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodRejected:
    """Event: the exporter wants to set the pod to Failed.

    Attributes:
        pod: its uid, sandbox, namespace and name.
        refusal: for a pod whose refusal the state does not have, such as one for a file that could not be written.
    """

    pod: Pod
    refusal: PodRefusal


PodNews = PodFactsTold | PodHasEnded | PodRejected


def could_be_completed(node: Node, state: State, pod: PodRecord) -> bool:
    """Whether facts are of use to the pod: it lives, and they could place containers of it or rebuild what it owns.

    Its facts are known already where the rest of the pod did not fit. Those
    of an imported pod that was admitted as a whole decide on its quota.
    """
    if not any(one.phase is not Phase.STOPPED for one in state.containers_of(pod.uid)):
        return False
    if pod.is_admitted:
        return pod.regime is Regime.WHOLE and pod.facts is None
    return pod.facts is None or admits_whole(node, pod) or lacks_its_resources(node.options, pod)


def not_created(state: State, uid: str) -> list[str]:
    """Keys of the pod's allocations that end when it has ended: of containers that the runtime does not have.

    The CPUs and memory of a pod as a whole belong to all its containers, so they stay while one of them exists.
    """
    created = {record.key for record in state.containers_of(uid)}
    mine = list(state.allocations_of(uid))
    if created and any(map(is_whole_pod, mine)):
        return []
    return [key for key in mine if key not in created]


def facts_told(node: Node, before: State, event: PodFactsTold) -> Decision:
    """Keep the facts, and place the containers that are not created, all or none."""
    known = before.pods.get(pod_uid(event.pod))
    # Between question and answer the pod may have ended, or the next container may have brought the facts.
    if known is None or known.sandbox_id != event.pod.id or not could_be_completed(node, before, known):
        return Decision(before, steps=("facts-too-late",))
    pod = remembered(informed(known, event.facts))
    state = informed_state = inits_known(before.with_pod(pod), pod)
    if pod.regime is Regime.FOUND and pod.facts is not None:
        state = with_facts(node, state, pod, pod.facts)
        pod = state.pods[pod.uid]
    lacks = lacks_its_resources(node.options, pod)
    if pod.regime is Regime.WHOLE or lacks or not admits_whole(node, pod) or not is_of_its_size(pod):
        is_rebuilt = pod.regime is Regime.WHOLE and known.regime is Regime.FOUND
        how = ("pod-rebuilt",) if is_rebuilt else ()
        how = ("pod-not-rebuilt",) if lacks else how
        after = before if pod.facts is None else state
        return Decision(after, writes=pool_writes(node, before, after), steps=("facts", *how))
    rest = admit_rest(node, state, pod, dict(event.devices_by_container))
    if isinstance(rest, Unfit):
        # What was taken for the shared pool of the pod was none, and is returned in any case.
        left = before if state.allocations is informed_state.allocations else state
        steps = ("rest-does-not-fit", *rest.refusal.steps)
        return Decision(left, writes=pool_writes(node, before, left), steps=steps)
    return Decision(rest, writes=pool_writes(node, before, rest), steps=("facts", "whole-pod"))


def has_ended(node: Node, before: State, event: PodHasEnded) -> Decision:
    """Release what containers hold that are not created, and never will be."""
    pod = before.pods.get(pod_uid(event.pod))
    left = not_created(before, pod.uid) if pod is not None and pod.sandbox_id == event.pod.id else []
    if pod is None or not left:
        return Decision(before, steps=("nothing-left",))
    after = before
    for key in left:
        after = after.without_allocation(key)
    # Should a container be created all the same, its pod is admitted anew.
    pod = replace(pod, is_admitted=False)
    if allocation_key(pod.uid, "") in left or not after.allocations_of(pod.uid):
        pod = without_admission(pod)
    after = after.with_pod(pod)
    return Decision(after, writes=pool_writes(node, before, after), steps=("pod-ended", "released"))


def rejected(_node: Node, before: State, event: PodRejected) -> Decision:
    """Admit no container of the pod any more, unless one that counts lives."""
    pod = before.pods.get(pod_uid(event.pod))
    if pod is None or pod.sandbox_id != event.pod.id or lives(before, pod):
        return Decision(before, steps=("not-rejected",))
    final = replace(pod.refusal or event.refusal, is_final=True)
    return Decision(before.with_pod(replace(pod, refusal=final)), steps=("rejected",))
