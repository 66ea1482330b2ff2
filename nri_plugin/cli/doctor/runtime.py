"""What `nri-pin doctor` says of the container runtime; pure."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nri_plugin.agent.status_client import RuntimeRow
from nri_plugin.cli.doctor.findings import Finding, Verdict, advice, fine, not_visible, to_do
from nri_plugin.cli.doctor.node_evidence import Hidden
from nri_plugin.cli.doctor.service_evidence import (
    CONTAINERD,
    CONTAINERD_FILES,
    CRIO,
    NRI_TABLE,
    SOCKET,
    BrokenFile,
    NRISettings,
    is_other_socket,
)

OURS = re.compile(r"\d\d-nri-pin\Z")
PLUGIN_FILE = re.compile(r"\d\d-.+\Z")
TIMEOUT_S = 2.0
"""The default of every release; figures and limits of ours are for it."""

REGISTRATION_S = 5.0
TOLERATE = "nri-pin/tolerate-missing-plugins"
UPGRADE = "use containerd 1.7.26 or later, or CRI-O 1.30 or later"

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class RuntimeEvidence:
    """What was seen.

    Attributes:
        name: `containerd` or `CRI-O`; empty when the node has neither.
        version: as it says; empty when it says nothing.
        settings: None when there is no runtime.
        told: what the runtime told the running agent.
        socket: empty when the NRI socket accepts connections, else why not.
        agent_socket: where the agent's configuration looks for it; empty without configuration.
        plugins: names in the runtime's plugin folder; None when there is no such folder.
        drop_ins: names in its folder of configurations.
        plugin_name: ours.
    """

    name: str | Hidden
    version: str | Hidden = ""
    settings: NRISettings | Hidden | BrokenFile | None = None
    told: RuntimeRow | None = None
    socket: str | Hidden = ""
    agent_socket: str = ""
    plugins: tuple[str, ...] | Hidden | None = None
    drop_ins: tuple[str, ...] | Hidden | None = None
    plugin_name: str = "nri-pin"


def judge(seen: RuntimeEvidence) -> Iterator[Finding]:
    """The findings, in the order of the way from the runtime to us."""
    name, version = _name(seen), _version(seen)
    if name == "":
        yield to_do(
            "runtime",
            "neither containerd nor CRI-O runs here, and neither is configured, so no runtime can start the agent or ask it",
            "ask on a node of the cluster; without one, nri-pin demo plays one",
            "nri-pin demo",
        )
        return
    yield _runtime(seen, name, version)
    switch = _nri(seen, version)
    yield switch
    if switch.verdict is not Verdict.TO_DO:
        yield from _socket(seen)
    yield from _timeouts(seen)
    yield from _plugins(seen)
    yield from _fail_closed(seen, name, version)


def version_of(text: str) -> Version | None:
    """(major, minor, patch); None where there is none to read."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def limits(name: str, version: Version) -> str:
    """What this release lacks that would concern placements; empty for nothing."""
    if name != CONTAINERD:
        return (
            "" if version >= (1, 34, 0) else "it cannot refuse containers while the agent is away (1.34 can)"
        )
    if version < (1, 7, 26):
        return (
            "its NRI 0.6 never synchronizes a plugin that it started itself, and cannot refuse containers while "
            "the agent is away (2.2 can)"
        )
    if version < (2, 2, 0):
        return "it cannot refuse containers while the agent is away (2.2 can)"
    return "it tells no pod totals on a resize (2.3 does)" if version < (2, 3, 0) else ""


def nri_default(name: str, version: Version) -> bool:
    """Whether NRI is on where nothing is written."""
    return version >= (2, 0, 0) if name == CONTAINERD else version >= (1, 30, 0)


def _name(seen: RuntimeEvidence) -> str | Hidden:
    if seen.told is not None:
        return CONTAINERD if seen.told.name == "containerd" else "CRI-O"
    return seen.name


def _version(seen: RuntimeEvidence) -> Version | None:
    for text in (seen.told.version if seen.told else "", seen.version):
        found = version_of(text) if isinstance(text, str) else None
        if found is not None:
            return found
    settings = seen.settings
    return None if not isinstance(settings, NRISettings) or settings.format_version < 3 else (2, 0, 0)


