"""The checks of `nri-pin doctor` on the agent."""

import posixpath
import shlex
from collections import Counter
from collections.abc import Sequence

from nri_plugin import __version__
from nri_plugin.agent.observing.status_client import ReachRow
from nri_plugin.agent.repair.other_owners import IN_A_ROW
from nri_plugin.checkpoint.format import Checkpoint
from nri_plugin.cli.doctor.evidence import OUR_PROGRAM, Evidence
from nri_plugin.cli.doctor.findings import Finding, advice, fine, not_visible, to_do
from nri_plugin.cli.doctor.kubelet import must_hand_over
from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.cli.state.verify import unplaced as unplaced_in
from nri_plugin.model.violations import violations

ENOUGH_BYTES = 16 << 20
"""A checkpoint of 3,000 containers is below one MiB; three generations and a history fit."""

MOST_NAMED = 3

ACCEPTED = ("kernel-managed", "next-interrupt", "left-alone", "claimed")
"""Reasons of interrupts on quiet CPUs that nothing has to be done about."""


def _restart(seen: Evidence) -> str:
    """The command that restarts the agent with a new configuration or program."""
    return f"systemctl restart {seen.runtime_unit if seen.plugin else OUR_PROGRAM}"


def _journal(seen: Evidence) -> str:
    """The command that shows the agent's log."""
    return f"journalctl {'-t' if seen.plugin else '-u'} {OUR_PROGRAM}"


def configuration(seen: Evidence) -> Finding:
    """Whether the configuration can be used on this machine."""
    path, config, error, first_lines = seen.config
    if isinstance(error, Hidden):
        return not_visible(error, "the agent's configuration cannot be seen")
    if not error:
        unknown = ", ".join(config.unknown_keys) if config else ""
        ignored = f"; unknown here, so ignored: {unknown}" if unknown else ""
        return fine(f"{path} is right, and fits this machine{ignored}")
    if first_lines:
        return _no_configuration(seen)
    first, *others = error.splitlines()
    says = first + (f" (and {len(others)} more)" if others else "")
    if seen.plugin:
        return to_do(says, "mend it; then restart the runtime, which hands it over", _restart(seen))
    return to_do(says, "mend it; then look again", f"nri-pin doctor --config {shlex.quote(path)}")


def _no_configuration(seen: Evidence) -> Finding:
    path = seen.config.path
    says = f"{path}: there is none"
    if must_hand_over(seen):
        return to_do(says, "the steps for the kubelet above write one")
    if seen.plugin:
        folder, name = posixpath.split(seen.plugin)
        return to_do(
            f"{says}, and the runtime starts the agent from {seen.plugin}",
            "install it again with a configuration, and restart the runtime",
            f"nri-pin install --plugin-dir {shlex.quote(folder)} --index {name[:2]} --config ./config.yaml "
            f"&& {_restart(seen)}",
        )
    text = "".join(rf"{line}\n" for line in seen.config.first_lines)
    folder = shlex.quote(posixpath.dirname(path) or ".")
    return to_do(says, "write a first one", f"mkdir -p {folder} && printf '{text}' > {shlex.quote(path)}")


def running(seen: Evidence) -> Finding:
    """Whether the agent answers, and is the program that is installed."""
    if isinstance(seen.answer, Hidden):
        return not_visible(seen.answer, "whether the agent runs cannot be seen")
    if isinstance(seen.answer, str):
        return _not_running(seen, f"no agent answers: {seen.answer}")
    version = seen.answer.agent
    if version == __version__:
        return fine(f"runs, version {version}, as this command")
    return to_do(
        f"runs as version {version}, and this command is {__version__}",
        "restart the agent, so that it is the program that is installed",
        _restart(seen),
    )


def _not_running(seen: Evidence, says: str) -> Finding:
    if must_hand_over(seen):
        return to_do(says, "the steps for the kubelet above start it; not before, or both would pin")
    if seen.plugin:
        says = f"{says}; the runtime starts it from {seen.plugin}, once, at its own start"
        return to_do(says, "restart the runtime; containers go on running", _restart(seen))
    if seen.has_unit:
        do = "start its unit; journalctl -u nri-pin says why it ended"
        return to_do(says, do, "systemctl start nri-pin")
    do = "start it, or name its configuration with --config"
    return to_do(says, do, f"nri-pin run --config {seen.config.path}")


def observing(seen: Evidence) -> Finding | None:
    """Whether the agent only observes."""
    if not seen.is_observing:
        return None
    return advice(
        "the agent only observes: it decides, and pins, refuses and writes nothing",
        "when its log says what you like, take observe out of the configuration, or --observe away, and restart it",
    )


def connected_runtime(seen: Evidence) -> Finding | None:
    """Whether a runtime asks the agent."""
    if seen.status is None:
        return None
    if seen.told is not None:
        return fine(f"answers {seen.told.name} {seen.told.version}")
    return to_do(
        "the agent runs and no runtime asks it",
        "look for its latest warning; NRI and its socket are judged above",
        f"{_journal(seen)} -n 20",
    )


def state_directory(seen: Evidence) -> Finding | None:
    """Whether the state directory is in memory."""
    if seen.is_in_memory is None:
        return None
    if seen.is_in_memory:
        return fine(f"{seen.state_dir} is in memory, as containers are gone after a reboot, too")
    return advice(
        f"{seen.state_dir} is on a disk: every decision waits for it",
        "leave stateDir at /run/nri-pin, unless a checkpoint has to outlive a reboot",
    )


