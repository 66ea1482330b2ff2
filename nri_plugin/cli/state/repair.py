"""`nri-pin state repair`: save the certain allocations of a damaged checkpoint, and invent none.

The command reads the damaged file, the generation before it and the cgroups, plans a state from them
(`nri_plugin.checkpoint.repair`), shows the plan, and writes it when that is asked for.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from nri_plugin.checkpoint.file import FILE_NAME, keep_aside, read_checkpoint, write_whole
from nri_plugin.checkpoint.format import Checkpoint
from nri_plugin.checkpoint.forms import checkpoint_file
from nri_plugin.checkpoint.repair import RepairEvidence, RepairPlan, Salvage, plan, salvage
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.cli.output import NARROW, columns, echo, folded, format_option
from nri_plugin.cli.state.source import (
    EXIT_FAILED,
    Seen,
    WrongUsageError,
    cgroup_root_here,
    cgroup_root_option,
    fits,
    locked,
    machine_option,
    named_topology,
    node_on,
    root_option,
    state_dir_option,
    this_machine,
    usage_errors,
)
from nri_plugin.cli.state.verify import contradictions, judging_node, look, need_visible
from nri_plugin.model.errors import CheckpointError, HostError
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology


@dataclass(frozen=True, slots=True)
class Case:
    """The errors of a checkpoint and the plan to repair it.

    Attributes:
        path: of the checkpoint.
        problems: errors that keep it from being read, a sentence each.
        cgroups: how the cgroups were read, in words.
        planned: the state that would be written.
        remains: findings of verify that remain.
    """

    path: str
    problems: tuple[str, ...]
    cgroups: str
    planned: RepairPlan
    remains: tuple[str, ...]

    @property
    def is_wrong(self) -> bool:
        """Whether there is anything to repair."""
        return bool(self.problems or self.planned.left_out or self.planned.undecided)


def repair_text(case: Case, aside: str, *, is_done: bool) -> str:
    """For people."""
    if not case.is_wrong:
        return f"{case.path}: nothing to repair"
    planned = case.planned
    lines = [f"wrong: {text}" for text in case.problems]
    lines += [f"undecided: {text}" for text in planned.undecided]
    lines += [f"left out: {text}" for text in planned.left_out]
    lines += [f"stays: {text}" for text in planned.kept]
    lines += [f"verify will still say: {text}" for text in case.remains if not planned.undecided]
    lines += [f"cgroups: {case.cgroups}", *_end(case, aside, is_done=is_done)]
    width = columns() or NARROW
    return "\n".join(part for line in lines for part in folded(line, width, 2))


def _end(case: Case, aside: str, *, is_done: bool) -> Iterable[str]:
    planned = case.planned
    what = f"generation {planned.generation} with {len(planned.state.allocations)} allocations"
    if is_done:
        yield f"{case.path}: repaired, {what}" + (f"; what was there is now {aside}" if aside else "")
    elif planned.undecided:
        yield (
            f"{case.path}: nothing was changed; name the allocation to give up with --give-up, or let the cgroups be "
            "seen with --cgroup-root"
        )
    else:
        keeps = ", and keeps what is there as state.json.damaged-N" if os.path.lexists(case.path) else ""
        yield f"{case.path}: nothing was changed; --yes writes {what}{keeps}"


def repair_json(case: Case, aside: str, *, is_done: bool) -> str:
    """For programs."""
    planned = case.planned
    return json.dumps(
        {
            "file": case.path,
            "wrong": list(case.problems),
            "undecided": planned.undecided,
            "left_out": planned.left_out,
            "stays": planned.kept,
            "remains": list(case.remains),
            "cgroups": case.cgroups,
            "generation": planned.generation,
            "repaired": is_done,
            "kept_aside": aside or None,
        },
        indent=2,
    )


EXAMPLES = """\b
Examples:
  nri-pin state repair             show errors and the plan
  nri-pin state repair --yes       do it
  nri-pin state repair --give-up shop/db-0/db --yes

