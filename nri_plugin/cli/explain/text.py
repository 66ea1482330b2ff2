"""The words for the values of an explanation: on one screen, and as JSON, which has both values and words.

`nri_plugin.explain` holds values only. Every sentence about them is made here. The screen has sections of labelled
sentences, then a table of the NUMA nodes.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from nri_plugin.cli.explain.what_if import HUGE_PAGES
from nri_plugin.cli.explain.what_if import UID as WHAT_IF_UID
from nri_plugin.cli.output import plain, wants_colour
from nri_plugin.core.annotations import EXCLUSIVE_CPUS
from nri_plugin.explain.explanation import ContainerOutcome, Explanation, PodContainer, Subject, Why, WhyKind
from nri_plugin.explain.fits import Fit, FitKind, Holder, NUMANodeUse
from nri_plugin.explain.hints import (
    CPU,
    DecidedBy,
    ExplainedRule,
    Hinted,
    Lead,
    Merged,
    ResourceHints,
    TakingStep,
)
from nri_plugin.model import bounds
from nri_plugin.model.bounds import visible
from nri_plugin.model.quantity import format_bytes, round_down
from nri_plugin.model.refusals import Obstacle
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import AssignmentStage
from nri_plugin.policy.memory_state import MEMORY

NAMED_PODS = 4
"""Pods that have to end together; the others are counted."""

_WHY = {
    WhyKind.POLICY_NONE: "shared: cpuManagerPolicy none gives no container exclusive CPUs",
    WhyKind.POD_LEVEL: "shared: its pod sets resources for the pod as a whole (spec.resources)",
    WhyKind.BEYOND_POD_TOTAL: (
        "shared: with it the containers of its pod would ask for more than the pod does, so it counts as one without limits, "
        "to which the kubelet gives those of its pod (spec.resources); the exporter would tell"
    ),
    WhyKind.POD_WITHOUT_BLOCK: (
        "shared: its pod sets resources for the pod as a whole (spec.resources), and neither the pod nor this container "
        "gets CPUs of its own by them"
    ),
    WhyKind.NO_CPUS: "shared: it asks for no CPUs",
    WhyKind.MEMORY_POLICY_NONE: "memory: from any NUMA node, memoryManagerPolicy is None",
    WhyKind.MEMORY_NOT_GUARANTEED: "memory: from any NUMA node, only Guaranteed containers are allocated some",
    WhyKind.MEMORY_NOT_ASKED: "memory: from any NUMA node, it asks for none",
    WhyKind.DEVICES_NOT_COUNTED: (
        f"devices: not counted, it has more than {bounds.DEVICES}, or more than {bounds.DEVICE_RESOURCES} "
        "resources of them"
    ),
    WhyKind.SLICE: (
        "exclusive: a slice of CPUs {cpus}, which its pod has by resources of its own (spec.resources); its CPU and memory "
        "requests equal its limits, and its CPUs are whole{more}"
    ),
    WhyKind.POD_SHARED_POOL: (
        "pod shared pool: CPUs {cpus} are its pod's (spec.resources), and it runs on those that no container of the pod "
        "owns; no other pod runs there"
    ),
    WhyKind.NEVER_REFUSED: (
        "namespace {namespace} is in neverRefuse: it runs in the shared pool, marked unplaced"
    ),
    WhyKind.ANNOTATION: (
        f"exclusive: annotation {EXCLUSIVE_CPUS} asks for {{asked}}, and is heard in {{namespace}}{{more}}"
    ),
    WhyKind.WHOLE_CPUS: "exclusive: the pod is {qos} and {asked} is a whole number of CPUs{more}",
    WhyKind.INHERITED_CPUS: (
        "exclusive: CPUs {cpus} pass on to it from a container of its pod that has ended"
    ),
    WhyKind.NOT_GUARANTEED: "shared: the pod is {qos}; only whole CPUs of Guaranteed pods are exclusive",
    WhyKind.FRACTION: "shared: {milli}m is no whole number of CPUs",
    WhyKind.WITH_ITS_POD: "placed with its pod as a whole, at {when}",
    WhyKind.MEMORY_BOUND: "memory: allocated on {nodes}, and bound to {it}",
}
"""Why it is exclusive, shared or bound; the fields are those of `_why`."""

_LEADS = {
    DecidedBy.PREFERRED: "all prefer it, not so the other",
    DecidedBy.ANNOTATION: "the pod's annotation asks for it",
    DecidedBy.NUMBER: "as good, and lower in number",
    DecidedBy.NARROWER: "narrower: {nodes}, not {theirs}",
    DecidedBy.NEARER_WIDTH: "nearer to what the widest request takes: {nodes}, not {theirs}",
    DecidedBy.DISTANCE: "closer together: distances add up to {ours}, not {theirs}",
    DecidedBy.TIE_BREAK: "topologyTieBreak {rule}",
}
"""Why the merged hint beats the next best; the fields are those of `lead_text`."""


def as_dict(told: Explanation) -> dict[str, Any]:
    """The explanation as JSON has it."""
    refusal, advice = told.refusal, told.refusal.advice if told.refusal else None
    return {
        "subject": told.subject,
        "outcome": told.outcome,
        "reason": refusal.reason if refusal else "",
        "sentence": sentence(told),
        "cpus": told.cpus,
        "mems": told.mems,
        "why": whys(told),
        "settings": dict(told.settings),
        "hints": [
            {**plain(one), "rule": rule_text(one.resource, one.rule) if one.rule else ""}
            for one in told.hints
        ],
        "merged": _merge_facts(told.merged) if told.merged else None,
        "taking": told.taking,
        "numa_nodes": told.numa_nodes,
        "shared_pool": told.shared_pool,
        "pool_containers": told.pool_containers,
        "fits": [_fit_facts(one) for one in told.fits],
        "obstacle": advice.obstacle_text if advice else "",
        "steps": told.steps,
        "unfit": told.unfit,
        "pod": told.pod,
        "siblings": advice.siblings.largest if advice else [],
    }


def sentence(told: Explanation) -> str:
    """The refusal as the runtime, the log and the pod's event say it; empty where nothing was refused."""
    return str(told.refusal or "")


