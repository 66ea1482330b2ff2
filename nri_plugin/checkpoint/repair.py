"""From a damaged checkpoint to a sound one, without inventing an allocation.

The checksum covers the whole document. Once it fails, a row that can still be read may differ from the row that was
written. So an allocation is taken over only on evidence that does not share the damage: the generation before, the CPUs
that the runtime was told at creation (the container's own row), or the CPUs its processes are found on. Where two
allocations overlap, the one whose container is found on its CPUs stays. Where that does not decide, a person must.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

import msgspec

from nri_plugin.checkpoint.format import READABLE, Checkpoint
from nri_plugin.checkpoint.rows import NODE_FACTS, STATE_ROWS, NodeFacts, SavedNode
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import Allocation, ContainerRecord, PodRecord, State, allocation_key, named
from nri_plugin.model.topology import Topology

_HEAD = re.compile(rb'"version":([0-9]{1,9}),.{0,80}?"generation":([0-9]{1,18}),')
_FRAME = re.compile(
    rb'(\{"format":.*|"(pods|containers|allocations)":\[|\],?|"checksum":"crc32:[0-9a-f]{8}"\})?'
)
_NODE = b'"node":'


@dataclass(slots=True)
class Salvage:
    """The rows that can be read, each with its line number.

    Attributes:
        pods: by uid.
        containers: by id.
        allocations: by key; one that stands there twice with different words is not among them.
        facts: the machine; None when that line cannot be read.
        generation: 0 when it cannot be read.
        unreadable: a sentence for each line that cannot.
    """

    pods: dict[str, PodRecord] = field(default_factory=dict)
    containers: dict[str, ContainerRecord] = field(default_factory=dict)
    allocations: dict[str, Allocation] = field(default_factory=dict)
    facts: NodeFacts | None = None
    generation: int = 0
    unreadable: list[str] = field(default_factory=list)

    @property
    def state(self) -> State:
        """All of it."""
        return State(self.pods, self.containers, self.allocations)


def salvage(data: bytes) -> Salvage:
    """Read what can be read; nothing of a version that is not known here."""
    found = Salvage()
    head = _HEAD.search(data[:400])
    if head is not None:
        if int(head[1]) not in READABLE:
            return found
        found.generation = int(head[2])
    for number, line in enumerate(data.split(b"\n"), 1):
        _read_line(found, number, line)
    return found


def _read_line(found: Salvage, number: int, line: bytes) -> None:
    text = line.rstrip(b",")
    if _FRAME.fullmatch(line):
        return
    try:
        if text.startswith(_NODE):
            row = msgspec.json.decode(text.removeprefix(_NODE), type=SavedNode | None)
            found.facts = None if row is None else NODE_FACTS.record(row)
        else:
            _keep(found, number, text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        found.unreadable.append(f"line {number} cannot be read: {_shown(line)}")


def _keep(found: Salvage, number: int, text: bytes) -> None:
    """Each kind of row requires fields that no other kind has, so the fields tell which it is."""
    for kept, rows in STATE_ROWS.items():
        try:
            row = msgspec.json.decode(text, type=rows.table.row_type)
            key, record = getattr(row, rows.key), rows.table.record(row)
        except msgspec.ValidationError:
            continue
        table: dict[str, object] = getattr(found, kept)
        if table.setdefault(key, record) != record:
            found.unreadable.append(f"line {number} says something else of {key} than a line before it")
            if kept == "allocations":
                del table[key]
        return
    raise ValueError("no row of any kind")


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "backslashreplace")
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= 48 else f"{text[:48]}... ({len(line)} bytes)"


Live = Mapping[str, CPUSet]
"""CPUs that processes are found on, by container id."""


@dataclass(frozen=True, slots=True)
class RepairEvidence:
    """Everything there is to go by.

    Attributes:
        damaged: what could be read of the damaged checkpoint; None when it is whole or not there.
        whole: the checkpoint, when it is whole.
        former: the generation before, when it is whole.
        live: the CPUs found in cgroups; None where they are not visible.
        topology: the machine; None when it is not known.
        given_up: allocations, by key or name, that a person says are over.
    """

    damaged: Salvage | None = None
    whole: Checkpoint | None = None
    former: Checkpoint | None = None
    live: Live | None = None
    topology: Topology | None = None
    given_up: frozenset[str] = frozenset()


@dataclass(slots=True)
class RepairPlan:
    """What would be written, and why.

    Attributes:
        state: the allocations that stay.
        facts: the machine to store beside them.
        generation: of the checkpoint to write.
        kept: a sentence for each allocation that stays.
        left_out: a sentence for each that does not, and why.
        undecided: a sentence for each pair that a person has to decide between; nothing is written then.
        given_up: names and keys of those that a person said are over, and that were there.
    """

    state: State = field(default_factory=State)
    facts: NodeFacts | None = None
    generation: int = 1
    kept: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    given_up: set[str] = field(default_factory=set)


def plan(evidence: RepairEvidence) -> RepairPlan:
    """What to write instead."""
    made = RepairPlan()
    pods, containers = _records(evidence)
    generations = [one.generation for one in (evidence.damaged, evidence.whole, evidence.former) if one]
    made.generation = max(generations, default=0) + 1
    made.facts = _facts(evidence)
    held = _credible(evidence, made, pods, containers)
    held = _possible(evidence, made, pods, held)
    held = _apart(evidence, made, pods, containers, held)
    made.kept += [f"{named(pods, key)}: CPUs {one.cpus or '-'}{_mems(one)}" for key, one in held.items()]
    made.state = State(pods, containers, held)
    return made


def overlaps(allocations: Mapping[str, Allocation]) -> list[tuple[str, str]]:
    """Keys of allocations that have CPUs in common."""
    return [
        (one, other)
        for one, other in combinations(allocations, 2)
        if not allocations[one].cpus.isdisjoint(allocations[other].cpus)
    ]


def _records(evidence: RepairEvidence) -> tuple[dict[str, PodRecord], dict[str, ContainerRecord]]:
    """Pods and containers: they are no allocations, and the runtime's own list corrects them at the next start."""
    pods: dict[str, PodRecord] = {}
    containers: dict[str, ContainerRecord] = {}
    for state in _states(evidence):
        pods |= state.pods
        containers |= state.containers
    return pods, containers


