"""The kubelet's own code and ours on the same inputs, and whether the answers are the same.

The kubelet's figures were recorded on another machine, on another day: the ratio is indicative.
"""

import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace

from nri_plugin.core.engine import decide
from nri_plugin.model.options import MemoryManagerPolicy, Node, Options, TopologyManagerPolicy
from nri_plugin.model.records import Allocation
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.policy.cpu_assignment import CPUTables, cpu_tables, take_distributed, take_packed
from nri_plugin.policy.cpu_policy import cpu_hint_sets
from nri_plugin.policy.hints import Hint, HintSet
from nri_plugin.policy.merge import merge
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod, Resources
from tests.topology_rows import topology_of_rows

SAMPLES = 60
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Against:
    """One input: what it took us and the kubelet, in microseconds; `same` is None without a recorded answer."""

    bench: str
    cpus: int
    nodes: int
    count: int | None
    ours_us: float
    go_us: float
    same: bool | None

    @property
    def ratio(self) -> float:
        """How many times faster than the recorded figure."""
        return self.go_us / self.ours_us


def against(folder: Path) -> Iterator[Against]:
    """Every recorded input found below `folder`."""
    inputs = json.loads(_find(folder, "bench_inputs.json").read_text("utf-8"))
    go = {
        _key(row): row["ns_per_op"] / 1e3
        for row in json.loads(_find(folder, "bench_go.json").read_text())["results"]
    }
    for machine in inputs["machines"]:
        for bench, count, work, same in _works(machine):
            key = (bench, machine["cpus"], machine["numa_nodes"], count)
            if key in go:
                yield Against(*key, _took(work), go[key], None if same is None else same())


def table(rows: list[Against]) -> str:
    """For eyes; the answers that differ are named."""
    lines = [
        "against the kubelet's own code (its figures: another machine, another day; indicative)",
        f"{'':26} {'CPUs':>5} {'nodes':>5} {'n':>4} {'ours us':>10} {'kubelet us':>11} {'times':>9}  answer",
    ]
    for row in rows:
        answer = {None: "", True: "same", False: "DIFFERS"}[row.same]
        lines.append(
            f"{row.bench:26} {row.cpus:5} {row.nodes:5} {row.count or '':>4} "
            f"{row.ours_us:10.1f} {row.go_us:11.1f} {row.ratio:9.1f}  {answer}"
        )
    return "\n".join(lines)


def _find(folder: Path, name: str) -> Path:
    found = next((path for path in (folder / name, folder / "kubelet" / name) if path.is_file()), None)
    if found is None:
        raise SystemExit(f"no {name} in {folder} nor {folder}/kubelet; set NRI_PIN_VECTORS to the recordings")
    return found


def _key(row: dict[str, Any]) -> tuple[str, int, int, int | None]:
    return row["bench"], row["cpus"], row["numa_nodes"], row.get("n")


Prepare = Callable[[], Callable[[], object]]
"""Makes the inputs of one sample and returns what is measured.

Values remember what has been worked out from them. An agent is asked about each of them once, so every sample has its own.
"""

Work = tuple[str, int | None, Prepare, Callable[[], bool] | None]


def _works(machine: dict[str, Any]) -> Iterator[Work]:
    topology = topology_of_rows(
        machine["topology"]["cpus"], memory_bytes=dict.fromkeys(range(machine["numa_nodes"]), 64 * GIB)
    )
    tables, available = cpu_tables(topology), CPUSet.parse(machine["available"])
    for size in (machine["small"], machine["large"]):
        yield from _cpu_works(tables, available, size)
        yield "admit_cpu_memory_release", size["n"], _admission(topology, machine, size["n"]), None
    hints = {
        "device": machine["merge_device_hints"],
        "cpu": machine["small"]["cpu_hints"],
        "memory": machine["merge_memory_hints"],
    }
    nodes = NodeMask((1 << machine["numa_nodes"]) - 1)
    yield "merge_2providers", None, _merge(nodes, {name: hints[name] for name in ("cpu", "memory")}), None
    yield "merge_3providers", None, _merge(nodes, hints), None


def _merge(nodes: NodeMask, recorded: dict[str, Any]) -> Prepare:
    """A merge of hint sets that nobody has merged before."""

    def prepare() -> Callable[[], object]:
        hint_sets = [
            (HintSet(name, tuple(Hint(mask, preferred) for mask, preferred in hints)),)
            for name, hints in recorded.items()
        ]
        return lambda: merge(TopologyManagerPolicy.BEST_EFFORT, nodes, hint_sets)

    return prepare


def _cpu_works(tables: CPUTables, available: CPUSet, size: dict[str, Any]) -> Iterator[Work]:
    n = size["n"]
    for bench, take in {
        "packed": lambda: take_packed(tables, available, n),
        "packed_uncore": lambda: take_packed(tables, available, n, prefer_uncore_cache=True),
        "distributed": lambda: take_distributed(tables, available, n, group=1),
    }.items():
        yield bench, n, _of_masks(take), lambda take=take, bench=bench: str(take()) == size[bench]

    def hints() -> list[list[object]]:
        (hint_set,) = cpu_hint_sets(tables, n, available) or ()
        return [list(hint) for hint in hint_set.hints or ()]

    hint_sets = _of_masks(lambda: cpu_hint_sets(tables, n, available))
    yield "cpu_hints", n, hint_sets, lambda: hints() == size["cpu_hints"]


def _of_masks(work: Callable[[], object]) -> Prepare:
    """Work on CPU sets and a machine's tables alone: a set remembers nothing, the tables are made once per machine."""
    return lambda: work


def _admission(topology: Topology, machine: dict[str, Any], count: int) -> Prepare:
    """CreateContainer with CPUs and 1 GiB, then the end of its pod."""
    available, reserved = CPUSet.parse(machine["available"]), CPUSet.parse(machine["reserved_cpus"])
    options = Options(
        topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT,
        memory_manager_policy=MemoryManagerPolicy.STATIC,
    )
    node = Node(topology, options, reserved)
    state = State().with_allocation("others/app", Allocation(cpus=topology.online - reserved - available))
    resources = Resources(cpu_shares=count * 1024, memory_limit_bytes=GIB)
    pod = Pod("sandbox", "pod", "uid", cgroup_parent="/kubepods/poduid", pid=1)
    container = Container("container", pod.id, "app", resources=resources, cgroups_path="/k/1")

    def prepare() -> Callable[[], object]:
        before = replace(state)  # a state that nothing was asked of

        def admission() -> object:
            placed = decide(node, before, nri.CreateContainer(pod, container)).state
            return decide(node, placed, nri.StopPodSandbox(pod))

        return admission

    return prepare


def _took(prepare: Prepare) -> float:
    """Median of the samples, in microseconds; what is worked out once per machine does not count."""
    prepare()()
    gc.collect()
    took = []
    for _ in range(SAMPLES):
        work = prepare()
        began = time.perf_counter_ns()
        work()
        took.append(time.perf_counter_ns() - began)
    return median(took) / 1e3
