"""Files that `nri-pin install` writes, whichever program starts the agent: each has a mark, and no other file is changed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nri_plugin.agent.start import build_node
from nri_plugin.checkpoint.directory import other_writers, replace_file, require_own_place
from nri_plugin.cli.doctor.settings import (
    NRISettings,
    find_name,
    find_runtime,
    is_other_socket,
    read_settings,
    read_version,
    version_of,
)
from nri_plugin.cli.doctor.view import Hidden, NodeView, is_in_pod
from nri_plugin.config import loading
from nri_plugin.model.errors import ConfigError, HostError

FORMER = "previous"
"""The end of the name under which a configuration is kept that install replaces or uninstall takes away."""

MARK = "# written by `nri-pin install`, removed by `nri-pin install --uninstall`"


@dataclass(frozen=True, slots=True)
class Changes:
    """The result of install or uninstall.

    Attributes:
        wrote: files.
        removed: files.
        kept: copies of former configurations, which people may have edited.
        released: what `nri-pin release` did.
        warnings: risks that the operator should remove.
        next: the step that makes it take effect.
    """

    wrote: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    next: str = ""


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
        HostError: the folder cannot be made or written to, or others can write there.
    """
    with _failing(path, "cannot be written"):
        require_own_place(str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(str(path), text.encode(), mode=mode)


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


def set_aside(path: Path) -> tuple[str, ...]:
    """Move a configuration of this command to `NAME.previous`; returns that name, nothing where there is none.

    Raises:
        HostError: it cannot be moved.
    """
    if not path.exists() or not is_ours(path):
        return ()
    kept = path.with_name(f"{path.name}.{FORMER}")
    with _failing(path, "cannot be moved"):
        os.replace(path, kept)
    return (str(kept),)


def replace_configuration(path: Path, text: str) -> tuple[str, ...]:
    """Write a configuration; returns the name under which another former text is kept.

    Raises:
        HostError: it cannot be written.
    """
    kept = path.with_name(f"{path.name}.{FORMER}")
    with _failing(path, "cannot be read"):
        former = path.read_text(encoding="utf-8") if path.exists() else text
    if former != text:
        write(kept, former, 0o644)
    write(path, text, 0o644)
    return () if former == text else (str(kept),)


def who_else_may_change(starter: str, *programs: Path) -> Iterator[str]:
    """Warnings about programs that users other than root can change; the starter runs them as root."""
    for program in programs:
        for path in (program, *program.parents, program.resolve(), *program.resolve().parents):
            reason = other_writers(str(path))
            if reason:
                where = "" if path == program else f" at {path}"
                yield (
                    f"{starter} will run {program} as root, and {reason} can change it{where}; install nri-pin "
                    "where only root can write, such as /opt/nri-pin"
                )
                break


def configuration(path: Path, chosen: Path | None) -> str | None:
    """The text to write as configuration; None to keep the present one.

    Both are checked: a plugin that refuses its configuration keeps some runtimes from starting.

    Raises:
        ConfigError: there is no configuration, or it is wrong.
        HostError: `chosen` would replace a file that this command did not write.
    """
    if chosen is None or (path.exists() and chosen.samefile(path)):
        loading.load(str(path))
        return None
    loading.load(str(chosen))
    require_ours(path)
    text = chosen.read_text(encoding="utf-8")
    return text if MARK in text else f"{MARK}\n{text}"


def misfits(config: loading.Config) -> Iterator[str]:
    """A warning where an agent with this configuration would not start on this machine; it may be for another one."""
    try:
        build_node(config, None)
    except (ConfigError, HostError) as error:
        yield f"{error}; an agent with this configuration does not start on this machine"


def runtime_settings(view: NodeView) -> NRISettings | None:
    """The NRI settings of the node's runtime; None where they cannot be read."""
    processes = view.processes()
    process = None if isinstance(processes, Hidden) else find_runtime(view, processes)
    name = find_name(view, process)
    if not name or isinstance(name, Hidden):
        return None
    version = version_of(str(read_version(view, process, name)))
    found = read_settings(view, name, process, merges_keys=version is None or version >= (2, 0, 0))
    return found if isinstance(found, NRISettings) else None


def require_way_in(nri_socket: str, source: Path) -> None:
    """Check that an agent can connect to the runtime of this node, if the runtime's settings can be read.

    Args:
        nri_socket: where the configuration says that the runtime listens.
        source: the configuration.

    Raises:
        HostError: the runtime accepts no connections, or listens at another socket.
    """
    settings = runtime_settings(NodeView(in_pod=is_in_pod()))
    if settings is None:
        return
    if not settings.takes_connections:
        raise HostError(
            str(settings.closed_by),
            f"{settings.closing_key} is true, so an agent that was killed or dropped could never connect again; set it to false, then "
            "install",
        )
    if is_other_socket(settings.socket, nri_socket):
        raise HostError(
            str(source),
            f"nriSocket is {nri_socket}, and the runtime listens on {settings.socket}; write nriSocket: {settings.socket}",
        )
