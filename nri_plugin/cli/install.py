"""`nri-pin install`: install the agent where the container runtime or systemd starts it.

The runtime starts every executable `NN-name` of its plugin folder with an environment that has no PATH, so the
file names its interpreter by an absolute path; its configuration is the drop-in of the same name. The command never
replaces or removes a file that it did not write. The runtime starts a plugin once. An agent that starts again connects to
the NRI socket, so the command refuses to install where that socket is closed or is another one.

Source: NRI, pkg/adaptation (plugin folder, `NN-name.conf` drop-ins); facts checked on containerd 1.7 and 2.1.
"""

import os
import re
import shlex
import sys
from pathlib import Path

import click

import nri_plugin
from nri_plugin.agent.serving.supervisor import PLUGIN
from nri_plugin.cli import installed_files, systemd
from nri_plugin.cli.doctor.view import NodeView, is_in_pod
from nri_plugin.cli.installed_files import (
    MARK,
    Changes,
    configuration,
    is_ours,
    misfits,
    remove,
    replace_configuration,
    require_ours,
    require_way_in,
    set_aside,
    who_else_may_change,
    write,
)
from nri_plugin.cli.output import FOR_PROGRAMS, echo, format_option, render
from nri_plugin.config import loading
from nri_plugin.model.errors import HostError

NAME = "nri-pin"
MAX_SHEBANG_CHARS = 120
"""Kernels before 5.1 cut the first line of a script at 127 characters."""

EXAMPLES = """\b
Examples:
  nri-pin install --systemd --config ./config.yaml
  nri-pin install --systemd --uninstall
  nri-pin install --plugin-dir /opt/nri/plugins --config ./config.yaml
  nri-pin install --plugin-dir /opt/nri/plugins --index 95 --config ./config.yaml
  nri-pin install --plugin-dir /opt/nri/plugins --uninstall

\b
systemd reads new units, and the runtime its plugin folder, when they are told to:
  systemctl daemon-reload && systemctl enable --now nri-pin
  systemctl restart containerd
"""


def launcher(interpreter: str) -> str:
    """The text of the plugin executable: it needs nothing from the environment."""
    start = "from nri_plugin.__main__ import main\n\nraise SystemExit(main())\n"
    shebang = f"#!{interpreter} -I"
    if len(shebang) <= MAX_SHEBANG_CHARS and not re.search(r"\s", interpreter):
        return f"{shebang}\n{MARK}\n{start}"
    # Without the variable the supervisor would not see that the plugin was uninstalled.
    return f'#!/bin/sh\n{MARK}\n{PLUGIN}="$0" exec {shlex.quote(interpreter)} -I -m nri_plugin\n'


def require_no_other_index(plugin_dir: Path, config_dir: Path, index: str) -> None:
    """Refuse a second agent on the node: each would assign all CPUs.

    Raises:
        HostError: the plugin is installed under another number.
    """
    for other in sorted(plugin_dir.glob(f"[0-9][0-9]-{NAME}")):
        if other.name != f"{index}-{NAME}" and is_ours(other):
            words = ["nri-pin", "install", "--plugin-dir", str(plugin_dir), "--config-dir", str(config_dir)]
            remove_it = shlex.join([*words, "--index", other.name[:2], "--uninstall"])
            raise HostError(str(other), f"is installed already; to replace it, first run {remove_it}")


def install(plugin_dir: Path, config_dir: Path, index: str, chosen: Path | None) -> Changes:
    """Write the drop-in, then the executable: a runtime that starts in between finds no plugin without configuration.

    Raises:
        NriPinError: nothing was installed.
    """
    executable = plugin_dir / f"{index}-{NAME}"
    settings = config_dir / f"{index}-{NAME}.conf"
    require_ours(executable)
    require_no_other_index(plugin_dir, config_dir, index)
    text = configuration(settings, chosen)
    source = chosen or settings
    config = loading.load(str(source))
    require_way_in(config.nri_socket, source)
    kept = () if text is None else replace_configuration(settings, text)
    write(executable, launcher(os.path.abspath(sys.executable)), 0o755)
    return Changes(
        wrote=(*([] if text is None else [str(settings)]), str(executable)),
        kept=kept,
        warnings=(
            *misfits(config),
            *who_else_may_change("the runtime", Path(sys.executable), Path(nri_plugin.__file__).parent),
        ),
        next=f"the runtime starts it at its own next start, for example: systemctl restart {_unit()}",
    )


