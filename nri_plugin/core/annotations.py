"""The annotations of a pod that are heard: ours, and those of other programs about quiet CPUs.

Annotations are input of everyone who can create pods. They are read only in the namespaces that
`annotationNamespaces` names, and have no effect elsewhere. One that is heard and cannot be understood refuses its
container, because an operator who trusts a namespace wants to know.

    nri-pin/smt-odd-counts.container.NAME   kubelet | reject | round-up | allow
    nri-pin/exclusive-cpus.container.NAME   a number of CPUs, for a container of a Burstable pod
    nri-pin/isolation.container.NAME        none | partition | isolated, instead of the configuration's
    nri-pin/isolated-cpus.container.NAME    require | avoid | any: CPUs that the kernel isolates
    nri-pin/numa-node                       the NUMA node that the scheduler of the pod counted on
    nri-pin/irqs.container.NAME             quiet | housekeeping | any: device interrupts on its exclusive CPUs
    nri-pin/irq-claim.container.NAME        patterns of interrupts that come to its own CPUs, with commas between them;
                                            `devices` are those of its own PCI devices
    nri-pin/wake-latency-us.container.NAME  the longest time that its CPUs may take to wake up, in microseconds

`.pod` instead of `.container.NAME` is for all containers of the pod that have no annotation of their own. The name of an
annotation ends after 63 characters, which a long container name exceeds.

`nri-pin/numa-node` decides only between NUMA nodes that are equally good. It never refuses a container and never makes a
placement worse, so a node that this machine does not have, or a value that cannot be read, is ignored.

Names that others have made are heard too, in the same namespaces. Our own name wins, and a contradiction refuses the
container with both names.

    irq-load-balancing.crio.io[/NAME]         disable | true | housekeeping
    cpu-c-states.crio.io                      max_latency:US; its other words mean nothing here
    irq-affinity.resource-policy.nri.io/pod   claim, mask: lists of patterns of interrupts; mode: mask-first | claim-first
                         .../container.NAME

`claim` asks for interrupts on the container's CPUs, as `nri-pin/irq-claim`, and `mask` keeps interrupts off them: `"*"` is
`quiet`, other patterns are for these interrupts only. With `mask-first`, the default, a claim beats a mask; with
`claim-first` the mask wins.

Differs: the kubelet has none of these annotations; here: pods in the namespaces of `annotationNamespaces` may
    set them. Why: single containers need other rules than the rest of their node. Option:
    `annotationNamespaces` without a namespace (the default).
Source: CRI-O, high_performance_hooks_linux.go; nri-plugins, topology-aware policy, IRQ affinity.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from nri_plugin.model import bounds
from nri_plugin.model.errors import AnnotationError
from nri_plugin.model.options import IRQWish, Isolation, Options
from nri_plugin.model.records import PodRecord, QOSClass

Word = TypeVar("Word", bound=StrEnum)

SMT_ODD_COUNTS = "nri-pin/smt-odd-counts"
EXCLUSIVE_CPUS = "nri-pin/exclusive-cpus"
ISOLATION = "nri-pin/isolation"
ISOLATED_CPUS = "nri-pin/isolated-cpus"
NUMA_NODE = "nri-pin/numa-node"
IRQS = "nri-pin/irqs"
IRQ_CLAIM = "nri-pin/irq-claim"
WAKE_LATENCY = "nri-pin/wake-latency-us"
CRIO_IRQS = "irq-load-balancing.crio.io"
CRIO_C_STATES = "cpu-c-states.crio.io"
NRI_IRQS = "irq-affinity.resource-policy.nri.io"
_CRIO_WISHES = {
    "disable": IRQWish.QUIET,
    "true": IRQWish.QUIET,
    "housekeeping": IRQWish.HOUSEKEEPING,
}
"""`true` is CRI-O's deprecated word for `disable`."""

_COUNT = re.compile(r"[1-9][0-9]{0,4}\Z")
_NODE = re.compile(r"(?:0|[1-9][0-9]{0,3})\Z", re.ASCII)
_CRIO_LATENCY = re.compile(r"max_latency:([1-9][0-9]{0,8})\Z")
_LATENCY = re.compile(r"(?:0|[1-9][0-9]{0,8})\Z")
_PATTERN = re.compile(r"[-A-Za-z0-9_.:@*?\[\]!/]+\Z")
_MODES = ("mask-first", "claim-first")
_ALL = "*"


def given_annotations(options: Options, pod: PodRecord) -> dict[str, str]:
    """The annotations of the pod that are heard: none outside the configured namespaces."""
    return dict(pod.annotations) if pod.namespace in options.annotation_namespaces else {}


def heard(given: Mapping[str, str], key: str, name: str) -> tuple[str, str] | None:
    """The annotation for the container, and its value: its own one first, then that of the whole pod."""
    for full in (f"{key}.container.{name}", f"{key}.pod"):
        if full in given:
            return full, given[full]
    return None


