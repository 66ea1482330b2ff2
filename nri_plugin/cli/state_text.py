"""`nri-pin state show` for people: pods, below each its containers, below all what belongs to nobody in particular."""

from collections.abc import Sequence
from itertools import groupby

from nri_plugin.cli.cell_table import folded, folded_rows, table
from nri_plugin.cli.state_rows import Row, Wanted, ids, shared_pool, waiting
from nri_plugin.cli.state_source import Seen, is_observed
from nri_plugin.host.checkpoint_format import Checkpoint
from nri_plugin.pod_facts import Kind
from nri_plugin.policy.alignment import Alignment
from nri_plugin.state import Phase, State

HEAD = ("CONTAINER", "KIND", "CPUS", "CORES", "NUMA", "CACHE", "MEMS", "ALIGNED")
FOLDABLE = range(2, 7)
WIDE_HEAD = (
    "NAMESPACE",
    "POD",
    "CONTAINER",
    "ID",
    "PHASE",
    "QOS",
    "KIND",
    "REQUEST",
    "CPUS",
    "CORES",
    "SOCKET",
    "NUMA",
    "CACHE",
    "MEMS",
    "ALIGNED",
)
INDENT = 13
UNKNOWN = "?"
NOTHING = "-"
LONGEST_POOL = 14
"""A shared pool that is longer is spelled once, below the table."""
OBSERVED = "observed     nothing of this is carried out: the agent runs with --observe"

LEGEND = "N memory and CPUs on one NUMA node, S one socket, U one uncore cache, C whole cores"


def show_text(
    source: str, checkpoint: Checkpoint, found: Seen, rows: Sequence[Row], wanted: Wanted, width: int
) -> str:
    """What fits `width` columns: lists that are too long go on in the next line."""
    cells: list[Sequence[str]] = [HEAD]
    pods: dict[int, str] = {}
    for _, group in groupby(rows, key=lambda row: row.record.pod_uid):
        members = list(group)
        pods[len(cells)] = pod_line(members[0])
        cells += [_cells(row) for row in members]
    lines = _with_pods(cells, pods, width)
    lines += _folded_all(notes(found.state, rows, wanted), width, 2)
    return "\n".join([*lines, "", *_folded_all(facts(source, checkpoint, found), width, INDENT)])


def show_wide(source: str, checkpoint: Checkpoint, found: Seen, rows: Sequence[Row], wanted: Wanted) -> str:
    """One line each, whatever its length."""
    lines = table([WIDE_HEAD, *map(_wide_cells, rows)], None)
    lines += notes(found.state, rows, wanted)
    return "\n".join([*lines, "", *facts(source, checkpoint, found)])


def pod_line(row: Row) -> str:
    """The pod of a row."""
    return f"{row.namespace}/{row.pod_name}" + (
        f"  {row.pod.qos}" if row.pod else "  (this pod is not known)"
    )


def notes(state: State, rows: Sequence[Row], wanted: Wanted) -> list[str]:
    """What is odd about a container, one line each."""
    lines = [f"unplaced: {row.name}: {row.record.unplaced}" for row in rows if row.record.unplaced]
    lines += [
        f"lost: {row.name}: of its CPUs {row.allocation.cpus} those offline are {row.lost}, "
        "they stay promised to it"
        for row in rows
        if row.lost
    ]
    lines += [
        f"resize under way: {row.name}: from CPUs {row.allocation.resize.before.cpus or NOTHING} "
        f"to {row.allocation.resize.after.cpus or NOTHING}"
        for row in rows
        if row.allocation.resize
    ]
    kept = [] if wanted else waiting(state)
    return lines + [
        f"kept for a container of {key}: CPUs {state.allocations[key].cpus or NOTHING}" for key in kept
    ]


def facts(source: str, checkpoint: Checkpoint, found: Seen) -> list[str]:
    """What concerns all."""
    pool, known = shared_pool(found), checkpoint.facts
    return [
        f"exclusive    {str(found.state.exclusive) or NOTHING}",
        f"shared pool  {UNKNOWN if pool is None else str(pool) or NOTHING}",
        f"reserved     {UNKNOWN if known is None else str(known.reserved) or NOTHING}",
        *([f"aligned      {LEGEND}"] if found.has_parts else []),
        f"machine      {found.machine}",
        *([OBSERVED] if is_observed(source) else []),
        f"checkpoint   {source}, generation {checkpoint.generation}, written by nri-pin {checkpoint.writer}",
    ]