def _runtime(seen: RuntimeEvidence, name: str | Hidden, version: Version | None) -> Finding:
    if isinstance(name, Hidden):
        return not_visible("runtime", name, "whether containerd or CRI-O runs here cannot be seen")
    text = seen.told.version if seen.told else seen.version
    if version is None or not isinstance(text, str) or not text:
        hidden = text if isinstance(text, Hidden) else Hidden("")
        says = f"{name} is here, and its version cannot be seen"
        return not_visible("runtime", hidden, says, f"look for it on the node: {_program(name)} --version")
    if (name == CONTAINERD and version < (1, 7, 0)) or (version < (1, 26, 0) and name != CONTAINERD):
        return to_do("runtime", f"{name} {text} has no NRI that plugins can place containers with", UPGRADE)
    says = f"{name} {text.removeprefix('v')}"
    lacks = limits(name, version)
    if name == CONTAINERD and version < (1, 7, 16):
        return advice("runtime", f"{says} is older than any that nri-pin was tried with", UPGRADE)
    return fine("runtime", f"{says}; {lacks}" if lacks else says)


def _nri(seen: RuntimeEvidence, version: Version | None) -> Finding:
    settings = seen.settings
    closed = _closed(settings) if isinstance(settings, NRISettings) else None
    if seen.told is not None:
        return closed or fine("nri", "on: the runtime asks the agent")
    if isinstance(settings, Hidden):
        return not_visible("nri", settings, "whether NRI is on cannot be seen")
    if isinstance(settings, BrokenFile):
        return to_do("nri", f"{settings.path} cannot be read by the runtime: {settings.detail}", "mend it")
    if settings is None:
        return not_visible(
            "nri", Hidden(CONTAINERD_FILES[0], why="no runtime was found"), "nothing tells of NRI"
        )
    if settings.is_on is None and version is None and seen.socket == "":
        return fine("nri", f"on: its socket {settings.socket} takes connections")
    return _switched_off(settings, version) or closed or fine("nri", _why_on(settings))


def _switched_off(settings: NRISettings, version: Version | None) -> Finding | None:
    if settings.is_disabled_as_plugin:
        return to_do(
            "nri",
            f"off: disabled_plugins in {_main(settings)} names it",
            f"take it out of that list, then restart {_unit(settings)}",
        )
    if settings.is_on is False:
        return to_do("nri", f"off, by {settings.where}", "switch it on", switch_on(settings))
    if settings.is_on:
        return None
    if version is None:
        return not_visible(
            "nri",
            Hidden(""),
            f"{_main(settings)} says nothing of NRI, and whether it is on by default depends on the version",
            f"look for the version on the node: {_unit(settings)} --version",
        )
    if nri_default(settings.runtime, version):
        return None
    return to_do(
        "nri",
        f"off: {settings.runtime} {'.'.join(map(str, version))} has it off where {_main(settings)} does not switch it on",
        "switch it on",
        switch_on(settings),
    )


def _closed(settings: NRISettings) -> Finding | None:
    if settings.takes_connections:
        return None
    key = "disable_connections" if settings.runtime == CONTAINERD else "nri_disable_connections"
    path, _, line = settings.closed_by.rpartition(":")
    command = f"sed -i '{line}s/true/false/' {shlex.quote(path)} && systemctl restart {_unit(settings)}"
    return to_do(
        "nri",
        f"on, but closed by {settings.closed_by or _main(settings)}: {key} is true, so no agent can connect, and one that the "
        "runtime started cannot come back once it has ended",
        f"set {key} to false, and restart the runtime",
        command if line.isdecimal() else "",
    )


def _why_on(settings: NRISettings) -> str:
    return f"on, by {settings.where}" if settings.is_on else f"on: {settings.runtime} has it on by default"


def switch_on(settings: NRISettings) -> str:
    """A line that switches NRI on and restarts the runtime."""
    restart = f"systemctl restart {_unit(settings)}"
    if settings.runtime != CONTAINERD:
        text = r"'[crio.nri]\nenable_nri = true\n'"
        return f"printf {text} > /etc/crio/crio.conf.d/99-nri.conf && {restart}"
    path, _, line = settings.where.rpartition(":")
    if settings.is_on is False and line.isdecimal():
        return f"sed -i '{line}s/true/false/' {shlex.quote(path)} && {restart}"
    if settings.table:
        path, _, line = settings.table.rpartition(":")
        return f"sed -i '{line}a disable = false' {shlex.quote(path)} && {restart}"
    main = shlex.quote(_main(settings))
    head = "" if settings.files else "version = 2"
    return rf"""printf '{head}\n[plugins."{NRI_TABLE}"]\n  disable = false\n' >> {main} && {restart}"""


