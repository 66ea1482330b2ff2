"""The checks of `nri-pin doctor` on the agent; pure."""

import posixpath
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nri_plugin.agent.other_owners import IN_A_ROW
from nri_plugin.agent.status_client import QuietRow, ReachRow
from nri_plugin.cli.doctor.findings import Finding, advice, fine, not_visible, to_do
from nri_plugin.cli.doctor.view import Hidden

ENOUGH_BYTES = 16 << 20
"""A checkpoint of 3,000 containers is below one MiB; three generations and a history fit."""

MOST_NAMED = 3

ACCEPTED = ("kernel-managed", "next-interrupt", "left-alone", "claimed")
"""Reasons of interrupts on quiet CPUs that nothing has to be done about."""


@dataclass(frozen=True, slots=True)
class AgentEvidence:
    """The evidence about the agent.

    Attributes:
        path: of the configuration.
        config_error: why it cannot be used, an error a line; empty when it can.
        first_lines: the lines of a first configuration; empty when there is one.
        unknown_keys: keys of a KubeletConfiguration that this version does not know.
        state_dir: where the checkpoint is kept.
        trouble: why the running agent does not answer; empty when it does.
        version: of the running agent.
        runtime: the connected container runtime; empty for none.
        own_version: of this program.
        checkpoint: its errors; None when there is no checkpoint.
        containers: in it.
        unplaced: those of them that do not have what policy would give them: name and reason.
        in_memory: whether the state directory is gone after a reboot; None when it is not there.
        free_bytes: left where it is.
        exporter: empty when its socket accepts connections, else why not; None when no exporter was set up.
        pod_level: the feature gate PodLevelResourceManagers is on.
        fights: containers whose cpusets another program overwrites repeatedly, as the agent reports.
        rivals: other programs that assign CPUs to containers; hidden where processes are.
        observing: the running agent only observes.
        plugin: the file by which the runtime starts the agent itself; empty when it does not.
        unit: of the runtime.
        has_unit: the agent's unit of systemd is installed.
        failed_creations: creations in a row that failed after the agent's answer, as it reports.
        untold: cgroups of containers that the runtime did not report, as it reports.
        quiet: quiet CPUs, as it reports; None where no container asks for them.
        suspects: plugins that the runtime starts beside the agent, and programs that pin.
        must_hand_over: the kubelet's static managers have to be switched off first; the kubelet's findings hold the steps.
    """

    path: str
    config_error: str | Hidden
    state_dir: str
    trouble: str | Hidden
    version: str = ""
    runtime: str = ""
    own_version: str = ""
    checkpoint: Sequence[str] | Hidden | None = None
    containers: int = 0
    unplaced: Sequence[tuple[str, str]] = ()
    in_memory: bool | None = None
    free_bytes: int | None = None
    exporter: str | Hidden | None = None
    pod_level: bool = False
    fights: Sequence[str] = ()
    rivals: Sequence[str] | Hidden = ()
    observing: bool = False
    failed_creations: int = 0
    suspects: Sequence[str] = ()
    must_hand_over: bool = False
    has_unit: bool = False
    plugin: str = ""
    unit: str = "containerd"
    first_lines: Sequence[str] = ()
    unknown_keys: Sequence[str] = ()
    quiet: QuietRow | None = None
    untold: Sequence[str] = ()

    @property
    def restart(self) -> str:
        """The command that restarts the agent with a new configuration or program."""
        return f"systemctl restart {self.unit if self.plugin else 'nri-pin'}"

    @property
    def journal(self) -> str:
        """The command that shows the agent's log."""
        return f"journalctl {'-t' if self.plugin else '-u'} nri-pin"


def _failed_creations(seen: AgentEvidence) -> Finding | None:
    """The runtime fails a creation where two plugins set the same field, and reports neither to the other."""
    if seen.failed_creations < IN_A_ROW:
        return None
    who = f"{', '.join(seen.suspects)} may be it" if seen.suspects else "that plugin is not visible from here"
    return to_do(
        f"the last {seen.failed_creations} creations failed after the agent had answered, which looks like another NRI "
        f"plugin that sets cpusets, too; {who}",
        "see whether the runtime says that both tried to set CPUSetCPUs, and let only one of them pin; "
        "any other reason stands there, too",
        "journalctl -u containerd -u crio --since -1h -g 'NRI|nri|tried to set' -n 20",
    )


