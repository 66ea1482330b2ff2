"""What two lives of a node come to: who got what, who did not, and where they differ."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from nri_plugin.decision import Decision
from nri_plugin.facts import InformedCreate, UnsavedStart
from nri_plugin.host.recording import Moment
from nri_plugin.host.recording_other_life import Met
from nri_plugin.host.recording_rows import Event
from nri_plugin.nri.events import CreateContainer, UpdateContainer
from nri_plugin.options import Node
from nri_plugin.policy.alignment import footprint
from nri_plugin.state import State, allocation_key
from nri_plugin.workload import pod_uid

LEVELS = ("numa_node", "socket", "uncore_cache", "whole_cores")

PLACED_OTHERWISE = "placed otherwise"
REFUSED = "refused instead of admitted"
ADMITTED = "admitted instead of refused"
SHARED = "shared instead of exclusive"
EXCLUSIVE = "exclusive instead of shared"
RESIZE_REFUSED = "resize refused instead of done"
RESIZE_DONE = "resize done instead of refused"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one container got.

    Attributes:
        refused: the reason word; empty when it was admitted.
        text: the refusal in full.
        cpus: its exclusive CPUs; empty where it shares the pool.
        mems: the memory nodes it is bound to.
        aligned: the levels at which its exclusive CPUs are aligned.
    """

    refused: str = ""
    text: str = ""
    cpus: str = ""
    mems: str = ""
    aligned: tuple[str, ...] = ()


@dataclass(slots=True)
class Difference:
    """A container that fares otherwise; `times` counts its tries with the same end."""

    when: datetime
    place: str
    container: str
    kind: str
    recorded: Verdict
    replayed: Verdict
    times: int = 1

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "when": self.when.isoformat(),
            "place": self.place,
            "container": self.container,
            "kind": self.kind,
            "times": self.times,
            "recorded": asdict(self.recorded),
            "replayed": asdict(self.replayed),
        }


@dataclass(slots=True)
class Tally:
    """The sums of one life; of a container that was tried several times the last try counts."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    refused_tries: int = 0
    peak_cpus: int = 0
    peak_at: datetime | None = None

    def count(self, key: str, verdict: Verdict) -> None:
        """One try to create a container."""
        self.verdicts[key] = verdict
        self.refused_tries += bool(verdict.refused)

    def reach(self, state: State, when: datetime) -> None:
        """The state after an event."""
        exclusive = len(state.exclusive)
        if exclusive > self.peak_cpus:
            self.peak_cpus, self.peak_at = exclusive, when

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        found = list(self.verdicts.values())
        exclusive = [one for one in found if one.cpus]
        return {
            "containers": len(found),
            "refused": sum(1 for one in found if one.refused),
            "refused_by_reason": dict(Counter(one.refused for one in found if one.refused)),
            "refused_tries": self.refused_tries,
            "exclusive": len(exclusive),
            "shared": sum(1 for one in found if not one.refused and not one.cpus),
            "aligned": {level: sum(1 for one in exclusive if level in one.aligned) for level in LEVELS},
            "peak_exclusive_cpus": self.peak_cpus,
            "peak_at": None if self.peak_at is None else self.peak_at.isoformat(),
        }


class Comparison:
    """Both lives, side by side.

    Args:
        only: `NAMESPACE/POD` whose containers count; empty for all.
    """

    def __init__(self, only: str = "") -> None:
        self.only = only
        self.recorded, self.replayed = Tally(), Tally()
        self.differences: dict[tuple[str, str, Verdict, Verdict], Difference] = {}

    def add(self, met: Met) -> None:
        """One event."""
        moment = met.moment
        self.recorded.reach(moment.state_after, moment.when)
        self.replayed.reach(met.after, moment.when)
        event = _bare(moment.event)
        if not isinstance(event, CreateContainer | UpdateContainer) or moment.outcome.failed:
            return
        if self.only and f"{event.pod.namespace}/{event.pod.name}" != self.only:
            return
        key = allocation_key(pod_uid(event.pod), event.container.name)
        recorded = _verdict(moment.node, moment.decision, key, _refused(moment))
        if isinstance(event, UpdateContainer):
            self._resize(met, event, recorded)
            return
        self.recorded.count(key, recorded)
        # A further try of what runs here already: it has what it has.
        replayed = (
            _held(met.node, met.before, key)
            if met.decision is None
            else _verdict(met.node, met.decision, key)
        )
        self.replayed.count(key, replayed)
        self._differ(met, event, key, kind_of(recorded, replayed), recorded, replayed)

    def _resize(self, met: Met, event: UpdateContainer, recorded: Verdict) -> None:
        if met.decision is None:
            return
        key = allocation_key(pod_uid(event.pod), event.container.name)
        replayed = _verdict(met.node, met.decision, key)
        if bool(recorded.refused) != bool(replayed.refused):
            kind = RESIZE_REFUSED if replayed.refused else RESIZE_DONE
            self._differ(met, event, key, kind, recorded, replayed)

    def _differ(
        self,
        met: Met,
        event: CreateContainer | UpdateContainer,
        key: str,
        kind: str,
        recorded: Verdict,
        replayed: Verdict,
    ) -> None:
        if not kind:
            return
        mark = (key, kind, recorded, replayed)
        if mark in self.differences:
            self.differences[mark].times += 1
            return
        name = f"{event.pod.namespace}/{event.pod.name}/{event.container.name or event.container.id}"
        self.differences[mark] = Difference(met.moment.when, met.moment.place, name, kind, recorded, replayed)


def kind_of(recorded: Verdict, replayed: Verdict) -> str:
    """How the two differ; empty when they do not."""
    if bool(recorded.refused) != bool(replayed.refused):
        return REFUSED if replayed.refused else ADMITTED
    if replayed.refused:
        return ""
    if bool(recorded.cpus) != bool(replayed.cpus):
        return EXCLUSIVE if replayed.cpus else SHARED
    return "" if (recorded.cpus, recorded.mems) == (replayed.cpus, replayed.mems) else PLACED_OTHERWISE


def name_of(event: Event) -> str:
    """Whom an event is about, `namespace/pod/container` as far as there is one."""
    event = _bare(event)
    pod, container = getattr(event, "pod", None), getattr(event, "container", None)
    parts: Iterator[str] = (
        part
        for part in (
            getattr(pod, "namespace", ""),
            getattr(pod, "name", ""),
            getattr(container, "name", "") or getattr(container, "id", ""),
        )
        if part
    )
    return "/".join(parts)


def _bare(event: Event) -> Event:
    return event.event if isinstance(event, InformedCreate | UnsavedStart) else event


def _refused(moment: Moment) -> str:
    return moment.outcome.reason or ("refused" if moment.outcome.refusal else "")


def _verdict(node: Node, decision: Decision, key: str, refused: str | None = None) -> Verdict:
    """What was decided; `refused` is what was recorded of that, where something was."""
    error = decision.refusal
    reason = refused if refused is not None else error.reason if error else ""
    if reason:
        return Verdict(refused=reason, text=str(error or ""))
    return _held(node, decision.state, key)


def _held(node: Node, state: State, key: str) -> Verdict:
    held = state.allocations.get(key)
    if held is None:
        return Verdict()
    aligned = asdict(footprint(node.topology, held.cpus, held.mems).aligned)
    return Verdict(
        cpus=str(held.cpus),
        mems=str(held.mems),
        aligned=tuple(level for level in LEVELS if held.cpus and aligned[level]),
    )
