"""`nri-pin export`: publish allocations and capacity to the cluster, or print the object."""

import os
import platform
from typing import TYPE_CHECKING, Any

import click

from nri_plugin.cli.cluster import (
    SETTINGS,
    Address,
    health_probe_option,
    kubeconfig_option,
    log_level_option,
    need_libraries,
)
from nri_plugin.cli.output import echo, render
from nri_plugin.model.errors import HostError

if TYPE_CHECKING:
    from nri_plugin.agent.observing.status_client import AgentStatus


STATE_DIR = "/run/nri-pin"

EXAMPLES = """\b
Examples:
  nri-pin export --print                      show the object; needs no cluster and no agent
  nri-pin export --once --kubeconfig ~/.kube/config
  NODE_NAME=worker-1 nri-pin export           in the pod, beside the agent
"""


@click.command(epilog=EXAMPLES, context_settings=SETTINGS)
@click.option(
    "--node-name",
    envvar="NODE_NAME",
    metavar="NAME",
    help="The name of this node in the cluster; default: NODE_NAME, else the host name.",
)
@click.option(
    "--state-dir",
    metavar="DIR",
    default=STATE_DIR,
    show_default=True,
    help="The agent's state directory. It is only read, except for its folder `exporter`, which holds our sockets.",
)
@kubeconfig_option
@click.option(
    "--kubelet-socket",
    metavar="FILE",
    default="/var/lib/kubelet/pod-resources/kubelet.sock",
    show_default=True,
    help="The kubelet's PodResources socket, which lists devices. Without its directory, no devices are published or served.",
)
@click.option("--take-over", is_flag=True, help="Take the object from another exporter that publishes it.")
@click.option(
    "--min-interval",
    "pause_s",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Least number of seconds between two writes.",
)
@click.option(
    "--on-refusal",
    type=click.Choice(["retry", "fail-pod"]),
    default="retry",
    show_default=True,
    help="retry: a refused container waits and is tried again. fail-pod: its pod is set to Failed while all its app "
    "containers wait, and stays so. Its controller creates another; its pods fail after growing pauses. This needs the right to "
    "patch pods/status.",
)
@click.option(
    "--startup-taint",
    is_flag=True,
    help="Keep the taint nri-pin/agent-not-ready:NoSchedule on the Node while the agent is away, and remove it once the "
    "agent is ready; this needs the right to watch and patch nodes.",
)
@click.option("--metrics-bind-address", type=Address(), help="The address of /metrics; default: none.")
@health_probe_option
@click.option("--once", is_flag=True, help="Publish once and exit.")
@click.option("--print", "only_print", is_flag=True, help="Print the object; publish nothing.")
@click.option(
    "-o",
    "--output",
    "output_format",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="The format of --print.",
)
@log_level_option
def command(**given: Any) -> int:
    """Publish capacity and available resources of this node's NUMA nodes as a NodeResourceTopology object.

    Reads the agent's status socket. Writes on change, never the same content twice.
    """
    need_libraries("nri_plugin.exporter.exporter")
    given["node_name"] = (given["node_name"] or platform.node()).lower()
    given["socket"] = os.path.join(given.pop("state_dir"), "agent.sock")
    if given["only_print"]:
        obj = _object(given["node_name"], _status_or_machine(given["socket"]))
        echo(render(obj, given["output_format"]))
        return 0
    return _publish(given)


def _publish(given: dict[str, Any]) -> int:
    from nri_plugin.agent.observing.status_client import read_status
    from nri_plugin.exporter.exporter import Exporter, ExportOptions
    from nri_plugin.exporter.process import serve
    from nri_plugin.kube.api_client import KubeClient
    from nri_plugin.process.logs import to_stderr

    options = ExportOptions(
        given["node_name"],
        given["socket"],
        given["take_over"],
        given["pause_s"],
        socket_of_a_kubelet(given["kubelet_socket"]),
        given["on_refusal"] == "fail-pod",
        given["metrics_bind_address"],
        given["health_probe_bind_address"],
        given["startup_taint"],
    )
    client = KubeClient.connected(given["kubeconfig"])
    log = to_stderr(given["log_level"])
    if not given["once"]:
        serve(options, client, log)
        return 0
    Exporter(options, client, log).publish_once(read_status(given["socket"]))
    client.close()
    echo(f"published the NodeResourceTopology of {options.node_name}")
    return 0


def socket_of_a_kubelet(socket: str) -> str:
    """Return the socket if its folder exists, else an empty text. A kubelet that starts later creates the socket there."""
    return socket if socket and os.path.isdir(os.path.dirname(os.path.abspath(socket))) else ""


def _status_or_machine(socket: str) -> "AgentStatus":
    """Return the status of the agent; without an agent, this machine without allocations."""
    from nri_plugin.agent.observing.status_client import AgentStatus, read_status
    from nri_plugin.host.cgroup import discover_reachable
    from nri_plugin.model.options import Node, Options
    from nri_plugin.model.sets import CPUSet
    from nri_plugin.model.state import State

    try:
        return read_status(socket)
    except HostError as error:
        echo(
            f"nri-pin: no agent, so this is the machine without reservations and allocations: {error}",
            err=True,
        )
        return AgentStatus(Node(discover_reachable("/"), Options(), CPUSet()), State())


def _object(node_name: str, status: "AgentStatus") -> dict[str, Any]:
    from nri_plugin.exporter.publication import published
    from nri_plugin.kube.noderesourcetopology import to_object

    return to_object(published(node_name, status.node, status.state))
