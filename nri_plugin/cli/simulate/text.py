"""A simulation as text: placements, refusals, remaining capacity and fragmentation."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from nri_plugin.cli.output import count_of, fold_all, fold_words, table
from nri_plugin.model.quantity import round_down
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.alignment import CPUAlignment
from nri_plugin.simulator.simulate.comparison import SimulationComparison, Sum, spread
from nri_plugin.simulator.simulate.simulation import (
    CPUGroup,
    FragmentationRow,
    RefusalStage,
    RefusedRow,
    ShapeCapacity,
    SimulatedContainer,
    SimulatedMemory,
    SimulatedNUMANode,
    SimulatedPod,
    Simulation,
)

LETTERS = ("A", "B")
OF_OPTION = "(--shape)"
ROWS = 20
"""The most shapes and refusals that are shown; `-o json` has all."""
NAMED = 3
"""The most pods of a row that are named; the others are counted."""


def simulation_text(one: Simulation, width: int) -> str:
    """One simulation: placements, refusals and capacity first."""
    sections = [
        head(one, width),
        table(placement_rows(one)) or ["no container runs"],
        _refusals(one, width),
        _capacity(one.capacity, width),
        _machine(one, width),
        _problems(one, width),
        sums(one, width),
        _orders(one),
        notes(one, width),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def head(one: Simulation, width: int) -> list[str]:
    """Scenario, machine, configuration and reserved CPUs."""
    chosen = one.configuration
    lines = [
        f"{one.scenario} on {_place(one)}: {count_of(one.totals.pods, 'pod')}",
        f"machine   {one.machine.summary}",
        f"config    {chosen.name}",
        f"reserved  {'CPUs ' + chosen.reserved if chosen.reserved else 'no CPU'}: {chosen.why_reserved}",
    ]
    return fold_all(lines, width, 10)


def _place(one: Simulation) -> str:
    """The machine's name; a machine from a scenario or from standard input has none."""
    return "an unnamed machine" if one.machine.name == "machine" else one.machine.name


def notes(one: Simulation, width: int) -> list[str]:
    """Assumptions and limits of the simulation."""
    return fold_all([f"note: {note}" for note in one.notes], width, 6)


def sums(one: Simulation, width: int) -> list[str]:
    """Counts at the end."""
    total = one.totals
    partly = f", {total.pods_partly} in part" if total.pods_partly else ""
    own = total.containers_exclusive
    aligned = (
        f"aligned   of {own} with own CPUs: {total.aligned_numa_node} to a NUMA node, {total.aligned_uncore_cache} "
        f"to {'an uncore cache' if one.machine.caches_known else 'a socket'}, {total.aligned_whole_cores} to whole cores"
    )
    lines = [
        f"pods      {total.pods_placed} of {total.pods} placed{partly}, {total.pods_refused} refused",
        f"CPUs      {_cpu_counts(one)}",
        *([aligned] if own else []),
    ]
    return fold_all(lines, width, 10)


def _cpu_counts(one: Simulation) -> str:
    total = one.totals
    pool = f"shared pool {total.shared_pool or 'empty'}"
    return f"{total.exclusive_cpus} exclusive, {total.available_cpus} available, {pool}"


def placement_rows(one: Simulation) -> list[list[str]]:
    """The containers that run, pods that own CPUs, and CPUs that ended containers keep; the first row are the heads."""
    heads = ["CONTAINER", "CPUS", "NUMA", "CACHE", "MEMS", "ALIGNED", "DEVICES"]
    return without_empty_columns([heads, *_rows(one)])


def without_empty_columns(rows: list[list[str]]) -> list[list[str]]:
    """Rows below a row of heads; none where there is only that."""
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    return [[row[column] for column in kept] for row in rows] if kept else []


def kept_by_ended(one: Simulation) -> dict[str, CPUSet]:
    """The CPUs of containers that have ended, such as init containers, by key."""
    runs = {row.key for row in one.containers}
    kept = [owner for owner in one.owners if owner.container and owner.container not in runs]
    return {
        key: CPUSet.from_ids(owner.cpu for owner in kept if owner.container == key)
        for key in dict.fromkeys(owner.container for owner in kept)
    }


