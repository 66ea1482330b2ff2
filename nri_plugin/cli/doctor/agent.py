"""What `nri-pin doctor` says of the agent itself; pure."""

import posixpath
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nri_plugin.agent.other_owners import IN_A_ROW
from nri_plugin.cli.doctor.findings import Finding, advice, fine, not_visible, to_do
from nri_plugin.cli.doctor.node_evidence import Hidden

ENOUGH_BYTES = 16 << 20
"""A checkpoint of 3,000 containers is below one MiB; three generations and a history fit."""

MOST_NAMED = 3
NO_CONFIGURATION = "no configuration"
"""What `nri_plugin.config.loading` calls it; the lines after it are a good first one."""


@dataclass(frozen=True, slots=True)
class AgentEvidence:
    """What was seen.

    Attributes:
        path: of the configuration.
        config_error: why it cannot be used, empty when it can.
        state_dir: where the checkpoint is kept.
        trouble: why the running agent does not answer; empty when it does.
        version: of the running agent.
        runtime: the connected container runtime; empty for none.
        own_version: of this program.
        checkpoint: its errors; None when there is no checkpoint.
        containers: in it.
        in_memory: whether the state directory is gone after a reboot; None when it is not there.
        free_bytes: left where it is.
        exporter: empty when its socket accepts connections, else why not; None when no exporter was set up.
        fights: containers whose cpusets another program overwrites repeatedly, as the agent reports.
        rivals: other programs that assign CPUs to containers; hidden where processes are.
        observing: the running agent only observes.
        plugin: the file by which the runtime starts the agent itself; empty when it does not.
        unit: of the runtime.
        failed_creations: creations in a row that failed after the agent's answer, as it reports.
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
    in_memory: bool | None = None
    free_bytes: int | None = None
    exporter: str | Hidden | None = None
    fights: Sequence[str] = ()
    rivals: Sequence[str] | Hidden = ()
    observing: bool = False
    failed_creations: int = 0
    suspects: Sequence[str] = ()
    must_hand_over: bool = False
    plugin: str = ""
    unit: str = "containerd"

    @property
    def restart(self) -> str:
        """The command that restarts the agent with a new configuration or program."""
        return f"systemctl restart {self.unit if self.plugin else 'nri-pin'}"

    @property
    def journal(self) -> str:
        """The command that shows the agent's log."""
        return f"journalctl {'-t' if self.plugin else '-u'} nri-pin"


def judge(seen: AgentEvidence) -> Iterator[Finding]:
    """The findings."""
    yield _configuration(seen)
    yield from _running(seen)
    yield from _directory(seen)
    yield _checkpoint(seen)
    yield from _exporter(seen)
    yield _rivals(seen)
    if seen.failed_creations >= IN_A_ROW:
        yield _failed_creations(seen)
    if seen.fights:
        yield to_do(
            "fights",
            f"another program overwrites the cpusets of {', '.join(seen.fights[:MOST_NAMED])} after each repair by the agent",
            "find the writer (systemctl set-property, another agent); the agent's log has the values it wrote",
            f"{seen.journal} -g drift -n 20",
        )


def _failed_creations(seen: AgentEvidence) -> Finding:
    """The runtime fails a creation where two plugins set the same field, and reports neither to the other."""
    who = f"{', '.join(seen.suspects)} may be it" if seen.suspects else "that plugin is not visible from here"
    return to_do(
        "failed-creations",
        f"the last {seen.failed_creations} creations failed after the agent had answered, which looks like another NRI "
        f"plugin that sets cpusets, too; {who}",
        "see whether the runtime says that both tried to set CPUSetCPUs, and let only one of them pin; "
        "any other reason stands there, too",
        "journalctl -u containerd -u crio --since -1h -g 'NRI|nri|tried to set' -n 20",
    )


def _configuration(seen: AgentEvidence) -> Finding:
    if isinstance(seen.config_error, Hidden):
        return not_visible("configuration", seen.config_error, "the agent's configuration cannot be seen")
    if not seen.config_error:
        return fine("configuration", f"{seen.path} is right, and fits this machine")
    first, *others = seen.config_error.splitlines()
    if NO_CONFIGURATION in first and seen.must_hand_over:
        return to_do(
            "configuration", f"{seen.path}: there is none", "the steps for the kubelet above write one"
        )
    if NO_CONFIGURATION in first and seen.plugin:
        return to_do(
            "configuration",
            f"{seen.path}: there is none, and the runtime starts the agent from {seen.plugin}",
            "install it again with a configuration, and restart the runtime",
            f"nri-pin install --plugin-dir {shlex.quote(posixpath.dirname(seen.plugin))} "
            f"--index {posixpath.basename(seen.plugin)[:2]} --config ./config.yaml && {seen.restart}",
        )
    if NO_CONFIGURATION in first:
        return to_do(
            "configuration", f"{seen.path}: there is none", "write a first one", _write(seen.path, others)
        )
    more = f" (and {len(others)} more)" if others else ""
    if seen.plugin:
        return to_do(
            "configuration",
            first + more,
            "mend it; then restart the runtime, which hands it over",
            seen.restart,
        )
    look_again = f"nri-pin doctor --config {shlex.quote(seen.path)}"
    return to_do("configuration", first + more, "mend it; then look again", look_again)


