"""Facts of simulated pods as the exporter's stand-in tells them: in time, late, once, or never.

The form of an answer is documented in `nri_plugin.core.decision`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from nri_plugin.model.records import Amounts, ContainerFacts, PodFacts
from nri_plugin.simulator.runtime.pods import PodSpec, pod_facts


class Telling(StrEnum):
    """When the stand-in tells the facts of a pod."""

    LOST = "lost"
    """Never: the exporter does not know the pod."""
    KNOWN = "known"
    """Whenever it is asked, so they are repeated."""
    LATE = "late"
    """From the second question about the pod on."""
    ONCE = "once"
    """At the first question about the pod only."""


class ToldFacts:
    """Facts by pod. A question is one about the creation of a container."""

    def __init__(self) -> None:
        self._tellings: dict[str, tuple[PodSpec, Telling]] = {}
        self._asked: dict[str, int] = {}

    def tell(self, pod: PodSpec, telling: Telling) -> None:
        """Set how the exporter tells of the pod, and count its questions from 0 again."""
        self._tellings[pod.key] = pod, telling
        self._asked.pop(pod.key, None)

    def forget(self, key: str) -> None:
        """The pod has ended."""
        self._tellings.pop(key, None)

    def is_known_in_time(self, key: str) -> bool:
        """Whether the first creation of the pod is decided with its facts."""
        return key in self._tellings and self._tellings[key][1] in (Telling.KNOWN, Telling.ONCE)

    def answer(self, key: str, uid: str) -> dict[str, Any] | None:
        """The same as words of the exporter."""
        facts = self.facts(key, uid)
        return None if facts is None else facts_words(facts)

    def facts(self, key: str, uid: str) -> PodFacts | None:
        """The facts for the next question about the pod; None where they are not told."""
        pod, telling = self._tellings.get(key, (None, Telling.LOST))
        number = self._asked.get(key, 0)
        self._asked[key] = number + 1
        is_told = {Telling.KNOWN: True, Telling.LATE: number > 0, Telling.ONCE: number == 0}.get(telling)
        return pod_facts(pod, uid) if pod is not None and is_told else None


def facts_words(facts: PodFacts) -> dict[str, Any]:
    """Facts as the exporter sends them."""
    words = {
        "uid": facts.uid,
        "qos": str(facts.qos),
        "containers": [_container_words(one) for one in facts.containers],
    }
    return words if facts.pod_resources is None else {**words, "pod_resources": _amounts(facts.pod_resources)}


def _container_words(one: ContainerFacts) -> dict[str, Any]:
    return {"name": one.name, "kind": str(one.kind), **_amounts(one.amounts)}


def _amounts(amounts: Amounts) -> Mapping[str, Any]:
    return {
        "cpu_request_milli": amounts.cpu_request_milli,
        "cpu_limit_milli": amounts.cpu_limit_milli,
        "memory_request_bytes": amounts.memory_request_bytes,
        "memory_limit_bytes": amounts.memory_limit_bytes,
        "hugepages": dict(amounts.hugepages),
    }