def uninstall(plugin_dir: Path, config_dir: Path, index: str) -> Changes:
    """Remove the executable that `install` wrote, then move its configuration aside.

    Raises:
        HostError: the plugin is not installed under this index, or a file cannot be removed.
    """
    executable = plugin_dir / f"{index}-{NAME}"
    require_ours(executable)
    removed = (str(executable),) if remove(executable) else ()
    kept = set_aside(config_dir / f"{index}-{NAME}.conf")
    if not removed and not kept:
        raise HostError(str(executable), "is not there; nothing to uninstall")
    return Changes(
        removed=removed,
        kept=kept,
        next=f"a running plugin ends with its runtime, for example: systemctl restart {_unit()}; one that came back by "
        "itself ends within seconds",
    )


def _unit() -> str:
    """The unit of this node's runtime; containerd's where it is not known."""
    settings = installed_files.runtime_settings(NodeView(in_pod=is_in_pod()))
    return settings.unit if settings else "containerd"


@click.command(epilog=EXAMPLES)
@click.option(
    "--plugin-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Let the runtime start the agent: its plugin_path, by default /opt/nri/plugins.",
)
@click.option(
    "--systemd", "by_systemd", is_flag=True, help="Let systemd start the agent: the unit nri-pin.service."
)
@click.option(
    "--config-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default="/etc/nri/conf.d",
    show_default=True,
    help="With --plugin-dir: the runtime's plugin_config_path.",
)
@click.option(
    "--index",
    metavar="NN",
    default="90",
    show_default=True,
    help="With --plugin-dir: two digits; the runtime calls plugins in this order.",
)
@click.option(
    "--config",
    "chosen",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Copy this configuration to where the agent reads it; without it a configuration must be there already.",
)
@click.option(
    "--exporter-kubeconfig",
    "kubeconfig",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True),
    help="With --systemd: also install the exporter, nri-pin-exporter.service, which uses this kubeconfig.",
)
@click.option(
    "--prefix",
    type=click.Path(path_type=Path, file_okay=False),
    default="/",
    show_default=True,
    help="With --systemd: write below this directory, for an image or a package. Another one than / leaves the "
    "running system alone.",
)
@click.option(
    "--uninstall",
    "away",
    is_flag=True,
    help="Remove the files that install wrote; the configuration is kept as NAME.previous. With --systemd: stop the "
    "units, and give all CPUs back to every container.",
)
@format_option()
@click.pass_context
def command(
    context: click.Context,
    plugin_dir: Path | None,
    config_dir: Path,
    index: str,
    chosen: Path | None,
    kubeconfig: Path | None,
    prefix: Path,
    *,
    by_systemd: bool,
    away: bool,
    output_format: str,
) -> None:
    """Install the agent for the container runtime or for systemd to start.

    Name one of --plugin-dir and --systemd. Files that this command did not write are never replaced or removed. A
    configuration that it replaces or takes away is kept beside its place, as NAME.previous.

    systemd's unit has no capability, no new privileges and a read-only root. The configuration decides what it may write and whether it has a
    network: install again after a change of isolation, irqs, workqueues, nicLocality, stateDir, cgroupRoot or an address.
    """
    if not re.fullmatch(r"[0-9]{2}", index):
        raise click.BadParameter(f"expected two digits such as 90, found {index}", param_hint="--index")
    if by_systemd == (plugin_dir is not None):
        raise click.UsageError("expected one of --plugin-dir and --systemd", context)
    if plugin_dir is None:
        changes = systemd.uninstall(prefix) if away else systemd.install(prefix, chosen, kubeconfig)
    elif away:
        changes = uninstall(plugin_dir, config_dir, index)
    else:
        changes = install(plugin_dir, config_dir, index, chosen)
    if output_format in FOR_PROGRAMS:
        echo(render(changes, output_format))
    else:
        _say(changes)


def _say(changes: Changes) -> None:
    for line in changes.released:
        echo(line)
    for path in changes.wrote:
        echo(f"wrote {path}")
    for path in changes.removed:
        echo(f"removed {path}")
    for path in changes.kept:
        echo(f"kept the former configuration as {path}")
    for warning in changes.warnings:
        echo(f"warning: {warning}", err=True)
    echo(changes.next)