def in_the_way(told: Explanation) -> str:
    """The obstacle of a refused request; empty where the refusal gives no advice."""
    advice = told.refusal.advice if told.refusal else None
    if advice is None:
        return ""
    return str(advice.holders) if advice.obstacle is Obstacle.HOLDERS else advice.obstacle_text


def whys(told: Explanation) -> list[str]:
    """Why it is exclusive, shared or bound, a sentence each."""
    return [_why(told.subject, one) for one in told.why]


def _why(subject: Subject, why: Why) -> str:
    count, asked = subject.exclusive_cpus, why.asked
    return _WHY[why.kind].format(
        namespace=subject.namespace,
        qos=f"{subject.qos} (by the pod's object)" if why.is_qos_by_facts else subject.qos,
        milli=subject.cpu_milli,
        cpus=why.ids,
        nodes=numa(why.ids),
        it="it" if why.ids.isdigit() else "them",
        asked=asked,
        more=f"; {asked} became {count} to fill the last core (smtOddCounts round-up)"
        if count != asked
        else "",
        when="this creation, the first of the pod"
        if why.is_now
        else "the creation of the pod's first container",
    )


def rule_text(resource: str, rule: ExplainedRule) -> str:
    """Which sets of NUMA nodes are hints by a rule."""
    if resource == CPU:
        need = f"with {rule.cpus} CPUs available together"
    elif is_memory(resource):
        need = "with all the memory and huge pages asked for free together, and no other use of them"
    else:
        need = "where all of it fits"
    least = f" of {rule.at_least} or more" if rule.at_least > 1 else ""
    required = f" that include {rule.required}" if rule.required else ""
    sockets = f", or on {number(rule.fewest_sockets, 'socket')}" if rule.fewest_sockets else ""
    return (
        f"any set{least} of NUMA nodes {rule.nodes}{required} {need}; "
        f"preferred: of {number(rule.preferred_size, 'node')}{sockets}"
    )


def is_memory(resource: str) -> bool:
    """Whether amounts of it are bytes."""
    return resource == MEMORY or resource.startswith(HUGE_PAGES)


def lead_text(lead: Lead) -> str:
    """Why the merged hint beats the next best."""
    nodes = number(lead.ours, "NUMA node")
    return _LEADS[lead.by].format(nodes=nodes, ours=lead.ours, theirs=lead.theirs, rule=lead.rule)


