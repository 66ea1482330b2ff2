"""The checks of `nri-pin doctor` on the container runtime; pure."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from nri_plugin.agent.status_client import RuntimeRow
from nri_plugin.cli.doctor.findings import Finding, Verdict, advice, fine, judged, named, not_visible, to_do
from nri_plugin.cli.doctor.runtime_files import (
    CONTAINERD,
    CONTAINERD_FILES,
    CRIO,
    NRI_TABLE,
    SOCKET,
    UNITS,
    BrokenFile,
    FileLine,
    NRISettings,
    is_other_socket,
)
from nri_plugin.cli.doctor.support import Basis, Version, caveat, support_of
from nri_plugin.cli.doctor.view import Hidden

OURS = re.compile(r"\d\d-nri-pin\Z")
PLUGIN_FILE = re.compile(r"\d\d-.+\Z")
TIMEOUT_S = 2.0
"""The default of every release; figures and limits of ours are for it."""

REGISTRATION_S = 5.0
TOLERATE = "nri-pin/tolerate-missing-plugins"
UPGRADE = "use containerd 1.7.26 or later, or CRI-O 1.30 or later"

FIRST_WITH_NRI: dict[str, Version] = {CONTAINERD: (1, 7, 0), CRIO: (1, 26, 0)}
FIRST_WITH_NRI_ON: dict[str, Version] = {CONTAINERD: (2, 0, 0), CRIO: (1, 30, 0)}
FIRST_FAIL_CLOSED: dict[str, Version] = {CONTAINERD: (2, 2, 0), CRIO: (1, 34, 0)}
LIMITS: dict[str, tuple[tuple[Version, str], ...]] = {
    CRIO: (((1, 34, 0), "it cannot refuse containers while the agent is away (1.34 can)"),),
    CONTAINERD: (
        (
            (1, 7, 26),
            (
                "its NRI 0.6 never synchronizes a plugin that it started itself, and cannot refuse containers "
                "while the agent is away (2.2 can)"
            ),
        ),
        ((2, 2, 0), "it cannot refuse containers while the agent is away (2.2 can)"),
        ((2, 3, 0), "it tells no pod totals on a resize (2.3 does)"),
    ),
}
"""By runtime: what releases before a version lack that would concern placements."""


@dataclass(frozen=True, slots=True)
class RuntimeEvidence:
    """The evidence about the container runtime.

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

    @property
    def known(self) -> NRISettings | None:
        """The settings where they could be read."""
        return self.settings if isinstance(self.settings, NRISettings) else None

    @property
    def known_or_default(self) -> NRISettings:
        """The settings; those of containerd where they could not be read."""
        return self.known or NRISettings(CONTAINERD)

    @property
    def our_plugins(self) -> list[str]:
        """Files by which the runtime starts the agent itself; none where its folder cannot be seen."""
        return [name for name in self._plugin_names if OURS.match(name)]

    @property
    def other_plugins(self) -> list[str]:
        """Plugins that the runtime starts beside the agent; none where its folder cannot be seen."""
        return [name for name in self._plugin_names if PLUGIN_FILE.match(name) and not OURS.match(name)]

    @property
    def _plugin_names(self) -> tuple[str, ...]:
        return () if isinstance(self.plugins, Hidden) else self.plugins or ()

    @property
    def runtime(self) -> str | Hidden:
        """`containerd` or `CRI-O`, by the agent where it knows; empty when the node has neither."""
        if self.told is not None:
            return CONTAINERD if self.told.name == "containerd" else CRIO
        return self.name

    @property
    def release(self) -> Version | None:
        """The version, by the agent where it knows; None where it cannot be seen."""
        for text in (self.told.version if self.told else "", self.version):
            found = version_of(text) if isinstance(text, str) else None
            if found is not None:
                return found
        return (2, 0, 0) if self.known and self.known.format_version >= 3 else None

    @property
    def restart(self) -> str:
        """The command that restarts the runtime."""
        return (
            f"systemctl restart {(self.known or NRISettings(CRIO if self.name == CRIO else CONTAINERD)).unit}"
        )


