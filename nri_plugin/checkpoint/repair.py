"""From a damaged checkpoint to a sound one, without inventing an allocation.

The checksum covers the whole document, and those of the journal a record each. Once one fails, a row that can still be read
may differ from the row that was written. So an allocation is taken over only with evidence that does not share the damage:
the document and the sound records of the journal or else the generation before, the CPUs that the runtime got at creation
(the container's own row), or the CPUs that its processes run on. If two allocations overlap, the one whose container runs
on its CPUs stays. If that does not decide, a person has to.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations

import msgspec

from nri_plugin.checkpoint.format import READABLE, Checkpoint, JournalRecord, decode
from nri_plugin.checkpoint.rows import NODE_FACTS, STATE_ROWS, NodeFacts, SavedNode
from nri_plugin.model.records import (
    Allocation,
    ContainerRecord,
    PodRecord,
    allocation_key,
    is_whole_pod,
    named,
    pod_of,
)
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.model.violations import may_share

_HEAD = re.compile(rb'"version":([0-9]{1,9}),.{0,80}?"generation":([0-9]{1,18}),')
_FRAME = re.compile(
    rb'(\{"format":.*|"(pods|containers|allocations)":\[|\],?|"checksum":"crc32:[0-9a-f]{8}"\})?'
)
_NODE = b'"node":'
_RECORD = b'{"generation":'


@dataclass(slots=True)
class Salvage:
    """The rows that can be read, each with its line number.

    Attributes:
        pods: by uid.
        containers: by id.
        allocations: by key; without those that two lines give differently.
        facts: the machine; None if its line cannot be read.
        generation: of the document; 0 if it cannot be read.
        unreadable: a sentence for each line that cannot be read.
        sound: the document and the records of its journal, without the damaged ones; None if the document is damaged.
    """

    pods: dict[str, PodRecord] = field(default_factory=dict)
    containers: dict[str, ContainerRecord] = field(default_factory=dict)
    allocations: dict[str, Allocation] = field(default_factory=dict)
    facts: NodeFacts | None = None
    generation: int = 0
    unreadable: list[str] = field(default_factory=list)
    sound: Checkpoint | None = None

    @property
    def state(self) -> State:
        """The rows as a state."""
        return State(self.pods, self.containers, self.allocations)


def salvage(data: bytes) -> Salvage:
    """Read all lines that can be read; none of an unknown version."""
    found = Salvage()
    head = _HEAD.search(data[:400])  # in the first line
    if head is not None:
        if int(head[1]) not in READABLE:
            return found
        found.generation = int(head[2])
    for number, line in enumerate(data.split(b"\n"), 1):
        _read_line(found, number, line)
    with suppress(ValueError):
        found.sound = decode(data, skips_damage=True)
    return found


def _read_line(found: Salvage, number: int, line: bytes) -> None:
    text = line.rstrip(b",")
    if _FRAME.fullmatch(line):
        return
    try:
        if text.startswith(_NODE):
            row = msgspec.json.decode(text.removeprefix(_NODE), type=SavedNode | None)
            found.facts = None if row is None else NODE_FACTS.record(row)
        elif text.startswith(_RECORD):
            record = msgspec.json.decode(text, type=JournalRecord)
            record.apply({name: getattr(found, name) for name in STATE_ROWS})
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
        # A damaged file may have a row twice, once changed. Neither of two allocations can be trusted then; of two pods
        # or containers the first one stays, because the runtime corrects it.
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
"""The CPUs that processes run on, by container id."""


@dataclass(frozen=True, slots=True)
class RepairEvidence:
    """The evidence for a repair.

    Attributes:
        damaged: the readable rows of the damaged checkpoint; None if it is sound or missing.
        whole: the checkpoint, if it is sound.
        former: what is sound of the damaged one, else the generation before, if that is.
        live: the CPUs found in cgroups; None where cgroups are not visible.
        topology: the machine; None if unknown.
        given_up: allocations, by key or name, that a person declares ended.
    """

    damaged: Salvage | None = None
    whole: Checkpoint | None = None
    former: Checkpoint | None = None
    live: Live | None = None
    topology: Topology | None = None
    given_up: frozenset[str] = frozenset()


@dataclass(slots=True)
class RepairPlan:
    """The checkpoint to write, and why.

    Attributes:
        state: the allocations that stay.
        facts: the machine to store beside them.
        generation: of the checkpoint to write.
        kept: a sentence for each allocation that stays.
        left_out: a sentence for each allocation that does not stay, with the reason.
        undecided: a sentence for each pair that a person has to decide between; nothing is written then.
        given_up: names and keys of the given up allocations that were found.
    """

    state: State = field(default_factory=State)
    facts: NodeFacts | None = None
    generation: int = 1
    kept: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    given_up: set[str] = field(default_factory=set)


def plan(evidence: RepairEvidence) -> RepairPlan:
    """Decide which allocations stay."""
    return _Planner(evidence).plan()


def overlaps(state: State) -> list[tuple[str, str]]:
    """Keys of allocations that have CPUs in common and may not: containers of one pod may share some."""
    held = state.allocations
    return [
        (one, other)
        for one, other in combinations(held, 2)
        if not held[one].cpus.isdisjoint(held[other].cpus) and not may_share(state, one, other)
    ]


class _Planner:
    """Makes one plan from the evidence."""

    def __init__(self, evidence: RepairEvidence) -> None:
        self.evidence = evidence
        self.made = RepairPlan()
        # Pods and containers are not confirmed: the runtime's own list corrects them at the next start. Of two records
        # of one, that of the later, more credible source stays.
        whole = evidence.whole
        sources = (evidence.damaged, None if whole else evidence.former, whole)
        states = [one.state for one in sources if one is not None]
        self.pods = {key: pod for state in states for key, pod in state.pods.items()}
        self.containers = {key: one for state in states for key, one in state.containers.items()}

    def plan(self) -> RepairPlan:
        """The plan."""
        evidence, made = self.evidence, self.made
        sources = [one for one in (evidence.whole, evidence.former, evidence.damaged) if one is not None]
        made.generation = max((one.generation for one in sources), default=0) + 1
        made.facts = next((one.facts for one in sources if one.facts is not None), None)
        held = self._apart(self._possible(self._credible()))
        made.kept = [f"{self._name(key)}: {_shown_sets(one)}" for key, one in held.items()]
        made.state = State(self.pods, self.containers, held)
        return made

    def _name(self, key: str) -> str:
        return named(self.pods, key)

    def _credible(self) -> dict[str, Allocation]:
        """Allocations with a second witness."""
        evidence = self.evidence
        if evidence.whole:
            return dict(evidence.whole.state.allocations)
        former = evidence.former.state.allocations if evidence.former else {}
        found = evidence.damaged.allocations if evidence.damaged else {}
        blocks = {pod_of(key) for key in (*former, *found) if is_whole_pod(key)}
        held: dict[str, Allocation] = {}
        for uid in sorted(blocks):
            held |= self._credible_block(uid, _of_pod(former, uid), _of_pod(found, uid))
        for key in {**former, **found}:
            if pod_of(key) in blocks:
                continue
            newer, older = found.get(key), former.get(key)
            if newer is not None and (newer == older or self._is_confirmed(key, newer)):
                held[key] = newer if newer == older else _sane(newer)
                continue
            if older is not None:
                held[key] = older
            if newer is not None and older is not None:
                self.made.left_out.append(
                    f"{self._name(key)}: {_shown_sets(newer)}, from the damaged file, which nothing else confirms; "
                    f"a sound record has {_shown_sets(older)}"
                )
            elif newer is not None:
                self.made.left_out.append(
                    f"{self._name(key)}: {_shown_sets(newer)}, because only the damaged file says so"
                )
        return held

    def _credible_block(
        self, uid: str, older: Mapping[str, Allocation], newer: Mapping[str, Allocation]
    ) -> dict[str, Allocation]:
        """The allocations of a pod that owns CPUs as a whole: all of one source, or none.

        The pod itself has no cgroup that would confirm them. Its containers do, each that exists its own part.
        """
        whole = allocation_key(uid, "")
        name = self._name(whole)
        if whole in newer and (newer == older or self._is_block_confirmed(newer, newer[whole])):
            return {key: one if newer == older else _sane(one) for key, one in newer.items()}
        told = newer.get(whole)
        kept = dict(older) if whole in older else {}
        if kept and newer:
            found = f"{_shown_sets(told)} for the pod" if told else "no CPUs for the pod as a whole"
            self.made.left_out.append(
                f"{name}: {found}, from the damaged file, which nothing else confirms; a sound record has "
                f"{_shown_sets(kept[whole])}"
            )
        elif not kept:
            self.made.left_out.append(
                f"{name}: {_shown_sets(told or Allocation())} and the parts of its containers, because only the damaged "
                "file says so"
            )
        return kept

    def _is_block_confirmed(self, parts: Mapping[str, Allocation], block: Allocation) -> bool:
        """Whether all parts lie in the block, and each container that exists confirms its part."""
        there = {record.key for record in self.containers.values()} & parts.keys()
        return (
            bool(there)
            and all(one.cpus <= block.cpus for one in parts.values())
            and all(self._is_confirmed(key, parts[key]) for key in there)
        )

    def _is_confirmed(self, key: str, held: Allocation) -> bool:
        """Whether these CPUs and memory nodes have a second witness: the runtime, or the cgroup of the processes."""
        if not held.cpus:
            return False
        records = self.evidence.damaged.containers.values() if self.evidence.damaged else ()
        is_told = any(
            record.key == key and (record.stored_cpus, record.stored_mems) == (held.cpus, held.mems)
            for record in records
        )
        # A cgroup confirms CPUs only.
        return is_told or (not held.mems and self._runs_on(key, held.cpus))

    def _runs_on(self, key: str, cpus: CPUSet) -> bool:
        live = self.evidence.live or {}
        return any(
            record.key == key and live.get(number) == cpus for number, record in self.containers.items()
        )

    def _possible(self, held: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """Without CPUs and memory nodes that the machine does not have, not even offline, and without given up ones."""
        found = {}
        ended = self._given_up(held)
        for key, one in held.items():
            name = self._name(key)
            if key in ended:
                self.made.left_out.append(f"{name}: {_shown_sets(one)}, given up")
                continue
            fitting = one if self.evidence.topology is None else _on_machine(one, self.evidence.topology)
            has_sets = bool(fitting.cpus or fitting.mems)
            if fitting != one:
                rest = f"; {_shown_sets(fitting)} stay" if has_sets else ""
                self.made.left_out.append(
                    f"{name}: of {_shown_sets(one)} those that this machine does not have{rest}"
                )
            if fitting == one or has_sets or fitting.memory:
                found[key] = fitting
        return found

    def _given_up(self, held: Mapping[str, Allocation]) -> set[str]:
        """Keys of the given up allocations; who gives up a part of a pod's CPUs gives up all of them."""
        ended: set[str] = set()
        for key in held:
            names = {key, self._name(key)}
            if names & self.evidence.given_up:
                self.made.given_up |= names
                ended |= _with_block(held, key)
        return ended

    def _apart(self, held: Mapping[str, Allocation]) -> dict[str, Allocation]:
        """Without allocations that overlap one whose container is found on its CPUs."""
        left = dict(held)
        for pair in overlaps(State(self.pods, self.containers, held)):
            if not left.keys() >= set(pair):
                continue
            found = [key for key in pair if self._runs_on(key, held[key].cpus)]
            if len(found) == 1:
                (winner,) = found
                loser = pair[1] if winner == pair[0] else pair[0]
                self.made.left_out.append(
                    f"{self._name(loser)}: CPUs {held[loser].cpus}, because {self._name(winner)} runs on CPUs "
                    f"{held[winner].cpus} and {self._name(loser)} does not run on its own"
                )
                for key in _with_block(held, loser):
                    left.pop(key, None)
                continue
            one, other = (f"{self._name(key)} (CPUs {held[key].cpus})" for key in pair)
            why = (
                "the cgroups, which could decide, are not visible"
                if self.evidence.live is None
                else "the cgroups do not decide"
            )
            both = held[pair[0]].cpus & held[pair[1]].cpus
            self.made.undecided.append(f"{one} and {other} both have CPUs {both}; {why}")
        return left


