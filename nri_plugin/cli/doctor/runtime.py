"""The checks of `nri-pin doctor` on the container runtime."""

import os
import re
import shlex

from nri_plugin.cli.doctor.evidence import OUR_PROGRAM, Evidence, linux_of, parsed
from nri_plugin.cli.doctor.findings import Finding, Verdict, advice, fine, not_visible, to_do
from nri_plugin.cli.doctor.settings import (
    CONTAINERD,
    CRIO,
    DISTRIBUTIONS,
    NOWHERE,
    NRI_TABLE,
    SOCKET,
    UNITS,
    BrokenFile,
    FileLine,
    NRISettings,
    is_other_socket,
)
from nri_plugin.cli.doctor.support import Basis, Version, caveat, support_of
from nri_plugin.cli.doctor.view import Hidden, NodeView
from nri_plugin.model.sets import NO_CPUS, CPUSet

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

SHIMS = ("containerd-shim", "conmon")
"""Containers inherit from them; 15 characters of a name are kept by the kernel."""

MANAGER = "/etc/systemd/system.conf"
FOLDERS = tuple(f"{top}/systemd/system" for top in ("/usr/lib", "/lib", "/run", "/etc"))
FIRST_TO_KEEP = (6, 2)
"""Source: Linux 6.2, commit da019032819a. Before it, a process that joins a cpuset loses its mask."""

_AFFINITY = re.compile(r"\s*CPUAffinity\s*=(.*)")
_RANGES = re.compile(r"\d+(?:-\d+)?")


def runtime(seen: Evidence) -> Finding:
    """The release of the runtime, and what it lacks."""
    name, version = seen.runtime, seen.release
    if name == "":
        return to_do(
            "neither containerd nor CRI-O runs here, and neither is configured, so no runtime can start the agent or ask it",
            "ask on a node of the cluster; without one, nri-pin simulate tries pods on a described machine",
            "nri-pin simulate --list",
        )
    if isinstance(name, Hidden):
        return not_visible(name, "whether containerd or CRI-O runs here cannot be seen")
    text = seen.told.version if seen.told else seen.runtime_version
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


def nri(seen: Evidence) -> Finding | None:
    """Whether NRI is on."""
    settings, version = seen.nri, seen.release
    first = FIRST_WITH_NRI.get(seen.runtime, (0, 0, 0)) if isinstance(seen.runtime, str) else (0, 0, 0)
    if seen.runtime == "" or (version and version < first):
        return None  # there is nothing to switch on, and `runtime` says so
    closed = _closed(settings) if isinstance(settings, NRISettings) else None
    if seen.told is not None:
        return closed or fine("on: the runtime asks the agent")
    if isinstance(settings, Hidden):
        return not_visible(settings, "whether NRI is on cannot be seen")
    if isinstance(settings, BrokenFile):
        return to_do(f"{settings.path} cannot be read by the runtime: {settings.detail}", "mend it")
    if settings is None:
        return None
    if settings.is_on is None and version is None and seen.nri_answer == "":
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


def nri_socket(seen: Evidence) -> Finding | None:
    """Whether the runtime listens where the agent looks."""
    state = nri(seen)
    if state is None or state.verdict is Verdict.TO_DO:
        return None
    settings, is_started = seen.known_nri, bool(seen.our_plugins)
    agent_socket = seen.config.config.nri_socket if seen.config.config else ""
    path = settings.socket if settings else agent_socket or SOCKET
    is_other = settings and agent_socket and is_other_socket(settings.socket, agent_socket)
    if seen.told is not None and not (is_started and is_other):
        return fine("connected: the agent is registered and has been told what exists")
    if settings and is_other:
        return to_do(
            f"the runtime listens on {settings.socket}, the agent is configured for {agent_socket}",
            f"write nriSocket: {settings.socket} into the agent's configuration"
            + (f", and restart {settings.unit}" if is_started else ""),
        )
    if isinstance(seen.nri_answer, Hidden):
        return not_visible(seen.nri_answer, f"whether {path} accepts connections cannot be seen")
    if seen.nri_answer:
        restart = f"systemctl restart {seen.nri_or_default.unit}"
        return to_do(f"{path}: {seen.nri_answer}", "switch NRI on and start the runtime", restart)
    return fine(f"{path} takes connections")


def nri_timeouts(seen: Evidence) -> Finding | None:
    """Whether a plugin has enough time."""
    settings, told = seen.nri, seen.told
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
        f"{seen.nri_or_default.edited}, and restart the runtime",
    )


def nri_plugins(seen: Evidence) -> Finding | None:
    """Plugins that the runtime starts itself."""
    folder = seen.nri_or_default.plugin_dir
    if seen.runtime == "":
        return None
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


def nri_drop_in(seen: Evidence) -> Finding | None:
    """A plugin that the runtime starts gets its configuration from a drop-in of its name."""
    settings = seen.nri_or_default
    if seen.runtime == "" or not seen.our_plugins:
        return None
    plugin = seen.our_plugins[0]
    if isinstance(seen.drop_ins, Hidden):
        return not_visible(seen.drop_ins, f"the configuration of {plugin} cannot be seen")
    if seen.our_drop_in:
        return fine(f"the runtime hands {settings.config_dir}/{seen.our_drop_in} to the agent")
    return to_do(
        f"the runtime starts {plugin}, and there is no {settings.config_dir}/{seen.our_drop_ins[0]} to hand to it",
        "install it again with a configuration",
        f"nri-pin install --plugin-dir {shlex.quote(settings.plugin_dir)} --index {plugin[:2]} --config ./config.yaml "
        f"&& systemctl restart {settings.unit}",
    )


