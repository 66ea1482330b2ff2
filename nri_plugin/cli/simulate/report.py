"""A simulation as one HTML file for a browser, for mail and for print; it holds no script and loads nothing.

The tables are those of the text, without its limits on rows. The machine is the picture of `nri-pin topology -o svg`.
`escape` makes every text harmless; the content security policy of the page admits only style of its own.
"""

import re
from collections.abc import Iterator, Sequence
from importlib import resources
from string import Template

from nri_plugin import __version__
from nri_plugin.cli.output import count_of
from nri_plugin.cli.simulate.text import (
    LETTERS,
    capacity_rows,
    difference_rows,
    kept_by_ended,
    node_rows,
    order_rows,
    placement_rows,
    sum_rows,
    sums,
    who_was_refused,
)
from nri_plugin.cli.topology.machine_view import Placements, Seat, View
from nri_plugin.cli.topology.svg import draw_svg, escape
from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet, NodeMask
from nri_plugin.simulator.machine.source import SourcedMachine
from nri_plugin.simulator.simulate.comparison import SimulationComparison
from nri_plugin.simulator.simulate.simulation import Simulation, StepRow

Rows = Sequence[Sequence[str]]
"""Of a table: the heads, then the cells of each row."""

UNLIMITED = 1 << 20
"""A width that no line reaches, because browsers fold lines."""
_AMOUNT = re.compile(r"[\d.]+( %|[KMGT]i)?")


def render(
    machine: SourcedMachine,
    simulations: Sequence[Simulation],
    comparison: SimulationComparison | None = None,
) -> str:
    """The page.

    Args:
        machine: the machine of all simulations.
        simulations: one, or two of the same pods.
        comparison: the differences of two.
    """
    first = simulations[0]
    name = first.scenario or first.file or "Simulation"
    title = name if first.machine.name in {"", "machine"} else f"{name} on {first.machine.name}"
    page = resources.files(__package__).joinpath("report.html").read_text("utf-8")
    body = "\n".join(_sections(machine, simulations, comparison))
    return Template(page).substitute(title=escape(title), body=body, version=__version__)


def _sections(
    machine: SourcedMachine, simulations: Sequence[Simulation], comparison: SimulationComparison | None
) -> Iterator[str]:
    letters = [""] if comparison is None else [f" {letter}" for letter in LETTERS]
    numbered = list(zip(letters, simulations, strict=True))
    yield f"<p>{escape(simulations[0].machine.summary)}</p>"
    yield _beside(_summary(letter, one) for letter, one in numbered)
    for note in dict.fromkeys(note for one in simulations for note in one.notes):
        yield f"<p><small>note: {escape(note)}</small></p>"
    if comparison is not None:
        yield "<h2>Differences</h2>"
        yield _table("Configurations", [("KEY", *LETTERS), *comparison.configuration])
        yield _table("Sums", sum_rows(comparison))
        yield _table("Containers", difference_rows(comparison))
        yield f"<p>{count_of(comparison.alike, 'container')} the same with both.</p>"
    yield "<h2>The machine at the end</h2>"
    yield _beside(
        f'<div class="scroll">{draw_svg(_view(machine, one, letter))}</div>' for letter, one in numbered
    )
    yield _beside(_occupancy(letter, one) for letter, one in numbered)
    for letter, one in numbered:
        yield _table(f"How many more fit{letter}", _with_shapes(one))
    yield "<h2>Containers and steps</h2>"
    for letter, one in numbered:
        refused = _refusals(one)
        yield (
            _table(f"Refused{letter}", refused) or f"<p>Nothing was refused{letter and ' with'}{letter}.</p>"
        )
    for letter, one in numbered:
        yield _table(f"Placements{letter}", placement_rows(one))
    for letter, one in numbered:
        yield _table(f"Other orders of the same pods{letter}", order_rows(one))
    for letter, one in numbered:
        yield _table(f"Steps{letter}", _steps(one))


def _beside(parts: Iterator[str]) -> str:
    return '<div class="pair">' + "".join(f"<div>{part}</div>" for part in parts) + "</div>"


def _table(caption: str, rows: Rows) -> str:
    """A table; empty where it has no rows below its heads."""
    if not rows[1:]:
        return ""
    heads = "".join(f"<th>{escape(head)}</th>" for head in rows[0])
    lines = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[1:])
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{lines}\n</tbody></table></div>"
    )


def _cell(text: str) -> str:
    look = ' class="amount"' if _AMOUNT.fullmatch(text) else ""
    return f"<td{look}>{escape(text)}</td>"