def fit_text(fit: Fit) -> str:
    """A request that would have fitted, or a change after which it would."""
    match fit.kind:
        case FitKind.CPUS:
            return f"{fit.amount} CPUs"
        case FitKind.MEMORY:
            return f"{format_bytes(fit.amount)} of {fit.name}" if fit.amount else f"no {fit.name}"
        case FitKind.OPTION:
            return f"{fit.name}: {fit.setting}" if fit.setting else f"without {fit.name}"
        case FitKind.END:
            return f"once {_pod_names(fit.pods)} {'has' if len(fit.pods) == 1 else 'have'} ended"
        case FitKind.EMPTY:
            return "on this machine without any other pod"
    return f"{fit.name} {fit.setting}"


def numa(nodes: str) -> str:
    """NUMA nodes of a kernel list, in words."""
    return f"NUMA node{'' if nodes.isdigit() else 's'} {nodes}"


def number(count: int, what: str) -> str:
    """A number and its noun, which adds an s for the plural."""
    return f"{count} {what}" + "s" * (count != 1)


def _pod_names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    if len(names) <= NAMED_PODS:
        return " and ".join([", ".join(names[:-1]), names[-1]])
    return f"{', '.join(names[:NAMED_PODS])} and {len(names) - NAMED_PODS} more"


def _merge_facts(merged: Merged) -> dict[str, Any]:
    because = lead_text(merged.lead) if merged.lead else ""
    return {
        ("because" if name == "lead" else name): (because if name == "lead" else value)
        for name, value in plain(merged).items()
    }


def _fit_facts(fit: Fit) -> dict[str, Any]:
    text = fit_text(fit)
    values = {
        FitKind.CPUS: str(fit.amount),
        FitKind.MEMORY: f"{fit.name}={fit.amount}",
        FitKind.POLICY: fit.setting,
        FitKind.END: ",".join(fit.pods),
        FitKind.EMPTY: "",
    }
    return {
        "kind": fit.kind,
        "value": values.get(fit.kind, text),
        "text": text,
        "numa_nodes": fit.numa_nodes,
        "is_largest": fit.is_largest,
    }


LABEL = 11
MOST_SETS = 6
SCREEN = 40
LEAST_LINES = 8
"""The table of NUMA nodes has at least so many lines, however long the rest is."""

MOST_HOLDERS = 2
MOST_ENDS = 4
MOST_PARTS = 8
"""Containers of the pod that are named with what they have."""

_COLOURS = {ContainerOutcome.REFUSED: "red", ContainerOutcome.UNPLACED: "yellow"}

_SCOPES = {
    "container-scope": "container by container",
    "pod-scope": "for the whole pod",
    "pod-resources": "for the resources of the pod (spec.resources)",
    "pod-scope-kept": "decided for the whole pod by its first container",
    "pod-total-unknown": "container by container: the runtime did not tell the pod's total",
}

_PLACES = {
    AssignmentStage.NODES_OF_HINT: "on the hinted NUMA nodes",
    AssignmentStage.SOCKETS_OF_HINT: "on the sockets of the hinted NUMA nodes",
    AssignmentStage.SHARE_OF_DEVICES: "a share in proportion to devices",
    AssignmentStage.EQUAL_SHARE: "an equal share",
    AssignmentStage.ANYWHERE: "anywhere",
}

_STAGES = {
    AssignmentStage.WHOLE_NODE: "whole NUMA nodes",
    AssignmentStage.WHOLE_SOCKET: "whole sockets",
    AssignmentStage.WHOLE_CACHE: "whole uncore caches",
    AssignmentStage.PART_OF_CACHE: "out of one uncore cache",
    AssignmentStage.WHOLE_CORE: "whole cores, in the fullest place first",
    AssignmentStage.SINGLE_CPUS: "single CPUs, on cores in use first",
    AssignmentStage.BY_NUMBER: "the lowest CPU numbers, in the fullest socket first, whatever their cores",
    AssignmentStage.BEST_FIT: "the tightest uncore caches that hold them",
    AssignmentStage.ONE_CACHE: "the tightest uncore cache that holds them all",
    AssignmentStage.WHOLE_QUEUES: "as good as the first choice, and splits fewer queues of disks",
}


