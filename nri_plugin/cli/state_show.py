"""`nri-pin state show`: who holds what, and where that lies on the machine."""

import os

import click

from nri_plugin.cli.output import columns, echo, format_option
from nri_plugin.cli.state_agent import LOOK_CLOSER, NO_RUNTIME, agent_now
from nri_plugin.cli.state_json import show_json
from nri_plugin.cli.state_rows import Wanted, rows_of
from nri_plugin.cli.state_source import (
    FailedError,
    WrongUsageError,
    file_option,
    load_checkpoint,
    machine_option,
    path_of,
    root_option,
    seen,
    state_dir_option,
)
from nri_plugin.cli.state_text import show_text, show_wide
from nri_plugin.errors import NriPinError

NARROW = 80
"""Columns to write for where there is no terminal to ask."""

EXAMPLES = """\b
Examples:
  nri-pin state show
  nri-pin state show -n shop --pod 'db-*'
  nri-pin state show --wide
  nri-pin state show -o json | jq '.containers[] | {container, cpus, aligned}'
  nri-pin state show --file ./state.json --machine ./topology-of-that-node.json
"""


@click.command(name="show", epilog=EXAMPLES)
@click.option("-n", "--namespace", default="", metavar="NAME", help="Only pods of this namespace.")
@click.option("--pod", default="", metavar="NAME", help="Only this pod, by its name or uid.")
@click.option("-c", "--container", default="", metavar="NAME", help="Only this container, by its name or id.")
@click.option(
    "-w",
    "--wide",
    is_flag=True,
    help="All on one line each, with ids, phases, sockets and requests; never folded.",
)
@machine_option
@root_option
@state_dir_option
@file_option
@format_option()
def command(
    namespace: str,
    pod: str,
    container: str,
    *,
    wide: bool,
    machine: str | None,
    root: str | None,
    state_dir: str,
    path: str | None,
    output_format: str,
) -> None:
    """List every container with its CPUs, cores, NUMA nodes, uncore caches and memory nodes, and how they are aligned.

    NAME may hold * and ?. Cores and caches come from this machine where it is the one of the checkpoint; for a
    checkpoint from elsewhere name the machine with --machine.

    Exit code: 0; 1 when the checkpoint is damaged or no container has such a name; 2 when there is no checkpoint
    or the options are wrong.
    """
    source = path_of(state_dir, path)
    now = agent_now(state_dir) if path is None else None
    if now is not None and now.has_no_runtime and not os.path.exists(source):
        raise WrongUsageError(f"{source}: there is no checkpoint yet, for {NO_RUNTIME}; {LOOK_CLOSER}")
    checkpoint = load_checkpoint(source)
    try:
        found = seen(checkpoint, machine, root)
    except NriPinError as error:
        raise WrongUsageError(str(error)) from error
    wanted = Wanted(namespace, pod, container)
    rows = rows_of(found, wanted)
    if output_format == "json":
        echo(show_json(source, checkpoint, found, rows, wanted, now))
    if wanted and not rows:
        raise FailedError(_nobody(source, len(found.state.containers)))
    if output_format == "json":
        return
    if wide:
        echo(show_wide(source, checkpoint, found, rows, wanted))
    else:
        echo(show_text(source, checkpoint, found, rows, wanted, columns() or NARROW))
    if now is not None and now.has_no_runtime:
        echo(f"agent        {NO_RUNTIME}; {LOOK_CLOSER}")


def _nobody(source: str, count: int) -> str:
    return (
        f"{source}: none of its {count} containers has such a name; "
        "`nri-pin state show` lists them, and names may hold * and ?"
    )
