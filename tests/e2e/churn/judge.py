"""Judges the records of a node. What agent, exporter and kubelet say is only compared with the tree, never believed.

A law about what runs holds at every moment but for a blink, and but for what began while nobody served the runtime: the agent or
containerd was away, or the node started. That has to be right `MENDED_S` after the return.
"""

import bisect
import itertools
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .past import NEVER, SERVERS, Living, Past, Pod
from .records import SCHEDULED, Row, cpus, read_rows, shown

BLINK_S = 0.15
"""A plain file may be read while it is written, and several are written for one change."""

MENDED_S = 5.0
FAILED_S = 30.0
"""From a refusal to the phase Failed, what was needed for it being there."""

ENDED_S, RETURNED_S = 12.0, 10.0
WAITED_S, DELETED_S = 60.0, 90.0
MOST_DESCRIPTORS = 64
REFUSALS = (
    "TopologyAffinityError",
    "SMTAlignmentError",
    "EmptyPodSharedPoolError",
    "UnexpectedAdmissionError",
)
_MEMORY = "has its memory on NUMA nodes"
"""Of a container that was created unplaced: memory nodes of a running container are not changed, and `state verify` says so."""

PARTS = (*SERVERS, "exporter", "kubelet", "api", "proxy", "disk")
"""What has to be there for a pod to come, fail or end in time."""

ENDED = ("Failed", "Succeeded")
_WAITS = {
    "CreateContainerError",
    "RunContainerError",
    "ContainerCreating",
    "PodInitializing",
    "CreateContainerConfigError",
}


@dataclass
class Violation:
    """What did not hold: where, when, for how long, what was seen and wanted instead."""

    law: str
    what: str
    at: float
    seen: str
    wanted: str
    for_s: float = 0.0
    about: str = ""

    def __str__(self) -> str:
        clock = time.strftime("%H:%M:%S", time.gmtime(self.at)) + f".{int(self.at * 1000) % 1000:03}"
        lasting = f" for {self.for_s:.2f} s" if self.for_s else ""
        return f"{clock} {self.law}: {self.what}: seen {self.seen}{lasting}, wanted {self.wanted}{self.about}"