def _write(path: str, lines: Sequence[str]) -> str:
    """A line that writes these lines to a file."""
    text = "".join(rf"{line}\n" for line in lines)
    return f"mkdir -p {shlex.quote(posixpath.dirname(path) or '.')} && printf '{text}' > {shlex.quote(path)}"


def _running(seen: AgentEvidence) -> Iterator[Finding]:
    if isinstance(seen.trouble, Hidden):
        yield not_visible("agent", seen.trouble, "whether the agent runs cannot be seen")
        return
    if seen.trouble and seen.must_hand_over:
        yield to_do(
            "agent",
            f"no agent answers: {seen.trouble}",
            "the steps for the kubelet above start it; not before, or both would pin",
        )
        return
    if seen.trouble and seen.plugin:
        yield to_do(
            "agent",
            f"no agent answers: {seen.trouble}; the runtime starts it from {seen.plugin}, once, at its own start",
            "restart the runtime; containers go on running",
            seen.restart,
        )
        return
    if seen.trouble:
        yield to_do(
            "agent",
            f"no agent answers: {seen.trouble}",
            "start it, or name its configuration with --config",
            f"nri-pin run --config {seen.path}",
        )
        return
    if seen.version == seen.own_version:
        yield fine("agent", f"runs, version {seen.version}, as this command")
    else:
        yield to_do(
            "agent",
            f"runs as version {seen.version}, and this command is {seen.own_version}",
            "restart the agent, so that it is the program that is installed",
            seen.restart,
        )
    if seen.observing:
        yield advice(
            "observing",
            "the agent only observes: it decides, and pins, refuses and writes nothing",
            "when its log says what you like, take observe out of the configuration, or --observe away, and restart it",
        )
    if seen.runtime:
        yield fine("agent-runtime", f"answers {seen.runtime}")
    else:
        yield to_do(
            "agent-runtime",
            "the agent runs and no runtime asks it",
            "look for its latest warning; NRI and its socket are judged above",
            f"{seen.journal} -n 20",
        )


def _directory(seen: AgentEvidence) -> Iterator[Finding]:
    if seen.in_memory is None:
        return
    if seen.in_memory:
        yield fine(
            "state-directory", f"{seen.state_dir} is in memory, as containers are gone after a reboot, too"
        )
    else:
        yield advice(
            "state-directory",
            f"{seen.state_dir} is on a disk: every decision waits for it",
            "leave stateDir at /run/nri-pin, unless a checkpoint has to outlive a reboot",
        )
    if seen.free_bytes is not None and seen.free_bytes < ENOUGH_BYTES:
        yield to_do(
            "free-space",
            f"{seen.free_bytes >> 10} KiB are left in {seen.state_dir}, and containers are refused when nothing is",
            "make room",
            f"df -h {seen.state_dir}",
        )
    elif seen.free_bytes is not None:
        yield fine("free-space", f"{seen.free_bytes >> 20} MiB")


def _checkpoint(seen: AgentEvidence) -> Finding:
    found = seen.checkpoint
    if isinstance(found, Hidden):
        return not_visible("checkpoint", found, "the checkpoint cannot be seen")
    if found is None:
        return fine(
            "checkpoint", "none yet; the agent writes one when the runtime first tells it of a container"
        )
    if not found:
        return fine("checkpoint", f"sound, {seen.containers} container{'s' * (seen.containers != 1)}")
    return to_do(
        "checkpoint",
        "; ".join(found[:MOST_NAMED])
        + (f"; {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""),
        "see what there is",
        f"nri-pin state verify --state-dir {seen.state_dir}",
    )


def _exporter(seen: AgentEvidence) -> Iterator[Finding]:
    if seen.exporter is None:
        return
    if isinstance(seen.exporter, Hidden):
        yield not_visible("exporter", seen.exporter, "whether the exporter answers cannot be seen")
    elif seen.exporter:
        yield to_do(
            "exporter",
            f"{seen.exporter}, so nothing is published to the cluster",
            "start it",
            "nri-pin export",
        )
    else:
        yield fine("exporter", "takes connections")


def _rivals(seen: AgentEvidence) -> Finding:
    found = seen.rivals
    if isinstance(found, Hidden):
        return not_visible("rivals", found, "which other programs give CPUs to containers cannot be seen")
    if found and seen.observing:
        return fine("rivals", f"{', '.join(found)} gives CPUs to containers, and the agent only observes")
    if found:
        return to_do(
            "rivals",
            f"{', '.join(found)} gives CPUs to containers, too",
            "let only one of them pin: stop it, or take this agent away",
        )
    return fine("rivals", "no other program that is known to give CPUs to containers runs here")