def _rows(one: Simulation) -> Iterator[list[str]]:
    blocks = {pod.key: pod for pod in one.pods}
    for row in (row for row in one.containers if row.exclusive or row.mems or row.is_pod_shared):
        if (pod := blocks.pop(f"{row.namespace}/{row.pod}", None)) is not None:
            yield _pod_row(one, pod)
        yield _row(one, row, row.key)
    for key, cpus in kept_by_ended(one).items():
        yield _held_row(one, f"{key} (ended)", cpus)
    shared = [row for row in one.containers if not (row.exclusive or row.mems or row.is_pod_shared)]
    made = {step.target: step.workload or step.shape for step in one.steps if step.shape}
    for _, group in groupby(
        shared, lambda row: (_family(row, made), row.container, row.numa_nodes, str(row.devices))
    ):
        alike = list(group)
        more = f" and {len(alike) - 1} more" if alike[1:] else ""
        yield _row(one, alike[0], alike[0].key + more)


def _family(row: SimulatedContainer, made: dict[str, str]) -> str:
    return made.get(f"{row.namespace}/{row.pod}", row.pod)


def _pod_row(one: Simulation, pod: SimulatedPod) -> list[str]:
    """The CPUs and memory nodes of a pod as a whole."""
    unused = f", {pod.unused} unused" if pod.unused else ""
    return _held_row(one, f"{pod.key} (pod)", CPUSet.parse(pod.cpus), unused, pod.mems)


def _held_row(one: Simulation, name: str, cpus: CPUSet, unused: str = "", mems: str = "") -> list[str]:
    """CPUs that no container that runs has, and where they lie."""

    def places(groups: Sequence[CPUGroup | SimulatedNUMANode]) -> str:
        return str(CPUSet.from_ids(group.id for group in groups if not set(cpus).isdisjoint(group.cpus)))

    return [
        name,
        f"{len(cpus)}: {cpus}{unused}" if cpus else "",
        places(one.machine.numa_nodes),
        places(one.machine.caches) if one.machine.caches_known else "",
        mems,
        "",
        "",
    ]


def _row(one: Simulation, row: SimulatedContainer, name: str) -> list[str]:
    kind = "" if row.kind == "app" else f" ({row.kind})"
    cpus = f"{row.exclusive}: {row.cpus}" if row.exclusive else "shared pool"
    cpus = f"pod's pool {row.cpus}" if row.is_pod_shared else cpus
    return [
        name + kind,
        cpus,
        row.numa_nodes if row.exclusive else "",
        row.caches if row.exclusive and one.machine.caches_known else "",
        row.mems,
        _aligned(row.aligned, is_known=one.machine.caches_known) if row.aligned else "",
        ", ".join(f"{resource.rpartition('/')[2]} {','.join(ids)}" for resource, ids in row.devices.items()),
    ]


def _aligned(levels: CPUAlignment, *, is_known: bool) -> str:
    """`all`, or the levels at which the CPUs are not aligned."""
    words = {
        "node": levels.numa_node,
        "socket": levels.socket or levels.numa_node,
        "cache": levels.uncore_cache or not is_known,
        "cores": levels.whole_cores,
    }
    missing = [word for word, is_so in words.items() if not is_so]
    return "not " + ",".join(missing) if missing else "all"


def _refusals(one: Simulation, width: int) -> list[str]:
    lines: list[str] = []
    rows = _merged(one.refused)
    for row in rows[:ROWS]:
        who = who_was_refused(row)
        more = f" and {len(who) - NAMED} more" if who[NAMED:] else ""
        count = f"{count_of(len(who), 'pod')} refused," if row.of_pods else f"{len(who)} x"
        unfit = f"; container {row.container} of the pod does not fit" if row.container else ""
        lines += fold_words(f"  {count} {row.reason}: {', '.join(who[:NAMED])}{more}{unfit}", width, " " * 6)
        if row.shape in one.shapes:
            lines += fold_words(f"      asks for  {one.shapes[row.shape]}", width, " " * 16)
        lines += fold_words(f"      because   {row.text.removeprefix(row.reason + ': ')}", width, " " * 16)
    if rows[ROWS:]:
        lines.append(f"  and {len(rows) - ROWS} more kinds of refusals: see -o json")
    for step in one.steps:
        if step.refusal is not None:
            lines += fold_words(f"  {step.action} of {step.target}: {step.refusal.text}", width, " " * 6)
    return ["Refused", *lines] if lines else []


