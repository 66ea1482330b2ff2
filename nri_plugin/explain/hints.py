"""Answers of hint providers, their merge, and the steps in which the CPUs were taken, as values.

Nothing is decided here. The hints are those of the providers, the candidates those of the merge, and the steps are what
the assignment reported while it took the CPUs. `nri_plugin.cli.explain.text` has the words for them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from nri_plugin.core.hint_providers import Question
from nri_plugin.core.placement import MergeTerms, cpus_under
from nri_plugin.model.bits import format_list, iterate
from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.options import REGISTRY, Options, TopologyManagerPolicy
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from nri_plugin.policy.cpu_assignment import PLACES, AssignmentStage
from nri_plugin.policy.hints import HintRule, HintSet
from nri_plugin.policy.merge import Candidate, MergedHint, admits, candidates
from nri_plugin.policy.search import BudgetSpentError, StepBudget
from nri_plugin.policy.search.intersections import lowest_member, roomiest
from nri_plugin.policy.search.mask_order import MaskOrder

CPU = "cpu"
FEW = 4
"""So many sets of NUMA nodes are shown of those that a rule describes."""


@dataclass(frozen=True, slots=True)
class Hinted:
    """A set of NUMA nodes as a kernel list; `nodes` empty for anywhere."""

    nodes: str
    preferred: bool


@dataclass(frozen=True, slots=True)
class ExplainedRule:
    """Which sets of NUMA nodes are hints, where there are too many to list.

    Attributes:
        nodes: the NUMA nodes that they consist of, as a kernel list.
        required: those that every set includes, likewise.
        at_least: the fewest NUMA nodes of a set.
        cpus: the CPUs that a set has to have available together; 0 for other resources.
        preferred_size: the number of NUMA nodes that is preferred.
        fewest_sockets: so many sockets are preferred too; 0 where they do not count.
    """

    nodes: str
    required: str
    at_least: int
    cpus: int
    preferred_size: int
    fewest_sockets: int


@dataclass(frozen=True, slots=True)
class ResourceHints:
    """The answer of a provider about one resource.

    Attributes:
        resource: `cpu`, `memory`, `hugepages-SIZE`, a device's resource, or the name that a provider of another
            package gives.
        numbers: the request and what there is, in the provider's words.
        answer: `hints`; `anywhere` where it has no preference; `nowhere` where nothing fits.
        hints: the sets where it fits, by size and then number; of a rule a few.
        rule: on machines of more than eight NUMA nodes, which other sets are hints.
        exact: False where the search for the fewest nodes was cut short.
    """

    resource: str
    numbers: str
    answer: str
    hints: tuple[Hinted, ...]
    rule: ExplainedRule | None = None
    exact: bool = True


class DecidedBy(StrEnum):
    """The first thing by which two merged hints differ, in the order in which a merge compares them."""

    PREFERRED = "preferred"
    NARROWER = "narrower"
    NEARER_WIDTH = "nearer-width"
    """It is wider, and nearer to the number of NUMA nodes that the widest request takes."""
    DISTANCE = "distance"
    ANNOTATION = "annotation"
    TIE_BREAK = "tie-break"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Lead:
    """Why a merged hint beats the next best.

    Attributes:
        by: what decided.
        ours: the figure of the merged hint: NUMA nodes or added distances; 0 where it is not about figures.
        theirs: the figure of the other one.
        rule: for `tie-break` the value of topologyTieBreak.
    """

    by: DecidedBy
    ours: int = 0
    theirs: int = 0
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged hint of all providers.

    Attributes:
        policy: the topology policy.
        scope: `container` or `pod`, or why neither is exact; see `placement.in_scope`.
        nodes: the merged hint, empty for anywhere.
        preferred: whether all prefer it.
        admitted: whether the policy lets a container start with it.
        exact: False where a better one may exist.
        runner_up: the next best, None where there is none or it is not known.
        lead: why the first beats it; None without a runner-up.
        contenders: how many there were, where that is known.
    """

    policy: str
    scope: str
    nodes: str
    preferred: bool
    admitted: bool
    exact: bool = True
    runner_up: Hinted | None = None
    lead: Lead | None = None
    contenders: int | None = None


