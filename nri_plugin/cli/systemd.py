"""`nri-pin install --systemd`: units that start agent and exporter, and the way back.

The units are the files in `units`. Below each, `install` writes what this node needs beside, as `systemctl edit` would: the
program, and the few rights that the configuration decides: files of interrupts and of the kernel's work for quiet CPUs,
SYS_ADMIN for partitions, a network for its ports.

Invariant: a stopped unit leaves everything as it is. The state directory outlives the service, so an agent that starts
again has the same allocations. Only `uninstall` gives CPUs back.

Source: systemd.exec(5), systemd.service(5); tried with systemd 257.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

import nri_plugin
from nri_plugin.checkpoint.directory import require_own_place
from nri_plugin.checkpoint.file import FILE_NAME
from nri_plugin.cli.installed_files import (
    MARK,
    Changes,
    configuration,
    misfits,
    remove,
    replace_configuration,
    require_ours,
    require_way_in,
    set_aside,
    who_else_may_change,
    write,
)
from nri_plugin.cli.release import give_all_back
from nri_plugin.config import loading
from nri_plugin.config.loading import DEFAULT_PATH, Config
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import IRQs, Isolation, ReceiveSteering, Workqueues

AGENT = "nri-pin.service"
EXPORTER = "nri-pin-exporter.service"
UNIT_DIR = "etc/systemd/system"
RUN = "/run/"
HIDDEN = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108 - nothing is written there
"""What ProtectHome= and PrivateTmp= hide from the units."""

CGROUPS = "/sys/fs/cgroup"


def _path(text: str) -> str:
    """A path or program as systemd reads it in a unit: quoted where needed, `%` doubled."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    is_plain = escaped == text and "'" not in text and not any(map(str.isspace, text))
    return text if is_plain else f'"{escaped}"'


def _word(text: str) -> str:
    """An argument of a command line, where `$` begins a variable."""
    return _path(text).replace("$", "$$")


def _unit(name: str, lines: Iterable[str]) -> str:
    """A unit: the shipped file, then what this node needs beside. Where a key may be there once, its last value counts."""
    shipped = resources.files("nri_plugin.cli") / "units" / name
    return "\n".join([MARK, shipped.read_text("utf-8").rstrip(), "", "# On this node:", *lines, ""])


def _program(interpreter: str, words: Iterable[str]) -> Iterator[str]:
    """The lines that replace the program."""
    yield "ExecStart="
    yield f"ExecStart={_path(interpreter)} -I -m nri_plugin {' '.join(map(_word, words))}"


def _directory(path: str) -> Iterator[str]:
    """Lines that let a unit write this directory in place of its own; systemd makes one below /run at each start."""
    yield "RuntimeDirectory="
    if path.startswith(RUN):
        # A colon would separate the name of a link. Source: systemd.exec(5), RuntimeDirectory=.
        name = _path(path.removeprefix(RUN)).replace(":", "\\:")
        yield f"RuntimeDirectory={name}"
    else:
        yield f"ReadWritePaths={_path(path)}"


def _agent_lines(config: Config, interpreter: str) -> Iterator[str]:
    """The agent's program, and the rights that its configuration needs beside those of the shipped unit."""
    options = config.options
    steers = options.receive_steering is not ReceiveSteering.NONE
    ports = bool(config.metrics_bind_address or config.health_probe_bind_address)
    netlink = config.nic_locality == "netlink"
    yield from _program(interpreter, ["run", "--config", DEFAULT_PATH])
    if config.cgroup_root != CGROUPS:
        yield "ReadWritePaths="
        yield f"ReadWritePaths={_path(config.cgroup_root)}"
    yield from _directory(config.state_dir)
    if options.isolation is not Isolation.NONE:
        yield "CapabilityBoundingSet=CAP_SYS_ADMIN"
    if options.irqs is not IRQs.NONE:
        yield "ReadWritePaths=/proc/irq /sys/devices/system/cpu"
    if options.workqueues is not Workqueues.NONE:
        yield "ReadWritePaths=/sys/devices/virtual/workqueue"
    if steers:
        yield "CapabilityBoundingSet=CAP_NET_ADMIN"
        # The links of /sys/class/net lead there.
        yield "ReadWritePaths=/sys/devices"
    if ports:
        yield "IPAddressDeny="
        yield "RestrictAddressFamilies=AF_INET AF_INET6"
    if netlink:
        yield "RestrictAddressFamilies=AF_NETLINK"
    if ports or netlink or steers:
        # Netlink and sysfs show the devices of the process's own network.
        yield "PrivateNetwork=no"


def agent_unit(config: Config, interpreter: str) -> str:
    """The text of nri-pin.service."""
    return _unit(AGENT, _agent_lines(config, interpreter))


def exporter_unit(config: Config, interpreter: str, kubeconfig: Path) -> str:
    """The text of nri-pin-exporter.service."""
    words = ["export", "--kubeconfig", str(kubeconfig), "--state-dir", config.state_dir]
    return _unit(EXPORTER, [*_program(interpreter, words), *_directory(f"{config.state_dir}/exporter")])