def fail_closed(seen: Evidence) -> Finding | None:
    """Whether containers are refused while the agent is away."""
    settings, version = seen.nri, seen.release
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


def _required(seen: Evidence, settings: NRISettings) -> Finding:
    names = ", ".join(settings.required_plugins)
    name = seen.config.config.plugin_name if seen.config.config else OUR_PROGRAM
    if name not in settings.required_plugins:
        return to_do(
            f"the runtime requires {names}, and the agent is called {name}",
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


def runtime_affinity(seen: Evidence) -> Finding | None:
    """A CPU affinity of the runtime or its shims, which containers may have as well; a kernel may drop it."""
    pool = seen.shared_pool
    release = seen.view.kernel_text("/proc/sys/kernel/osrelease")
    version = linux_of(release) if isinstance(release, str) else None
    drops_masks = version is not None and version < FIRST_TO_KEEP
    if pool is None or not seen.runtime_name or drops_masks:
        return None
    who, cpus, place = _mask(seen, pool)
    if not cpus:
        return None
    says = f"{who} has a CPU affinity of CPUs {cpus}{f', by {place}' if place.path else ''}"
    if pool.isdisjoint(cpus):
        return fine(f"{says}, which are not in the shared pool, so containers have all their CPUs")
    return advice(
        f"{says}; a runc before 1.3.1 (1.2: before 1.2.7) or crun before 1.9.1 gives it to containers, which then run on "
        f"{pool & cpus} of {pool} alone",
        "use such a release, or take CPUAffinity= away; then restart the runtime and these containers. nri-pin state verify, as "
        "root on the node, names the containers",
    )


def _mask(seen: Evidence, pool: CPUSet) -> tuple[str, CPUSet, FileLine]:
    """The process or unit that has a mask, and the place that sets it."""
    view, runtime = seen.view, seen.runtime_process
    units = [view.unit_of(runtime.pid)] if runtime else []
    if not any(units):
        others = (name for one in DISTRIBUTIONS for name in one.runtime_units)
        units = [f"{name}.service" for name in (UNITS[seen.files_of], *others)]
    settings = [(name, *_setting(view, name)) for name in units]
    unit, mask, place = next((one for one in settings if one[1]), settings[0])
    shims, _ = view.services(seen.running, lambda process: process.name in SHIMS, in_containers=True)
    is_seen = False
    for process in (*filter(None, [runtime]), *shims):
        cpus = _allowed(view, process.pid)
        is_seen = is_seen or cpus is not None
        if cpus and not pool <= cpus and cpus != _cpuset(view, process.pid):
            return process.name, cpus, place
    return unit, NO_CPUS if is_seen else mask, place


def _allowed(view: NodeView, pid: int) -> CPUSet | None:
    text = view.text(f"/proc/{pid}/status")
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)$", text, re.MULTILINE) if isinstance(text, str) else None
    return parsed(found[1]) if found else None


def _cpuset(view: NodeView, pid: int) -> CPUSet | None:
    """The CPUs of the process's cgroup, which its containers do not have from it; None where no file tells."""
    text = view.text(f"/proc/{pid}/cgroup")
    for line in text.splitlines() if isinstance(text, str) else ():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers not in ("", "cpuset"):
            continue
        top, name = (
            ("/sys/fs/cgroup/cpuset", "cpuset.effective_cpus")
            if controllers
            else ("/sys/fs/cgroup", "cpuset.cpus.effective")
        )
        while path.strip("/"):
            found = view.text(f"{top}{path}/{name}")
            if isinstance(found, str):
                return parsed(found.strip())
            path = os.path.dirname(path)
    return None


def _setting(view: NodeView, unit: str) -> tuple[CPUSet, FileLine]:
    """The mask that systemd gives the unit, and the last place that sets it."""
    drop_ins = [f"{folder}/{name}.d" for name in ("service", unit) for folder in FOLDERS]
    files = [
        MANAGER,
        *_below(view, f"{MANAGER}.d"),
        *(f"{folder}/{unit}" for folder in FOLDERS),
        *(path for folder in drop_ins for path in _below(view, folder)),
    ]
    mask, place = NO_CPUS, NOWHERE
    for path in files:
        text = view.text(path)
        for number, line in enumerate(text.splitlines() if isinstance(text, str) else (), 1):
            if found := _AFFINITY.match(line):
                cpus = parsed(",".join(_RANGES.findall(found[1]))) or NO_CPUS
                # Several lines add up, and an empty one begins again.
                mask = mask | cpus if found[1].strip() else NO_CPUS
                place = FileLine(path, number) if mask else NOWHERE
    return mask, place


def _below(view: NodeView, folder: str) -> list[str]:
    names = view.names(folder)
    return [
        f"{folder}/{name}" for name in (names if isinstance(names, tuple) else ()) if name.endswith(".conf")
    ]
