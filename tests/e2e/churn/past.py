"""What the records of a node say, in the terms in which it is judged. Nothing here knows nri-pin."""

import bisect
import datetime as dt
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .records import Row, cpus, milli

Span = tuple[float, float]
NEVER = 9e18
SERVERS = ("plugin", "agent", "containerd", "node")
_ID_CHARS = 64
_PLACED = re.compile(
    r"^(\S+) INFO +decided .*event=(CreateContainer|PodFactsTold) pod=default/(\S+)(.*)", re.MULTILINE
)
_ENDS = {"ends", "stopped", "starts", "drops"}
_RETURNS = {"agent": {"up", "continued"}, "node": {"up"}, "plugin": {"serves"}}


@dataclass
class Pod:
    """One pod; of a static one, its mirror."""

    uid: str
    name: str
    spec: Row
    config: Row
    rows: list[Row] = field(default_factory=list)
    gone_at: float = NEVER
    sizes: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By container: the milli-CPUs of resizes that the API server accepted."""

    @property
    def containers(self) -> list[Row]:
        return list(self.spec["containers"])

    @property
    def before(self) -> list[Row]:
        """Init containers and sidecars."""
        return list(self.spec.get("initContainers", []))

    def is_init(self, name: str) -> bool:
        """Whether it is an init container that is no sidecar."""
        return any(one["name"] == name and not one.get("restartPolicy") for one in self.before)

    def is_app(self, name: str) -> bool:
        return any(one["name"] == name for one in self.containers)

    @cached_property
    def is_guaranteed(self) -> bool:
        if self.spec.get("resources"):
            return _is_same(self.spec["resources"])
        return all(_is_same(one.get("resources", {})) for one in self.containers + self.before)

    def wanted(self, name: str) -> set[int]:
        """The numbers of exclusive CPUs that a container has asked for in its life; 0 in it: at some time it shared."""
        found = set()
        for row in [*self.rows, {"spec": self.spec}]:
            for one in (
                [*row["spec"]["containers"], *row["spec"].get("initContainers", [])]
                if row.get("spec")
                else ()
            ):
                if one["name"] == name:
                    found.add(self._exclusive(one))
        return found | {
            size // 1000 if self.is_guaranteed and size % 1000 == 0 else 0
            for size in self.sizes.get(name, ())
        }

    def first_wanted(self, one: Row) -> int:
        """The number at the pod's creation."""
        return self._exclusive(one)

    def _exclusive(self, one: Row) -> int:
        limits = one.get("resources", {}).get("limits", {})
        if not self.is_guaranteed or not {"cpu", "memory"} <= set(limits) or milli(limits["cpu"]) % 1000:
            return 0
        return milli(limits["cpu"]) // 1000

    @property
    def block(self) -> int:
        """CPUs that the pod has as a whole; 0 without resources of its own."""
        limit = self.spec.get("resources", {}).get("limits", {}).get("cpu")
        if (
            limit is None
            or self.config["topologyManagerScope"] != "pod"
            or self.config["topologyManagerPolicy"] == "none"
        ):
            return 0
        return milli(limit) // 1000 if self.is_guaranteed and milli(limit) % 1000 == 0 else 0

    def first(self, phase: str) -> float:
        """When it was first seen in that phase."""
        return next((row["t"] for row in self.rows if row["phase"] == phase), NEVER)

    @property
    def over_at(self) -> float:
        """When it had ended, as the API server shows it."""
        return min(self.first("Failed"), self.first("Succeeded"), self.gone_at)

    @property
    def deleted_at(self) -> float:
        return next((row["t"] for row in self.rows if row["deleting"]), NEVER)


def _is_same(resources: Row) -> bool:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    return all(
        name in limits and str(requests.get(name, limits[name])) == str(limits[name])
        for name in ("cpu", "memory")
    )


@dataclass(frozen=True)
class Living:
    """A container of which a process lives: `own` is what its cpuset says, `may` where it may run by cgroup v2's rules."""

    pod: Pod
    id: str
    name: str
    own: frozenset[int]
    may: frozenset[int]
    wanted: frozenset[int]

    @property
    def is_exclusive(self) -> bool:
        """False where it shares, and where a resize may have changed that."""
        return 0 not in self.wanted

    def __str__(self) -> str:
        return f"{self.pod.name}/{self.name}"