def _summary(letter: str, one: Simulation) -> str:
    """The counts at the end, and the configuration."""
    chosen = one.configuration
    outcome, *more = sums(one, UNLIMITED)
    lines = [*more, *(f"{key}: {value}" for key, value in chosen.said.items())]
    lines.append(f"reserved {chosen.reserved or 'no CPU'}: {chosen.why_reserved}")
    lines += [f"not as expected: {problem}" for step in one.steps for problem in step.problems]
    said = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f'<p class="lead">{escape(outcome)}</p><p><b>Configuration{letter}: {escape(chosen.name)}</b></p>{said}'


def _view(machine: SourcedMachine, one: Simulation, letter: str) -> View:
    """The containers on the machine at the end, as a checkpoint would have them."""
    whole = {pod.key for pod in one.pods if pod.cpus}
    seats = []
    for row in one.containers:
        kind = "slice" if f"{row.namespace}/{row.pod}" in whole and row.exclusive else "container"
        kind = "pod-shared" if row.is_pod_shared else kind
        cpus = CPUSet.parse(row.cpus) if row.exclusive or row.is_pod_shared else NO_CPUS
        mems = NodeMask.parse(row.mems)
        seats.append(Seat(row.namespace, row.pod, row.container, cpus, mems, kind))
    for pod in one.pods:
        if pod.cpus:
            namespace, name = pod.key.split("/")
            cpus, mems = CPUSet.parse(pod.cpus), NodeMask.parse(pod.mems)
            seats.append(Seat(namespace, name, "", cpus, mems, "pod"))
    for key, cpus in kept_by_ended(one).items():
        namespace, name, container = key.split("/")
        seats.append(Seat(namespace, name, container, cpus, NO_NODES, "kept"))
    placements = Placements(
        f"{letter} {one.configuration.name}".strip(),
        tuple(sorted(seats, key=lambda seat: seat.name)),
        CPUSet.parse(one.totals.shared_pool),
        CPUSet.parse(one.configuration.reserved) & machine.topology.online,
    )
    return View(machine, placements)


def _occupancy(letter: str, one: Simulation) -> str:
    """A bar for each NUMA node: the CPUs that are taken of those that can be exclusive; then what is left."""
    bars = []
    for node in one.numa_nodes:
        if node.allocatable:
            taken = node.allocatable - node.available
            bars.append(
                f'<p><meter max="{node.allocatable}" value="{taken}"></meter> NUMA {node.id}: '
                f"{taken} of {node.allocatable} CPUs taken</p>"
            )
    return "".join(bars) + _table(f"NUMA nodes{letter}", node_rows(one))


def _with_shapes(one: Simulation) -> Rows:
    heads, *rows = capacity_rows(one.capacity)
    asked = [(*row, room.text) for row, room in zip(rows, one.capacity, strict=True)]
    return [(*heads, "ASKS FOR"), *asked]


def _refusals(one: Simulation) -> Rows:
    rows: list[tuple[str, ...]] = [("REFUSED", "WHICH", "ASKED FOR", "REASON", "WHY")]
    for row in one.refused:
        who = who_was_refused(row)
        count = count_of(len(who), "pod" if row.of_pods else "container")
        why = f"{row.text}; container {row.container} does not fit" if row.container else row.text
        rows.append((count, ", ".join(who), one.shapes.get(row.shape, ""), row.reason, why))
    refused = ((step, step.refusal) for step in one.steps if step.refusal is not None)
    return [*rows, *((step.action, step.target, "", why.reason, why.text) for step, why in refused)]


def _steps(one: Simulation) -> Rows:
    rows = [("STEP", "ACTION", "WHAT", "ASKED FOR", "OUTCOME", "EXCLUSIVE CPUS THEN")]
    for step in one.steps:
        shape = one.shapes.get(step.shape, step.shape)
        outcome = "; ".join(_outcome(step))
        rows.append((str(step.number), step.action, step.target, shape, outcome, str(step.exclusive_cpus)))
    return rows


def _outcome(step: StepRow) -> Iterator[str]:
    for row in step.containers:
        if row.refusal is not None:
            yield f"{row.container} {row.status}: {row.refusal.reason}"
        else:
            yield f"{row.container}: {f'{row.exclusive} exclusive, {row.cpus}' if row.exclusive else row.status}"
    if step.refusal is not None:
        yield step.refusal.text
    yield from (f"not as expected: {problem}" for problem in step.problems)