def _states(evidence: RepairEvidence) -> Iterable[State]:
    """The least credible first."""
    if evidence.damaged:
        yield evidence.damaged.state
    if evidence.former and not evidence.whole:
        yield evidence.former.state
    if evidence.whole:
        yield evidence.whole.state


def _facts(evidence: RepairEvidence) -> NodeFacts | None:
    for one in (evidence.whole, evidence.former, evidence.damaged):
        if one is not None and one.facts is not None:
            return one.facts
    return None


def _credible(
    evidence: RepairEvidence,
    made: RepairPlan,
    pods: Mapping[str, PodRecord],
    containers: Mapping[str, ContainerRecord],
) -> dict[str, Allocation]:
    """Allocations with a second witness."""
    if evidence.whole:
        return dict(evidence.whole.state.allocations)
    former = dict(evidence.former.state.allocations) if evidence.former else {}
    found = evidence.damaged.allocations if evidence.damaged else {}
    held = {}
    for key in {**former, **found}:
        newer, older = found.get(key), former.get(key)
        witness = "" if newer is None or newer == older else _witness(evidence, key, newer, containers)
        if newer is not None and (newer == older or witness):
            held[key] = newer if newer == older else _sane(newer)
        elif older is not None:
            held[key] = older
            if newer is not None:
                made.left_out.append(
                    f"{named(pods, key)}: what the damaged file says of it, CPUs {newer.cpus or '-'}{_mems(newer)}, "
                    f"for nothing else confirms it; the generation before has CPUs {older.cpus or '-'}{_mems(older)}"
                )
        elif newer is not None:
            made.left_out.append(
                f"{named(pods, key)}: CPUs {newer.cpus or '-'}{_mems(newer)}, for nothing but the damaged file says so"
            )
    return held


def _sane(held: Allocation) -> Allocation:
    """Without the steps of resizes that do not lie within its CPUs: those CPUs are what is confirmed."""
    grown = tuple(cpus for cpus in held.grown if cpus <= held.cpus)
    resize = held.resize
    is_within = resize is not None and resize.before.cpus | resize.after.cpus == held.cpus
    return replace(held, grown=grown, resize=resize if is_within else None)


def _witness(
    evidence: RepairEvidence, key: str, held: Allocation, containers: Mapping[str, ContainerRecord]
) -> str:
    """Return the second witness for these CPUs and memory nodes; empty when there is none."""
    if not held.cpus or (held.mems and not _told(evidence, key, held)):
        return ""
    if _told(evidence, key, held):
        return "what the runtime was told"
    return "where it runs" if _runs_there(evidence.live, key, held.cpus, containers) else ""


