"""Every error this project raises on purpose.

Constructors take values; `str()` makes one lower-case sentence that says what,
where, both sides of the comparison and, where an operator can act, what to do.
`OSError` is converted at the lowest call and never crosses a layer.
"""

from collections.abc import Sequence
from dataclasses import replace

from nri_plugin.model.refusals import (
    AdmissionRefusal,
    CacheShortage,
    CPUShortage,
    EmptyPodSharedPool,
    RefusalDetail,
    RefusalKind,
    RefusalRemark,
)


class NriPinError(Exception):
    """Base of all errors of this project; the command line prints `str()` on one line."""


class ProtocolError(NriPinError):
    """The connection cannot go on; it is closed with this as the logged reason."""


class LocalProtocolError(ProtocolError):
    """Our own side asked for something the protocol does not allow; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something the protocol does not allow."""


class AdmissionError(NriPinError):
    """A container or a resize is refused.

    Attributes:
        refusal: why, as a record; never changed after it was made.
    """

    kind = RefusalKind.OTHER

    def __init__(self, detail: RefusalDetail | str) -> None:
        self.refusal = AdmissionRefusal(self.kind, detail)
        super().__init__(detail)

    @property
    def reason(self) -> str:
        """The kubelet's reason word."""
        return self.refusal.reason

    def __str__(self) -> str:
        return str(self.refusal)


class TopologyAffinityError(AdmissionError):
    """The merged hint does not satisfy the topology policy.

    Args:
        detail: what the policy needs and what the merge found.
        findings: what each hint provider found.
        exact: False when a search for a better hint was cut short.
    """

    kind = RefusalKind.TOPOLOGY_AFFINITY

    def __init__(
        self, detail: RefusalDetail | str, *, findings: Sequence[str] = (), exact: bool = True
    ) -> None:
        super().__init__(detail)
        self.refusal = replace(self.refusal, findings=tuple(findings), exact=exact)


class SMTAlignmentError(AdmissionError):
    """full-pcpus-only, and the request is not a whole number of cores or there are not enough whole cores."""

    kind = RefusalKind.SMT_ALIGNMENT


class AnnotationError(AdmissionError):
    """An annotation that is read asks for something impossible; names the annotation."""

    kind = RefusalKind.ANNOTATION

    def __init__(self, key: str, detail: str) -> None:
        super().__init__(f"annotation {key}: {detail}")


class TwoOwnersError(AdmissionError):
    """CPUs would have two owners: a resource claim of another program, and this agent."""

    kind = RefusalKind.TWO_OWNERS

    def __init__(self, claim: str, cpus: object, detail: str) -> None:
        super().__init__(f"CPUs {cpus} belong to the resource claim {claim}, {detail}")


class HintProviderError(AdmissionError):
    """A hint provider from another package failed, or its answer is not one."""

    kind = RefusalKind.HINT_PROVIDER


class InsufficientCPUsError(AdmissionError):
    """Fewer CPUs are available than requested."""

    kind = RefusalKind.CPUS

    def __init__(self, requested: int, available: int, remark: RefusalRemark | str = "") -> None:
        super().__init__(CPUShortage(requested, available))
        self.refusal = replace(self.refusal, remark=remark, requested=requested, available=available)


class UncoreCacheAlignmentError(AdmissionError):
    """strictUncoreCache, and no uncore cache has as many CPUs available as requested."""

    kind = RefusalKind.UNCORE_CACHE

    def __init__(self, requested: int, largest_hole: int, largest_cache: int) -> None:
        shortage = CacheShortage(requested, largest_hole, largest_cache)
        super().__init__(shortage)
        self.refusal = replace(
            self.refusal, remark=shortage.remedy, requested=requested, available=largest_hole
        )


class InsufficientMemoryError(AdmissionError):
    """No NUMA nodes hold enough free memory of the requested type."""

    kind = RefusalKind.MEMORY


class EmptyPodSharedPoolError(AdmissionError):
    """A pod with resources of its own, whose exclusive containers leave nothing to those that share."""

    kind = RefusalKind.EMPTY_POD_SHARED_POOL

    def __init__(self, detail: EmptyPodSharedPool) -> None:
        super().__init__(detail)
        self.refusal = replace(self.refusal, remark=detail.remedy)


class _PathError(NriPinError):
    """Something is wrong with one path, which the text names first."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail


class HostError(_PathError):
    """A file of the host could not be read or written."""


class CheckpointError(_PathError):
    """The checkpoint is unreadable or could not be written."""


class ConfigError(NriPinError):
    """A configuration value is wrong.

    Attributes:
        where: file:line:column and the key path; empty where the value has no place.
        detail: the sentence without `where`.
        sentence: `where` and `detail`.
        more: further lines of the message: other errors, or lines to add to the file.
    """

    def __init__(self, where: str, detail: str, more: Sequence[str] = ()) -> None:
        self.where = where
        self.detail = detail
        self.sentence = f"{where}: {detail}" if where else detail
        self.more = tuple(more)
        super().__init__("\n".join((self.sentence, *more)))


class KubeObjectError(NriPinError):
    """An object of the Kubernetes API is not what its schema says; it is left out of account."""


class KubeAPIError(NriPinError):
    """A request to the Kubernetes API failed; says what was asked and what the server answered.

    Attributes:
        status: the HTTP status; 0 when there was no answer at all.
        reason: the server's reason word such as `NotFound`, empty when it gave none.
        causes: (field, message) of each field the server complained about.
        retry_after_s: how long the server wants to be left alone; None when it did not say.
    """

    def __init__(
        self,
        asked: str,
        detail: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: Sequence[tuple[str, str]] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{asked}: {detail}")
        self.detail = detail
        self.status = status
        self.reason = reason
        self.causes = tuple(causes)
        self.retry_after_s = retry_after_s


class KubeletError(_PathError):
    """The kubelet's PodResources API gave no answer, or a refusal.

    Attributes:
        detail: the kubelet's words, or why there are none.
        is_unknown: it does not know the pod.
        is_unsupported: it is too old for the question, or has it switched off.
    """

    def __init__(
        self, path: str, detail: str, *, is_unknown: bool = False, is_unsupported: bool = False
    ) -> None:
        super().__init__(path, detail)
        self.is_unknown = is_unknown
        self.is_unsupported = is_unsupported


class InvariantError(NriPinError):
    """A decision would break an invariant; it is not carried out."""

    def __init__(self, violations: Sequence[str], steps: Sequence[str] = ()) -> None:
        text = "; ".join(violations)
        if steps:
            text += f" (steps: {' '.join(steps)})"
        super().__init__(f"decision would break an invariant: {text}")
        self.violations = tuple(violations)
        self.steps = tuple(steps)