def _socket(seen: RuntimeEvidence) -> Iterator[Finding]:
    settings = seen.settings
    path = settings.socket if isinstance(settings, NRISettings) else seen.agent_socket or SOCKET
    is_started = isinstance(seen.plugins, tuple) and any(map(OURS.match, seen.plugins))
    if seen.told is not None and not is_started:
        yield fine("nri-socket", "connected: the agent is registered and has been told what exists")
        return
    if (
        isinstance(settings, NRISettings)
        and seen.agent_socket
        and is_other_socket(settings.socket, seen.agent_socket)
    ):
        yield to_do(
            "nri-socket",
            f"the runtime listens on {settings.socket}, the agent is configured for {seen.agent_socket}",
            f"write nriSocket: {settings.socket} into the agent's configuration"
            + (f", and restart {_unit(settings)}" if is_started else ""),
        )
        return
    if seen.told is not None:
        yield fine("nri-socket", "connected: the agent is registered and has been told what exists")
        return
    if isinstance(seen.socket, Hidden):
        yield not_visible("nri-socket", seen.socket, f"whether {path} accepts connections cannot be seen")
    elif seen.socket:
        unit = _unit(settings) if isinstance(settings, NRISettings) else "containerd"
        yield to_do(
            "nri-socket",
            f"{path}: {seen.socket}",
            "switch NRI on and start the runtime",
            f"systemctl restart {unit}",
        )
    else:
        yield fine("nri-socket", f"{path} takes connections")


def _timeouts(seen: RuntimeEvidence) -> Iterator[Finding]:
    settings, told = seen.settings, seen.told
    if told is not None and told.request_timeout_ms:
        request_s, registration_s = told.request_timeout_ms / 1000, told.registration_timeout_ms / 1000
    elif isinstance(settings, NRISettings):
        request_s, registration_s = settings.request_timeout_s, settings.registration_timeout_s
    elif isinstance(settings, Hidden):
        yield not_visible("nri-timeouts", settings, "how long a plugin may take cannot be seen")
        return
    else:
        return
    says = f"{request_s:g} s for a request, {registration_s:g} s to register"
    if request_s < TIMEOUT_S or registration_s < REGISTRATION_S:
        yield to_do(
            "nri-timeouts",
            f"{says}; a plugin that is later is dropped, and containers start unpinned",
            f"set plugin_request_timeout to {TIMEOUT_S:g}s and plugin_registration_timeout to {REGISTRATION_S:g}s or more, "
            "and restart the runtime",
        )
        return
    yield fine("nri-timeouts", says)


def _plugins(seen: RuntimeEvidence) -> Iterator[Finding]:
    settings = seen.settings
    folder = settings.plugin_dir if isinstance(settings, NRISettings) else "/opt/nri/plugins"
    if isinstance(seen.plugins, Hidden):
        yield not_visible(
            "nri-plugins", seen.plugins, "which plugins the runtime starts itself cannot be seen"
        )
        return
    ours = [name for name in seen.plugins or () if PLUGIN_FILE.match(name) and OURS.match(name)]
    others = other_plugins(seen)
    if len(ours) > 1:
        yield to_do(
            "nri-plugins",
            f"the runtime starts the agent {len(ours)} times: {', '.join(ours)} in {folder}",
            "keep one",
            f"nri-pin install --plugin-dir {shlex.quote(folder)} --index {ours[0][:2]} --uninstall",
        )
    elif others:
        yield advice(
            "nri-plugins",
            f"the runtime also starts {', '.join(others)} from {folder}",
            "see that none of them gives CPUs to containers; where one does, take it away",
        )
    else:
        yield fine(
            "nri-plugins", f"the runtime starts {ours[0] if ours else 'no other plugin'} from {folder}"
        )
    yield from _drop_in(seen, ours)


def other_plugins(seen: RuntimeEvidence) -> tuple[str, ...]:
    """What the runtime starts beside the agent; nothing where its folder cannot be seen."""
    names = () if isinstance(seen.plugins, Hidden) else seen.plugins or ()
    return tuple(name for name in names if PLUGIN_FILE.match(name) and not OURS.match(name))


