"""What a pod's own object says of it, where somebody who reads the cluster tells us.

A runtime names neither QoS class, nor init containers, nor requests of 256 CPUs and more. What it does not say is
inferred (`workload.py`); these values take the place of the inference where they are known.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class QOSClass(StrEnum):
    """The pod's quality-of-service class."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class Kind(StrEnum):
    """What a container is in its pod."""

    APP = "app"
    INIT = "init"
    """It ends before the next container of the pod is created."""
    SIDECAR = "sidecar"
    """A restartable init container: it starts in its turn and goes on running beside the others."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Requests and limits; 0 where none is set.

    Attributes:
        cpu_request_milli: thousandths of a CPU.
        cpu_limit_milli: the same.
        memory_request_bytes: bytes.
        memory_limit_bytes: the same.
        hugepages: (`hugepages-SIZE`, bytes), also those that ask for 0.
    """

    cpu_request_milli: int = 0
    cpu_limit_milli: int = 0
    memory_request_bytes: int = 0
    memory_limit_bytes: int = 0
    hugepages: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """One container of a pod's specification."""

    name: str
    kind: Kind = Kind.APP
    amounts: Amounts = field(default_factory=Amounts)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod's specification, as far as it decides who gets what.

    Attributes:
        uid: the pod's uid as the runtime knows it.
        qos: its class.
        containers: init containers and sidecars in their order, then app containers; no ephemeral ones.
        pod_resources: what the pod as a whole asks for (`spec.resources`); None where it sets nothing.
    """

    uid: str
    qos: QOSClass
    containers: tuple[ContainerFacts, ...] = ()
    pod_resources: Amounts | None = None

    def container(self, name: str) -> ContainerFacts | None:
        """The container of that name; None for one the specification does not have, such as an ephemeral one."""
        return next((one for one in self.containers if one.name == name), None)

    def names(self, *kinds: Kind) -> Iterator[str]:
        """The containers of these kinds."""
        return (one.name for one in self.containers if one.kind in kinds)
