"""`nri-pin state`: what the agent has promised, and whether it can be true.

`show` and `verify` read the checkpoint and change nothing, not even a damaged one.
"""

import os

import click

from nri_plugin.cli.lazy_group import Entry, LazyGroup
from nri_plugin.cli.output import columns, format_option
from nri_plugin.cli.state_report import findings, show_json, show_text
from nri_plugin.errors import CheckpointError, NriPinError
from nri_plugin.host.checkpoint import DEFAULT_DIR, FILE_NAME, read_checkpoint
from nri_plugin.host.checkpoint_format import Checkpoint, OtherVersionError

EXIT_FINDINGS = 1

file_options = (
    click.option(
        "--state-dir",
        metavar="DIR",
        default=DEFAULT_DIR,
        show_default=True,
        help="The agent's state directory.",
    ),
    click.option(
        "--file", "path", metavar="FILE", default=None, help="A checkpoint file; goes before --state-dir."
    ),
)

EXAMPLES = """\b
Examples:
  nri-pin state show         who holds which CPUs
  nri-pin state verify       whether that can be true
  nri-pin state import /var/lib/kubelet    take over from the kubelet's static managers
"""
SHOW_EXAMPLES = """\b
Examples:
  nri-pin state show
  nri-pin state show --state-dir /var/lib/nri-pin --format json
"""
VERIFY_EXAMPLES = """\b
Examples:
  nri-pin state verify
  nri-pin state verify --root / --cgroup-root /sys/fs/cgroup
  nri-pin state verify --file ./checkpoint-of-another-node
  nri-pin state verify --as-kubelet /etc/nri-pin/config.yaml
  nri-pin state verify --config ./tomorrow.yaml
"""


KUBELET_COMMANDS = {
    "import": Entry(
        "nri_plugin.cli.state_kubelet:import_command",
        "Take over what the kubelet's static managers promised.",
    ),
    "export": Entry(
        "nri_plugin.cli.state_kubelet:export_command", "Write the promises as the kubelet's state files."
    ),
}


class UnreadableError(click.ClickException):
    """The question could not be answered; nothing is known about the promises."""

    exit_code = 2


@click.command(
    name="state",
    cls=LazyGroup,
    entries=KUBELET_COMMANDS,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Show, verify, import or export what the agent has promised to containers."""


@command.command(epilog=SHOW_EXAMPLES)
@file_options[0]
@file_options[1]
@format_option()
def show(state_dir: str, path: str | None, output_format: str) -> None:
    """List every container with the CPUs and memory nodes it was given.

    Exit code: 0, or 2 when there is no checkpoint that can be read.
    """
    source = path or os.path.join(state_dir, FILE_NAME)
    checkpoint = _read(source)
    if output_format == "json":
        click.echo(show_json(source, checkpoint))
    else:
        click.echo(show_text(source, checkpoint, columns()))


@command.command(epilog=VERIFY_EXAMPLES)
@file_options[0]
@file_options[1]
@click.option(
    "--root",
    metavar="DIR",
    default=None,
    help="Judge by the machine whose /sys and /proc are below this directory (/ for this one), "
    "not by what the checkpoint says of it.",
)
@click.option("--cgroup-root", metavar="DIR", help="Also compare with the cgroups of this tree.")
@click.option(
    "--as-kubelet",
    metavar="CONFIG",
    help="Also say what a kubelet with the options of this configuration would find wrong at its start.",
)
@click.option(
    "--config",
    "config_path",
    metavar="CONFIG",
    help="Also list running placements that this configuration would not have made.",
)
@format_option()
@click.pass_context
def verify(
    context: click.Context,
    state_dir: str,
    path: str | None,
    root: str | None,
    cgroup_root: str | None,
    as_kubelet: str | None,
    config_path: str | None,
    output_format: str,
) -> None:
    """Check the checksum and that no promise contradicts another.

    Exit code: 0 sound, 1 something was found, 2 the checkpoint or the machine cannot be read.
    """
    source = path or os.path.join(state_dir, FILE_NAME)
    checkpoint = _read(source)
    try:
        found = findings(checkpoint, root, cgroup_root)
        if as_kubelet is not None:
            from nri_plugin.cli.state_kubelet import would_refuse

            found += would_refuse(checkpoint.state, as_kubelet, root)
        if config_path is not None:
            from nri_plugin.cli.state_kubelet import would_not_make

            found += would_not_make(checkpoint.state, config_path, root)
    except NriPinError as error:
        raise UnreadableError(str(error)) from error
    _report(source, checkpoint, found, output_format)
    context.exit(EXIT_FINDINGS if found else 0)


def _report(source: str, checkpoint: Checkpoint, found: list[str], output_format: str) -> None:
    if output_format == "json":
        import json

        click.echo(
            json.dumps({"file": source, "generation": checkpoint.generation, "findings": found}, indent=2)
        )
        return
    state = checkpoint.state
    for line in found:
        click.echo(line)
    verdict = f"{len(found)} finding{'s' * (len(found) != 1)}" if found else "sound"
    click.echo(
        f"{source}: {verdict}; generation {checkpoint.generation}, {len(state.pods)} pods, "
        f"{len(state.containers)} containers, {len(state.allocations)} allocations"
    )


def _what_to_do(error: CheckpointError) -> str:
    if isinstance(error.__cause__, PermissionError):
        return "run as root"
    if isinstance(error.__cause__, OtherVersionError):
        return "show it with the nri-pin that wrote it"
    if isinstance(error.__cause__, OSError):
        return "name the agent's --state-dir, or a checkpoint with --file"
    return (
        "nothing has to be done or deleted: the agent writes a new one at its next change, and at its next start "
        "sets this one aside and rebuilds from the one before it or from the runtime"
    )


def _read(path: str) -> Checkpoint:
    try:
        checkpoint = read_checkpoint(path)
    except CheckpointError as error:
        raise UnreadableError(f"{error}; {_what_to_do(error)}") from error
    if checkpoint is None:
        raise UnreadableError(
            f"{path}: there is no checkpoint; name the agent's --state-dir, or start the agent, "
            "which writes one when the runtime first tells it of a container"
        )
    return checkpoint
