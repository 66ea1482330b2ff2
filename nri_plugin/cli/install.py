"""`nri-pin install`: install the plugin where the container runtime starts it.

The runtime starts every executable `NN-name` of its plugin folder with an environment that has no PATH, so the
file names its interpreter by an absolute path; its configuration is the drop-in of the same name. The command never
replaces or removes a file that it did not write. The runtime starts a plugin once. An agent that starts again connects to
the NRI socket, so the command refuses to install where that socket is closed or is another one.

Source: NRI, pkg/adaptation (plugin folder, `NN-name.conf` drop-ins); facts checked on containerd 1.7 and 2.1.
"""

import json
import os
import re
import shlex
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click

import nri_plugin
from nri_plugin.agent.supervisor import PLUGIN
from nri_plugin.cli.doctor.runtime import version_of
from nri_plugin.cli.doctor.runtime_files import (
    NRISettings,
    find_name,
    find_runtime,
    is_other_socket,
    read_settings,
    read_version,
)
from nri_plugin.cli.doctor.view import Hidden, NodeView, is_in_pod
from nri_plugin.cli.output import echo, format_option
from nri_plugin.config import loading
from nri_plugin.model.errors import HostError

NAME = "nri-pin"
MARK = "# written by `nri-pin install`, removed by `nri-pin install --uninstall`"
MAX_SHEBANG_CHARS = 120
"""Kernels before 5.1 cut the first line of a script at 127 characters."""

EXAMPLES = """\b
Examples:
  nri-pin install --plugin-dir /opt/nri/plugins --config ./config.yaml
  nri-pin install --plugin-dir /opt/nri/plugins --index 95 --config ./config.yaml
  nri-pin install --plugin-dir /opt/nri/plugins --uninstall

\b
The runtime looks into its plugin folder when it starts:
  systemctl restart containerd
"""


@dataclass(frozen=True, slots=True)
class Changes:
    """The result of install or uninstall.

    Attributes:
        wrote: files.
        removed: files.
        warnings: risks that the operator should remove.
        next: the step that makes it take effect.
    """

    wrote: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    next: str = ""


def launcher(interpreter: str) -> str:
    """The text of the plugin executable: it needs nothing from the environment."""
    start = "from nri_plugin.__main__ import main\n\nraise SystemExit(main())\n"
    shebang = f"#!{interpreter} -I"
    if len(shebang) <= MAX_SHEBANG_CHARS and not re.search(r"\s", interpreter):
        return f"{shebang}\n{MARK}\n{start}"
    # Without the variable the supervisor would not see that the plugin was uninstalled.
    return f'#!/bin/sh\n{MARK}\n{PLUGIN}="$0" exec {shlex.quote(interpreter)} -I -m nri_plugin\n'


@contextmanager
def _failing(path: Path, what: str) -> Iterator[None]:
    """Turn a failure of the body into an error about the path.

    Raises:
        HostError: the body failed; has its reason and, where it helps, the next step.
    """
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        advice = "; run as root" if isinstance(error, PermissionError) and os.geteuid() else ""
        raise HostError(str(path), f"{what}: {reason}{advice}") from None


def is_ours(path: Path) -> bool:
    """Whether the file was written by this command.

    Raises:
        HostError: it cannot be read.
    """
    with _failing(path, "cannot be read"):
        return MARK.encode() in path.read_bytes()[:4096]


def require_ours(path: Path) -> None:
    """Refuse to change a file that this command did not write.

    Raises:
        HostError: the file is there and was not written by this command.
    """
    if (path.exists() or path.is_symlink()) and not is_ours(path):
        raise HostError(str(path), "is there and was not written by nri-pin install; move it away first")


def write(path: Path, text: str, mode: int) -> None:
    """Replace the file in one step, so that a runtime never reads a part of it.

    Raises:
        HostError: the folder cannot be made or written to.
    """
    with _failing(path, "cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix=f".{path.name}.", dir=path.parent, delete=False
        ) as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
        os.replace(file.name, path)


def remove(path: Path) -> bool:
    """Remove a file that this command wrote; False when there is none.

    Raises:
        HostError: it cannot be removed.
    """
    if not path.exists() or not is_ours(path):
        return False
    with _failing(path, "cannot be removed"):
        path.unlink()
    return True


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


def who_else_may_change(*programs: Path) -> Iterator[str]:
    """Warnings about programs that users other than root can change; the runtime starts them as root."""
    for program in programs:
        for path in (program, *program.parents, program.resolve(), *program.resolve().parents):
            reason = _not_roots_alone(path)
            if reason:
                where = "" if path == program else f" at {path}"
                yield (
                    f"the runtime will run {program} as root, and {reason} can change it{where}; install nri-pin "
                    "where only root can write, such as /opt/nri-pin"
                )
                break