def _configuration(seen: AgentEvidence) -> Finding:
    if isinstance(seen.config_error, Hidden):
        return not_visible(seen.config_error, "the agent's configuration cannot be seen")
    if not seen.config_error:
        unknown = f"; unknown here, so ignored: {', '.join(seen.unknown_keys)}" if seen.unknown_keys else ""
        return fine(f"{seen.path} is right, and fits this machine{unknown}")
    if seen.first_lines:
        return _no_configuration(seen)
    first, *others = seen.config_error.splitlines()
    says = first + (f" (and {len(others)} more)" if others else "")
    if seen.plugin:
        do = "mend it; then restart the runtime, which hands it over"
        return to_do(says, do, seen.restart)
    look_again = f"nri-pin doctor --config {shlex.quote(seen.path)}"
    return to_do(says, "mend it; then look again", look_again)


def _no_configuration(seen: AgentEvidence) -> Finding:
    says = f"{seen.path}: there is none"
    if seen.must_hand_over:
        return to_do(says, "the steps for the kubelet above write one")
    if seen.plugin:
        return to_do(
            f"{says}, and the runtime starts the agent from {seen.plugin}",
            "install it again with a configuration, and restart the runtime",
            f"nri-pin install --plugin-dir {shlex.quote(posixpath.dirname(seen.plugin))} "
            f"--index {posixpath.basename(seen.plugin)[:2]} --config ./config.yaml && {seen.restart}",
        )
    return to_do(says, "write a first one", _write(seen.path, seen.first_lines))


def _write(path: str, lines: Sequence[str]) -> str:
    """A line that writes these lines to a file."""
    text = "".join(rf"{line}\n" for line in lines)
    return f"mkdir -p {shlex.quote(posixpath.dirname(path) or '.')} && printf '{text}' > {shlex.quote(path)}"


def _running(seen: AgentEvidence) -> Finding:
    if isinstance(seen.trouble, Hidden):
        return not_visible(seen.trouble, "whether the agent runs cannot be seen")
    if seen.trouble:
        return _not_running(seen)
    if seen.version == seen.own_version:
        return fine(f"runs, version {seen.version}, as this command")
    return to_do(
        f"runs as version {seen.version}, and this command is {seen.own_version}",
        "restart the agent, so that it is the program that is installed",
        seen.restart,
    )


def _observing(seen: AgentEvidence) -> Finding | None:
    if seen.trouble or not seen.observing:
        return None
    return advice(
        "the agent only observes: it decides, and pins, refuses and writes nothing",
        "when its log says what you like, take observe out of the configuration, or --observe away, and restart it",
    )


def _asked(seen: AgentEvidence) -> Finding | None:
    if seen.trouble:
        return None
    if seen.runtime:
        return fine(f"answers {seen.runtime}")
    return to_do(
        "the agent runs and no runtime asks it",
        "look for its latest warning; NRI and its socket are judged above",
        f"{seen.journal} -n 20",
    )


def _directory(seen: AgentEvidence) -> Finding | None:
    if seen.in_memory is None:
        return None
    if seen.in_memory:
        return fine(f"{seen.state_dir} is in memory, as containers are gone after a reboot, too")
    return advice(
        f"{seen.state_dir} is on a disk: every decision waits for it",
        "leave stateDir at /run/nri-pin, unless a checkpoint has to outlive a reboot",
    )


def _space(seen: AgentEvidence) -> Finding | None:
    if seen.in_memory is None or seen.free_bytes is None:
        return None
    if seen.free_bytes >= ENOUGH_BYTES:
        return fine(f"{seen.free_bytes >> 20} MiB")
    return to_do(
        f"{seen.free_bytes >> 10} KiB are left in {seen.state_dir}, and containers are refused when nothing is",
        "make room",
        f"df -h {seen.state_dir}",
    )


def _not_running(seen: AgentEvidence) -> Finding:
    says = f"no agent answers: {seen.trouble}"
    if seen.must_hand_over:
        do = "the steps for the kubelet above start it; not before, or both would pin"
        return to_do(says, do)
    if seen.plugin:
        says = f"{says}; the runtime starts it from {seen.plugin}, once, at its own start"
        return to_do(says, "restart the runtime; containers go on running", seen.restart)
    if seen.has_unit:
        return to_do(
            says, "start its unit; journalctl -u nri-pin says why it ended", "systemctl start nri-pin"
        )
    do = "start it, or name its configuration with --config"
    return to_do(says, do, f"nri-pin run --config {seen.path}")


def _checkpoint(seen: AgentEvidence) -> Finding:
    found = seen.checkpoint
    if isinstance(found, Hidden):
        return not_visible(found, "the checkpoint cannot be seen")
    if found is None:
        return fine("none yet; the agent writes one when the runtime first tells it of a container")
    if not found:
        return fine(f"sound, {seen.containers} container{'s' * (seen.containers != 1)}")
    more = f"; {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return to_do(
        "; ".join(found[:MOST_NAMED]) + more,
        "see what there is",
        f"nri-pin state verify --state-dir {seen.state_dir}",
    )