class Past:
    """Args:
    rows: by file, of `records.read_rows`.
    """

    def __init__(self, rows: dict[str, list[Row]]) -> None:
        self.rows = rows
        self.rounds = [row for row in rows["rounds"] if "config" in row]
        machine = self.rounds[0]["machine"]
        self.online, self.reserved = cpus(machine["online"]), cpus(machine["reserved"])
        self.nodes = [cpus(one) for one in machine["nodes"]]
        self.cores = [cpus(one) for one in machine["cores"]]
        creations = [row for row in rows["oci"] if row["call"] == "create"]
        self.names = {row["id"]: row.get("name") for row in creations}
        self.created = {row["id"]: row["t"] for row in creations}
        self.end = max(
            (row["t"] for name in ("tree", "pods", "faults") for row in rows[name][-1:]), default=0.0
        )
        self.pods = self._pods()
        self.by_name = {pod.name: pod for pod in self.pods.values()}
        self.away = self._away()

    def _pods(self) -> dict[str, Pod]:
        found: dict[str, Pod] = {}
        by_uid: dict[str, Pod] = {}
        for row in self.rows["pods"]:
            if row.get("gone"):
                if row["uid"] in by_uid:
                    by_uid[row["uid"]].gone_at = row["t"]
                continue
            config = self.round_at(row["t"])["config"]
            pod = found.setdefault(row["cgroup"], Pod(row["cgroup"], row["name"], row["spec"], config))
            pod.gone_at = NEVER
            pod.rows.append(row)
            by_uid[row["uid"]] = pod
        by_name = {pod.name: pod for pod in found.values()}
        for row in self.rows["did"]:
            if row["do"] == "resize" and row["status"] == 200 and row["name"] in by_name:
                by_name[row["name"]].sizes[row["container"]] |= {milli(row["was"]), milli(row["to"])}
        return found

    def round_at(self, at: float) -> Row:
        """The round that a time belongs to."""
        index = bisect.bisect_right([row["t"] for row in self.rounds], at) - 1
        return self.rounds[max(index, 0)]

    # What was away

    def _away(self) -> dict[str, list[Span]]:
        found: dict[str, list[Span]] = defaultdict(list)
        since: dict[str, float] = {}
        runtime = [{"part": "plugin", **row} for row in self.rows["runtime"]]
        for row in [*self.rows["faults"], *runtime]:
            part = row["part"]
            if row["what"] in _ENDS:
                since.setdefault(part, row["t"])
            elif row["what"] in _RETURNS.get(part, {"started", "continued"}) and part in since:
                found[part].append((since.pop(part), row["t"]))
        for part, began in since.items():
            found[part].append((began, self.end))
        return found

    def facts_told_late(self, log: str) -> dict[str, float]:
        """By pod: when the agent heard what the pod is, where it had to place a container before, by its own log."""
        placed: set[str] = set()
        found: dict[str, float] = {}
        for stamp, event, name, more in _PLACED.findall(log):
            if name not in placed and "whole-pod" not in more and event == "CreateContainer":
                placed.add(name)
                if name in self.by_name and self.by_name[name].spec.get("resources"):
                    found[name] = NEVER  # one with resources of its own is placed whole where it is known
            elif name in placed and (event == "PodFactsTold" or "whole-pod" in more):
                told_at = self._true_time(dt.datetime.fromisoformat(stamp).timestamp())
                found[name] = min(found.get(name, NEVER), told_at)
        return found

    def _true_time(self, shown: float) -> float:
        """The time at which a clock that was set showed another."""
        set_at, offset = 0.0, 0.0
        for row in self.rows["faults"]:
            if row["what"] == "set":
                if set_at <= shown - offset < row["t"]:
                    break
                set_at, offset = row["t"], row["offset_s"]
        return shown - offset

    def was_away(self, parts: tuple[str, ...], begin: float, end: float) -> float:
        """The end of the last time that one of these was away in such a time; 0 if none was."""
        ends = [
            last
            for part in parts
            for first, last in self.away.get(part, ())
            if first <= end and begin <= last
        ]
        return max(ends, default=0.0)

    def unserved_until(self, *times: float, ids: Iterable[str] = ()) -> float:
        """When somebody served the runtime again, of the last time that nobody did at one of these times, or when these were created."""
        looked = [*times, *(self.created[one] for one in ids)]
        return max(self.was_away(SERVERS, at - 0.3, at) for at in looked)

    def registered_s(self) -> list[float]:
        """After each boot of the runtime beside a living agent: the seconds until it was registered."""
        found: list[float] = []
        booted = 0.0
        up_at = next((row["t"] for row in self.rows["faults"] if row["what"] == "up"), NEVER)
        for row in self.rows["runtime"]:
            if (
                row["what"] == "serves"
                and booted > up_at
                and not self.was_away(("agent", "node"), booted, row["t"])
            ):
                found.append(row["t"] - booted)
            booted = row["t"] if row["what"] == "boots" else 0.0
        return found

    def away_s(self, parts: tuple[str, ...], begin: float, end: float) -> float:
        """How many seconds of a time one of these was away, at most."""
        spans = [span for part in parts for span in self.away.get(part, ())]
        return sum(max(0.0, min(last, end) - max(first, begin)) for first, last in spans)

    # What ran

    @cached_property
    def looks(self) -> list[tuple[float, list[Living], dict[str, Any]]]:
        """At each change: the time, who lives, and the tree."""
        tree: dict[str, list[Any]] = {}
        found = []
        for row in self.rows["tree"]:
            for path in row["gone"]:
                tree.pop(path, None)
            tree |= row["set"]
            found.append(
                (
                    row["t"],
                    list(self._living(tree)),
                    {path: row[0] for path, row in tree.items() if "/pod" not in path},
                )
            )
        return found

    def _living(self, tree: dict[str, list[Any]]) -> Iterator[Living]:
        for path, (own, _, is_alive) in tree.items():
            slice_, _, rest = path.partition("/pod")
            uid, _, id_ = rest.partition("/")
            name, pod = self.names.get(id_), self.pods.get(uid)
            if len(id_) != _ID_CHARS or not is_alive or not name or pod is None:
                continue
            above = self.online
            for parent in dict.fromkeys(("", slice_, f"{slice_}/pod{uid}")):
                above = effective(cpus(tree.get(parent, [""])[0]), above)
            yield Living(pod, id_, name, cpus(own), effective(cpus(own), above), frozenset(pod.wanted(name)))


def effective(own: frozenset[int], above: frozenset[int]) -> frozenset[int]:
    """Where tasks may run, by the rule of cgroup v2."""
    return own & above or above
