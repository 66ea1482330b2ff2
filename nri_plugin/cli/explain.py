"""`nri-pin explain`: why a container got what it got, why another was refused, and what would become of a third."""

import json
import os
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from nri_plugin.cli.output import columns, echo, format_option
from nri_plugin.host.checkpoint import DEFAULT_DIR

EXIT_REFUSED = 1
WIDTH = 80

EPILOG = """\b
Examples:
  nri-pin explain default/train-0/worker      why it has these CPUs, or was refused
  nri-pin explain worker                      the same, where only one is called so
  nri-pin explain default/train-0             the containers of a pod
  nri-pin explain --cpu 3 --memory 4Gi        what would become of such a container here
  nri-pin explain --cpu 3 --policy restricted --option full-pcpus-only=true
  nri-pin explain --cpu 16 --device nvidia.com/gpu=2@0,1 --policy single-numa-node
  nri-pin explain --machine gb200-34-numa --cpu 80 --policy single-numa-node
  nri-pin explain --state-dir ./state --cpu 12    on the node whose state directory this is, or a copy of it
  nri-pin explain worker -o json

A name is NAMESPACE/POD/CONTAINER, the end of that, or the beginning of a
container's id.

Exit code: 0; 1 where a what-if would be refused, or no answer can be had; 2 for a wrong question.
"""


class WrongQuestionError(click.ClickException):
    """Nobody is meant, or several are."""

    exit_code = 2


@click.command(epilog=EPILOG)
@click.argument("name", required=False, metavar="[CONTAINER]")
@click.option("--cpu", metavar="QUANTITY", default="", help="What if a container asked for so many CPUs?")
@click.option("--memory", metavar="QUANTITY", default="", help="... for so much memory, as its limit?")
@click.option("--hugepages-2Mi", "small_pages", metavar="QUANTITY", default="", help="... of pages of 2 MiB?")
@click.option("--hugepages-1Gi", "large_pages", metavar="QUANTITY", default="", help="... of pages of 1 GiB?")
@click.option(
    "--device",
    "devices",
    metavar="RESOURCE=COUNT[@NODES]",
    multiple=True,
    help="... with such devices? NODES are their NUMA nodes, one for all or one for each; "
    "a described machine knows them itself.",
)
@click.option(
    "--qos",
    type=click.Choice(("Guaranteed", "Burstable", "BestEffort")),
    default="Guaranteed",
    show_default=True,
    help="... in a pod of this class?",
)
@click.option(
    "--namespace", metavar="NAME", default="default", show_default=True, help="... in this namespace?"
)
@click.option(
    "--policy",
    type=click.Choice(("none", "best-effort", "restricted", "single-numa-node")),
    help="... under this topologyManagerPolicy?",
)
@click.option("--scope", type=click.Choice(("container", "pod")), help="... under this topologyManagerScope?")
@click.option(
    "--memory-policy", type=click.Choice(("None", "Static")), help="... under this memoryManagerPolicy?"
)
@click.option(
    "--option",
    "given",
    metavar="NAME=VALUE",
    multiple=True,
    help="... under this option, by its name in the configuration?",
)
@click.option(
    "--machine", metavar="NAME|FILE", help="On this machine with nothing promised, not on this node."
)
@click.option("--config", "config", metavar="FILE", help="By this configuration, not by the agent's.")
@click.option("--root", metavar="DIR", help="The machine whose /sys and /proc are below this directory.")
@click.option(
    "--state",
    "state_file",
    metavar="FILE",
    help="Beside the promises of this checkpoint, or of that in this directory.",
)
@click.option(
    "--state-dir", metavar="DIR", default=DEFAULT_DIR, show_default=True, help="The agent's state directory."
)
@format_option()
@click.pass_context
def command(context: click.Context, /, name: str | None, output_format: str, **asked: Any) -> None:
    """Explain why a container got its CPUs and memory or was refused, or what would become of another.

    With a CONTAINER it is explained what was decided, by the state at that time. With --cpu, --memory and the like
    it is explained what would be decided now; nothing is changed.
    """
    from nri_plugin.cli import explain_answers

    asked["state_file"] = _checkpoint(context, asked)
    is_what_if = any(asked[key] for key in explain_answers.WHAT_IF)
    if bool(name) == is_what_if:
        both = "a container is explained as it was decided; leave --cpu, --machine and the like out"
        raise click.UsageError(
            both if name else "name a container, or ask for one with --cpu, --memory or --device"
        )
    try:
        answer = (
            explain_answers.of_what_if(asked)
            if is_what_if
            else explain_answers.of_container(name or "", asked)
        )
    except explain_answers.NotOneError as error:
        raise WrongQuestionError(str(error)) from None
    if output_format == "json":
        echo(json.dumps(answer.as_dict(), indent=2))
    else:
        echo(answer.text(min(columns() or WIDTH, 120)), styled=True)
    context.exit(EXIT_REFUSED if answer.is_refused_what_if else 0)


def _checkpoint(context: click.Context, asked: Mapping[str, Any]) -> str | None:
    """The checkpoint that is named: by --state, which may be its directory, or by --state-dir beside --machine."""
    from nri_plugin.host.checkpoint import FILE_NAME

    named: str | None = asked["state_file"]
    if named is None and asked["machine"] and _is_given(context, "state_dir"):
        named = asked["state_dir"]
    return os.path.join(named, FILE_NAME) if named is not None and os.path.isdir(named) else named


def _is_given(context: click.Context, parameter: str) -> bool:
    return context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE
