"""`nri-pin state`: the table of its commands."""

import click

from nri_plugin.cli.main import CommandEntry, LazyGroup

EXAMPLES = """\b
Examples:
  nri-pin state show                     the CPUs of every container
  nri-pin state verify                   whether allocations and cgroups agree
  nri-pin state history --since 10m      the latest decisions and refusals
  nri-pin state import /var/lib/kubelet  take over from the kubelet's static managers
"""

STATE = "nri_plugin.cli.state."
COMMANDS = {
    "show": CommandEntry(
        f"{STATE}show:command",
        "List containers with their CPUs and memory nodes.",
        is_about_node=True,
        names_pod=(),
    ),
    "verify": CommandEntry(
        f"{STATE}verify:command", "Check the allocations, and the cgroups against them.", is_about_node=True
    ),
    "history": CommandEntry(
        f"{STATE}history:command",
        "List the latest decisions, and the checkpoints that are kept.",
        is_about_node=True,
        names_pod=("--container",),
    ),
    "import": CommandEntry(
        f"{STATE}import_export:import_command", "Import allocations of the kubelet's static managers."
    ),
    "export": CommandEntry(
        f"{STATE}import_export:export_command", "Export allocations as the kubelet's state files."
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
    """Show and check the allocations of containers, and exchange them with the kubelet."""