def _not_roots_alone(path: Path) -> str:
    """Users other than root that can change a file or a directory; empty for none."""
    try:
        found = path.lstat()
    except OSError:
        return ""
    if found.st_uid:
        return f"user {found.st_uid}"
    if stat.S_ISLNK(found.st_mode) or (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "every user"
    return f"group {found.st_gid}" if found.st_mode & stat.S_IWGRP and found.st_gid else ""


def drop_in(path: Path, chosen: Path | None) -> str | None:
    """The text to write as configuration; None to keep the present one.

    Both are checked: a plugin that refuses its configuration keeps some runtimes from starting.

    Raises:
        ConfigError: there is no configuration, or it is wrong.
        HostError: `chosen` would replace a file that this command did not write.
    """
    if chosen is None:
        loading.load(str(path))
        return None
    loading.load(str(chosen))
    require_ours(path)
    text = chosen.read_text(encoding="utf-8")
    return text if MARK in text else f"{MARK}\n{text}"


def runtime_settings(view: NodeView) -> NRISettings | None:
    """The NRI settings of the node's runtime; None where they cannot be read."""
    processes = view.processes()
    process = None if isinstance(processes, Hidden) else find_runtime(processes)
    name = find_name(view, process)
    if not name or isinstance(name, Hidden):
        return None
    version = version_of(str(read_version(view, process, name)))
    found = read_settings(view, name, process, merges_keys=version is None or version >= (2, 0, 0))
    return found if isinstance(found, NRISettings) else None


def require_way_back(settings: NRISettings, nri_socket: str, drop_in: Path) -> None:
    """Check that an agent that ended can connect again.

    Raises:
        HostError: the runtime accepts no connections, or listens at another socket than that of the configuration.
    """
    if not settings.takes_connections:
        raise HostError(
            str(settings.closed_by),
            f"{settings.closing_key} is true, so an agent that was killed or dropped could never connect again; set it to false, then "
            "install",
        )
    if is_other_socket(settings.socket, nri_socket):
        raise HostError(
            str(drop_in),
            f"nriSocket is {nri_socket}, and the runtime listens on {settings.socket}; write nriSocket: {settings.socket}",
        )


def install(plugin_dir: Path, config_dir: Path, index: str, chosen: Path | None) -> Changes:
    """Write the drop-in, then the executable: a runtime that starts in between finds no plugin without configuration.

    Raises:
        NriPinError: nothing was installed.
    """
    executable = plugin_dir / f"{index}-{NAME}"
    settings = config_dir / f"{index}-{NAME}.conf"
    require_ours(executable)
    require_no_other_index(plugin_dir, config_dir, index)
    text = drop_in(settings, chosen)
    there = runtime_settings(NodeView(in_pod=is_in_pod()))
    if there is not None:
        source = chosen or settings
        require_way_back(there, loading.load(str(source)).nri_socket, source)
    if text is not None:
        write(settings, text, 0o644)
    write(executable, launcher(os.path.abspath(sys.executable)), 0o755)
    return Changes(
        wrote=(*([] if text is None else [str(settings)]), str(executable)),
        warnings=tuple(who_else_may_change(Path(sys.executable), Path(nri_plugin.__file__).parent)),
        next="the runtime starts it at its own next start, for example: systemctl restart containerd",
    )


def uninstall(plugin_dir: Path, config_dir: Path, index: str) -> Changes:
    """Remove what `install` wrote, the executable first.

    Raises:
        HostError: the plugin is not installed under this index, or a file cannot be removed.
    """
    executable = plugin_dir / f"{index}-{NAME}"
    require_ours(executable)
    removed = [path for path in (executable, config_dir / f"{index}-{NAME}.conf") if remove(path)]
    if not removed:
        raise HostError(str(executable), "is not there; nothing to uninstall")
    return Changes(
        removed=tuple(map(str, removed)),
        next="a running plugin ends with its runtime, for example: systemctl restart containerd; one that came back by "
        "itself ends within seconds",
    )


@click.command(epilog=EXAMPLES)
@click.option(
    "--plugin-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The runtime's plugin_path, by default /opt/nri/plugins.",
)
@click.option(
    "--config-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default="/etc/nri/conf.d",
    show_default=True,
    help="The runtime's plugin_config_path.",
)
@click.option(
    "--index",
    metavar="NN",
    default="90",
    show_default=True,
    help="Two digits; the runtime calls plugins in this order.",
)
@click.option(
    "--config",
    "chosen",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Copy this configuration; without it the drop-in must be there already.",
)
@click.option("--uninstall", "away", is_flag=True, help="Remove the files that install wrote.")
@format_option()
def command(
    plugin_dir: Path, config_dir: Path, index: str, chosen: Path | None, *, away: bool, output_format: str
) -> None:
    """Install the plugin for the container runtime to start."""
    if not re.fullmatch(r"[0-9]{2}", index):
        raise click.BadParameter(f"expected two digits such as 90, found {index}", param_hint="--index")
    if away:
        changes = uninstall(plugin_dir, config_dir, index)
    else:
        changes = install(plugin_dir, config_dir, index, chosen)
    if output_format == "json":
        echo(json.dumps(asdict(changes), indent=2))
    else:
        _say(changes)


def _say(changes: Changes) -> None:
    for path in changes.wrote:
        echo(f"wrote {path}")
    for path in changes.removed:
        echo(f"removed {path}")
    for warning in changes.warnings:
        echo(f"warning: {warning}", err=True)
    echo(changes.next)
