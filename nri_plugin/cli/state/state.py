"""`nri-pin state`: what the agent has promised, and whether it can be true."""

import click

from nri_plugin.cli.main import CommandEntry, LazyGroup

EXAMPLES = """\b
Examples:
  nri-pin state show                     who holds which CPUs
  nri-pin state verify                   whether that can be true, and is
  nri-pin state diff before.json         who gained, lost or moved since then
  nri-pin state history --since 10m      what was decided lately, and why not
  nri-pin state repair                   what can be saved of a damaged checkpoint
  nri-pin state convert state.json ./kubelet/    the same promises as the kubelet keeps them
  nri-pin state import /var/lib/kubelet  take over from the kubelet's static managers
"""

COMMANDS = {
    "show": CommandEntry("nri_plugin.cli.state.show:command", "List who holds which CPUs and memory nodes."),
    "verify": CommandEntry(
        "nri_plugin.cli.state.verify:command", "Check the promises, and the cgroups against them."
    ),
    "diff": CommandEntry(
        "nri_plugin.cli.state.diff:command", "Tell who gained, lost or moved CPUs between two states."
    ),
    "convert": CommandEntry(
        "nri_plugin.cli.state.convert:command", "Write promises in another form, offline."
    ),
    "repair": CommandEntry(
        "nri_plugin.cli.state.repair:command", "Make a damaged checkpoint usable, inventing nothing."
    ),
    "history": CommandEntry(
        "nri_plugin.cli.state.history:command", "Tell what was decided for whom, and which files are kept."
    ),
    "import": CommandEntry(
        "nri_plugin.cli.state.import_export:import_command",
        "Take over what the kubelet's static managers promised.",
    ),
    "export": CommandEntry(
        "nri_plugin.cli.state.import_export:export_command",
        "Write the promises as the kubelet's state files.",
    ),
}


@click.command(
    name="state",
    cls=LazyGroup,
    entries=COMMANDS,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Show, check, compare, repair and convert what the agent has promised to containers."""