def _of_pod(held: Mapping[str, Allocation], uid: str) -> dict[str, Allocation]:
    return {key: one for key, one in held.items() if pod_of(key) == uid}


def _with_block(held: Mapping[str, Allocation], key: str) -> set[str]:
    """The key; with all others of its pod where the pod owns CPUs as a whole."""
    uid = pod_of(key)
    return set(_of_pod(held, uid)) if allocation_key(uid, "") in held else {key}


def _sane(held: Allocation) -> Allocation:
    """Without the steps of resizes that do not lie within its CPUs: only those CPUs are confirmed."""
    resize = held.resize
    is_within = resize is not None and resize.before.cpus | resize.after.cpus == held.cpus
    grown = tuple(cpus for cpus in held.grown if cpus <= held.cpus)
    return replace(held, grown=grown, resize=resize if is_within else None)


def _on_machine(held: Allocation, topology: Topology) -> Allocation:
    present, memory = topology.online | topology.offline, topology.nodes_with_memory
    # Blocks also name the nodes of a hint that have no memory.
    blocks = tuple(one for one in held.memory if one.nodes <= topology.node_mask and one.nodes & memory)
    sizes = () if held.resize is None else (held.resize.before, held.resize.after)
    if all(size.cpus <= present for size in (held, *sizes)) and held.mems <= memory:
        return replace(held, memory=blocks)
    return replace(
        held,
        cpus=held.cpus & present,
        mems=held.mems & memory,
        memory=blocks,
        grown=tuple(cpus & present for cpus in held.grown if cpus & present),
        resize=None,
    )


def _shown_sets(held: Allocation) -> str:
    mems = f", memory nodes {held.mems}" if held.mems else ""
    return f"CPUs {held.cpus or '-'}{mems}"