def free_space(seen: Evidence) -> Finding | None:
    """Whether the state directory has room."""
    if seen.free_bytes is None:
        return None
    if seen.free_bytes >= ENOUGH_BYTES:
        return fine(f"{seen.free_bytes >> 20} MiB")
    return to_do(
        f"{seen.free_bytes >> 10} KiB are left in {seen.state_dir}, and containers are refused when nothing is",
        "make room",
        f"df -h {seen.state_dir}",
    )


def checkpoint(seen: Evidence) -> Finding:
    """It is judged by the machine and options that it was written for."""
    found = seen.checkpoint
    if isinstance(found, Hidden):
        return not_visible(found, "the checkpoint cannot be seen")
    if found is None:
        return fine("none yet; the agent writes one when the runtime first tells it of a container")
    errors = [found] if isinstance(found, str) else []
    if isinstance(found, Checkpoint):
        if found.facts is not None:
            errors = list(map(str, violations(found.facts.as_node(), found.state)))
        if not errors:
            count = len(found.state.containers)
            return fine(f"sound, {count} container{'s' * (count != 1)}")
    more = f"; {len(errors) - MOST_NAMED} more" if len(errors) > MOST_NAMED else ""
    says = "; ".join(errors[:MOST_NAMED]) + more
    return to_do(says, "see what there is", f"nri-pin state verify --state-dir {seen.state_dir}")


def unplaced(seen: Evidence) -> Finding | None:
    """Whether every container has what policy would give it."""
    found = unplaced_in(seen.checkpoint.state) if isinstance(seen.checkpoint, Checkpoint) else ()
    if not found:
        return None
    name, why = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return to_do(
        f"{name}{more} does not have what it asks for: {why}",
        "delete such a pod once there is room, so that it is placed again; state verify names all of them",
        "nri-pin state verify",
    )


def exporter(seen: Evidence) -> Finding | None:
    """Whether the exporter answers where it is needed."""
    if seen.exporter is None:
        if seen.config.config is None or not seen.config.config.options.pod_level_managers:
            return None
        says = "PodLevelResourceManagers is on and has no effect: only the exporter tells which pods have resources of their own"
        return to_do(says, "run it", "nri-pin export")
    if isinstance(seen.exporter, Hidden):
        return not_visible(seen.exporter, "whether the exporter answers cannot be seen")
    if seen.exporter:
        says = f"{seen.exporter}, so nothing is published to the cluster"
        return to_do(says, "start it", "nri-pin export")
    return fine("takes connections")


def rivals(seen: Evidence) -> Finding:
    """Whether another program assigns CPUs to containers."""
    if isinstance(seen.processes, Hidden):
        return not_visible(seen.processes, "which other programs give CPUs to containers cannot be seen")
    if not seen.rivals:
        return fine("no other program that is known to give CPUs to containers runs here")
    says = f"{', '.join(seen.rivals)} gives CPUs to containers"
    if seen.is_observing:
        return fine(f"{says}, and the agent only observes")
    return to_do(f"{says}, too", "let only one of them pin: stop it, or take this agent away")


def failed_creations(seen: Evidence) -> Finding | None:
    """The runtime fails a creation where two plugins set the same field, and reports neither to the other."""
    if seen.status is None or seen.status.failed_creations < IN_A_ROW:
        return None
    suspects = [*seen.other_plugins, *seen.rivals]
    who = f"{', '.join(suspects)} may be it" if suspects else "that plugin is not visible from here"
    return to_do(
        f"the last {seen.status.failed_creations} creations failed after the agent had answered, which looks like another "
        f"NRI plugin that sets cpusets, too; {who}",
        "see whether the runtime says that both tried to set CPUSetCPUs, and let only one of them pin; "
        "any other reason stands there, too",
        "journalctl -u containerd -u crio --since -1h -g 'NRI|nri|tried to set' -n 20",
    )


def fights(seen: Evidence) -> Finding | None:
    """Whether another program overwrites cpusets after each repair."""
    drifts = seen.status.drifts if seen.status else ()
    names = sorted({row.name for row in drifts if row.is_fight})
    if not names:
        return None
    return to_do(
        f"another program overwrites the cpusets of {', '.join(names[:MOST_NAMED])} after each repair by the agent",
        "find the writer (systemctl set-property, another agent); the agent's log has the values it wrote",
        f"{_journal(seen)} -g drift -n 20",
    )


def unreported_containers(seen: Evidence) -> Finding | None:
    """Whether the runtime reported every container that runs."""
    unreported: Sequence[str] = seen.status.unreported if seen.status else ()
    if not unreported:
        return None
    more = f" and {len(unreported) - MOST_NAMED} more" if len(unreported) > MOST_NAMED else ""
    return to_do(
        f"the runtime did not report {', '.join(unreported[:MOST_NAMED])}{more}; the agent keeps them off exclusive CPUs and "
        "gives them none",
        "restart these containers, so that the runtime reports them; a cgroup that another program made stays so",
        "nri-pin state verify",
    )


def quiet_cpus(seen: Evidence) -> Finding | None:
    """Interrupts on quiet CPUs: those that could be moved and were not, then those that only the kernel moves."""
    found = seen.status.quiet if seen.status else None
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
            f"{_journal(seen)} -g 'again and again' -n 20",
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