def _merged(rows: Sequence[RefusedRow]) -> list[RefusedRow]:
    """A full node refuses many shapes for the same reason; the first shape stands for all."""
    by_reason: dict[object, list[RefusedRow]] = {}
    for number, row in enumerate(rows):
        by_reason.setdefault(row.reason if row.stage is RefusalStage.NODE else number, []).append(row)
    merged = [
        replace(
            row[0],
            shape=row[0].shape if len(row) == 1 else "",
            containers=tuple(key for one in row for key in one.containers),
        )
        for row in by_reason.values()
    ]
    return sorted(merged, key=lambda row: -len(row.containers))


def who_was_refused(row: RefusedRow) -> list[str]:
    """The refused containers; the pods where whole pods were refused."""
    if not row.of_pods:
        return list(row.containers)
    return list(dict.fromkeys(key.rpartition("/")[0] for key in row.containers))


def _problems(one: Simulation, width: int) -> list[str]:
    found = [f"  ! {problem}" for step in one.steps for problem in step.problems]
    return ["Not as expected", *fold_all(found, width, 4)] if found else []


def _capacity(rooms: Sequence[ShapeCapacity], width: int) -> list[str]:
    if not rooms:
        return []
    most = sorted(rooms, key=lambda room: (bool(room.example), -room.pods))[:ROWS]
    hidden = len(rooms) - len(most)
    rooms = [room for room in rooms if room in most]
    head, *rows = table(capacity_rows(rooms))
    lines = [head]
    for room, row in zip(rooms, rows, strict=True):
        lines += [row, *fold_words(f"  {room.text}", width, "    ")]
    return [*lines, *([f"and {hidden} more shapes: see -o json"] if hidden else [])]


def capacity_rows(rooms: Sequence[ShapeCapacity]) -> list[tuple[str, ...]]:
    """How many more pods of each shape fit, below a row of heads."""
    return [
        ("HOW MANY MORE FIT", "ASKED", "MORE", "ON EMPTY", "ENDED BY"),
        *(
            (
                room.example or OF_OPTION,
                str(room.pods),
                _count(room, room.fits),
                _count(room, room.fits_empty),
                room.refusal.reason if room.refusal else "",
            )
            for room in rooms
        ),
    ]


def _count(room: ShapeCapacity, count: int | None) -> str:
    if count is None:
        return "-"
    if room.bounded:
        return str(count)
    return f"{count} or more" if count else "any"


def _orders(one: Simulation, which: str = "") -> list[str]:
    """The spread of figures over other orders of the pods."""
    rows = order_rows(one, which)
    return table(rows) if rows else []


def order_rows(one: Simulation, which: str = "") -> list[tuple[str, ...]]:
    """The figures over other orders of the pods below a row of heads; none where there are no other orders."""
    if not one.orders[1:]:
        return []
    head = (f"{len(one.orders) - 1} SHUFFLES{which}", "THIS ORDER", "LEAST", "MIDDLE", "MOST")
    return [head, *((name, *(f"{value:.0f}" for value in figures)) for name, *figures in spread(one.orders))]


def _machine(one: Simulation, width: int) -> list[str]:
    lines = table(node_rows(one))
    broken = [row for row in one.caches if row.fragmentation]
    if broken and one.machine.caches_known:
        lines += fold_words("fragmentation of uncore caches, by core: " + _by_cache(broken), width, " " * 2)
    return lines


def node_rows(one: Simulation) -> list[list[str]]:
    """The CPUs and memory left on each NUMA node, and its fragmentation; a node of one cache has none."""
    groups = "CACHES: WHOLE" if one.machine.caches_known else "SOCKETS: WHOLE"
    heads = ["NUMA", "CPUS", "AVAILABLE", "BROKEN UP", groups, "IN PART", "TAKEN", "MEMORY LEFT"]
    caches = {group.id: CPUSet.from_ids(group.cpus) for group in one.machine.caches}
    numa = {row.id: CPUSet.from_ids(row.cpus) for row in one.machine.numa_nodes}
    left = {row.numa_node: row for row in one.memory if row.resource == "memory"}
    rows = []
    for node in one.numa_nodes:
        mine = [row for row in one.caches if caches[row.id] & numa[node.id]]
        rows.append(
            [
                str(node.cpus),
                str(node.available),
                _percent(node.fragmentation) if len(mine) > 1 else "",
                *_use(mine),
                _left(left.get(node.id)),
            ]
        )
    ids = [node.id for node in one.numa_nodes]
    return without_empty_columns([heads, *_grouped(ids, rows)])