def _told(evidence: RepairEvidence, key: str, held: Allocation) -> bool:
    """Return whether the container's own row, which the runtime was told, agrees."""
    records = evidence.damaged.containers.values() if evidence.damaged else ()
    return any(
        record.stored_cpus == held.cpus and record.stored_mems == held.mems
        for record in records
        if _key(record) == key
    )


def _runs_there(live: Live | None, key: str, cpus: CPUSet, containers: Mapping[str, ContainerRecord]) -> bool:
    return any(
        live is not None and live.get(number) == cpus
        for number, record in containers.items()
        if _key(record) == key
    )


def _possible(
    evidence: RepairEvidence, made: RepairPlan, pods: Mapping[str, PodRecord], held: dict[str, Allocation]
) -> dict[str, Allocation]:
    """Without CPUs and memory nodes that the machine does not have, not even offline, and without what was given up."""
    found = {}
    for key, one in held.items():
        name = named(pods, key)
        if key in evidence.given_up or name in evidence.given_up:
            made.given_up |= {key, name}
            made.left_out.append(f"{name}: CPUs {one.cpus or '-'}{_mems(one)}, given up")
            continue
        fitting = one if evidence.topology is None else _on_machine(one, evidence.topology)
        if fitting != one:
            made.left_out.append(
                f"{name}: of CPUs {one.cpus or '-'}{_mems(one)} those that this machine has not"
                + (
                    f"; CPUs {fitting.cpus or '-'}{_mems(fitting)} stay"
                    if fitting.cpus or fitting.mems
                    else ""
                )
            )
        if fitting == one or fitting.cpus or fitting.mems or fitting.memory:
            found[key] = fitting
    return found


def _on_machine(held: Allocation, topology: Topology) -> Allocation:
    present, memory = topology.online | topology.offline, topology.nodes_with_memory
    blocks = tuple(block for block in held.memory if block.nodes <= memory)
    resize = held.resize
    sizes = () if resize is None else (resize.before, resize.after)
    if all(size.cpus <= present for size in sizes) and held.cpus <= present and held.mems <= memory:
        return held if blocks == held.memory else replace(held, memory=blocks)
    return replace(
        held,
        cpus=held.cpus & present,
        mems=held.mems & memory,
        memory=blocks,
        grown=tuple(cpus & present for cpus in held.grown if cpus & present),
        resize=None,
    )


def _apart(
    evidence: RepairEvidence,
    made: RepairPlan,
    pods: Mapping[str, PodRecord],
    containers: Mapping[str, ContainerRecord],
    held: dict[str, Allocation],
) -> dict[str, Allocation]:
    """Without allocations that overlap one whose container is found on its CPUs."""
    left = dict(held)
    for one, other in overlaps(held):
        if one not in left or other not in left:
            continue
        loser = _loser(evidence.live, one, other, held, containers)
        both = held[one].cpus & held[other].cpus
        if not loser:
            made.undecided.append(
                f"{named(pods, one)} (CPUs {held[one].cpus}) and {named(pods, other)} (CPUs {held[other].cpus}) are both "
                f"promised CPUs {both}"
                + (
                    "; the cgroups do not tell whose they are"
                    if evidence.live is not None
                    else "; the cgroups, which could tell whose they are, are not visible"
                )
            )
            continue
        winner = other if loser == one else one
        made.left_out.append(
            f"{named(pods, loser)}: CPUs {held[loser].cpus}, for {named(pods, winner)} runs on CPUs {held[winner].cpus} "
            f"and {named(pods, loser)} does not run on its own"
        )
        del left[loser]
    return left


def _loser(
    live: Live | None,
    one: str,
    other: str,
    held: Mapping[str, Allocation],
    containers: Mapping[str, ContainerRecord],
) -> str:
    """The one that is not found on its CPUs, while the other is; empty where that does not decide."""
    is_there = [_runs_there(live, key, held[key].cpus, containers) for key in (one, other)]
    if is_there[0] == is_there[1]:
        return ""
    return other if is_there[0] else one


def _key(record: ContainerRecord) -> str:
    return allocation_key(record.pod_uid, record.name)


def _mems(held: Allocation) -> str:
    mems: NodeMask = held.mems
    return f", memory nodes {mems}" if mems else ""