def hints_of(hint_set: HintSet) -> ResourceHints:
    """The hints of one resource as values."""
    listed = [Hinted(format_list(hint.nodes or 0), hint.preferred) for hint in hint_set.hints or ()]
    rule = _rule(hint_set.resource, hint_set.rule) if hint_set.rule else None
    if hint_set.rule:
        listed += [Hinted(format_list(mask), hint_set.rule.prefers(mask)) for mask in _some(hint_set.rule)]
    answer = "anywhere" if hint_set.hints is None else "hints" if listed else "nowhere"
    return ResourceHints(hint_set.resource, hint_set.why, answer, tuple(listed), rule, hint_set.exact)


def _rule(resource: str, rule: HintRule) -> ExplainedRule:
    return ExplainedRule(
        nodes=format_list(rule.nodes),
        required=format_list(rule.required),
        at_least=rule.at_least,
        cpus=rule.needs[0].amount if resource == CPU else 0,
        preferred_size=rule.preferred_size,
        fewest_sockets=rule.fewest_sockets,
    )


def merged_of(terms: MergeTerms, merged: MergedHint, scope: str) -> Merged:
    """The merge, and why its outcome beats the next best."""
    known = candidates(*terms[:3], distances=terms.distances, tie_break=terms.tie_break)
    winner = Candidate(merged.affinity.mask, merged.preferred) if merged.affinity else None
    next_best = next((one for one in known if one != winner), None) if winner in known else None
    return Merged(
        policy=terms.policy,
        scope=scope,
        nodes=str(merged.affinity or ""),
        preferred=merged.preferred,
        admitted=admits(terms.policy, merged),
        exact=merged.exact,
        runner_up=Hinted(format_list(next_best.nodes), next_best.preferred) if next_best else None,
        lead=_lead(terms, winner, next_best) if winner and next_best else None,
        contenders=len(known) if known else None,
    )


def _lead(terms: MergeTerms, winner: Candidate, other: Candidate) -> Lead:
    # In the order in which a merge compares: preferred, width, distance, tie break, number.
    if winner.preferred != other.preferred:
        return Lead(DecidedBy.PREFERRED)
    ours, theirs = winner.nodes.bit_count(), other.nodes.bit_count()
    if ours != theirs:
        return Lead(DecidedBy.NARROWER if ours < theirs else DecidedBy.NEARER_WIDTH, ours, theirs)
    return _lead_of_equals(_order(terms), winner.nodes, other.nodes)


def _order(terms: MergeTerms) -> MaskOrder:
    is_single = terms.policy is TopologyManagerPolicy.SINGLE_NUMA_NODE
    return MaskOrder(None if is_single else terms.distances, terms.tie_break)


def _lead_of_equals(order: MaskOrder, winner: int, other: int) -> Lead:
    (far, rank, _), (other_far, other_rank, _) = order.of(winner), order.of(other)
    if far != other_far:
        return Lead(DecidedBy.DISTANCE, far, other_far)
    if rank != other_rank and order.tie_break:
        if (order.tie_break.wished & winner) != (order.tie_break.wished & other):
            return Lead(DecidedBy.ANNOTATION)
        return Lead(DecidedBy.TIE_BREAK, rule=order.tie_break.rule)
    return Lead(DecidedBy.NUMBER)


def _some(rule: HintRule) -> list[int]:
    """A few members: the preferred single nodes, else one of each size from the preferred one on.

    The lowest of its size, or the roomiest where a search would take too long.
    """
    if rule.preferred_size == 1:
        single = [1 << node for node in iterate(rule.nodes) if rule.prefers(1 << node)]
        if single:
            return single
    first = max(1, rule.at_least, rule.preferred_size)
    found = [_lowest(rule, size) for size in range(first, rule.nodes.bit_count() + 1)[:FEW]]
    return [mask for mask in found if mask is not None and mask in rule]


