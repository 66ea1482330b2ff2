"""An explanation on one screen: sections of labelled sentences, then a table of the NUMA nodes."""

import textwrap
from collections.abc import Iterable, Iterator

from nri_plugin.cli.explain.sentences import fit_text, in_the_way, lead_text, numa, number, rule_text, whys
from nri_plugin.cli.explain.what_if import UID as WHAT_IF_UID
from nri_plugin.cli.output import wants_colour
from nri_plugin.explain.explanation import ContainerOutcome, Explanation, Subject
from nri_plugin.explain.fits import Fit, FitKind, Holder, NUMANodeUse
from nri_plugin.explain.hints import Hinted, Merged, ResourceHints, TakingStep
from nri_plugin.model.bounds import visible
from nri_plugin.model.quantity import format_bytes, round_down
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import AssignmentStage

LABEL = 11
MOST_SETS = 6
SCREEN = 40
LEAST_LINES = 8
"""The table of NUMA nodes has at least so many lines, however long the rest is."""

MOST_HOLDERS = 2
MOST_ENDS = 4

_SCOPES = {
    "container-scope": "container by container",
    "pod-scope": "for the whole pod",
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
    AssignmentStage.PART_OF_CACHE: "the rest out of one uncore cache",
    AssignmentStage.WHOLE_CORE: "whole cores, in the fullest place first",
    AssignmentStage.SINGLE_CPUS: "single CPUs, on cores in use first",
    AssignmentStage.BEST_FIT: "the tightest uncore caches that hold them",
    AssignmentStage.ONE_CACHE: "the tightest uncore cache that holds them all",
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
    yield from (("hints", _hints(one)) for one in told.hints)
    if told.merged:
        yield from (("merge", one) for one in _merge(told.merged))
    label = "would take" if told.refusal else "taken"
    yield from ((label, one) for one in _taking(told.taking))
    yield from (("pool", one) for one in _pool(told))
    if told.refusal:
        yield "refused" if told.outcome is ContainerOutcome.REFUSED else "unplaced", _reason(told)
        if told.refusal.advice:
            yield from (("would fit", one) for one in _fits(told.fits))
            yield "in the way", in_the_way(told)


def _pool(told: Explanation) -> Iterator[str]:
    if told.refusal or not told.shared_pool:
        return
    others = number(told.pool_containers, "other container") if told.pool_containers else ""
    if told.outcome is ContainerOutcome.EXCLUSIVE:
        yield f"CPUs {told.shared_pool} stay shared, by {others or 'nobody yet'}"
    else:
        yield f"{number(len_of(told.shared_pool), 'CPU')}, shared with {others or 'nobody else'}"


def _reason(told: Explanation) -> str:
    """The refusal without the numbers of the hints and the advice, which the screen has in sections of their own."""
    return told.refusal.text_without(frozenset(one.numbers for one in told.hints)) if told.refusal else ""


def _headline(told: Explanation) -> str:
    subject = told.subject
    is_what_if = subject.pod_uid == WHAT_IF_UID
    name = "what if" if is_what_if else f"{subject.namespace}/{subject.pod}/{subject.container}"
    mems = f", memory bound to {numa(told.mems)}" if told.mems else ""
    if told.outcome is ContainerOutcome.EXCLUSIVE:
        return f"{name}: exclusive CPUs {told.cpus}{mems}"
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
    return f"{', '.join(parts) or 'nothing'}; the pod is {subject.qos}"


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
    if not wants_colour():
        return line
    colour = 31 if outcome is ContainerOutcome.REFUSED else 33 if outcome is ContainerOutcome.UNPLACED else 32
    return f"\x1b[1;{colour}m{line}\x1b[0m"