@dataclass
class Verdict:
    """Of one node.

    Attributes:
        figures: what was measured or counted and is not judged.
    """

    node: str
    violations: list[Violation] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    rounds: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For a terminal."""
        figures = [f"  {name}: {value}" for name, value in self.figures.items()]
        return [f"{self.node}:", *figures, *(f"  VIOLATION {one}" for one in self.violations)]


def judge(folder: Path) -> Verdict:
    """Judge a node by its folder."""
    logs = {
        name: (folder / f"{name}.log").read_text(errors="replace")
        for name in ("agent", "exporter")
        if (folder / f"{name}.log").exists()
    }
    rows = read_rows(folder)
    if not rows["rounds"]:
        return Verdict(folder.name, [Violation("rig", folder.name, 0, "no round", "a round")])
    return Judge(folder.name, Past(rows), logs).verdict


class Judge:
    """Args:
    node: its name.
    past: its records.
    logs: of agent and exporter.
    """

    def __init__(self, node: str, past: Past, logs: dict[str, str]) -> None:
        self.past, self.logs = past, logs
        self.told_late = past.facts_told_late(logs.get("agent", ""))
        self.verdict = Verdict(
            node, rounds=[f"{row['kind']}: {_short(row['config'])}" for row in past.rounds]
        )
        # a look is no moment: on a node with hundreds of pods the files are read one after the other
        self.look_s = max((row.get("took_s", 0.0) for row in past.rows["tree"]), default=0.0)
        self.counts: Counter[str] = Counter()
        self.born: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.lived: dict[str, list[Living]] = defaultdict(list)
        self.history: dict[tuple[str, str], list[tuple[float, str, frozenset[int]]]] = defaultdict(list)
        self._what_runs()
        self._what_moves()
        self._refused_pods()
        self._fits()
        self._waits()
        self._dumps()
        self._parts()
        self.verdict.violations.sort(key=lambda one: one.at)
        self._figures()

    def hit(
        self, law: str, what: object, at: float, seen: object, wanted: object, for_s: float = 0.0
    ) -> None:
        """Note a violation."""
        near = sorted(part for part in self.past.away if self.past.was_away((part,), at - 3, at + 0.2))
        about = f" [round {self.past.round_at(at)['round']}, {self.past.round_at(at)['kind']}{'; away: ' + ', '.join(near) if near else ''}]"
        self.verdict.violations.append(Violation(law, str(what), at, str(seen), str(wanted), for_s, about))

    # What runs

    def _what_runs(self) -> None:
        """Conditions that must not be, from the look that finds one to the look that does not."""
        open_: dict[tuple[str, ...], tuple[float, str, str, str, tuple[str, ...]]] = {}
        before: set[str] = set()
        for at, living, _ in self.past.looks:
            for one in living:
                if one.id not in self.born:
                    self.born[one.id] = at
                    self.lived[one.pod.uid].append(one)
                self.ended.pop(one.id, None)
            here = {one.id for one in living}
            self.ended |= dict.fromkeys(before - here, at)
            before = here
            found = {
                (law, *ids): (what, seen, wanted, ids)
                for law, what, seen, wanted, ids in self._wrongs(living)
            }
            for key in set(open_) - set(found):
                self._close(key[0], *open_.pop(key), end=at)
            for key, (what, seen, wanted, ids) in found.items():
                open_[key] = (open_[key][0] if key in open_ else at, what, seen, wanted, ids)
        for key, row in open_.items():
            self._close(key[0], *row, end=self.past.end)

    def _close(
        self, law: str, began: float, what: str, seen: str, wanted: str, ids: tuple[str, ...], *, end: float
    ) -> None:
        if end - began < BLINK_S + 2 * self.look_s:
            self.counts["seen for a blink"] += 1
            return
        if self._is_excused_by_facts(what, end):
            self.counts["began before the pod's facts came"] += 1
            return
        back = self.past.unserved_until(began, *(self.born[one] for one in ids), ids=ids)
        if back and end <= back + MENDED_S:
            self.counts["began while nobody served, and was mended in time"] += 1
            return
        if back and law == "its number of CPUs" and not self._would_fit(ids[0], back):
            self.counts["began while nobody served, and does not fit"] += 1
            return
        self.hit(law, what, began, seen, wanted, end - began)

    def _is_excused_by_facts(self, what: str, end: float) -> bool:
        """Without its facts a pod is placed container by container; one with resources of its own stays as it was placed."""
        names = {word.partition("/")[0] for word in what.split(" and ")} & set(self.told_late)
        return any(
            bool(self.past.by_name[name].spec.get("resources")) or end <= self.told_late[name] + MENDED_S
            for name in names
        )

    def _wrongs(self, living: list[Living]) -> Iterator[tuple[str, str, str, str, tuple[str, ...]]]:
        exclusive = []
        for one in living:
            if not one.is_exclusive:
                continue
            if not one.own or len(one.may) not in one.wanted:
                wanted = " or ".join(str(number) for number in sorted(one.wanted))
                yield "its number of CPUs", str(one), shown(one.may), f"{wanted} of its own", (one.id,)
                continue
            exclusive.append(one)
            yield from self._wrong_set(one)
        for index, one in enumerate(exclusive):
            for other in living:
                if other.id != one.id and one.may & other.may and other not in exclusive[:index]:
                    yield self._shared("exclusive CPUs", one, other)
        for one in living:
            if one.pod.block:
                yield from self._wrong_block(one, living)

    def _wrong_set(self, one: Living) -> Iterator[tuple[str, str, str, str, tuple[str, ...]]]:
        config = one.pod.config
        is_whole = all(core <= one.may for core in self.past.cores if core & one.may)
        if (
            "full-pcpus-only" in config["cpuManagerPolicyOptions"]
            and not one.pod.spec.get("resources")
            and not is_whole
        ):
            yield "whole cores", str(one), shown(one.may), "whole cores", (one.id,)
        if config["topologyManagerPolicy"] in ("single-numa-node", "restricted"):
            nodes = [node for node in self.past.nodes if node & one.may]
            if len(nodes) > 1 and len(one.may) <= max(map(len, self.past.nodes)):
                yield "one NUMA node", str(one), shown(one.may), "CPUs of one NUMA node", (one.id,)

    def _wrong_block(
        self, one: Living, living: list[Living]
    ) -> Iterator[tuple[str, str, str, str, tuple[str, ...]]]:
        if len(one.may) > one.pod.block:
            yield (
                "CPUs of the pod",
                str(one),
                shown(one.may),
                f"at most {one.pod.block} CPUs of its pod",
                (one.id,),
            )
            return
        for other in living:
            if (
                other.pod is not one.pod
                and one.may & other.may
                and not (other.is_exclusive and one.is_exclusive)
            ):
                yield self._shared("CPUs of a pod", one, other)

    @staticmethod
    def _shared(what: str, one: Living, other: Living) -> tuple[str, str, str, str, tuple[str, ...]]:
        law = "no two own a CPU" if other.is_exclusive else "nobody shares " + what
        return (
            law,
            f"{one} and {other}",
            f"{shown(one.may & other.may)} in both",
            "nothing in both",
            (one.id, other.id),
        )

    # What moves

    def _what_moves(self) -> None:
        last: dict[str, frozenset[int]] = {}
        for at, living, _ in self.past.looks:
            for one in living:
                if not one.is_exclusive or not one.own or len(one.may) not in one.wanted:
                    continue
                before = last.get(one.id)
                if before is None:
                    self._compare_restart(one, at)
                elif before != one.may:
                    self._compare_move(one, before, at)
                last[one.id] = one.may

    def _compare_restart(self, one: Living, at: float) -> None:
        history = self.history[one.pod.uid, one.name]
        if (
            history
            and not one.pod.is_init(one.name)
            and not self.past.was_away(("node",), history[-1][0], at)
        ):
            self.counts["restarts whose CPUs were compared"] += 1
            before = history[-1][2]
            if (
                before != one.may
                and len(one.wanted) == 1
                and not self.past.unserved_until(at, history[-1][0], ids=(one.id, history[-1][1]))
                and one.pod.name not in self.told_late
            ):
                self.hit("a restart keeps CPUs", one, at, shown(one.may), shown(before))
        history.append((at, one.id, one.may))

    def _compare_move(self, one: Living, before: frozenset[int], at: float) -> None:
        if len(one.wanted) > 1 and (before <= one.may or one.may <= before):
            self.counts["resizes in place"] += 1
            self.history[one.pod.uid, one.name].append((at, one.id, one.may))
        elif not self.past.unserved_until(self.born[one.id], ids=(one.id,)):
            wanted = f"more or fewer of {shown(before)}" if len(one.wanted) > 1 else shown(before)
            self.hit("nobody is moved", one, at, shown(one.may), wanted)

    # Refused pods

    def _refused_pods(self) -> None:
        self.took: dict[bool, list[float]] = {False: [], True: []}
        self.owners = Counter(owner for pod in self.past.pods.values() if (owner := pod.rows[0].get("owner")))
        for pod in self.past.pods.values():
            failed = pod.first("Failed")
            phases = [row["phase"] for row in pod.rows]
            self._judge_end(pod)
            if "Failed" in phases and any(row["reason"] in REFUSALS for row in pod.rows):
                self.counts["refused pods that were set to Failed"] += 1
                self._judge_refused(pod, failed)

    def _judge_end(self, pod: Pod) -> None:
        """An ended pod stays ended. The kubelet may write back once what it had begun to write; the exporter sees to it."""
        rows = [*pod.rows, {"t": min(pod.gone_at, self.past.end), "phase": "Failed"}]
        for row, after in itertools.pairwise(pod.rows):
            if row["phase"] not in ENDED or after["phase"] in ENDED:
                continue
            back = next(one["t"] for one in rows if one["t"] > after["t"] and one["phase"] in ENDED)
            had_ended = row["containers"] and all("terminated" in one["state"] for one in row["containers"])
            took = back - after["t"] - self.past.away_s(PARTS, after["t"], back)
            if had_ended or took > RETURNED_S:
                seen = f"{after['phase']} after {row['phase']} {row['reason'] or ''}"
                self.hit(
                    "an ended pod stays ended", pod.name, after["t"], seen, row["phase"], back - after["t"]
                )
            else:
                self.counts[f"came back from {row['phase']} for less than {RETURNED_S:.0f} s"] += 1

    def _judge_refused(self, pod: Pod, failed: float) -> None:
        for one in self.lived[pod.uid]:
            at, ends = self.born[one.id], self.ended.get(one.id, self.past.end)
            late = ends - failed - ENDED_S - self.past.away_s(PARTS, failed, ends)
            if late > 0:
                self.hit("a failed pod ends", one, failed + ENDED_S, "a process", "none", late)
            if not pod.is_app(one.name):
                continue
            self.counts["containers of refused pods that ran"] += 1
            is_excused = (
                pod.sizes or pod.name in self.told_late or self.past.unserved_until(at, ids=(one.id,))
            )
            if not is_excused and not self.past.was_away(("node",), at, failed):
                message = next((row["message"] for row in pod.rows if row["phase"] == "Failed"), "")
                self.hit("no container of a refused pod runs", one, at, "a process", f"none: {message}"[:300])

    # Refusals and waits

    def _fits(self) -> None:
        """Nothing is refused that fits by simple arithmetic, and a refused pod is soon Failed."""
        for pod in self.past.pods.values():
            at = next((row["t"] for row in pod.rows if _is_refused(row)), NEVER)
            if at == NEVER:
                continue
            self.counts["refused pods"] += 1
            self.counts["of them placed by the scheduler"] += pod.name.endswith(SCHEDULED)
            failed = pod.first("Failed")
            ends = min(failed, pod.deleted_at, pod.gone_at, self.past.end)
            runs = any(pod.is_app(one.name) for one in self.lived[pod.uid])
            took = ends - at - self.past.away_s(PARTS, at, ends)
            is_braked = self._is_braked(pod)
            if failed < NEVER and not runs:
                self.took[is_braked].append(failed - pod.rows[0]["t"])
            if took > FAILED_S and not runs and not is_braked:
                self.hit(
                    "a refused pod is soon Failed",
                    pod.name,
                    at,
                    f"{pod.rows[-1]['phase']} after {took:.0f} s",
                    f"Failed within {FAILED_S:.0f} s",
                )
            if self.past.was_away((*SERVERS, "disk"), at - 4, at) or self.past.was_away(
                ("api", "kubelet"), at - 15, at
            ):
                self.counts["refusals near a fault, not judged"] += 1
            elif self._fits_all_the_time(pod, at - 3, at):
                self.hit("what fits is not refused", pod.name, at, _refusal(pod), self._room_words(pod, at))

    def _is_braked(self, pod: Pod) -> bool:
        """Whether its controller has made several pods: the exporter fails them after growing pauses."""
        return self.owners[pod.rows[0].get("owner", "")] > 1

    def _fits_all_the_time(self, pod: Pod, begin: float, end: float) -> bool:
        if pod.sizes:
            return False  # of which size it was then, the runtime knew and the records do not
        times = [at for at, _, _ in self.past.looks]
        first = max(bisect.bisect_right(times, begin) - 1, 0)
        return all(self._fits_at(pod, index) for index in range(first, bisect.bisect_right(times, end)))

    def _would_fit(self, id_: str, at: float) -> bool:
        pod = next(one.pod for _, living, _ in self.past.looks for one in living if one.id == id_)
        return self._fits_all_the_time(pod, at, at + MENDED_S)

    def _fits_at(self, pod: Pod, index: int) -> bool:
        """Whether a pod fits for certain: by the numbers of CPUs that no pod can have, and the rules of policy and scope."""
        free, pending = self._free(pod, index)
        whole, scope = (
            "full-pcpus-only" in pod.config["cpuManagerPolicyOptions"],
            pod.config["topologyManagerScope"],
        )
        if whole:
            free = frozenset().union(*(core for core in self.past.cores if core <= free))
        sizes = [pod.first_wanted(one) for one in pod.containers]
        before = [(pod.first_wanted(one), bool(one.get("restartPolicy"))) for one in pod.before]
        if (
            pod.config["cpuManagerPolicyOptions"]
            and whole
            and (any(size % 2 for size in [*sizes, *(size for size, _ in before)]) or pod.block % 2)
        ):
            return False
        sidecars = sum(size for size, is_sidecar in before if is_sidecar)
        total = pod.block or max(
            sum(sizes) + sidecars, max((size + sidecars for size, _ in before), default=0)
        )
        by_node = [len(free & node) - pending for node in self.past.nodes]
        if pod.config["topologyManagerPolicy"] not in ("single-numa-node", "restricted"):
            return len(free) - pending >= total
        if pod.config.get("memoryManagerPolicy") == "Static" or (scope == "container" and before):
            return False  # memory counts, too, and hints of init containers do
        if scope == "pod" or pod.block:
            return max(by_node) >= total
        for size in sizes:  # in their order, each on the first NUMA node that holds it
            node = next((number for number, left in enumerate(by_node) if left >= size), None)
            if node is None:
                return False
            by_node[node] -= size
        return True

    def _free(self, pod: Pod, index: int) -> tuple[frozenset[int], int]:
        """CPUs that no other pod may have, and how many more may be allocated to containers that were not seen yet."""
        at, living, _ = self.past.looks[index]
        used = frozenset().union(
            *(one.may for one in living if one.pod is not pod and (one.is_exclusive or one.pod.block))
        )
        pending = 0
        for other in self.past.pods.values():
            if other is pod or not other.rows[0]["t"] - 2 <= at < other.over_at + 3:
                continue
            for one in [*other.containers, *other.before]:
                had = [row[2] for row in self.history.get((other.uid, one["name"]), ()) if row[0] <= at]
                used |= had[-1] if had else frozenset()
                pending += 0 if had else max(other.wanted(one["name"]))
            pending += other.block
        return self.past.online - self.past.reserved - used, pending

    def _room_words(self, pod: Pod, at: float) -> str:
        index = bisect.bisect_right([one for one, _, _ in self.past.looks], at) - 1
        free, pending = self._free(pod, index)
        by_node = ", ".join(str(len(free & node)) for node in self.past.nodes)
        return f"admission: CPUs without owner by NUMA node {by_node}, {pending} may be allocated, {_short(pod.config)}"

    def _waits(self) -> None:
        """No pod waits long for a container, nor its deletion, while nothing is away."""
        for pod in self.past.pods.values():
            since, why = NEVER, ""
            for row in [
                *pod.rows,
                {"t": min(pod.gone_at, self.past.end), "phase": "", "deleting": True, "containers": []},
            ]:
                words = _waiting(row)
                took = row["t"] - since - self.past.away_s(PARTS, since, row["t"]) if since < NEVER else 0.0
                if took > WAITED_S and not self._is_braked(pod) and (not words or row["phase"] == ""):
                    self.hit(
                        "no pod waits long",
                        pod.name,
                        since,
                        f"{why} for {took:.0f} s",
                        f"at most {WAITED_S:.0f} s",
                    )
                since, why = (min(since, row["t"]), words) if words else (NEVER, "")
            took = min(pod.gone_at, self.past.end) - pod.deleted_at
            took -= (
                self.past.away_s(PARTS, pod.deleted_at, min(pod.gone_at, self.past.end)) if took > 0 else 0
            )
            if took > DELETED_S:
                self.hit(
                    "a deletion ends", pod.name, pod.deleted_at, f"{took:.0f} s", f"at most {DELETED_S:.0f} s"
                )

    # What everybody says

    def _dumps(self) -> None:
        """What is said twice, some seconds apart: one look may meet a change."""
        said: dict[tuple[int, str], list[dict[str, tuple[float, object, object]]]] = defaultdict(list)
        for dump in self.past.rows["dumps"]:
            said[dump["round"], dump["what"]].append(Said(self.past, dump, self.told_late).wrongs())
        for (_, kind), looks in said.items():
            law = {"quiet": "all agree in quiet", "empty": "nothing is left"}[kind]
            for what in set.intersection(*map(set, looks)):
                self.hit(law, what, *looks[-1][what])

    def _parts(self) -> None:
        for name, text in self.logs.items():
            for _ in re.findall("^Traceback", text, re.MULTILINE):
                self.hit("no traceback", f"{name}.log", self.past.end, "a traceback", "none")
        for row in self.past.rows["faults"]:
            if row["what"] == "ended" and row.get("had") is not None:
                self.hit(
                    "nothing ends by itself",
                    row["part"],
                    row["t"],
                    f"status {row['had']}",
                    "a running process",
                )
            if row["what"] == "did not end" or (row["what"] == "up" and row.get("ready") is False):
                self.hit("parts start and end", row["part"], row["t"], row, "ready, or ended on a signal")
        for row in self.past.rows["rounds"]:
            for words in row.get("failures", ()):
                self.hit("parts start and end", "a fault", row["t"], words, "that it can be played")

    def _figures(self) -> None:
        usage = [dump["usage"] for dump in self.past.rows["dumps"]]
        faults = Counter(
            f"{row['part']} {row['what']}"
            for row in self.past.rows["faults"]
            if row["what"] in ("ended", "stopped", "set")
        )
        self.verdict.figures = {
            "pods": len(self.past.pods),
            "placed by the scheduler": sum(name.endswith(SCHEDULED) for name in self.past.by_name),
            "containers that lived": len(self.born),
            "faults": ", ".join(f"{what} {count}" for what, count in faults.items()),
            **dict(sorted(self.counts.items())),
            "seconds from creation to Failed of refused pods": _parts(self.took[False]),
            "seconds from a boot of the runtime to a registered agent": _parts(self.past.registered_s()),
            "of pods of one controller, which fail after growing pauses": _parts(self.took[True]),
        }
        for name in ("agent", "exporter"):
            rss, descriptors = (
                max((one[name].get(what, 0) for one in usage), default=0)
                for what in ("rss_kib", "descriptors")
            )
            self.verdict.figures[f"most memory and descriptors of the {name}"] = (
                f"{rss / 1024:.0f} MiB, {descriptors}"
            )


class Said:
    """One dump, compared with the tree in it."""

    def __init__(self, past: Past, dump: Row, told_late: Container[str]) -> None:
        self.past, self.dump, self.told_late = past, dump, told_late
        self.state = dump["state"]
        self._wrongs: dict[str, tuple[float, object, object]] = {}

    def wrongs(self) -> dict[str, tuple[float, object, object]]:
        """By what is wrong: the time, what is said, and what it should be."""
        if self.dump["what"] == "quiet":
            self.judge_quiet()
        else:
            self.judge_empty()
        return self._wrongs

    def hit(self, what: str, seen: object, wanted: object) -> None:
        """Note what is wrong."""
        self._wrongs[what] = (self.dump["t"], seen, wanted)

    def judge_quiet(self) -> None:
        """State, PodResources and NodeResourceTopology say what the tree has."""
        state = self.state
        if "containers" not in state:
            self.hit("state show", state, "a state")
            return
        tree = self._tree()
        rows = [*state["containers"], *state.get("waiting", [])]
        owned = [cpus(one.get("cpus")) | cpus(one.get("kept_cpus")) for one in rows]
        blocks = [cpus((one.get("block") or {}).get("cpus")) for one in state["pods"]]
        kept = [cpus(one.get("cpus")) for one in state.get("kept", [])]
        exclusive = frozenset().union(*owned, *blocks, *kept)
        self._same("exclusive CPUs of the state", cpus(state["exclusive"]), exclusive)
        self._same("shared pool of the state", cpus(state["shared_pool"]), self.past.online - exclusive)
        alive = {one["cgroup"] for one in self.dump["pods"]}
        for one in state["containers"]:
            name = f"{one['pod']}/{one['container']}"
            if one["phase"] == "running" and (one["pod_uid"], one["container"]) in tree:
                self._same(f"cpuset of {name}", tree[one["pod_uid"], one["container"]], cpus(one["cpuset"]))
            if one["pod_uid"] not in alive:
                self.hit(f"{name} in the state", one["cpus"] or "an entry", "nothing: its pod is gone")
        self._judge_pod_resources(tree)
        self._judge_topology(exclusive)
        status, words = self.dump["verify"]
        found = [line for line in words.splitlines() if line.startswith(("default/", "container "))]
        if status and not (found and all(_MEMORY in line for line in found)):
            self.hit("nri-pin state verify", words[:500], "status 0")

    def _tree(self) -> dict[tuple[str, str], frozenset[int]]:
        found = {}
        for path, (own, _, is_alive) in self.dump["tree"].items():
            _, _, rest = path.partition("/pod")
            uid, _, id_ = rest.partition("/")
            if is_alive and (name := self.past.names.get(id_)):
                found[uid, name] = cpus(own)
        return found

    def _judge_pod_resources(self, tree: dict[tuple[str, str], frozenset[int]]) -> None:
        ours, theirs = self.dump["exporter"], self.dump["kubelet"]
        if set(ours) != set(theirs):
            self.hit(
                "pods in PodResources",
                sorted(set(ours) - set(theirs)),
                f"as the kubelet's: {sorted(set(theirs) - set(ours))}",
            )
        for row in self.dump["pods"]:
            pod = self.past.pods.get(row["cgroup"])
            for name, ids in ours.get(row["name"], {}).items() if pod else ():
                runs_on = tree.get((row["cgroup"], name))
                if runs_on is None or pod.block or pod.name in self.told_late:
                    continue
                if 0 not in pod.wanted(name):
                    if len(runs_on) not in pod.wanted(name):
                        continue  # it is not placed, which is judged by what runs
                    self._same(f"PodResources of {pod.name}/{name}", frozenset(ids), runs_on)
                elif pod.wanted(name) == {0} and not pod.spec.get("resources"):
                    self._same(f"PodResources of the sharing {pod.name}/{name}", frozenset(ids), frozenset())
                    self._same(
                        f"CPUs of the sharing {pod.name}/{name}",
                        runs_on or cpus(self.state["shared_pool"]),
                        cpus(self.state["shared_pool"]),
                    )

    def _judge_topology(self, exclusive: frozenset[int]) -> None:
        topology = self.dump["topology"]
        if topology is None:
            self.hit("NodeResourceTopology", "none", "an object")
            return
        for zone, node in zip(topology["zones"], self.past.nodes, strict=True):
            (row,) = [one for one in zone["resources"] if one["name"] == "cpu"]
            wanted = len(node - self.past.reserved - exclusive)
            if int(row["available"]) != wanted:
                self.hit(f"available CPUs of {zone['name']}", row["available"], wanted)

    def judge_empty(self) -> None:
        """Nothing is left of any pod."""
        state = self.state
        if not self.dump["pods"]:
            for what in ("containers", "pods", "waiting", "kept"):
                if state.get(what):
                    self.hit(f"{what} in the state", json.dumps(state[what])[:300], "none: there is no pod")
            self._judge_topology(frozenset())
            for slice_, (own, _, _) in self.dump["tree"].items():
                if "/pod" in slice_:
                    self.hit("the tree", slice_, "no pod")
                elif own:
                    self._same(f"CPUs of the slice {slice_ or '/'}", cpus(own), self.past.online)
        else:
            self.hit("pods", [one["name"] for one in self.dump["pods"]], "none")
        for name, row in self.dump["usage"].items():
            if row.get("descriptors", 0) > MOST_DESCRIPTORS:
                self.hit(f"open descriptors of the {name}", row["descriptors"], f"at most {MOST_DESCRIPTORS}")

    def _same(self, what: str, seen: frozenset[int], wanted: frozenset[int]) -> None:
        if seen != wanted:
            self.hit(what, shown(seen) or "none", shown(wanted) or "none")


def _is_refused(row: Row) -> bool:
    if row["reason"] in REFUSALS:
        return True
    waiting = [one["state"].get("waiting", {}) for one in row["containers"]]
    return any(word in (one.get("message") or "") for one in waiting for word in REFUSALS)


def _refusal(pod: Pod) -> str:
    words = [row["message"] for row in pod.rows if row["reason"] in REFUSALS]
    words += [
        one["state"]["waiting"].get("message") or ""
        for row in pod.rows
        for one in row["containers"]
        if one["state"].get("waiting")
    ]
    return next((word for word in words if word), "refused")[:300]


def _waiting(row: Row) -> str:
    """For what a pod waits that should go on by itself."""
    if row["phase"] not in ("Pending", "Running") or row["deleting"]:
        return ""
    if any("running" in one["state"] for one in row["containers"]):
        return ""  # of a pod that runs one container, another may be refused again and again
    found = {one["state"].get("waiting", {}).get("reason") for one in row["containers"]}
    return ", ".join(sorted(found & _WAITS))


def _parts(values: list[float]) -> str:
    if not values:
        return "none"
    middle, last = (sorted(values)[min(int(len(values) * share), len(values) - 1)] for share in (0.5, 0.99))
    return f"p50 {middle:.1f}, p99 {last:.1f} of {len(values)}"


def _short(config: Row) -> str:
    words = [
        config["topologyManagerPolicy"],
        config["topologyManagerScope"],
        *config["cpuManagerPolicyOptions"],
    ]
    return ", ".join([*words, *(["static memory"] if config.get("memoryManagerPolicy") == "Static" else [])])