def _exporter(seen: AgentEvidence) -> Finding | None:
    if seen.exporter is None and not seen.pod_level:
        return None
    if seen.exporter is None:
        says = "PodLevelResourceManagers is on and has no effect: only the exporter tells which pods have resources of their own"
        return to_do(says, "run it", "nri-pin export")
    if isinstance(seen.exporter, Hidden):
        return not_visible(seen.exporter, "whether the exporter answers cannot be seen")
    if seen.exporter:
        says = f"{seen.exporter}, so nothing is published to the cluster"
        return to_do(says, "start it", "nri-pin export")
    return fine("takes connections")


def _unplaced(seen: AgentEvidence) -> Finding | None:
    if not seen.unplaced:
        return None
    name, why = seen.unplaced[0]
    more = f" (and {len(seen.unplaced) - 1} more)" if len(seen.unplaced) > 1 else ""
    return to_do(
        f"{name}{more} does not have what it asks for: {why}",
        "delete such a pod once there is room, so that it is placed again; state verify names all of them",
        "nri-pin state verify",
    )


def _rivals(seen: AgentEvidence) -> Finding:
    found = seen.rivals
    if isinstance(found, Hidden):
        return not_visible(found, "which other programs give CPUs to containers cannot be seen")
    if not found:
        return fine("no other program that is known to give CPUs to containers runs here")
    says = f"{', '.join(found)} gives CPUs to containers"
    if seen.observing:
        return fine(f"{says}, and the agent only observes")
    return to_do(f"{says}, too", "let only one of them pin: stop it, or take this agent away")


def _fights(seen: AgentEvidence) -> Finding | None:
    if not seen.fights:
        return None
    names = ", ".join(seen.fights[:MOST_NAMED])
    return to_do(
        f"another program overwrites the cpusets of {names} after each repair by the agent",
        "find the writer (systemctl set-property, another agent); the agent's log has the values it wrote",
        f"{seen.journal} -g drift -n 20",
    )


def _untold(seen: AgentEvidence) -> Finding | None:
    if not seen.untold:
        return None
    names = ", ".join(seen.untold[:MOST_NAMED])
    more = f" and {len(seen.untold) - MOST_NAMED} more" if len(seen.untold) > MOST_NAMED else ""
    return to_do(
        f"the runtime did not report {names}{more}; the agent keeps them off exclusive CPUs and gives them none",
        "restart these containers, so that the runtime reports them; a cgroup that another program made stays so",
        "nri-pin state verify",
    )


def _quiet(seen: AgentEvidence) -> Finding | None:
    """Interrupts on quiet CPUs: those that could be moved and were not, then those that only the kernel moves."""
    found = seen.quiet
    if found is None:
        return None
    if found.trouble:
        return to_do(
            str(found),
            "mount into the agent's container what the guide page quiet-cpus lists, or set irqs and workqueues to none",
        )
    if found.rivals:
        return to_do(
            f"{found}; another program sets {', '.join(found.rivals[:MOST_NAMED])} again and again",
            "let irqbalance, tuned or the script of a driver leave these CPUs alone",
            f"{seen.journal} -g 'again and again' -n 20",
        )
    movable = [one for one in found.reaches if one.reason not in ACCEPTED]
    if movable:
        return advice(
            f"{found}: {', '.join(map(_reach, movable[:MOST_NAMED]))}",
            "ENOSPC: give interrupts more housekeeping CPUs; other words are errors of the kernel",
        )
    kinds = Counter(one.reason for one in found.reaches)
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(kinds.items()))
    shared = [one for one in found.reaches if one.reason == "kernel-managed" and one.cpus != one.quiet]
    named = f"; shared with other CPUs: {', '.join(map(_reach, shared[:MOST_NAMED]))}" if shared else ""
    return fine(f"{found}{f' ({why})' if why else ''}{named}")


def _reach(one: ReachRow) -> str:
    return f"{one.number} {one.handlers} (CPUs {one.cpus}, {one.reason})"


CHECKS: Mapping[str, Callable[[AgentEvidence], Finding | None]] = {
    "configuration": _configuration,
    "agent": _running,
    "observing": _observing,
    "agent-runtime": _asked,
    "state-directory": _directory,
    "free-space": _space,
    "checkpoint": _checkpoint,
    "unplaced": _unplaced,
    "exporter": _exporter,
    "rivals": _rivals,
    "failed-creations": _failed_creations,
    "fights": _fights,
    "untold-containers": _untold,
    "quiet-cpus": _quiet,
}
