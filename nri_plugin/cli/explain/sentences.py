"""The words for the values of an explanation, and the explanation as JSON, which has both.

`nri_plugin.explain` holds values only. Every sentence about them is made here, for the screen and for scripts alike.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nri_plugin.core.requests import EXCLUSIVE_CPUS
from nri_plugin.explain.explanation import Explanation, Subject, Why, WhyKind
from nri_plugin.explain.fits import Fit, FitKind
from nri_plugin.explain.hints import CPU, DecidedBy, ExplainedRule, Lead, Merged, ResourceHints
from nri_plugin.model import bounds
from nri_plugin.model.quantity import format_bytes
from nri_plugin.model.refusals import Obstacle
from nri_plugin.policy.memory_state import MEMORY

HUGE_PAGES = "hugepages-"

NAMED_PODS = 4
"""Pods that have to end together; the others are counted."""

_PLAIN = {
    WhyKind.POLICY_NONE: "shared: cpuManagerPolicy none gives nobody exclusive CPUs",
    WhyKind.POD_LEVEL: "shared: its pod sets resources for the pod as a whole (spec.resources)",
    WhyKind.NO_CPUS: "shared: it asks for no CPUs",
    WhyKind.MEMORY_POLICY_NONE: "memory: from any NUMA node, memoryManagerPolicy is None",
    WhyKind.MEMORY_NOT_GUARANTEED: "memory: from any NUMA node, only Guaranteed containers are promised some",
    WhyKind.MEMORY_NOT_ASKED: "memory: from any NUMA node, it asks for none",
    WhyKind.DEVICES_NOT_COUNTED: (
        f"devices: not counted, it has more than {bounds.DEVICES}, or more than {bounds.DEVICE_RESOURCES} "
        "resources of them"
    ),
}

_LEADS = {
    DecidedBy.PREFERRED: "all prefer it, not so the other",
    DecidedBy.ANNOTATION: "the pod's annotation wishes for it",
    DecidedBy.NUMBER: "as good, and lower in number",
}


def as_dict(told: Explanation) -> dict[str, Any]:
    """The explanation as JSON has it."""
    refusal, advice = told.refusal, told.refusal.advice if told.refusal else None
    return {
        "subject": asdict(told.subject),
        "outcome": told.outcome,
        "reason": refusal.reason if refusal else "",
        "sentence": sentence(told),
        "cpus": told.cpus,
        "mems": told.mems,
        "why": whys(told),
        "settings": dict(told.settings),
        "hints": [_hints(one) for one in told.hints],
        "merged": _merged(told.merged) if told.merged else None,
        "taking": [asdict(one) for one in told.taking],
        "numa_nodes": [asdict(one) for one in told.numa_nodes],
        "shared_pool": told.shared_pool,
        "pool_containers": told.pool_containers,
        "fits": [_fit(one) for one in told.fits],
        "obstacle": advice.obstacle_text if advice else "",
        "steps": list(told.steps),
    }


def sentence(told: Explanation) -> str:
    """The refusal as the runtime, the log and the pod's event say it; empty where nothing was refused."""
    return str(told.refusal or "")


def in_the_way(told: Explanation) -> str:
    """What stands in the way of a refused request; empty where the refusal gives no advice."""
    advice = told.refusal.advice if told.refusal else None
    if advice is None:
        return ""
    return str(advice.holders) if advice.obstacle is Obstacle.HOLDERS else advice.obstacle_text


def whys(told: Explanation) -> list[str]:
    """Why it is exclusive, shared or bound, a sentence each."""
    return [_why(told.subject, one) for one in told.why]


def _why(subject: Subject, why: Why) -> str:
    if why.kind in _PLAIN:
        return _PLAIN[why.kind]
    qos = f"{subject.qos} (by the pod's object)" if why.is_qos_by_facts else subject.qos
    count, asked = subject.exclusive_cpus, why.asked
    more = f"; {asked} became {count} to fill the last core (smtOddCounts round-up)" if count != asked else ""
    match why.kind:
        case WhyKind.NEVER_REFUSED:
            return f"namespace {subject.namespace} is in neverRefuse: it runs in the shared pool, marked unplaced"
        case WhyKind.ANNOTATION:
            heard = f"is heard in {subject.namespace}{more}"
            return f"exclusive: annotation {EXCLUSIVE_CPUS} asks for {asked}, and {heard}"
        case WhyKind.WHOLE_CPUS:
            return f"exclusive: the pod is {qos} and {asked} is a whole number of CPUs{more}"
        case WhyKind.INHERITED_CPUS:
            return f"exclusive: CPUs {why.ids} pass on to it from a container of its pod that has ended"
        case WhyKind.NOT_GUARANTEED:
            return f"shared: the pod is {qos}; only whole CPUs of Guaranteed pods are exclusive"
        case WhyKind.FRACTION:
            return f"shared: {subject.cpu_milli}m is no whole number of CPUs"
    it = "it" if why.ids.isdigit() else "them"
    return f"memory: promised on {numa(why.ids)}, and bound to {it}"


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
    match lead.by:
        case DecidedBy.NARROWER:
            return f"narrower: {number(lead.ours, 'NUMA node')}, not {lead.theirs}"
        case DecidedBy.NEARER_WIDTH:
            return f"nearer to what the widest request takes: {number(lead.ours, 'NUMA node')}, not {lead.theirs}"
        case DecidedBy.DISTANCE:
            return f"closer together: distances add up to {lead.ours}, not {lead.theirs}"
        case DecidedBy.TIE_BREAK:
            return f"topologyTieBreak {lead.rule}"
    return _LEADS[lead.by]


def fit_text(fit: Fit) -> str:
    """What would have fitted."""
    match fit.kind:
        case FitKind.CPUS:
            return f"{fit.amount} CPUs"
        case FitKind.MEMORY:
            return f"{format_bytes(fit.amount)} of {fit.name}" if fit.amount else f"no {fit.name}"
        case FitKind.OPTION:
            return f"{fit.name}: {fit.setting}" if fit.setting else f"without {fit.name}"
        case FitKind.END:
            return f"once {_names(fit.pods)} {'has' if len(fit.pods) == 1 else 'have'} ended"
        case FitKind.EMPTY:
            return "on this machine without any other pod"
    return f"{fit.name} {fit.setting}"


def numa(nodes: str) -> str:
    """NUMA nodes of a kernel list, in words."""
    return f"NUMA node{'' if nodes.isdigit() else 's'} {nodes}"


def number(count: int, what: str) -> str:
    """A number and its noun, which adds an s for the plural."""
    return f"{count} {what}" + "s" * (count != 1)


def _names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    if len(names) <= NAMED_PODS:
        return " and ".join([", ".join(names[:-1]), names[-1]])
    return f"{', '.join(names[:NAMED_PODS])} and {len(names) - NAMED_PODS} more"


def _hints(one: ResourceHints) -> dict[str, Any]:
    return {**asdict(one), "rule": rule_text(one.resource, one.rule) if one.rule else ""}


def _merged(merged: Merged) -> dict[str, Any]:
    because = lead_text(merged.lead) if merged.lead else ""
    found = asdict(merged).items()
    return dict(("because", because) if name == "lead" else (name, value) for name, value in found)


def _fit(fit: Fit) -> dict[str, Any]:
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
