"""The table of commands, and how a command line is run.

A group imports the module of a command only when the command runs: to list commands or to complete a word, no command is
imported, so that the program starts quickly. Errors of the click library get the form of our own: one lower-case
sentence that ends with the next step.
"""

import difflib
import importlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from nri_plugin import __version__
from nri_plugin.cli import COMPLETION_VARIABLE, PROGRAM
from nri_plugin.cli.output import CALLED_AS, echo, format_option, render


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command.

    Attributes:
        target: its place, `module:attribute`.
        summary: its line in the list of commands.
        is_group: it has commands itself.
        is_about_node: it is about a node with an agent, so `kubectl nri-pin` runs it there.
        names_pod: the words before NAMESPACE/POD or NAMESPACE/POD/CONTAINER; None where it is never about a pod.
    """

    target: str
    summary: str
    is_group: bool = False
    is_about_node: bool = False
    names_pod: tuple[str, ...] | None = None


class LazyGroup(click.Group):
    """A group whose commands are in a table; a command is imported when it is used, not to be listed or completed.

    Args:
        entries: the table, by name.
    """

    def __init__(self, *args: Any, entries: Mapping[str, CommandEntry], **more: Any) -> None:
        super().__init__(*args, **more)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """The names in the order of the table."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - same
        """The command, imported now; None when there is no such name."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first word.

        Raises:
            UsageError: there is none; suggests the most similar name, or the group that has the word.
        """
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            close = self._below(ctx, args[0]) or difflib.get_close_matches(args[0], names, n=1)
            ctx.fail(f"no such command '{args[0]}'" + (f", did you mean '{close[0]}'" if close else ""))
        return super().resolve_command(ctx, args)

    def _below(self, ctx: click.Context, word: str) -> list[str]:
        """The commands of groups below this one that have that name."""
        commands = {
            name: self.get_command(ctx, name) for name, entry in self.entries.items() if entry.is_group
        }
        return [
            f"{name} {word}"
            for name, command in commands.items()
            if isinstance(command, click.Group) and word in command.list_commands(ctx)
        ]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands with their summaries, or options."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=entry.summary)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - same
        """List the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])


class RunCommand(click.Command):
    """`nri-pin run`, which parses its own arguments; this class completes its options in a shell."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Options that have this prefix."""
        from nri_plugin.agent.arguments import NAMES

        names = [CompletionItem(name) for name in NAMES if name.startswith(incomplete)]
        return names or super().shell_complete(ctx, incomplete)