def word_of(given: Mapping[str, str], key: str, name: str, words: type[Word]) -> Word | None:
    """The value of an annotation that is one of several words; None where the container has none.

    Raises:
        AnnotationError: it is another word.
    """
    found = heard(given, key, name)
    if found is None:
        return None
    full, value = found
    if value not in set(words):
        raise AnnotationError(full, f"expected {', '.join(words)}, found {value[:40]!r}")
    return words(value)


def isolation(options: Options, pod: PodRecord, name: str) -> Isolation:
    """How far the exclusive CPUs of that container are isolated; an unknown word counts as not set."""
    found = heard(given_annotations(options, pod), ISOLATION, name)
    value = found[1] if found else ""
    return Isolation(value) if value in set(Isolation) else options.isolation


def annotated_node(options: Options, pod: PodRecord) -> int:
    """Mask of the NUMA node that the pod's annotation prefers; 0 where no annotation is heard."""
    value = given_annotations(options, pod).get(NUMA_NODE, "")
    return 1 << int(value) if _NODE.match(value) else 0


def exclusive_cpus(given: Mapping[str, str], name: str, qos: QOSClass, cpu_milli: int | None) -> int:
    """How many exclusive CPUs the annotation asks for, for a container with this request; 0 for none.

    Raises:
        AnnotationError: it cannot be read, or the request does not cover so many.
    """
    found = heard(given, EXCLUSIVE_CPUS, name)
    if found is None:
        return 0
    key, value = found
    if not _COUNT.match(value):
        raise AnnotationError(key, f"expected a number of CPUs such as 2, found {value[:40]!r}")
    if qos is QOSClass.GUARANTEED:
        # An annotation for the whole pod may be for its other containers; one for this container is a mistake.
        if key.endswith(".pod"):
            return 0
        raise AnnotationError(key, "the pod is Guaranteed: its CPU request decides; remove the annotation")
    # The CPUs must be covered by the request that the scheduler counted; the last one may be a fraction.
    count, asked = int(value), cpu_milli or 0
    if (count - 1) * 1000 >= asked:
        detail = (
            f"{count} exclusive CPUs need a CPU request above {(count - 1) * 1000}m, found {asked}m; raise it"
        )
        raise AnnotationError(key, detail)
    return count


def irq_wish(options: Options, pod: PodRecord, name: str, *, hears_others: bool) -> IRQWish | None:
    """What that container wants of device interrupts; None where it does not say, or says an unknown word."""
    given = given_annotations(options, pod)
    own = heard(given, IRQS, name)
    if own is not None and own[1] in set(IRQWish):
        return IRQWish(own[1])
    crio = _crio_irqs(given, name) if hears_others else None
    if crio is not None:
        return crio[1]
    return IRQWish.QUIET if _ALL in _understood(given, name).mask else None


def irq_claim(options: Options, pod: PodRecord, name: str) -> tuple[str, ...]:
    """Patterns of the interrupts that are to come to that container's CPUs."""
    given = given_annotations(options, pod)
    own = heard(given, IRQ_CLAIM, name)
    return _patterns(own[1]) if own else _understood(given, name).claim


def irq_mask(options: Options, pod: PodRecord, name: str) -> tuple[tuple[str, ...], bool]:
    """Patterns of the interrupts that leave that container's CPUs though others stay, and whether that beats claims."""
    found = _understood(given_annotations(options, pod), name)
    return () if _ALL in found.mask and not found.wins else found.mask, found.wins


def wake_latency_us(options: Options, pod: PodRecord, name: str, *, hears_others: bool) -> int | None:
    """The longest time in microseconds that CPUs of that container may take to wake up; None where it does not say."""
    given = given_annotations(options, pod)
    own = heard(given, WAKE_LATENCY, name)
    if own is not None and _LATENCY.match(own[1]):
        return int(own[1])
    others = _CRIO_LATENCY.match(given.get(CRIO_C_STATES, "")) if hears_others else None
    return int(others[1]) if others else None


def check_quiet(given: Mapping[str, str], name: str) -> None:
    """Refuse wrong values of the annotations for quiet CPUs, and those that contradict each other.

    Raises:
        AnnotationError: there is one.
    """
    word_of(given, IRQS, name, IRQWish)
    said = list(_wishes(given, name))
    for number, (full, wish, text) in enumerate(said):
        for other, other_wish, other_text in said[:number]:
            if wish is not other_wish:
                raise _contradiction(other, other_text, full, text)
    _check_claims(given, name)
    latency = heard(given, WAKE_LATENCY, name)
    if latency is None:
        return
    if not _LATENCY.match(latency[1]):
        raise AnnotationError(latency[0], f"expected microseconds such as 20, found {latency[1][:40]!r}")
    crio = _CRIO_LATENCY.match(given.get(CRIO_C_STATES, ""))
    if crio is not None and int(crio[1]) != int(latency[1]):
        raise _contradiction(*latency, CRIO_C_STATES, crio[0])