def _lowest(rule: HintRule, size: int) -> int | None:
    try:
        return lowest_member(rule, size, StepBudget())
    except BudgetSpentError:
        return roomiest(rule, size)


@dataclass(frozen=True, slots=True)
class TakingStep:
    """CPUs taken in one step.

    Attributes:
        stage: in which way; see `policy.cpu_assignment.AssignmentStage`.
        place: where CPUs were on offer: a stage of `policy.cpu_assignment.PLACES`, or empty.
        on_offer: how many there were.
        option: the option that made it so; empty for the default order.
        cpus: what was taken, as a kernel list.
        count: how many.
        sockets: ids, as a kernel list; so are the next three.
        numa_nodes: where they are.
        uncore_caches: which they share.
        cores: which they are of.
        whole_cores: how many of the cores were taken whole.
    """

    stage: str
    place: str
    on_offer: int
    option: str
    cpus: str
    count: int
    sockets: str
    numa_nodes: str
    uncore_caches: str
    cores: str
    whole_cores: int


class _StepRecorder:
    """Joins what the assignment reports: reports of one stage in one place are one step."""

    def __init__(self) -> None:
        self.steps: list[tuple[AssignmentStage | None, int, AssignmentStage, int]] = []
        self._place: AssignmentStage | None = None
        self._on_offer = 0

    def __call__(self, stage: AssignmentStage, cpus: int) -> None:
        if stage in PLACES:
            self._place, self._on_offer = stage, cpus
            return
        if stage in (AssignmentStage.ONE_CACHE, AssignmentStage.WHOLE_QUEUES):
            self.steps.clear()  # these reports repeat all CPUs that were reported before
        last = self.steps[-1] if self.steps else None
        if last and last[:3] == (self._place, self._on_offer, stage):
            self.steps[-1] = (*last[:3], last[3] | cpus)
        else:
            self.steps.append((self._place, self._on_offer, stage, cpus))


def taking_of(question: Question, hint: MergedHint) -> tuple[TakingStep, ...]:
    """How the CPUs are taken under `hint`; none where there are none to take, or they cannot be had."""
    recorder = _StepRecorder()
    try:
        cpus_under(question, hint, recorder)
    except AdmissionError:
        return ()
    node = question.node
    return tuple(_step(node.topology, node.options, *one) for one in recorder.steps)


def _step(
    topology: Topology,
    options: Options,
    place: AssignmentStage | None,
    on_offer: int,
    stage: AssignmentStage,
    taken: int,
) -> TakingStep:
    cpus = CPUSet(taken)
    return TakingStep(
        stage=stage,
        place=place or "",
        on_offer=on_offer.bit_count(),
        option=_option_of(options, stage) or _option_of(options, place),
        cpus=str(cpus),
        count=len(cpus),
        sockets=_ids(topology.sockets, cpus),
        numa_nodes=str(topology.nodes_of(cpus)),
        uncore_caches=_ids(topology.caches, cpus) if topology.caches_known else "",
        cores=_ids(topology.cores, cpus),
        whole_cores=sum(1 for _, core in topology.cores if core <= cpus),
    )


def _option_of(options: Options, stage: AssignmentStage | None) -> str:
    """The option that is set and causes the stage, by the registry; empty where it belongs to the default order."""
    rows = (row for row in REGISTRY.values() if stage in row.stages and row.is_changed(options))
    return next((row.name if row.kind is bool else f"{row.name}: {row.text(options)}" for row in rows), "")


def _ids(groups: Iterable[tuple[int, CPUSet]], cpus: CPUSet) -> str:
    return str(CPUSet.from_ids(int(number) for number, members in groups if not members.isdisjoint(cpus)))