Sources of allocations, the best first: the checkpoint where only its content is wrong; its sound part where only records
of its journal are damaged, else the generation before it; rows of the damaged file that the container's own row or its
cgroup confirms. Rows that nothing confirms are named and left out: the agent finds their containers running, and adopts
them where they fit. An agent repairs a damaged checkpoint by itself when it starts, from the records before the damage,
the generation before or the runtime's list; this command shows that first, saves more, and settles contradictions.
"""


@click.command(name="repair", epilog=EXAMPLES)
@state_dir_option
@click.option("--yes", is_flag=True, help="Repair; without this nothing is changed.")
@click.option("--dry-run", is_flag=True, help="Only show the plan, as without --yes.")
@click.option(
    "--give-up",
    "given_up",
    metavar="NAME",
    multiple=True,
    help="An allocation to give up, as namespace/pod/container or UID/CONTAINER, or namespace/pod for all of a pod with "
    "resources of its own; may be given more than once.",
)
@machine_option
@root_option
@cgroup_root_option
@format_option()
@click.pass_context
def command(
    context: click.Context,
    state_dir: str,
    *,
    yes: bool,
    dry_run: bool,
    given_up: tuple[str, ...],
    machine: str | None,
    root: str | None,
    cgroup_root: str | None,
    output_format: str,
) -> None:
    """Show the errors of the checkpoint and, with --yes, replace it by one that holds only certain allocations.

    Works while no agent runs. The damaged file stays as state.json.damaged-N, the generation before as it is. No allocation is
    invented, and no two share a CPU: where two do, the one whose container runs on its CPUs stays; where the cgroups do
    not tell, nothing is written until --give-up names one.

    Exit code: 0 when nothing is wrong, or it was repaired; 1 when something is wrong and was not, or an agent runs; 2 when
    the options are wrong, or there is neither a checkpoint nor a generation before it.
    """
    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run exclude each other; give one")
    if not os.path.isdir(state_dir):
        raise WrongUsageError(f"{state_dir}: no such directory; name the agent's --state-dir")
    with locked(state_dir), usage_errors():
        case = _case(os.path.join(state_dir, FILE_NAME), given_up, machine, root, cgroup_root)
        is_done = yes and case.is_wrong and not case.planned.undecided
        aside = _write(case) if is_done else ""
    answer = repair_json if output_format == "json" else repair_text
    echo(answer(case, aside, is_done=is_done))
    context.exit(EXIT_FAILED if case.is_wrong and not is_done else 0)


def _case(
    path: str, given_up: Sequence[str], machine: str | None, root: str | None, cgroup_root: str | None
) -> Case:
    whole, damaged, problem = _read(path)
    former, _, former_problem = _read(f"{path}.previous")
    if whole is None and damaged is None and former is None:
        raise WrongUsageError(
            f"{path}: there is no checkpoint and no generation before it; name the agent's --state-dir"
        )
    salvaged = Salvage() if damaged is None else damaged
    former = salvaged.sound or former
    facts = next((one.facts for one in (whole, former, salvaged) if one and one.facts), None)
    topology = _topology(facts, machine, root)
    state = whole.state if whole else _merged(salvaged.state, former)
    live, cgroups = _live(state, cgroup_root)
    made = plan(RepairEvidence(damaged, whole, former, live, topology, frozenset(given_up)))
    _check_given_up(given_up, made)
    is_former_damaged = former is None and os.path.lexists(f"{path}.previous")
    problems = [text for text in (problem, former_problem if is_former_damaged and not whole else "") if text]
    node = (
        judging_node(Checkpoint(made.state, 0, "", made.facts))
        if topology is None
        else node_on(topology, facts)
    )
    return Case(
        path,
        (*problems, *salvaged.unreadable),
        cgroups,
        made,
        tuple(contradictions(made.state, node)),
    )


def _read(path: str) -> tuple[Checkpoint | None, Salvage | None, str]:
    """The checkpoint when it is whole, else its readable part and the error."""
    try:
        found = read_checkpoint(path)
    except CheckpointError as error:
        if isinstance(error.__cause__, OSError):
            raise
        if not os.path.isfile(path):
            raise CheckpointError(path, "is no file; move it away, and the agent begins anew") from None
        try:
            with open(path, "rb") as file:
                return None, salvage(file.read()), str(error)
        except OSError as trouble:
            raise CheckpointError(path, f"cannot be read: {trouble.strerror}") from None
    return found, None, "" if found else f"{path}: it is not there"


def _merged(found: State, former: Checkpoint | None) -> State:
    """All known containers, for a look at their cgroups."""
    before = former.state if former else State()
    return State({**found.pods, **before.pods}, {**found.containers, **before.containers})


def _topology(facts: NodeFacts | None, machine: str | None, root: str | None) -> Topology | None:
    """The named machine, else this one where it is that of the checkpoint."""
    topology, name = named_topology(machine, root)
    if topology is not None:
        if facts is not None and [number for number, _ in facts.numa_nodes] != list(topology.node_ids):
            raise WrongUsageError(
                f"{name} is another machine than the checkpoint is about; name the right one"
            )
        return topology
    here = this_machine()
    return here if here is not None and facts is not None and fits(facts, here) else None


def _live(state: State, cgroup_root: str | None) -> tuple[dict[str, CPUSet] | None, str]:
    """CPUs by container id, and in words how they were found."""
    root = cgroup_root or cgroup_root_here()
    try:
        looked = look(Seen(state, None), root)
        need_visible(looked, root)
    except HostError as error:
        if cgroup_root is not None:
            raise
        return None, f"not visible: {error}"
    return (
        {one.row.record.id: one.cpus for one in looked if one.cpus is not None},
        f"{len(looked)} of running containers looked at below {root}",
    )


def _check_given_up(names: Sequence[str], made: RepairPlan) -> None:
    unknown = [name for name in names if name not in made.given_up]
    if unknown:
        raise WrongUsageError(
            f"there is no allocation under the name {', '.join(unknown)}; give it as namespace/pod/container"
        )


def _write(case: Case) -> str:
    """Put the damaged file aside, then replace it: there is a checkpoint at every moment. Returns where it is now."""
    aside = keep_aside(case.path)
    planned = case.planned
    write_whole(case.path, checkpoint_file(planned.state, planned.facts, planned.generation), replace=True)
    return aside