def explanation_text(told: Explanation, width: int, notes: Iterable[str] = ()) -> str:
    """The screen.

    Args:
        told: the explanation.
        width: columns.
        notes: about the source of the explanation.
    """
    lines = [*textwrap.wrap(_headline(told), width, subsequent_indent="  ")]
    lines = [_coloured(visible(line), told.outcome) for line in lines]
    sections = [*(("note", note) for note in notes), *_sections(told)]
    before = ""
    for label, text in sections:
        lines += map(visible, _labelled(label if label != before else "", text, width))
        before = label
    return "\n".join([*lines, *map(visible, _table(told, width, SCREEN - len(lines)))])


def _sections(told: Explanation) -> Iterator[tuple[str, str]]:
    yield "asks for", asked(told.subject)
    yield "policy", _settings(told)
    yield from (("why", one) for one in whys(told))
    yield from (("pod", one) for one in _pod(told))
    if told.unfit:
        yield "hints", f"of container {told.unfit}, which does not fit beside those before it"
    # One reason may hold for several resources of a pod.
    yield from (("hints", text) for text in dict.fromkeys(map(_hints, told.hints)))
    if told.merged:
        yield from (("merge", one) for one in _merge(told.merged))
    label = "would take" if told.refusal else "taken"
    yield from ((label, one) for one in _taking(told.taking))
    yield from (("pool", one) for one in _pool(told))
    if told.refusal:
        yield "refused" if told.outcome is ContainerOutcome.REFUSED else "unplaced", _reason(told)
        if told.refusal.advice:
            if told.unfit:
                yield "would fit", f"beside the rest of the pod, sizes are those of container {told.unfit}:"
            yield from (("would fit", one) for one in _fits(told.fits))
            yield "in the way", in_the_way(told)


def _pod(told: Explanation) -> Iterator[str]:
    """What the pod has, as a whole and by container."""
    pod = told.pod
    if pod is None:
        return
    if pod.cpus:
        mems = f", memory on {numa(pod.mems)}" if pod.mems else ""
        yield f"CPUs {pod.cpus} are the pod's; pod shared pool {pod.shared_pool or 'empty'}{mems}"
    parts = [_part(one) for one in pod.containers if one.cpus]
    more = f" and {len(parts) - MOST_PARTS} more" if len(parts) > MOST_PARTS else ""
    if parts:
        verb = "would have" if told.refusal and told.unfit else "have"
        yield f"its containers {verb}: {', '.join(parts[:MOST_PARTS])}{more}"


def _part(one: PodContainer) -> str:
    init = ", init" if one.is_init else ""
    return f"{one.container} ({'pod shared pool' if one.is_pod_shared else 'CPUs'} {one.cpus}{init})"


def _pool(told: Explanation) -> Iterator[str]:
    if told.refusal or not told.shared_pool:
        return
    others = number(told.pool_containers, "other container") if told.pool_containers else ""
    if told.outcome is ContainerOutcome.EXCLUSIVE:
        yield f"CPUs {told.shared_pool} stay shared, by {others or 'no container yet'}"
    else:
        yield f"{number(len_of(told.shared_pool), 'CPU')}, shared with {others or 'no other container'}"


def _reason(told: Explanation) -> str:
    """The refusal without the numbers of the hints and the advice, which have other sections on the screen."""
    return told.refusal.text_without(frozenset(one.numbers for one in told.hints)) if told.refusal else ""


def _headline(told: Explanation) -> str:
    subject = told.subject
    is_what_if = subject.pod_uid == WHAT_IF_UID
    name = "what if" if is_what_if else f"{subject.namespace}/{subject.pod}/{subject.container}"
    mems = f", memory bound to {numa(told.mems)}" if told.mems else ""
    if told.outcome is ContainerOutcome.EXCLUSIVE:
        is_shared = any(one.kind is WhyKind.POD_SHARED_POOL for one in told.why)
        return f"{name}: {'pod shared pool' if is_shared else 'exclusive CPUs'} {told.cpus}{mems}"
    reason = told.refusal.reason if told.refusal else ""
    if told.outcome is ContainerOutcome.REFUSED:
        return f"{name}: refused, {reason}"
    if told.outcome is ContainerOutcome.UNPLACED:
        return f"{name}: unplaced ({reason}), runs on the shared pool {told.cpus}"
    where = f"shared pool {told.cpus}" if told.cpus else "shared: any CPU, none is set"
    return f"{name}: {where}{mems}"