def aligned_letters(aligned: Alignment) -> str:
    """A letter for each level, `-` where it is not aligned."""
    levels = (aligned.numa_node, aligned.socket, aligned.uncore_cache, aligned.whole_cores)
    return "".join(letter if is_so else "-" for letter, is_so in zip("NSUC", levels, strict=True))


def marked_name(row: Row) -> str:
    """The container's name, and what it is where that is no running app container."""
    name = row.record.name or row.record.id[:12]
    marks = [
        *([str(row.container_kind)] if row.container_kind not in {None, Kind.APP} else []),
        *([str(row.record.phase)] if row.record.phase is not Phase.RUNNING and not row.is_ended else []),
    ]
    return f"{name} ({', '.join(marks)})" if marks else name


def cells_of(row: Row, *, spell_pool: bool) -> tuple[str, ...]:
    """CPUs, cores, NUMA nodes, caches, memory nodes and alignment of a row."""
    at = row.footprint
    if row.is_ended:
        return (NOTHING,) * 6
    mems = str(row.allocation.mems) or NOTHING
    cpus = UNKNOWN if row.cpus is None else str(row.cpus) or NOTHING
    is_pool = row.cpus is not None and row.cpus != row.allocation.in_force - row.lost
    numa = UNKNOWN if row.numa_nodes is None else str(row.numa_nodes) or NOTHING
    cores, caches = (UNKNOWN, UNKNOWN) if at is None else (ids(at.cores), ids(at.uncore_caches))
    if is_pool and not spell_pool and len(cpus) > LONGEST_POOL:
        cpus, cores, caches = "pool", "pool", "pool" if len(caches) > LONGEST_POOL else caches
    return (
        cpus,
        cores or NOTHING,
        numa,
        caches or NOTHING,
        mems,
        UNKNOWN if at is None else aligned_letters(at.aligned),
    )


def _cells(row: Row) -> tuple[str, ...]:
    return f"  {marked_name(row)}", row.kind, *cells_of(row, spell_pool=False)


def _wide_cells(row: Row) -> tuple[str, ...]:
    cpus, cores, numa, caches, mems, aligned = cells_of(row, spell_pool=True)
    record = row.record
    kind = row.container_kind
    return (
        row.namespace,
        row.pod_name,
        record.name if kind in {None, Kind.APP} else f"{record.name} ({kind})",
        record.id[:12],
        record.phase,
        row.pod.qos if row.pod else UNKNOWN,
        row.kind,
        f"{row.allocation.cpu_milli}m" if row.allocation.cpu_milli else NOTHING,
        cpus,
        cores,
        NOTHING
        if row.is_ended
        else UNKNOWN
        if row.footprint is None
        else ids(row.footprint.sockets) or NOTHING,
        numa,
        caches,
        mems,
        aligned,
    )


def _with_pods(cells: Sequence[Sequence[str]], pods: dict[int, str], width: int) -> list[str]:
    """The table, and before the first container of each pod the pod's own line."""
    lines: list[str] = []
    by_row = folded_rows(cells, width, (0, *FOLDABLE))
    if any(len(line) > width for row_lines in by_row for line in row_lines):
        by_row = [[], *(_stacked(row, width) for row in cells[1:])]
    for number, row_lines in enumerate(by_row):
        if number in pods:
            lines += folded(pods[number], width, 2)
        lines += row_lines
    return lines


def _stacked(row: Sequence[str], width: int) -> list[str]:
    """One container in words, for terminals that are too narrow for any table."""
    words = "  ".join(f"{head.lower()} {cell}" for head, cell in zip(HEAD[2:], row[2:], strict=True))
    return [row[0], *folded(f"    {row[1]}  {words}", width, 4)]


def _folded_all(lines: Sequence[str], width: int, indent: int) -> list[str]:
    return [part for line in lines for part in folded(line, width, indent)]