def _wishes(given: Mapping[str, str], name: str) -> Iterator[tuple[str, IRQWish, str]]:
    """Each annotation that says what the container wants of interrupts, what that is, and its value; ours first."""
    own = heard(given, IRQS, name)
    if own is not None:
        yield own[0], IRQWish(own[1]), own[1]
    crio = _crio_irqs(given, name)
    if crio is not None:
        yield crio
    theirs = _nri_irqs(given, name)
    # A mask of some interrupts does not contradict a wish to move all of them.
    if theirs.mask and (_ALL in theirs.mask or (own is not None and own[1] == IRQWish.ANY)):
        yield theirs.full, IRQWish.QUIET, given[theirs.full]


def _check_claims(given: Mapping[str, str], name: str) -> None:
    own, theirs = heard(given, IRQ_CLAIM, name), _nri_irqs(given, name)
    if own is None:
        return
    is_cut = len(own[1]) >= bounds.ANNOTATION_VALUE_CHARS
    if is_cut or not _patterns(own[1]):
        raise AnnotationError(
            own[0],
            f"expected patterns such as eth0-*,0000:3b:00.0 of less than {bounds.ANNOTATION_VALUE_CHARS} characters, "
            f"found {own[1][:40]!r}",
        )
    if theirs.claim and set(theirs.claim) != set(_patterns(own[1])):
        raise _contradiction(*own, theirs.full, given[theirs.full])


def _contradiction(own: str, text: str, other: str, other_text: str) -> AnnotationError:
    return AnnotationError(
        own, f"{text[:40]} contradicts {other}, which says {other_text[:40]!r}; remove one of them"
    )


def _crio_irqs(given: Mapping[str, str], name: str) -> tuple[str, IRQWish, str] | None:
    """CRI-O's annotation about interrupts for the container, what it means, and its value; that of its own first."""
    for full in (f"{CRIO_IRQS}/{name}", CRIO_IRQS):
        wish = _CRIO_WISHES.get(given.get(full, ""))
        if wish is not None:
            return full, wish, given[full]
    return None


@dataclass(frozen=True, slots=True)
class IRQAffinity:
    """What `irq-affinity.resource-policy.nri.io` says.

    Attributes:
        full: its name; empty where there is none.
        claim, mask: patterns.
        wins: the mask beats claims.
    """

    full: str = ""
    claim: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    wins: bool = False


def _understood(given: Mapping[str, str], name: str) -> IRQAffinity:
    """What it says; nothing where it cannot be read, which `check_quiet` refuses at the creation."""
    try:
        return _nri_irqs(given, name)
    except AnnotationError:
        return IRQAffinity()


def _nri_irqs(given: Mapping[str, str], name: str) -> IRQAffinity:
    """The annotation of nri-plugins for the container; its own one first.

    Raises:
        AnnotationError: it cannot be read.
    """
    full = next((one for one in (f"{NRI_IRQS}/container.{name}", f"{NRI_IRQS}/pod") if one in given), "")
    if not full:
        return IRQAffinity()
    found: dict[str, list[str]] = {}
    key = ""
    # Two lists and a word: this much of YAML is read here, and all else is refused.
    for line in map(str.strip, given[full].splitlines()):
        if key and line.startswith("- "):
            found[key].append(_unquoted(line[2:]))
        elif line:
            key, _, rest = map(str.strip, line.partition(":"))
            items = rest.removeprefix("[").removesuffix("]").split(",") if rest else []
            found[key] = [_unquoted(item) for item in items if item.strip()]
    patterns = (*found.get("claim", ()), *found.get("mask", ()))
    is_read = found.keys() <= {"claim", "mask", "mode"} and all(map(_PATTERN.match, patterns))
    mode = found.get("mode", [_MODES[0]])
    is_cut = len(given[full]) >= bounds.ANNOTATION_VALUE_CHARS
    if is_cut or not is_read or not patterns or len(mode) != 1 or mode[0] not in _MODES:
        raise AnnotationError(
            full,
            'expected lines such as claim: ["eth0-*"], mask: ["*"] and mode: claim-first of less than '
            f"{bounds.ANNOTATION_VALUE_CHARS} characters together, found {given[full][:40]!r}",
        )
    return IRQAffinity(
        full, tuple(found.get("claim", ())), tuple(found.get("mask", ())), mode[0] == _MODES[1]
    )


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'")


def _patterns(value: str) -> tuple[str, ...]:
    """Patterns with commas between them; none where one of them is no pattern."""
    parts = tuple(part.strip() for part in value.split(","))
    return parts if all(_PATTERN.match(part) for part in parts) else ()