def _by_cache(broken: Iterable[FragmentationRow]) -> str:
    by_ratio: dict[str, int] = {}
    for row in broken:
        ratio = _percent(row.fragmentation)
        by_ratio[ratio] = by_ratio.get(ratio, 0) | 1 << row.id
    return "; ".join(f"{ratio} of {CPUSet(mask)}" for ratio, mask in by_ratio.items())


def _grouped(ids: Sequence[int], rows: Sequence[list[str]]) -> Iterator[list[str]]:
    """Neighbours with equal cells in one row."""
    for cells, group in groupby(zip(ids, rows, strict=True), lambda pair: pair[1]):
        yield [str(CPUSet.from_ids(number for number, _ in group)), *cells]


def _use(caches: Sequence[FragmentationRow]) -> list[str]:
    """How many caches are whole, used in part, and taken; caches of reserved CPUs alone do not count."""
    counted = [row for row in caches if row.allocatable]
    whole = sum(row.available == row.allocatable for row in counted)
    taken = sum(not row.available for row in counted)
    return [str(whole), str(len(counted) - whole - taken), str(taken)]


def _left(row: SimulatedMemory | None) -> str:
    return "" if row is None else round_down(row.allocatable - row.allocated)


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.0f} %"


def comparison_text(both: Sequence[Simulation], comparison: SimulationComparison, width: int) -> str:
    """Two simulations: differences by container, then the sums."""
    first, second = both
    sections = [
        _heads(first, second, width),
        _differences(comparison),
        table(sum_rows(comparison)),
        *(_orders(one, f" with {letter}") for one, letter in zip(both, LETTERS, strict=True)),
        *(_refusals_of(one, letter, width) for one, letter in zip(both, LETTERS, strict=True)),
        list(dict.fromkeys([*_problems(first, width), *_problems(second, width)])),
        list(dict.fromkeys([*notes(first, width), *notes(second, width)])),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _heads(first: Simulation, second: Simulation, width: int) -> list[str]:
    lines = [
        f"{first.scenario} on {_place(first)}: {count_of(first.totals.pods, 'pod')}, two configurations",
        f"machine   {first.machine.summary}",
        *(
            f"{letter}         {one.configuration.name}, reserved {one.configuration.reserved or 'none'}"
            for letter, one in zip(LETTERS, (first, second), strict=True)
        ),
    ]
    return fold_all(lines, width, 10)


def _differences(comparison: SimulationComparison) -> list[str]:
    said = table([("KEY", *LETTERS), *comparison.configuration]) if comparison.configuration else []
    if not comparison.containers:
        return [*said, "", f"all {comparison.alike} containers get the same"]
    rows = difference_rows(comparison)
    alike = f"{comparison.alike} other containers get the same"
    return [*said, "", *table(rows), alike]


def difference_rows(comparison: SimulationComparison) -> list[tuple[str, ...]]:
    """The containers with different results, below a row of heads."""
    rows = [(one.key, one.what, one.before, one.after) for one in comparison.containers]
    return [("CONTAINER", "DIFFERS IN", *LETTERS), *rows]


def sum_rows(comparison: SimulationComparison) -> list[tuple[str, ...]]:
    """The sums of both simulations, below a row of heads."""
    rows = [(one.name, *_figures(one), ("", *LETTERS)[one.better]) for one in comparison.sums]
    return [("SUM", *LETTERS, "BETTER"), *rows]


def _refusals_of(one: Simulation, letter: str, width: int) -> list[str]:
    lines = _refusals(one, width)
    return [f"Refused with {letter}", *lines[1:]] if lines else []


def _figures(one: Sum) -> tuple[str, str]:
    if one.is_share:
        return _percent(one.before), _percent(one.after)
    return f"{one.before:.0f}", f"{one.after:.0f}"
