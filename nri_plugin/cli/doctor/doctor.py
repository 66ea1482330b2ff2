"""`nri-pin doctor`: whether this node meets the requirements of placements, and how to correct it."""

import os

import click

from nri_plugin.cli.doctor.findings import Groups, as_json, as_text, exit_code, judged
from nri_plugin.cli.output import columns, echo, format_option, waiting, wants_colour

EXAMPLES = """\b
Examples:
  nri-pin doctor                                 on a node, as root
  nri-pin doctor --config ./config.yaml          before the agent is started with it
  nri-pin doctor --root /host                    in a pod that has the node's files there
  nri-pin doctor -o json | jq '.checks[] | select(.verdict == "TO DO")'

\b
Verdicts:
  OK           correct
  TO DO        wrong; the next step follows
  ADVICE       correct; something could be better
  not visible  the evidence cannot be seen from here; names the mount that would show it; never OK
"""


@click.command(name="doctor", epilog=EXAMPLES)
@click.option(
    "--root",
    metavar="DIR",
    help="The directory of the node's root file system, or of a part of it.  [default: /host if it holds sys, else /]",
)
@click.option(
    "--config", metavar="FILE", help="The agent's configuration.  [default: that of the agent that runs]"
)
@click.option(
    "--runtime-config",
    metavar="FILE",
    help="The runtime's main file, on the node.  [default: as it was started, else where it usually is]",
)
@click.option("--state-dir", metavar="DIR", help="The agent's state directory.  [default: as configured]")
@click.option(
    "--strict", is_flag=True, help="Exit with 1 also on advice and on evidence that is not visible."
)
@format_option()
@click.pass_context
def command(
    context: click.Context,
    root: str | None,
    config: str | None,
    runtime_config: str | None,
    state_dir: str | None,
    *,
    strict: bool,
    output_format: str,
) -> None:
    """Check whether this node meets the requirements of placements, and say how to correct it.

    Nothing is changed. Exit code: 0 nothing to do, 1 something to do, 2 wrong usage.
    """
    if root is not None and not os.path.isdir(root):
        raise click.UsageError(
            f"--root {root}: there is no such directory; give the one that holds the node's files"
        )
    with waiting("looking at the node"):
        groups = examine(root, config or "", runtime_config or "", state_dir or "")
    if output_format == "json":
        echo(as_json(groups, strict=strict))
    else:
        echo("\n".join(as_text(groups, columns(), colour=wants_colour())), styled=True)
    context.exit(exit_code(groups, strict=strict))


def examine(root: str | None, config: str, runtime_config: str, state_dir: str) -> Groups:
    """Collect the evidence and judge it."""
    from nri_plugin.cli.doctor import affinity, agent, kubelet, machine, reach, runtime
    from nri_plugin.cli.doctor.evidence import Asked, collect
    from nri_plugin.cli.doctor.view import NodeView, is_in_pod
    from nri_plugin.config.checks import HOST_MOUNT, present

    place = root or next(present(HOST_MOUNT, "/sys/devices/system/cpu"), "/")
    view = NodeView(place, in_pod=is_in_pod())
    if runtime_config and view.text(runtime_config) is None:
        raise click.UsageError(
            f"--runtime-config {runtime_config}: the node has no such file; leave it out to look for it"
        )
    seen = collect(view, Asked(config, runtime_config, state_dir))
    return {
        "container runtime": (*runtime.judge(seen.runtime), *affinity.judge(seen.affinity)),
        "kubelet": tuple(kubelet.judge(seen.kubelet)),
        "cgroups": tuple(machine.judge_cgroups(seen.cgroups)),
        "kernel and machine": tuple(machine.judge_kernel(seen.kernel)),
        "exclusive CPUs": tuple(reach.judge(seen.reach)),
        "agent": tuple(judged(agent.CHECKS, seen.agent)),
    }
