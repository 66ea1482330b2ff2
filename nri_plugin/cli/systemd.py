"""`nri-pin install --systemd`: units that start agent and exporter, and the way back.

The agent is uid 0 without any capability, with a read-only root; its configuration decides the few rights that it gets
beside: files of interrupts and of the kernel's work for quiet CPUs, SYS_ADMIN for partitions, a network for its ports.

Invariant: a stopped unit leaves everything as it is. The state directory outlives the service, so an agent that starts
again has the same allocations. Only `uninstall` gives CPUs back.

Source: systemd.exec(5), systemd.service(5); tried with systemd 257.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
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
IRQ_FILES = ("/proc/irq", "/sys/devices/system/cpu")
WORKQUEUE_FILES = ("/sys/devices/virtual/workqueue",)
DEVICE_FILES = ("/sys/devices",)
"""Where the links of /sys/class/net lead."""

HARDENED = """\
NoNewPrivileges=yes
ProtectSystem=strict
ReadOnlyPaths=/run
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateMounts=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectClock=yes
ProtectHostname=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
UMask=0077
"""
"""What agent and exporter have in common. With ProtectSystem=strict alone, systemd 257 leaves /run writable. /proc stays
whole: the agent reads the memory size, locks and cgroups of processes."""


def _path(text: str) -> str:
    """A path or program as systemd reads it in a unit: quoted where needed, `%` doubled."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    is_plain = escaped == text and "'" not in text and not any(map(str.isspace, text))
    return text if is_plain else f'"{escaped}"'


def _word(text: str) -> str:
    """An argument of a command line, where `$` begins a variable."""
    return _path(text).replace("$", "$$")


def _directory(path: str) -> Iterator[str]:
    """Lines that let a unit write a directory; one below /run is made at each start and kept at each stop."""
    if path.startswith(RUN):
        # A colon would separate the name of a link. Source: systemd.exec(5), RuntimeDirectory=.
        name = _path(path.removeprefix(RUN)).replace(":", "\\:")
        yield f"RuntimeDirectory={name}"
        yield "RuntimeDirectoryMode=0700"
        yield "RuntimeDirectoryPreserve=yes"
    else:
        yield f"ReadWritePaths={_path(path)}"


def _network(*, ports: bool, netlink: bool = False, devices: bool = False) -> Iterator[str]:
    """Lines about the network. Without a port the agent has none; netlink and sysfs show the devices of its own network."""
    families = ["AF_UNIX", *(("AF_INET", "AF_INET6") if ports else ()), *(("AF_NETLINK",) if netlink else ())]
    if not (ports or netlink or devices):
        yield "PrivateNetwork=yes"
    if not ports:
        yield "IPAddressDeny=any"
    yield f"RestrictAddressFamilies={' '.join(families)}"


def agent_unit(config: Config, interpreter: str) -> str:
    """The text of nri-pin.service."""
    options = config.options
    steers = options.receive_steering is not ReceiveSteering.NONE
    capabilities = [
        *(["CAP_SYS_ADMIN"] if options.isolation is not Isolation.NONE else []),
        *(["CAP_NET_ADMIN"] if steers else []),
    ]
    written = [
        config.cgroup_root or CGROUPS,
        *(IRQ_FILES if options.irqs is not IRQs.NONE else ()),
        *(WORKQUEUE_FILES if options.workqueues is not Workqueues.NONE else ()),
        *(DEVICE_FILES if steers else ()),
    ]
    ports = bool(config.metrics_bind_address or config.health_probe_bind_address)
    return "\n".join(
        [
            MARK,
            "[Unit]",
            "Description=nri-pin, NUMA-aligned CPUs and memory nodes for containers",
            "# The agent waits for its runtime. Pods that the kubelet starts find it there.",
            "After=containerd.service crio.service",
            "Before=kubelet.service",
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={_path(interpreter)} -I -m nri_plugin run --config {DEFAULT_PATH}",
            "ExecReload=/bin/kill -HUP $MAINPID",
            "Restart=always",
            "RestartSec=1",
            "# 2: the configuration is wrong, and would be at the next start.",
            "RestartPreventExitStatus=2",
            "# As a pod of the class system-node-critical.",
            "OOMScoreAdjust=-997",
            *_directory(config.state_dir),
            *(f"ReadWritePaths={_path(path)}" for path in written),
            f"CapabilityBoundingSet={' '.join(capabilities)}",
            "AmbientCapabilities=",
            *_network(ports=ports, netlink=config.nic_locality == "netlink", devices=steers),
            HARDENED,
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def exporter_unit(config: Config, interpreter: str, kubeconfig: Path) -> str:
    """The text of nri-pin-exporter.service: it reads the agent's socket and writes only the folder of its own."""
    words = ["export", "--kubeconfig", str(kubeconfig), "--state-dir", config.state_dir]
    return "\n".join(
        [
            MARK,
            "[Unit]",
            "Description=nri-pin exporter, capacity of this node for the cluster",
            f"After={AGENT} network-online.target",
            "Wants=network-online.target",
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={_path(interpreter)} -I -m nri_plugin {' '.join(map(_word, words))}",
            "Restart=always",
            "RestartSec=5",
            *_directory(f"{config.state_dir}/exporter"),
            "CapabilityBoundingSet=",
            "AmbientCapabilities=",
            "ProtectControlGroups=yes",
            "ProtectProc=invisible",
            *_network(ports=True),
            HARDENED,
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


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
