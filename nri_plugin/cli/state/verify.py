"""`nri-pin state verify`: whether allocations contradict each other, and whether the cgroups hold them."""

import json

import click

from nri_plugin.checkpoint.format import Checkpoint
from nri_plugin.cli.output import echo, format_option
from nri_plugin.cli.state.findings import (
    awaiting_agent,
    cgroup_root_here,
    contradictions,
    judging_node,
    live_findings,
    memory_of,
)
from nri_plugin.cli.state.source import (
    EXIT_FAILED,
    HERE,
    WrongUsageError,
    cgroup_root_option,
    file_option,
    is_observed,
    load_checkpoint,
    machine_option,
    named_topology,
    need_same_machine,
    node_on,
    path_of,
    root_option,
    state_dir_option,
)
from nri_plugin.model.errors import HostError, NriPinError

EXAMPLES = """\b
Examples:
  nri-pin state verify
  nri-pin state verify --live || echo look at it
  nri-pin state verify --root /host --cgroup-root /host/sys/fs/cgroup
  nri-pin state verify --file ./checkpoint-of-another-node
  nri-pin state verify --as-kubelet /etc/nri-pin/config.yaml
  nri-pin state verify --config ./tomorrow.yaml
"""
OBSERVED = "not compared: the agent runs with --observe and carries nothing out; --live compares all the same"


@click.command(name="verify", epilog=EXAMPLES)
@state_dir_option
@file_option
@root_option
@machine_option
@click.option(
    "--live/--no-live",
    default=None,
    help="Compare the cgroup of every container with its allocation. By default where the cgroups can be seen and the "
    "checkpoint is named by its directory; with --live it is an error when they cannot.",
)
@cgroup_root_option
@click.option(
    "--as-kubelet",
    metavar="CONFIG",
    help="Also list the errors that a kubelet with the options of this configuration would report at its start.",
)
@click.option(
    "--config",
    "config_path",
    metavar="CONFIG",
    help="Also list running placements that this configuration would not have made.",
)
@format_option()
@click.pass_context
def command(
    context: click.Context,
    state_dir: str,
    path: str | None,
    root: str | None,
    machine: str | None,
    live: bool | None,
    cgroup_root: str | None,
    as_kubelet: str | None,
    config_path: str | None,
    output_format: str,
) -> None:
    """Check the checksum, that no allocation contradicts another, and that the cgroups hold the allocations.

    Allocations are judged by the machine as the checkpoint knows it, or by the one of --root or --machine; the options
    of --config and --as-kubelet on that machine, else on this one.

    Exit code: 0 sound; 1 something was found, or the checkpoint is damaged; 2 there is no checkpoint, or the
    machine or the cgroups cannot be read.
    """
    source = path_of(state_dir, path)
    checkpoint = load_checkpoint(source)
    wants_live = live if live is not None else None if path is None or cgroup_root else False
    is_only_observed = is_observed(source) and wants_live is None and cgroup_root is None
    try:
        found, told = _checked(
            checkpoint, machine, root, cgroup_root, False if is_only_observed else wants_live
        )
        found += _by_configurations(checkpoint, as_kubelet, config_path, machine, root)
    except NriPinError as error:
        raise WrongUsageError(str(error)) from error
    _report(source, checkpoint, found, OBSERVED if is_only_observed else told, output_format)
    context.exit(EXIT_FAILED if found else 0)


def _checked(
    checkpoint: Checkpoint, machine: str | None, root: str | None, cgroup_root: str | None, live: bool | None
) -> tuple[list[str], str]:
    """What was found, and in words how the cgroups were looked at.

    Args:
        checkpoint: what is checked.
        machine: a named one.
        root: of the machine.
        cgroup_root: a named one.
        live: look at the cgroups; None where they can be seen.
    """
    topology, _ = named_topology(machine, root)
    node = judging_node(checkpoint) if topology is None else node_on(topology, checkpoint.facts)
    state = checkpoint.state
    found = contradictions(state, node, memory_of(checkpoint, topology))
    if live is False:
        return found, "not compared"
    is_asked = bool(live or cgroup_root)
    try:
        told, lines = live_findings(state, node, cgroup_root or cgroup_root_here())
    except HostError as error:
        if is_asked:
            raise
        return found, f"not visible, so not compared: {error}"
    return found + lines, told


def _by_configurations(
    checkpoint: Checkpoint,
    as_kubelet: str | None,
    config_path: str | None,
    machine: str | None,
    root: str | None,
) -> list[str]:
    """What other options would say, on the machine that is named, else on this one.

    Raises:
        WrongUsageError: the checkpoint is about another machine.
    """
    if as_kubelet is None and config_path is None:
        return []
    from nri_plugin.checkpoint.kubelet_state import kubelet_refusals
    from nri_plugin.cli.state.import_export import configured_on
    from nri_plugin.core.outdated import outdated

    topology, name = named_topology(machine, root)
    found: list[str] = []
    for path, judge in ((as_kubelet, kubelet_refusals), (config_path, outdated)):
        if path is not None:
            node = configured_on(path, topology)
            need_same_machine(checkpoint.facts, node.topology, name or HERE)
            found += map(str, judge(node, checkpoint.state))
    return found


def _report(source: str, checkpoint: Checkpoint, found: list[str], cgroups: str, output_format: str) -> None:
    if output_format == "json":
        echo(
            json.dumps(
                {
                    "file": source,
                    "generation": checkpoint.generation,
                    "cgroups": cgroups,
                    "imported": awaiting_agent(checkpoint.state),
                    "findings": found,
                },
                indent=2,
            )
        )
        return
    state = checkpoint.state
    for line in found:
        echo(line)
    if count := awaiting_agent(state):
        echo(_imported(count))
    verdict = f"{len(found)} finding{'s' * (len(found) != 1)}" if found else "sound"
    echo(
        f"{source}: {verdict}; generation {checkpoint.generation}, {len(state.pods)} pods, "
        f"{len(state.containers)} containers, {len(state.allocations)} allocations"
    )
    echo(f"cgroups: {cgroups}")


def _imported(count: int) -> str:
    if count == 1:
        return "1 allocation is imported and waits for the first start of the agent"
    return f"{count} allocations are imported and wait for the first start of the agent"
