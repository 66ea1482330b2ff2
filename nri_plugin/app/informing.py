"""What else is known of a container that is about to be created: asked for before the decision, within bounds."""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace

from nri_plugin.app.logs import say
from nri_plugin.bounds import OWN_ANNOTATIONS, Cut, has_too_many_devices
from nri_plugin.facts import Answer, InformedCreate
from nri_plugin.host.devices import DeviceLocator
from nri_plugin.host.pod_resources_client import NoAnswerError, PodResourcesClient
from nri_plugin.nri.events import CreateContainer, NRIEvent, Request, Synchronize
from nri_plugin.nri.messages import Container, Pod
from nri_plugin.options import CPUManagerPolicy, MemoryManagerPolicy, Node, TopologyManagerPolicy
from nri_plugin.policy.device_hints import DeviceResource
from nri_plugin.state import QOSClass
from nri_plugin.workload import qos_of, slice_pattern

EXPORTER_LIMIT_S = 0.1
"""An exporter that has the answer gives it in a millisecond; without one there is another way."""

SHARE_OF_TIME = 0.25
"""Of what is left of the request's time, when that is shorter."""

LATE_PAUSE_S = 5.0
"""An exporter that was late is not asked again for so long: a hanging one must not slow down every container."""

MOST_PODS_SAID = 1024
"""Pods whose cuts are remembered as said; a node has fewer."""

NOTHING = Answer()

RESULTS = ("answered", "unknown", "failed", "paused")
"""What may become of a question: it was answered, neither container nor pod were known, there was no answer in time, or
the exporter was not asked because it had been late."""


class Informant:
    """Finds out what the runtime does not say of containers.

    Args:
        locator: finds devices by what the runtime says and the host's sysfs; None where devices do not count.
        client: asks the exporter, which knows what the kubelet has given, and the pod's object.
        log: the reasons for going without the exporter, at debug level.
        clock: seconds, monotonic, the one deadlines are in.
        count: told of each result.

    Attributes:
        outcomes: how often each of `RESULTS` came.
    """

    def __init__(
        self,
        locator: DeviceLocator | None,
        client: PodResourcesClient,
        log: logging.Logger,
        clock: Callable[[], float],
        count: Callable[[str], None] | None = None,
    ) -> None:
        self._told = count
        self.outcomes: Counter[str] = Counter()
        self._locator = locator
        self._client = client
        self._log = log
        self._clock = clock
        self._paused_until = clock()
        self._cuts = CutLog(log)

    def __call__(self, node: Node, request: Request) -> NRIEvent | InformedCreate:
        """The event to decide on; nobody is asked what would change nothing."""
        event = request.event
        self._cuts.tell(event)
        if not isinstance(event, CreateContainer):
            return event
        devices_count = self._locator is not None and _asks_for_hints(node)
        if not devices_count and not _facts_count(node, event):
            return event
        known = self._asked(event, request.deadline, devices=devices_count)
        if not devices_count:
            return InformedCreate(event, facts=known.facts) if known.facts else event
        devices = self._located(event) if known.devices is None else known.devices
        if devices is None or has_too_many_devices(devices, known.pod_devices):
            event = without_devices(event)
            self._cuts.tell(event)
            return InformedCreate(event, facts=known.facts)
        return InformedCreate(event, devices, known.pod_devices, known.facts)

    def _located(self, event: CreateContainer) -> tuple[DeviceResource, ...] | None:
        return self._locator.resources(event.container) if self._locator else ()

    def _asked(self, event: CreateContainer, deadline: float | None, *, devices: bool) -> Answer:
        """What the exporter knows; nothing when it does not answer in time."""
        limit_s = self._limit(deadline)
        if limit_s <= 0 or self._clock() < self._paused_until:
            self._count("paused")
            return NOTHING
        try:
            known = self._client.ask(event, limit_s, devices=devices)
        except NoAnswerError as error:
            self._count("failed")
            say(
                self._log,
                logging.DEBUG,
                "going by the runtime's message, the exporter did not answer",
                err=error,
            )
            if error.late:
                self._paused_until = self._clock() + LATE_PAUSE_S
            return NOTHING
        if known.unusable:
            say(
                self._log, logging.DEBUG, "facts of a pod passed over", pod=event.pod.name, err=known.unusable
            )
        self._count("unknown" if known.devices is None and known.facts is None else "answered")
        return known

    def _count(self, result: str) -> None:
        self.outcomes[result] += 1
        if self._told is not None:
            self._told(result)

    def _limit(self, deadline: float | None) -> float:
        if deadline is None:
            return EXPORTER_LIMIT_S
        return min(EXPORTER_LIMIT_S, (deadline - self._clock()) * SHARE_OF_TIME)


class CutLog:
    """Says once for each pod what exceeded a bound and was left out.

    Args:
        log: takes the lines.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: OrderedDict[str, frozenset[Cut]] = OrderedDict()

    def tell(self, event: NRIEvent) -> None:
        """Say what of the event's pods and containers was left out, as far as it was not said before."""
        if isinstance(event, Synchronize):
            pods = {pod.id: pod for pod in event.pods}
            for pod in event.pods:
                self._about(pod, pod.cut)
            for one in event.containers:
                if one.cut and one.pod_id in pods:
                    self._about(pods[one.pod_id], one.cut, one.name)
            return
        of, container = getattr(event, "pod", None), getattr(event, "container", None)
        if isinstance(of, Pod):
            self._about(of, of.cut)
            if isinstance(container, Container):
                self._about(of, container.cut, container.name)

    def _about(self, pod: Pod, cut: tuple[Cut, ...], container: str = "") -> None:
        said = self._said.get(pod.uid, frozenset())
        if said.issuperset(cut):
            return
        self._said[pod.uid] = said.union(cut)
        self._said.move_to_end(pod.uid)
        if len(self._said) > MOST_PODS_SAID:
            self._said.popitem(last=False)
        say(
            self._log,
            logging.WARNING,
            "a pod has more than is looked at, the rest is left out",
            pod=f"{pod.namespace}/{pod.name}",
            container=container,
            what=", ".join(sorted(set(cut) - said)),
        )


def without_devices(event: CreateContainer) -> CreateContainer:
    """The event, marked: its container has more devices than hints are made of."""
    cut = tuple(dict.fromkeys((*event.container.cut, Cut.DEVICES)))
    return replace(event, container=replace(event.container, cut=cut))


def _asks_for_hints(node: Node) -> bool:
    return node.options.topology_manager_policy is not TopologyManagerPolicy.NONE


def _facts_count(node: Node, event: CreateContainer) -> bool:
    """Whether the pod's facts could change anything: somebody may get CPUs or memory to itself.

    By its cgroup a pod is Guaranteed, or nobody knows what it is; or an annotation that is heard may make its
    containers exclusive.
    """
    options, pod = node.options, event.pod
    if options.cpu_manager_policy is CPUManagerPolicy.NONE and (
        options.memory_manager_policy is MemoryManagerPolicy.NONE
    ):
        return False
    heard = pod.namespace in options.annotation_namespaces and any(
        key.startswith(OWN_ANNOTATIONS) for key in pod.annotations
    )
    return heard or qos_of(pod.cgroup_parent) is QOSClass.GUARANTEED or not slice_pattern(pod.cgroup_parent)
