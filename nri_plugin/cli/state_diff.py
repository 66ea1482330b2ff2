"""`nri-pin state diff`: who gained, lost or moved, between two checkpoints, or between promises and cgroups."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from nri_plugin.cli.cell_table import folded
from nri_plugin.cli.output import columns, echo, format_option
from nri_plugin.cli.state_changes import Change, FieldChange, changes, live_changes, machine_changes
from nri_plugin.cli.state_findings import judging_node
from nri_plugin.cli.state_live import cgroup_root_here, look, need_visible
from nri_plugin.cli.state_source import Seen, WrongUsageError, load_checkpoint, path_of, state_dir_option
from nri_plugin.errors import HostError, NriPinError
from nri_plugin.host.checkpoint import FILE_NAME
from nri_plugin.host.checkpoint_rows import NodeFacts
from nri_plugin.state import State

EXIT_DIFFERENT = 1
NARROW = 80
INDENT = 9

EXAMPLES = """\b
Examples:
  nri-pin state diff /run/nri-pin/state.json.previous /run/nri-pin/state.json
  nri-pin state diff ./state-before-the-upgrade.json
  nri-pin state diff --live
  nri-pin state diff before.json after.json -o json | jq -r '.changes[].name'
"""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared."""

    name: str
    state: State
    facts: NodeFacts | None


@click.command(name="diff", epilog=EXAMPLES)
@click.argument("files", metavar="[A [B]]", nargs=-1)
@click.option("--live", is_flag=True, help="Compare the promises (of A, else of the agent) with the cgroups.")
@click.option(
    "--cgroup-root",
    metavar="DIR",
    help="The host's cgroup tree; /sys/fs/cgroup or what is mounted below /host.",
)
@state_dir_option
@format_option()
@click.pass_context
def command(
    context: click.Context,
    files: tuple[str, ...],
    *,
    live: bool,
    cgroup_root: str | None,
    state_dir: str,
    output_format: str,
) -> None:
    """Tell who gained, lost or moved exclusive CPUs from A to B, and what else is different.

    A and B are checkpoints or state directories. Without B, A is compared with what the agent has promised now, as its
    status socket tells it, else as its checkpoint does. Generations and writers are not compared.

    Exit code: 0 when nothing is different, 1 when something is, 2 when that cannot be told.
    """
    _check(files, live=live, cgroup_root=cgroup_root)
    try:
        if live:
            before, after, found = _live(files, state_dir, cgroup_root)
        else:
            before, after, found = _recorded(files, state_dir)
    except click.ClickException as error:
        raise WrongUsageError(error.message) from error
    except NriPinError as error:
        raise WrongUsageError(str(error)) from error
    if output_format == "json":
        echo(_json(before, after, found))
    elif found:
        echo(_text(before, after, found))
    context.exit(EXIT_DIFFERENT if found else 0)


def _check(files: Sequence[str], *, live: bool, cgroup_root: str | None) -> None:
    if live and len(files) > 1:
        raise click.UsageError("--live compares one state with the cgroups; give at most one file")
    if not live and cgroup_root is not None:
        raise click.UsageError("--cgroup-root goes with --live")
    if not live and not files:
        raise click.UsageError("name two checkpoints, or one to compare with the agent, or give --live")
    if len(files) > 2:
        raise click.UsageError(f"{len(files)} files are named; give two")


def _recorded(files: Sequence[str], state_dir: str) -> tuple[str, str, list[Change]]:
    before = _side(files[0])
    after = _side(files[1]) if len(files) == 2 else now(state_dir)
    found = machine_changes(before.facts, after.facts) + changes(before.state, after.state)
    return before.name, after.name, found


def _live(files: Sequence[str], state_dir: str, root: str | None) -> tuple[str, str, list[Change]]:
    source = _path(files[0]) if files else path_of(state_dir, None)
    checkpoint = load_checkpoint(source)
    root = root or cgroup_root_here()
    looked = look(Seen(checkpoint.state, judging_node(checkpoint), has_parts=False, machine=""), root)
    need_visible(looked, root)
    return f"{source}, generation {checkpoint.generation}", f"cgroups below {root}", live_changes(looked)


def now(state_dir: str) -> Side:
    """What the agent has promised at this moment; as its checkpoint says where it does not answer."""
    from nri_plugin.app.status_client import read_status
    from nri_plugin.app.status_socket import FILE_NAME as SOCKET_NAME

    path = os.path.join(state_dir, SOCKET_NAME)
    try:
        status = read_status(path)
    except HostError:
        side = _side(path_of(state_dir, None))
        return Side(f"{side.name} (no agent answers at {path})", side.state, side.facts)
    return Side(f"the agent at {path}", status.state, NodeFacts.of(status.node))


def _side(word: str) -> Side:
    path = _path(word)
    checkpoint = load_checkpoint(path)
    return Side(f"{path}, generation {checkpoint.generation}", checkpoint.state, checkpoint.facts)


def _path(word: str) -> str:
    return os.path.join(word, FILE_NAME) if os.path.isdir(word) else word


def _text(before: str, after: str, found: Sequence[Change]) -> str:
    width = columns() or NARROW
    lines = [f"--- {before}", f"+++ {after}"]
    lines += [line for change in found for line in folded(change_line(change), width, INDENT)]
    return "\n".join(lines)


def change_line(change: Change) -> str:
    """One change in one line."""
    parts = [_cpus_words(change)] if change.before != change.after or change.what == "gone" else []
    parts += [_field_words(change.what, other) for other in change.others]
    return f"{change.what:<7}  {change.name}" + (f": {'; '.join(filter(None, parts))}" if any(parts) else "")


def _field_words(what: str, field: FieldChange) -> str:
    """A container that came with its CPUs goes without saying."""
    if field.name != "container":
        return f"{field.name} {field.before} -> {field.after}"
    if field.after == "none":
        return "its container is gone"
    return "" if what == "gained" else "its container is there"


def _cpus_words(change: Change) -> str:
    before, after = change.before, change.after
    if not before or not after:
        return f"CPUs {before or after}" if before or after else ""
    more, less = after - before, before - after
    signs = ", ".join(f"{sign}{cpus}" for sign, cpus in (("+", more), ("-", less)) if cpus)
    return f"CPUs {before} -> {after} ({signs})"


def _json(before: str, after: str, found: Sequence[Change]) -> str:
    return json.dumps(
        {
            "before": before,
            "after": after,
            "equal": not found,
            "changes": [change_facts(one) for one in found],
        },
        indent=2,
    )


def change_facts(change: Change) -> dict[str, Any]:
    """One change, sets as kernel lists."""
    return {
        "what": change.what,
        "name": change.name,
        "key": change.key,
        "cpus": {
            "before": str(change.before),
            "after": str(change.after),
            "gained": str(change.after - change.before),
            "lost": str(change.before - change.after),
        },
        "others": {other.name: {"before": other.before, "after": other.after} for other in change.others},
    }