@click.command(
    name="run",
    cls=RunCommand,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[FILE]...")
def run(words: tuple[str, ...]) -> int:
    """Run the agent on this node."""
    from nri_plugin.agent import agent

    return agent.main(list(words))


@click.command(name="version", epilog="\b\nExamples:\n  nri-pin version\n  nri-pin version -o json")
@format_option()
def version(output_format: str) -> None:
    """Print the version of this program."""
    is_text = output_format == "text"
    echo(f"{PROGRAM} {__version__}" if is_text else render({"version": __version__}, output_format))


@click.command(name="help", epilog="\b\nExamples:\n  nri-pin help\n  nri-pin help state show")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
def help_command(words: tuple[str, ...]) -> int:
    """Show the help of a command, as its --help does."""
    return run_command_line([*words, "--help"])


EXIT_INTERRUPTED = 130

FIRST_OF_CLICK = re.compile(r"^(?:Could|Got|Invalid|Missing|No such|Option)(?= )")
"""First words of the sentences of click, which become lower-case; our own may begin with a path or a name."""

LINES_TO_WRITE = re.compile(r"\n(?=  \S)")
"""The line breaks that stay: each precedes a line that the reader copies into a file."""

NOT_A_NUMBER = re.compile(r"is not a valid (integer|float)(?: range)?$")
NUMBERS = {"integer": "whole number", "float": "number"}

DID_YOU_MEAN = re.compile(r"[.]? [(]?Did you mean (?:one of: )?(.*?)[?][)]?$")
EXAMPLES = """\b
Examples:
  nri-pin simulate example                   try pods on a described machine, no root needed
  nri-pin topology                           the machine as placements see it
  nri-pin run --config /etc/nri-pin/config.yaml
  nri-pin state show                         the CPUs of every container
  nri-pin explain default/web-0/app          why it has these CPUs, or was refused
  nri-pin install --plugin-dir /opt/nri/plugins --config ./config.yaml
"""


COMMANDS: Mapping[str, CommandEntry] = {
    "run": CommandEntry("nri_plugin.cli.main:run", "Run the agent on this node."),
    "topology": CommandEntry(
        "nri_plugin.cli.topology.topology:command",
        "Show CPUs, caches and NUMA nodes of a machine.",
        is_about_node=True,
    ),
    "simulate": CommandEntry(
        "nri_plugin.cli.simulate.simulate:command", "Try pods on a described machine; needs no node."
    ),
    "explain": CommandEntry(
        "nri_plugin.cli.explain.explain:command",
        "Explain a placement or a refusal, real or hypothetical.",
        is_about_node=True,
        names_pod=(),
    ),
    "room": CommandEntry(
        "nri_plugin.cli.room:command", "Count how many more pods fit on this node.", is_about_node=True
    ),
    "who": CommandEntry(
        "nri_plugin.cli.who:command",
        "Show who shares cores, caches and memory with whom.",
        is_about_node=True,
        names_pod=(),
    ),
    "top": CommandEntry(
        "nri_plugin.cli.top.top:command", "Watch containers, their CPUs and changes.", is_about_node=True
    ),
    "noise": CommandEntry(
        "nri_plugin.cli.noise.noise:command",
        "Measure what disturbs exclusive CPUs, and say what would end it.",
        is_about_node=True,
        names_pod=(),
    ),
    "state": CommandEntry(
        "nri_plugin.cli.state.state:command",
        "Show and check allocations, and exchange them with the kubelet.",
        is_group=True,
    ),
    "replay": CommandEntry(
        "nri_plugin.cli.replay.replay:command",
        "Decide recorded events again, with the same or another configuration.",
        is_about_node=True,
    ),
    "release": CommandEntry(
        "nri_plugin.cli.release:command", "Give all CPUs back to every container, before nri-pin is removed."
    ),
    "install": CommandEntry(
        "nri_plugin.cli.install:command", "Install the agent for systemd or the container runtime to start."
    ),
    "migrate": CommandEntry(
        "nri_plugin.cli.migrate.migrate:group",
        "Move this node from the kubelet's managers to nri-pin, or back.",
        is_group=True,
    ),
    "export": CommandEntry(
        "nri_plugin.cli.export:command", "Publish the capacity of this node as a NodeResourceTopology object."
    ),
    "doctor": CommandEntry(
        "nri_plugin.cli.doctor.doctor:command",
        "Check the node, and say how to correct it.",
        is_about_node=True,
    ),
    "extender": CommandEntry("nri_plugin.cli.extender:command", "Tell kube-scheduler which nodes fit a pod."),
    "completion": CommandEntry(
        "nri_plugin.cli.completion:command", "Print the completion script for bash, zsh or fish."
    ),
    "version": CommandEntry("nri_plugin.cli.main:version", "Print the version.", is_about_node=True),
    "help": CommandEntry("nri_plugin.cli.main:help_command", "Show the help of a command."),
}


@click.command(
    cls=LazyGroup,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    epilog=EXAMPLES,
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def group() -> None:
    """Give containers NUMA-aligned CPUs and memory nodes, by the kubelet's rules."""


def run_command_line(args: Sequence[str], commands: click.Command | None = None, program: str = "") -> int:
    """Run one command; returns its exit code.

    Args:
        args: the words of the command line.
        commands: the table of commands; default: those of `nri-pin`.
        program: its name, as the user types it; default: as the user came here.

    Raises:
        NriPinError: the command failed; the caller prints the error.
    """
    program = program or os.environ.get(CALLED_AS, PROGRAM)
    if COMPLETION_VARIABLE in os.environ:
        from nri_plugin.cli.completion import register

        register()
    try:
        result = (commands or group).main(args=list(args), prog_name=program, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        echo(f"{program}: {one_line(error)}", err=True)
        return error.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    return result if type(result) is int else 0


def one_line(error: click.ClickException) -> str:
    """The error as one lower-case sentence that ends with the next step; lines to copy into a file stay lines."""
    lines = (" ".join(part.split()) for part in LINES_TO_WRITE.split(error.format_message()))
    text = "\n  ".join(lines).rstrip(".").replace(". Choose from: ", ", choose from ")
    text = DID_YOU_MEAN.sub(
        lambda found: ", did you mean " + found[1].replace("', '", "' or '"),
        FIRST_OF_CLICK.sub(lambda found: found[0].lower(), text),
    )
    text = NOT_A_NUMBER.sub(lambda found: f"is no {NUMBERS[found[1]]}", text)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text += f"; see {error.ctx.command_path} --help"
    return text