def asked(subject: Subject) -> str:
    """Its request and its QoS class."""
    parts = []
    if subject.cpu_milli is None:
        parts.append("256 CPUs or more")
    elif subject.exclusive_cpus:
        parts.append(number(subject.exclusive_cpus, "exclusive CPU"))
    elif subject.cpu_milli:
        parts.append(f"{subject.cpu_milli}m of CPU")
    parts += [f"{format_bytes(size)} of {name}" for name, size in subject.memory]
    parts += [f"{len(one.devices)} {one.resource} ({_devices(one.devices)})" for one in subject.devices]
    whole = [f"{subject.pod_cpu_milli / 1000:.10g} CPUs"] if subject.pod_cpu_milli else []
    whole += [f"{format_bytes(size)} of {name}" for name, size in subject.pod_memory]
    own = f" and asks for {', '.join(whole)} as a whole (spec.resources)" if whole else ""
    return f"{', '.join(parts) or 'nothing'}; the pod is {subject.qos}{own}"


def _devices(devices: tuple[tuple[str, str], ...]) -> str:
    by_place: dict[str, int] = {}
    for _, nodes in devices:
        by_place[nodes] = by_place.get(nodes, 0) + 1
    words = (
        f"{count} on NUMA {nodes}" if nodes else f"{count} anywhere" for nodes, count in by_place.items()
    )
    return ", ".join(words)


def _settings(told: Explanation) -> str:
    known = dict(told.settings)
    first = (
        f"CPU {known.pop('cpuManagerPolicy')}, topology {known.pop('topologyManagerPolicy')} by "
        f"{known.pop('topologyManagerScope')}, memory {known.pop('memoryManagerPolicy')}"
    )
    rest = (name if value == "true" else f"{name} {value}" for name, value in known.items())
    return ", ".join([first, *rest])


def _hints(one: ResourceHints) -> str:
    numbers = one.numbers or one.resource
    if one.answer == "anywhere" and one.numbers:
        return f"{numbers}: fits nowhere, which counts as no preference until it is taken"
    if one.answer == "anywhere":
        return f"{numbers}: no preference"
    if one.answer == "nowhere":
        return f"{numbers}: fits nowhere"
    doubt = "" if one.exact else " (the search for the fewest nodes was cut short)"
    if one.rule:
        return f"{numbers}: {rule_text(one.resource, one.rule)}; such as {_sets(one.hints)}{doubt}"
    return f"{numbers}: fits on {_sets(_narrow(one.hints))}{doubt}"


def _narrow(hints: tuple[Hinted, ...]) -> tuple[Hinted, ...]:
    """The preferred ones; where there are none, all."""
    return tuple(one for one in hints if one.preferred) or hints


def _sets(hints: tuple[Hinted, ...]) -> str:
    preferred = [_braced(one) for one in hints if one.preferred]
    others = [_braced(one) for one in hints if not one.preferred]
    parts = []
    if preferred:
        parts.append(f"{_some(preferred)} (preferred)")
    if others:
        parts.append(f"{_some(others)} (not preferred)")
    return ", ".join(parts)


def _some(sets: list[str]) -> str:
    more = len(sets) - MOST_SETS
    return " ".join(sets[:MOST_SETS]) + (f" and {more} more" if more > 0 else "")


def _braced(one: Hinted) -> str:
    return f"{{{one.nodes}}}" if one.nodes else "anywhere"


def _merge(merged: Merged) -> Iterator[str]:
    scope = _SCOPES.get(merged.scope, merged.scope)
    where = numa(merged.nodes) if merged.nodes else "anywhere"
    liked = "preferred by all" if merged.preferred else "not preferred by all"
    if merged.policy == "none":
        yield f"policy none compares nothing: {where}"
        return
    verdict = "" if merged.admitted else f"; {merged.policy} does not admit that"
    exact = "" if merged.exact else "; a better one may exist, the search was cut short"
    if not merged.nodes and not merged.admitted:
        yield f"{scope}: no set of NUMA nodes that all prefer{verdict}{exact}"
        return
    yield f"{scope}: {where}, {liked}{verdict}{exact}"
    if merged.runner_up and merged.lead:
        yield f"it beats {_braced(merged.runner_up)}: {lead_text(merged.lead)}"