def install(prefix: Path, chosen: Path | None, kubeconfig: Path | None) -> Changes:
    """Write the configuration, then the units.

    Args:
        prefix: the root directory to write below.
        chosen: the configuration to copy; None for the one that is there.
        kubeconfig: the exporter's; None for no exporter.

    Raises:
        NriPinError: nothing was installed.
    """
    settings, agent, exporter = _files(prefix)
    text = configuration(settings, chosen)
    config = loading.load(str(chosen or settings))
    require_ours(agent)
    require_ours(exporter)
    program = Path(nri_plugin.__file__).parent
    _require_seen(Path(sys.executable), program, *([] if kubeconfig is None else [kubeconfig]))
    if _is_running_system(prefix):
        require_way_in(config.nri_socket, chosen or settings)
    if not config.state_dir.startswith(RUN):
        _make_state_dir(prefix, config.state_dir)
    texts = {agent: agent_unit(config, sys.executable)}
    if kubeconfig is not None:
        texts[exporter] = exporter_unit(config, sys.executable, kubeconfig)
    units = " ".join(path.name for path in texts)
    # A unit that runs gets its new rights only from a restart.
    start = f"enable {units} && systemctl restart {units}" if agent.exists() else f"enable --now {units}"
    kept = () if text is None else replace_configuration(settings, text)
    for path, content in texts.items():
        write(path, content, 0o644)
    return Changes(
        wrote=(*([] if text is None else [str(settings)]), *map(str, texts)),
        kept=kept,
        warnings=(
            *(misfits(config) if _is_running_system(prefix) else ()),
            *who_else_may_change("systemd", Path(sys.executable), program),
        ),
        next=f"next: systemctl daemon-reload && systemctl {start}; nri-pin doctor checks the node then",
    )


def uninstall(prefix: Path) -> Changes:
    """Stop the units, give all CPUs back, then remove what `install` wrote; its configuration is moved aside.

    A failure leaves the files, so that the command can be run again.

    Raises:
        NriPinError: the units are not installed, do not stop, or not everything could be given back.
    """
    settings, *units = _files(prefix)
    present = [path for path in units if path.exists()]
    if not present:
        raise HostError(str(units[0]), "is not there; nothing to uninstall")
    for path in present:
        require_ours(path)
    released: tuple[str, ...] = ()
    if _is_running_system(prefix):
        config = loading.load(str(settings))
        _systemctl("disable", "--now", *(path.name for path in present))
        released = _given_back(config)
    removed = [path for path in units if remove(path)]
    kept = set_aside(settings)
    if _is_running_system(prefix):
        _systemctl("daemon-reload")
    return Changes(
        removed=tuple(map(str, removed)),
        kept=kept,
        released=released,
        next="containers keep running; the kubelet's own managers may be switched on again: see the guide, migrate.md",
    )


def _given_back(config: Config) -> tuple[str, ...]:
    """Give all CPUs back; returns what was done.

    Raises:
        NriPinError: not everything could be given back.
    """
    if not (Path(config.state_dir) / FILE_NAME).exists():
        return ("there is no checkpoint, so nothing was pinned",)
    given = give_all_back(config.state_dir, config.cgroup_root or CGROUPS, config.sysfs_root or "/")
    if given.found.failures:
        first = given.found.failures[0]
        raise HostError(
            config.state_dir,
            f"{len(given.found.failures)} failed, first {first}; correct it and uninstall again",
        )
    return tuple(given.lines())


def _files(prefix: Path) -> tuple[Path, Path, Path]:
    """Configuration, agent's unit, exporter's unit."""
    return prefix / DEFAULT_PATH.lstrip("/"), prefix / UNIT_DIR / AGENT, prefix / UNIT_DIR / EXPORTER


def _is_running_system(prefix: Path) -> bool:
    return prefix.resolve() == Path("/")


def _require_seen(*paths: Path) -> None:
    """Refuse what is hidden from the unit.

    Raises:
        HostError: a program or file is below one of those directories.
    """
    for path in paths:
        for seen in (path.absolute(), path.resolve()):
            if str(seen).startswith(HIDDEN):
                raise HostError(
                    str(seen),
                    "is hidden from the unit, as home and temporary directories are; install nri-pin and its files elsewhere, such as below /opt/nri-pin",
                )


def _make_state_dir(prefix: Path, state_dir: str) -> None:
    path = prefix / state_dir.lstrip("/")
    require_own_place(str(path))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(str(path), f"cannot be made: {error.strerror}") from None


def _systemctl(*words: str) -> None:
    """Call systemctl.

    Raises:
        HostError: it is missing or failed.
    """
    if shutil.which("systemctl") is None:
        raise HostError(
            "systemctl", "is not there, so this is no host with systemd; give --prefix to change files only"
        )
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostError(
            f"systemctl {' '.join(words)}", done.stderr.strip() or f"ended with status {done.returncode}"
        )
