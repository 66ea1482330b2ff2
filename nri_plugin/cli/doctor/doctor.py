"""`nri-pin doctor`: whether this node meets the requirements of placements, and how to correct it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import click

from nri_plugin.cli.doctor import agent, kubelet, machine, runtime
from nri_plugin.cli.doctor.evidence import Evidence, Paths
from nri_plugin.cli.doctor.findings import Finding, as_json, as_text, exit_code
from nri_plugin.cli.doctor.view import NodeView, is_in_pod
from nri_plugin.cli.output import FOR_PROGRAMS, columns, echo, format_option, waiting, wants_colour
from nri_plugin.config.checks import HOST_MOUNT, present

Check = Callable[[Evidence], Finding | None]

CHECKS: Mapping[str, Mapping[str, Check]] = {
    "container runtime": {
        "runtime": runtime.runtime,
        "nri": runtime.nri,
        "nri-socket": runtime.nri_socket,
        "nri-timeouts": runtime.nri_timeouts,
        "nri-plugins": runtime.nri_plugins,
        "nri-drop-in": runtime.nri_drop_in,
        "fail-closed": runtime.fail_closed,
        "runtime-affinity": runtime.runtime_affinity,
    },
    "kubelet": {
        "kubelet": kubelet.kubelet,
        "cpu-manager": partial(kubelet.manager, "cpu-manager"),
        "memory-manager": partial(kubelet.manager, "memory-manager"),
        "topology-manager": partial(kubelet.manager, "topology-manager"),
        "cpu-manager-state": partial(kubelet.manager, "cpu-manager-state"),
        "memory-manager-state": partial(kubelet.manager, "memory-manager-state"),
        "reserved-cpus": kubelet.reserved_cpus,
        "pod-resources": kubelet.pod_resources,
    },
    "cgroups": {
        "cgroups": machine.cgroups,
        "cgroup-driver": machine.cgroup_driver,
        "cpuset-delegation": machine.cpuset_delegation,
        "cpuset-width": machine.cpuset_width,
        "pool-floor": machine.pool_floor,
        "partitions": machine.partitions,
        "isolation": machine.isolation,
        "foreign-cpusets": machine.foreign_cpusets,
    },
    "kernel and machine": {
        "machine": machine.machine,
        "offline-cpus": machine.offline_cpus,
        "numa-nodes": machine.numa_nodes,
        "reserved-cores": machine.reserved_cores,
        "kernel": machine.kernel,
        "isolated-cpus": machine.isolated_cpus,
        "numa-balancing": machine.numa_balancing,
        "irqbalance": machine.irqbalance,
    },
    "exclusive CPUs": {
        "interrupts": machine.interrupts,
        "kernel-threads": machine.kernel_threads,
    },
    "agent": {
        "configuration": agent.configuration,
        "agent": agent.running,
        "observing": agent.observing,
        "agent-runtime": agent.connected_runtime,
        "state-directory": agent.state_directory,
        "free-space": agent.free_space,
        "checkpoint": agent.checkpoint,
        "unplaced": agent.unplaced,
        "exporter": agent.exporter,
        "rivals": agent.rivals,
        "failed-creations": agent.failed_creations,
        "fights": agent.fights,
        "unreported-containers": agent.unreported_containers,
        "quiet-cpus": agent.quiet_cpus,
    },
}
"""By group and name, which is stable, for scripts; in the order in which they are shown."""

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
    place = root or next(present(HOST_MOUNT, "/sys/devices/system/cpu"), "/")
    view = NodeView(place, in_pod=is_in_pod())
    if runtime_config and view.text(runtime_config) is None:
        raise click.UsageError(
            f"--runtime-config {runtime_config}: the node has no such file; leave it out to look for it"
        )
    with waiting("looking at the node"):
        seen = Evidence(view, Paths(config or "", runtime_config or "", state_dir or ""))
        groups = {group: judged(group, seen) for group in CHECKS}
    if output_format in FOR_PROGRAMS:
        echo(as_json(groups, strict=strict, form=output_format))
    else:
        echo("\n".join(as_text(groups, columns(), colour=wants_colour())), styled=True)
    context.exit(exit_code(groups, strict=strict))


def judged(group: str, seen: Evidence) -> tuple[Finding, ...]:
    """The findings of a group; a check without a finding has nothing to judge."""
    found = ((name, check(seen)) for name, check in CHECKS[group].items())
    return tuple(replace(finding, check=name) for name, finding in found if finding is not None)