def _taking(steps: tuple[TakingStep, ...]) -> Iterator[str]:
    before = None
    for index, step in enumerate(steps, 1):
        place = (step.place, step.on_offer)
        words = _PLACES.get(AssignmentStage(step.place)) if step.place and place != before else ""
        before = place
        where = f"{words}, {step.on_offer} on offer: " if words else ""
        option = f" ({step.option})" if step.option else ""
        yield f"{index}. {where}{_STAGES[AssignmentStage(step.stage)]}{option}: {_taken(step)}"


def _taken(step: TakingStep) -> str:
    parts = [f"{number(step.count, 'CPU')} {step.cpus} on NUMA {step.numa_nodes}, socket {step.sockets}"]
    if step.uncore_caches:
        parts.append(f"cache {step.uncore_caches}")
    cores = len_of(step.cores)
    parts.append(
        number(cores, "core") + ("" if step.whole_cores == cores else f", {step.whole_cores} of them whole")
    )
    return ", ".join(parts)


def len_of(text: str) -> int:
    """How many ids a kernel list names."""
    return len(CPUSet.parse(text))


def _fits(fits: tuple[Fit, ...]) -> Iterator[str]:
    ends = [one for one in fits if one.kind is FitKind.END]
    for one in fits:
        if one.kind is not FitKind.END:
            where = f", on {numa(one.numa_nodes)}" if one.numa_nodes else ""
            largest = " (no larger number does)" if one.is_largest else ""
            yield f"{fit_text(one)}{where}{largest}"
    if ends:
        more = f", or any of {len(ends) - MOST_ENDS} others" if len(ends) > MOST_ENDS else ""
        yield " or ".join(fit_text(one) for one in ends[:MOST_ENDS]) + more
    if not fits:
        yield "nothing that was tried: not less of it, not another policy, not after the end of other pods"


def _table(told: Explanation, width: int, room: int) -> list[str]:
    """The holders of every NUMA node; equal nodes share a line, and nodes without CPUs and memory are left out."""
    alike: dict[str, list[int]] = {}
    for one in told.numa_nodes:
        if one.cpus or any(total for _, _, total in one.memory):
            alike.setdefault(_use(one), []).append(one.id)
    lines, left = ["", "NUMA nodes when it was decided"], CPUSet()
    for use, numbers in alike.items():
        ids = CPUSet.from_ids(numbers)
        more = _labelled(f"  {ids}", f"{'each ' if len(ids) > 1 else ''}{use}", width)
        if len(lines) + len(more) < max(room, LEAST_LINES):
            lines += more
        else:
            left |= ids
    return lines + (
        _labelled(f"  {left}", "not shown for want of room; -o json has all", width) if left else []
    )


def _use(one: NUMANodeUse) -> str:
    reserved = f", {one.reserved} reserved" if one.reserved else ""
    reserved += f", {one.withheld} not on offer to it by isolatedCPUs" if one.withheld else ""
    amounts = [f"{one.available} of {one.cpus} CPUs available{reserved}"] if one.cpus else ["no CPUs"]
    amounts += [
        f"{round_down(free)} of {round_down(total)} {name} free" for name, free, total in one.memory if total
    ]
    held = [_held(holder) for holder in one.holders[:MOST_HOLDERS]]
    more = len(one.holders) - len(held)
    held += [f"{more} more hold some"] if more else []
    return "; ".join([", ".join(amounts), *(["held by " + ", ".join(held)] if held else [])])


def _held(holder: Holder) -> str:
    parts = [f"CPUs {holder.cpus}"] if holder.cpus else []
    parts += [f"{format_bytes(size)} {name}" for name, size in holder.memory]
    ended = ", not running now" if holder.has_ended else ""
    return f"{holder.container} ({', '.join(parts)}{ended})"


def _labelled(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, LABEL + 30),
        initial_indent=f"{label:<{LABEL - 1}} ",
        subsequent_indent=" " * LABEL,
        break_on_hyphens=False,
    )


def _coloured(line: str, outcome: ContainerOutcome) -> str:
    return click.style(line, fg=_COLOURS.get(outcome, "green"), bold=True) if wants_colour() else line
