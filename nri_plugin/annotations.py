"""What a pod's annotations ask for, where they are heard.

Annotations are input from whoever can create pods. They are read only in the namespaces that `annotationNamespaces`
names, and have no effect at all elsewhere. One that is heard and makes no sense refuses its container: an operator who
trusts a namespace wants to know.

    nri-pin/smt-odd-counts.container.NAME   kubelet | reject | round-up | allow
    nri-pin/exclusive-cpus.container.NAME   a number of CPUs, for a container of a Burstable pod
    nri-pin/isolation.container.NAME        none | partition | isolated, over the configuration's
    nri-pin/isolated-cpus.container.NAME    require | avoid | any: CPUs that the kernel isolates
    nri-pin/numa-node                       the NUMA node that whoever scheduled the pod counted on

`.pod` instead of `.container.NAME` speaks for all containers of the pod that have none of their own; an annotation's name
ends after 63 characters, which a long container name exceeds.

`nri-pin/numa-node` decides only between NUMA nodes that are equally good: it never refuses anybody and never makes a
placement worse, so what this machine does not have, or cannot be read, is passed over.

Differs: the kubelet has none of them.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from nri_plugin.errors import AnnotationError
from nri_plugin.options import IsolatedWish, Isolation, Options, SMTOddCounts
from nri_plugin.state import PodRecord, QOSClass
from nri_plugin.workload import ContainerRequest

SMT_ODD_COUNTS = "nri-pin/smt-odd-counts"
EXCLUSIVE_CPUS = "nri-pin/exclusive-cpus"
ISOLATION = "nri-pin/isolation"
ISOLATED_CPUS = "nri-pin/isolated-cpus"
NUMA_NODE = "nri-pin/numa-node"
_COUNT = re.compile(r"[1-9][0-9]{0,4}\Z")
_NODE = re.compile(r"(?:0|[1-9][0-9]{0,3})\Z", re.ASCII)


def annotated(options: Options, pod: PodRecord, request: ContainerRequest) -> ContainerRequest:
    """`request` as the pod's annotations want it.

    Raises:
        AnnotationError: one is heard that makes no sense, or cannot be had by this container.
    """
    if not pod.annotations or pod.namespace not in options.annotation_namespaces:
        return request
    given = dict(pod.annotations)
    _check_isolation(given, request.name)
    return replace(
        request,
        smt_odd_counts=_smt_odd_counts(given, request.name),
        wanted_exclusive=_exclusive_cpus(given, request),
        isolated=_isolated(given, request.name),
    )


def isolation(options: Options, pod: PodRecord, name: str) -> Isolation:
    """How far the exclusive CPUs of that container are set apart; a word that is none counts as not said."""
    if not pod.annotations or pod.namespace not in options.annotation_namespaces:
        return options.isolation
    heard = _heard(dict(pod.annotations), ISOLATION, name)
    value = heard[1] if heard else ""
    return Isolation(value) if value in set(Isolation) else options.isolation


def wished_node(options: Options, pod: PodRecord) -> int:
    """Mask of the NUMA node the pod is wished to be on; 0 when nobody who is heard says so."""
    if not pod.annotations or pod.namespace not in options.annotation_namespaces:
        return 0
    value = dict(pod.annotations).get(NUMA_NODE, "")
    return 1 << int(value) if _NODE.match(value) else 0


def _heard(given: Mapping[str, str], key: str, name: str) -> tuple[str, str] | None:
    """The annotation that speaks for the container, and its value."""
    for full in (f"{key}.container.{name}", f"{key}.pod"):
        if full in given:
            return full, given[full]
    return None


def _smt_odd_counts(given: Mapping[str, str], name: str) -> SMTOddCounts | None:
    heard = _heard(given, SMT_ODD_COUNTS, name)
    if heard is None:
        return None
    key, value = heard
    if value not in set(SMTOddCounts):
        raise AnnotationError(key, f"expected {', '.join(SMTOddCounts)}, found {value[:40]!r}")
    return SMTOddCounts(value)


def _check_isolation(given: Mapping[str, str], name: str) -> None:
    heard = _heard(given, ISOLATION, name)
    if heard is not None and heard[1] not in set(Isolation):
        raise AnnotationError(heard[0], f"expected {', '.join(Isolation)}, found {heard[1][:40]!r}")


def _isolated(given: Mapping[str, str], name: str) -> IsolatedWish | None:
    heard = _heard(given, ISOLATED_CPUS, name)
    if heard is None:
        return None
    key, value = heard
    if value not in set(IsolatedWish):
        raise AnnotationError(key, f"expected {', '.join(IsolatedWish)}, found {value[:40]!r}")
    return IsolatedWish(value)


def _exclusive_cpus(given: Mapping[str, str], request: ContainerRequest) -> int:
    heard = _heard(given, EXCLUSIVE_CPUS, request.name)
    if heard is None:
        return 0
    key, value = heard
    if not _COUNT.match(value):
        raise AnnotationError(key, f"expected a number of CPUs such as 2, found {value[:40]!r}")
    if request.qos is QOSClass.GUARANTEED:
        if key.endswith(".pod"):
            return 0
        raise AnnotationError(key, "the pod is Guaranteed: its CPU request decides; remove the annotation")
    count, asked = int(value), request.cpu_milli or 0
    if (count - 1) * 1000 >= asked:
        detail = (
            f"{count} exclusive CPUs need a CPU request above {(count - 1) * 1000}m, found {asked}m; raise it"
        )
        raise AnnotationError(key, detail)
    return count