def version_of(text: str) -> Version | None:
    """(major, minor, patch); None where there is none to read."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _runtime(seen: RuntimeEvidence) -> Finding:
    name, version = seen.runtime, seen.release
    if name == "":
        return to_do(
            "neither containerd nor CRI-O runs here, and neither is configured, so no runtime can start the agent or ask it",
            "ask on a node of the cluster; without one, nri-pin simulate tries pods on a described machine",
            "nri-pin simulate --list",
        )
    if isinstance(name, Hidden):
        return not_visible(name, "whether containerd or CRI-O runs here cannot be seen")
    text = seen.told.version if seen.told else seen.version
    if version is None or not isinstance(text, str) or not text:
        hidden = text if isinstance(text, Hidden) else Hidden("")
        says = f"{name} is here, and its version cannot be seen"
        return not_visible(hidden, says, f"look for it on the node: {UNITS[name]} --version")
    if version < FIRST_WITH_NRI[name]:
        return to_do(f"{name} {text} has no NRI that plugins can place containers with", UPGRADE)
    says, row = f"{name} {text.removeprefix('v')}", support_of(name, version)
    lacks = [limit for before, limit in LIMITS[name] if version < before]
    if lacks and (row is None or row.basis is Basis.NOT_TRIED):
        return advice(f"{says} is older than any that nri-pin was tried with", UPGRADE)
    return fine("; ".join([says, *lacks[:1], *filter(None, [caveat(name, version)])]))


def _nri(seen: RuntimeEvidence) -> Finding | None:
    settings, version = seen.settings, seen.release
    if isinstance(seen.runtime, str) and version and version < FIRST_WITH_NRI[seen.runtime]:
        return None  # there is nothing to switch on, and `_runtime` says so
    closed = _closed(settings) if isinstance(settings, NRISettings) else None
    if seen.told is not None:
        return closed or fine("on: the runtime asks the agent")
    if isinstance(settings, Hidden):
        return not_visible(settings, "whether NRI is on cannot be seen")
    if isinstance(settings, BrokenFile):
        return to_do(f"{settings.path} cannot be read by the runtime: {settings.detail}", "mend it")
    if settings is None:
        hidden = Hidden(CONTAINERD_FILES[0], why="no runtime was found")
        return not_visible(hidden, "nothing tells of NRI")
    if settings.is_on is None and version is None and seen.socket == "":
        return fine(f"on: its socket {settings.socket} takes connections")
    on = f"on, by {settings.where}" if settings.is_on else f"on: {settings.runtime} has it on by default"
    return _switched_off(settings, version) or closed or fine(on)


def _switched_off(settings: NRISettings, version: Version | None) -> Finding | None:
    if settings.is_disabled_as_plugin:
        return to_do(
            f"off: disabled_plugins in {settings.main_file} names it",
            f"take it out of that list{settings.edited}, then restart {settings.unit}",
        )
    if settings.is_on is False:
        return to_do(f"off, by {settings.where}", f"switch it on{settings.edited}", switch_on(settings))
    if settings.is_on:
        return None
    if version is None:
        return not_visible(
            Hidden(""),
            f"{settings.main_file} says nothing of NRI, and whether it is on by default depends on the version",
            f"look for the version on the node: {UNITS[settings.runtime]} --version",
        )
    if version >= FIRST_WITH_NRI_ON[settings.runtime]:
        return None
    release = f"{settings.runtime} {'.'.join(map(str, version))}"
    return to_do(
        f"off: {release} has it off where {settings.main_file} does not switch it on",
        f"switch it on{settings.edited}",
        switch_on(settings),
    )


def _closed(settings: NRISettings) -> Finding | None:
    if settings.takes_connections:
        return None
    key = settings.closing_key
    return to_do(
        f"on, but closed by {settings.closed_by}: {key} is true, so no agent can connect, and one "
        "that the runtime started cannot come back once it has ended",
        f"set {key} to false{settings.edited}, and restart {settings.unit}",
        _edit(settings, settings.closed_by, "s/true/false/") if settings.closed_by.line else "",
    )


def _edit(settings: NRISettings, place: FileLine, edit: str) -> str:
    """A line that edits a line of a file, or of its template, and restarts the runtime; empty where it is for people."""
    restart = f"systemctl restart {settings.unit}"
    if settings.distribution is None or settings.has_template:
        return f"sed -i '{place.line}{edit}' {shlex.quote(place.path)} && {restart}"
    if not settings.distribution.base:
        return ""
    # A first template is the file as it is now, with the change.
    return (
        f"sed '{place.line}{edit}' {shlex.quote(place.path)} > {shlex.quote(settings.template)} && {restart}"
    )


def switch_on(settings: NRISettings) -> str:
    """A line that switches NRI on and restarts the runtime."""
    restart = f"systemctl restart {settings.unit}"
    if settings.runtime != CONTAINERD:
        text = r"'[crio.nri]\nenable_nri = true\n'"
        return f"printf {text} > /etc/crio/crio.conf.d/99-nri.conf && {restart}"
    if settings.is_on is False and settings.where.line:
        return _edit(settings, settings.where, "s/true/false/")
    if settings.table.line:
        return _edit(settings, settings.table, "a disable = false")
    main = shlex.quote(settings.template or settings.main_file)
    head = "" if settings.files else "version = 2"
    if settings.distribution is not None:
        if not settings.has_template and not settings.distribution.base:
            return ""
        head = "" if settings.has_template else rf"{settings.distribution.base}\n"
    return rf"""printf '{head}\n[plugins."{NRI_TABLE}"]\n  disable = false\n' >> {main} && {restart}"""


def _socket(seen: RuntimeEvidence) -> Finding | None:
    nri = _nri(seen)
    if nri is None or nri.verdict is Verdict.TO_DO:
        return None
    settings, is_started = seen.known, bool(seen.our_plugins)
    path = settings.socket if settings else seen.agent_socket or SOCKET
    is_other = settings and seen.agent_socket and is_other_socket(settings.socket, seen.agent_socket)
    if seen.told is not None and not (is_started and is_other):
        return fine("connected: the agent is registered and has been told what exists")
    if settings and is_other:
        return to_do(
            f"the runtime listens on {settings.socket}, the agent is configured for {seen.agent_socket}",
            f"write nriSocket: {settings.socket} into the agent's configuration"
            + (f", and restart {settings.unit}" if is_started else ""),
        )
    if isinstance(seen.socket, Hidden):
        return not_visible(seen.socket, f"whether {path} accepts connections cannot be seen")
    if seen.socket:
        restart = f"systemctl restart {seen.known_or_default.unit}"
        return to_do(f"{path}: {seen.socket}", "switch NRI on and start the runtime", restart)
    return fine(f"{path} takes connections")


def _timeouts(seen: RuntimeEvidence) -> Finding | None:
    settings, told = seen.settings, seen.told
    if told is not None and told.request_timeout_ms:
        request_s, registration_s = told.request_timeout_ms / 1000, told.registration_timeout_ms / 1000
    elif isinstance(settings, NRISettings):
        request_s, registration_s = settings.request_timeout_s, settings.registration_timeout_s
    elif isinstance(settings, Hidden):
        return not_visible(settings, "how long a plugin may take cannot be seen")
    else:
        return None
    says = f"{request_s:g} s for a request, {registration_s:g} s to register"
    if request_s >= TIMEOUT_S and registration_s >= REGISTRATION_S:
        return fine(says)
    return to_do(
        f"{says}; a plugin that is later is dropped, and containers start unpinned",
        f"set plugin_request_timeout to {TIMEOUT_S:g}s and plugin_registration_timeout to {REGISTRATION_S:g}s or more"
        f"{seen.known_or_default.edited}, and restart the runtime",
    )


def _plugins(seen: RuntimeEvidence) -> Finding:
    folder = seen.known_or_default.plugin_dir
    if isinstance(seen.plugins, Hidden):
        return not_visible(seen.plugins, "which plugins the runtime starts itself cannot be seen")
    ours, others = seen.our_plugins, seen.other_plugins
    if len(ours) > 1:
        return to_do(
            f"the runtime starts the agent {len(ours)} times: {', '.join(ours)} in {folder}",
            "keep one",
            f"nri-pin install --plugin-dir {shlex.quote(folder)} --index {ours[0][:2]} --uninstall",
        )
    if others:
        return advice(
            f"the runtime also starts {', '.join(others)} from {folder}",
            "see that none of them gives CPUs to containers; where one does, take it away",
        )
    return fine(f"the runtime starts {ours[0] if ours else 'no other plugin'} from {folder}")


def _drop_in(seen: RuntimeEvidence) -> Finding | None:
    """A plugin that the runtime starts gets its configuration from a drop-in of its name."""
    settings = seen.known_or_default
    if not seen.our_plugins:
        return None
    plugin = seen.our_plugins[0]
    if isinstance(seen.drop_ins, Hidden):
        return not_visible(seen.drop_ins, f"the configuration of {plugin} cannot be seen")
    names = [f"{plugin}.conf", f"{plugin[3:]}.conf"]
    for name in names:
        if name in (seen.drop_ins or ()):
            return fine(f"the runtime hands {settings.config_dir}/{name} to the agent")
    return to_do(
        f"the runtime starts {plugin}, and there is no {settings.config_dir}/{names[0]} to hand to it",
        "install it again with a configuration",
        f"nri-pin install --plugin-dir {shlex.quote(settings.plugin_dir)} --index {plugin[:2]} --config ./config.yaml "
        f"&& systemctl restart {settings.unit}",
    )


def _fail_closed(seen: RuntimeEvidence) -> Finding | None:
    settings, version = seen.settings, seen.release
    if isinstance(settings, Hidden):
        return not_visible(settings, "whether containers are refused while the agent is away cannot be seen")
    if not isinstance(settings, NRISettings):
        return None
    first = FIRST_FAIL_CLOSED[CONTAINERD if seen.runtime == CONTAINERD else CRIO]
    if version is not None and version < first:
        return advice(
            "this runtime cannot refuse containers while the agent is away: they start unpinned, and are placed later",
            "use containerd 2.2 or CRI-O 1.34 where that must not happen",
        )
    if not settings.required_plugins:
        return fine(
            "containers that are created while the agent is away start unpinned, and are placed later"
        )
    if not settings.validator_is_on:
        return to_do(
            f"required plugins are named in {settings.main_file}, and the validator that would ask for them is off",
            f"set enable = true in its table (default_validator){settings.edited}, and restart the runtime",
        )
    return _required(seen, settings)


def _required(seen: RuntimeEvidence, settings: NRISettings) -> Finding:
    names = ", ".join(settings.required_plugins)
    if seen.plugin_name not in settings.required_plugins:
        return to_do(
            f"the runtime requires {names}, and the agent is called {seen.plugin_name}",
            f"write pluginName: {settings.required_plugins[0]} into the agent's configuration",
        )
    if settings.tolerate_annotation != TOLERATE:
        found = settings.tolerate_annotation or "not set"
        return to_do(
            f"the runtime requires {names}, and tolerate_missing_plugins_annotation is {found}: after a reboot the pods "
            "that the agent needs, and its own, are refused",
            f"set it to {TOLERATE}, which the agent's DaemonSet carries, and put it on static pods and on the network's",
        )
    return fine(f"containers are refused while {names} is away, but for pods with {TOLERATE}")


CHECKS: Mapping[str, Callable[[RuntimeEvidence], Finding | None]] = {
    "runtime": _runtime,
    "nri": _nri,
    "nri-socket": _socket,
    "nri-timeouts": _timeouts,
    "nri-plugins": _plugins,
    "nri-drop-in": _drop_in,
    "fail-closed": _fail_closed,
}


def judge(seen: RuntimeEvidence) -> Iterator[Finding]:
    """The findings, in the order of the way from the runtime to us."""
    if seen.runtime == "":
        return named("runtime", _runtime(seen))
    return judged(CHECKS, seen)
