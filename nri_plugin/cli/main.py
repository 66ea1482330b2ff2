"""The table of commands."""

import os
import re
from collections.abc import Mapping, Sequence

import click

from nri_plugin import __version__
from nri_plugin.cli.lazy_group import Entry, LazyGroup
from nri_plugin.cli.output import echo

EXIT_INTERRUPTED = 130
COMPLETION_VARIABLE = "_NRI_PIN_COMPLETE"
"""Set by a shell that asks how a word may end."""

FIRST_OF_CLICK = re.compile(r"^(?:Could|Got|Invalid|Missing|No such|Option)(?= )")
"""How sentences of the library begin; ours may begin with a path or a name, which stays as it is written."""

LINES_TO_WRITE = re.compile(r"\n(?=  \S)")
"""Before each line that is to be copied into a file; other ends of lines are blanks."""

NOT_A_NUMBER = re.compile(r"is not a valid (integer|float)(?: range)?$")
NUMBERS = {"integer": "whole number", "float": "number"}

DID_YOU_MEAN = re.compile(r"[.]? [(]?Did you mean (?:one of: )?(.*?)[?][)]?$")
EXAMPLES = """\b
Examples:
  nri-pin demo                               watch a node fill up, no root needed
  nri-pin topology                           the machine as placements see it
  nri-pin run --config /etc/nri-pin/config.yaml
  nri-pin state show                         who holds which CPUs
  nri-pin explain default/web-0/app          why it has these CPUs, or was refused
  nri-pin install --plugin-dir /opt/nri/plugins --config ./config.yaml
"""


COMMANDS: Mapping[str, Entry] = {
    "run": Entry("nri_plugin.cli.run:command", "Run the agent on this node."),
    "demo": Entry("nri_plugin.cli.demo:command", "Play a day in the life of a node; needs no root."),
    "topology": Entry("nri_plugin.cli.topology:command", "Show CPUs, caches and NUMA nodes of a machine."),
    "simulate": Entry("nri_plugin.cli.simulate:command", "Try pods on a machine that need not be there."),
    "explain": Entry("nri_plugin.cli.explain:command", "Explain a placement or a refusal, or what would be."),
    "top": Entry("nri_plugin.cli.top:command", "Watch containers, their CPUs and what changes."),
    "state": Entry(
        "nri_plugin.cli.state:command", "Show, check, compare or repair what the agent has promised."
    ),
    "replay": Entry("nri_plugin.cli.replay:command", "Decide recorded events again, or otherwise."),
    "release": Entry(
        "nri_plugin.cli.release:command", "Give every container all CPUs again, before leaving."
    ),
    "install": Entry("nri_plugin.cli.install:command", "Let the container runtime start the plugin itself."),
    "export": Entry("nri_plugin.cli.export:command", "Tell the cluster what this node has and has left."),
    "doctor": Entry(
        "nri_plugin.cli.doctor:command", "Check the node, and say what to do where it is not right."
    ),
    "extender": Entry("nri_plugin.cli.extender:command", "Answer kube-scheduler which nodes fit a pod."),
    "completion": Entry(
        "nri_plugin.cli.completion:command", "Print what completes words in bash, zsh or fish."
    ),
}


@click.command(
    cls=LazyGroup,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    epilog=EXAMPLES,
)
@click.version_option(__version__, prog_name="nri-pin", message="%(prog)s %(version)s")
def group() -> None:
    """Give containers NUMA-aligned CPUs and memory nodes, by the kubelet's rules."""


def run_command_line(args: Sequence[str]) -> int:
    """Run one command; returns its exit code.

    Raises:
        NriPinError: as the command raises it; the caller prints it.
    """
    if COMPLETION_VARIABLE in os.environ:
        from nri_plugin.cli.completion import register

        register()
    try:
        result = group.main(args=list(args), prog_name="nri-pin", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        echo(f"nri-pin: {one_line(error)}", err=True)
        return error.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    return result if type(result) is int else 0


def _did_you_mean(found: re.Match[str]) -> str:
    return ", did you mean " + found[1].replace("', '", "' or '")


def one_line(error: click.ClickException) -> str:
    """The error in the house's form: one lower-case sentence that ends in what to do next.

    Lines of a file to write stay lines of their own.
    """
    lines = (" ".join(part.split()) for part in LINES_TO_WRITE.split(error.format_message()))
    text = "\n  ".join(lines).rstrip(".").replace(". Choose from: ", ", choose from ")
    text = DID_YOU_MEAN.sub(_did_you_mean, FIRST_OF_CLICK.sub(lambda found: found[0].lower(), text))
    text = NOT_A_NUMBER.sub(lambda found: f"is no {NUMBERS[found[1]]}", text)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text += f"; see {error.ctx.command_path} --help"
    return text