def starts_agent(seen: RuntimeEvidence) -> bool:
    """Whether the runtime starts the agent itself."""
    return not isinstance(seen.plugins, Hidden) and any(OURS.match(name) for name in seen.plugins or ())


def restart_of(seen: RuntimeEvidence) -> str:
    """What restarts the runtime."""
    return f"systemctl restart {'crio' if seen.name == CRIO else 'containerd'}"


def _drop_in(seen: RuntimeEvidence, ours: Sequence[str]) -> Iterator[Finding]:
    """A plugin that the runtime starts gets its configuration from a drop-in of its name."""
    settings = seen.settings
    folder = settings.config_dir if isinstance(settings, NRISettings) else "/etc/nri/conf.d"
    plugin_dir = settings.plugin_dir if isinstance(settings, NRISettings) else "/opt/nri/plugins"
    if not ours:
        return
    if isinstance(seen.drop_ins, Hidden):
        yield not_visible("nri-drop-in", seen.drop_ins, f"the configuration of {ours[0]} cannot be seen")
        return
    names = [f"{ours[0]}.conf", f"{ours[0][3:]}.conf"]
    found = [name for name in names if name in (seen.drop_ins or ())]
    if found:
        yield fine("nri-drop-in", f"the runtime hands {folder}/{found[0]} to the agent")
    else:
        yield to_do(
            "nri-drop-in",
            f"the runtime starts {ours[0]}, and there is no {folder}/{names[0]} to hand to it",
            "install it again with a configuration",
            f"nri-pin install --plugin-dir {shlex.quote(plugin_dir)} --index {ours[0][:2]} --config ./config.yaml "
            f"&& systemctl restart {_unit(settings) if isinstance(settings, NRISettings) else 'containerd'}",
        )


def _fail_closed(seen: RuntimeEvidence, name: str | Hidden, version: Version | None) -> Iterator[Finding]:
    settings = seen.settings
    if isinstance(settings, Hidden):
        yield not_visible(
            "fail-closed", settings, "whether containers are refused while the agent is away cannot be seen"
        )
    if not isinstance(settings, NRISettings):
        return
    if version is not None and version < ((2, 2, 0) if name == CONTAINERD else (1, 34, 0)):
        yield advice(
            "fail-closed",
            "this runtime cannot refuse containers while the agent is away: they start unpinned, and are placed later",
            "use containerd 2.2 or CRI-O 1.34 where that must not happen",
        )
    elif not settings.required_plugins:
        yield fine(
            "fail-closed",
            "containers that are created while the agent is away start unpinned, and are placed later",
        )
    elif not settings.validator_is_on:
        yield to_do(
            "fail-closed",
            f"required plugins are named in {_main(settings)}, and the validator that would ask for them is off",
            "set enable = true in its table (default_validator), and restart the runtime",
        )
    else:
        yield _required(seen, settings)


def _required(seen: RuntimeEvidence, settings: NRISettings) -> Finding:
    names = ", ".join(settings.required_plugins)
    if seen.plugin_name not in settings.required_plugins:
        return to_do(
            "fail-closed",
            f"the runtime requires {names}, and the agent is called {seen.plugin_name}",
            f"write pluginName: {settings.required_plugins[0]} into the agent's configuration",
        )
    if settings.tolerate_annotation != TOLERATE:
        found = settings.tolerate_annotation or "not set"
        return to_do(
            "fail-closed",
            f"the runtime requires {names}, and tolerate_missing_plugins_annotation is {found}: after a reboot the pods "
            "that the agent needs, and its own, are refused",
            f"set it to {TOLERATE}, which the agent's DaemonSet carries, and put it on static pods and on the network's",
        )
    return fine("fail-closed", f"containers are refused while {names} is away, but for pods with {TOLERATE}")


def _main(settings: NRISettings) -> str:
    default = CONTAINERD_FILES[0] if settings.runtime == CONTAINERD else "/etc/crio/crio.conf"
    return settings.files[0] if settings.files else default


def _program(name: str) -> str:
    return "containerd" if name == CONTAINERD else "crio"


def _unit(settings: NRISettings) -> str:
    return _program(settings.runtime)
