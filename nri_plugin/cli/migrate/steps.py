"""The steps of a migration, and how they are done, undone and taken up again.

Each step may be done twice and undone although it was not done, or done in part: the record names a step before it begins.
The kubelet is stopped first and started last, so between them no pod starts or ends; undone in reverse, the first to be
undone is the kubelet's start, and the last its stop.

Taken up after a SIGKILL or a reboot:

    the kubelet's start had not begun:  everything is undone. A kubelet that a reboot has started meanwhile is stopped
                                        first, so that it reads its own files again.
    it had begun:                       it is finished. A kubelet without managers may have started pods since, whose CPUs
                                        only the agent's checkpoint knows.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from nri_plugin.agent.start import build_node
from nri_plugin.checkpoint.file import FILE_NAME, write_whole
from nri_plugin.checkpoint.kubelet_import import CPU_FILE, MEMORY_FILE, read_allocations
from nri_plugin.cli.doctor.settings import read_state_policy
from nri_plugin.cli.migrate.host import ASIDE, TO_PLUGIN, FileEdit, Host, MigrationRecord, Plan, RecordFile
from nri_plugin.cli.state.import_export import bring_back, exportable, importable, retire, save_import
from nri_plugin.cli.state.source import FailedError, awaiting_agent, refuse_while_agent_runs
from nri_plugin.host.mounts import find_cpuset_tree
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.options import Node
from nri_plugin.model.sets import CPUSet

Say = Callable[[str], None]

UNITS = "/systemd/system/"
STOP_KUBELET = "stop-kubelet"
START_KUBELET = "start-kubelet"
"""The step after which a migration that was interrupted is finished and not undone."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step; `apply` and `undo` may be called again.

    Attributes:
        name: stable, in the record.
        says: what it does.
        apply: does it.
        undo: leaves everything as it was before it.
        changes: lines of what it changes.
    """

    name: str
    says: str
    apply: Callable[[], None]
    undo: Callable[[], None] = lambda: None
    changes: tuple[str, ...] = ()


def run(file: RecordFile, record: MigrationRecord, steps: Sequence[Step], say: Say) -> None:
    """Do the steps that the record does not name yet, and the last one that it names again.

    Raises:
        FailedError: a step failed; it and those before it are undone, or could not be.
    """
    done = record.begun[:-1]
    for number, step in enumerate(steps, 1):
        if step.name in done:
            continue
        begun = tuple(dict.fromkeys((*record.begun, step.name)))
        record = MigrationRecord(record.plan, begun)
        try:
            file.write(record)
            say(f"{number}. {step.says}")
            step.apply()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            reason = _reason(error)
            say(f"   failed: {reason}")
            left = undo(file, record, steps, say)
            rest = "everything is as it was before, and the kubelet runs"
            if left:
                rest = f"not undone: {'; '.join(left)}; correct that, and run the command again"
            raise FailedError(f"{step.name}: {reason}; {rest}") from error
    file.remove()


def undo(file: RecordFile, record: MigrationRecord, steps: Sequence[Step], say: Say) -> list[str]:
    """Undo the steps that the record names, the last one first; returns what could not be undone.

    All are tried, because the last one starts the kubelet. Those that failed stay in the record, to be tried again. A
    record that cannot be written, as on a full disk, and a second Ctrl-C keep nothing from being undone.
    """
    left: dict[str, str] = {}
    waiting = list(record.begun)

    def note() -> None:
        with suppress(NriPinError):
            file.write(MigrationRecord(record.plan, tuple(waiting), undoing=True))

    # Half of an undo leaves the kubelet stopped, and each step of it ends in time.
    with handling({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
        note()
        for step in reversed(steps):
            if step.name not in waiting:
                continue
            try:
                step.undo()
                waiting.remove(step.name)
            except Exception as error:  # noqa: BLE001 - the steps before it are undone whatever happens here
                left[step.name] = f"{step.name}: {_reason(error)}"
            note()
    if left:
        say(f"   not undone: {'; '.join(left.values())}")
    else:
        file.remove()
    return list(left.values())


@contextmanager
def handling(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Handle signals so meanwhile."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_finished_forward(record: MigrationRecord) -> bool:
    """Whether a migration that was interrupted is to be finished; else it is undone."""
    return not record.undoing and START_KUBELET in record.begun


def _reason(error: BaseException) -> str:
    message = getattr(error, "message", None) or str(error) or type(error).__name__
    return " ".join(str(message).split())


# ---- the steps


def steps_of(plan: Plan, host: Host, say: Say) -> tuple[Step, ...]:
    """The steps of a plan, in order."""
    work = _Work(plan, host, say)
    return tuple(work.to_plugin() if plan.direction == TO_PLUGIN else work.to_kubelet())


class _Work:
    """The steps of one plan on one node."""

    def __init__(self, plan: Plan, host: Host, say: Say) -> None:
        self.plan, self.host, self.say = plan, host, say
        self.services = host.services
        self.told: set[str] = set()

    def to_plugin(self) -> Iterator[Step]:
        plan = self.plan
        if plan.agent_edits:
            yield self._files(
                "configure-agent",
                "write the agent's configuration, with the kubelet's options,",
                plan.agent_edits,
            )
        yield self._stop_kubelet()
        if not plan.agent_runs:
            where = os.path.join(plan.state_dir, FILE_NAME)
            says = f"import the kubelet's allocations to {where}"
            yield Step("import", says, self._import, lambda: retire(self._checkpoint))
            if plan.way != "daemonset":
                says = f"start the agent ({plan.agent_unit})"
                yield Step("start-agent", says, self._start_agent, self._stop_agent)
        if plan.way != "daemonset":
            says = "wait until the agent has placed what runs; compare each cgroup with its allocation"
            yield Step("check-agent", says, self._check_agent)
        if plan.kubelet_edits:
            says = "switch the kubelet's managers off"
            yield self._files("configure-kubelet", says, plan.kubelet_edits)
        says = f"move the kubelet's state files to NAME.{ASIDE}: it does not start on those of another policy"
        yield Step("move-state-files", says, self._move_state_files, self._restore_state_files)
        yield self._start_kubelet()
        yield Step("verify", "compare the CPUs of each container with those before", self._verify)

    def to_kubelet(self) -> Iterator[Step]:
        plan = self.plan
        yield self._stop_kubelet()
        if plan.way != "daemonset":
            says = f"stop the agent ({plan.agent_unit}), and do not start it with the machine"
            if plan.way == "runtime":
                says = f"remove the plugin, and restart {plan.agent_unit}; containers keep running"
            yield Step("stop-agent", says, self._stop_agent_for_good, self._start_agent_again)
        says = f"export the agent's allocations to {plan.kubelet_dir}"
        yield Step("export", says, self._export, self._remove_exported)
        if plan.kubelet_edits:
            says = "give the kubelet the agent's policies, options and reserved CPUs"
            yield self._files("configure-kubelet", says, plan.kubelet_edits)
        yield self._start_kubelet()
        yield Step("verify", "compare the CPUs of each container with those before", self._verify)
        where = os.path.join(plan.state_dir, FILE_NAME)
        says = f"move {where} away: a later agent must not use it"
        yield Step(
            "retire-checkpoint",
            says,
            lambda: retire(self._checkpoint),
            lambda: bring_back(self._checkpoint),
        )

    # Each method below does, or undoes, one step.

    def _stop_kubelet(self) -> Step:
        plan = self.plan
        return Step(
            STOP_KUBELET,
            f"stop {plan.kubelet_unit}; containers keep running, and no pod starts or ends until it starts again",
            self._stop_unless_changed,
            lambda: self.host.start_kubelet(plan, is_expected=plan.kubelet_was_up),
        )

    def _stop_unless_changed(self) -> None:
        for edit in (*self.plan.agent_edits, *self.plan.kubelet_edits):
            self.host.check(edit)
        self.services.stop(self.plan.kubelet_unit)

    def _start_kubelet(self) -> Step:
        unit = self.plan.kubelet_unit
        return Step(
            START_KUBELET,
            f"start {unit}, and wait until its managers have started",
            lambda: self.host.start_kubelet(self.plan),
            lambda: self.services.stop(unit),
        )

    def _files(self, name: str, says: str, edits: Sequence[FileEdit]) -> Step:
        def apply() -> None:
            for edit in edits:
                self.host.edit(edit)
            self._reload(edits)

        def undo() -> None:
            for edit in reversed(edits):
                self.host.restore(edit)
            self._reload(edits)

        changes = tuple(line for edit in edits for line in edit.diff())
        kept = (
            " (the present text is kept beside it)" if any(edit.before is not None for edit in edits) else ""
        )
        return Step(name, f"{says} in {', '.join(edit.path for edit in edits)}{kept}", apply, undo, changes)

    def _reload(self, edits: Sequence[FileEdit]) -> None:
        if any(UNITS in edit.path for edit in edits):
            self.services.reload()

    def _node(self) -> Node:
        config = self.host.config(self.plan)
        return build_node(config, find_cpuset_tree(config.cgroup_root))

    def _import(self) -> None:
        plan, config = self.plan, self.host.config(self.plan)
        node = build_node(config, None)
        folder = self.host.place(plan.kubelet_dir)
        containers = self.host.place(plan.containers) if plan.containers else None
        save_import(
            config, node, importable(config, node, folder, containers, without_memory=plan.without_memory)
        )

    @property
    def _checkpoint(self) -> str:
        return os.path.join(self.host.place(self.plan.state_dir), FILE_NAME)

    def _start_agent(self) -> None:
        if self.plan.way == "runtime":
            self.services.restart(self.plan.agent_unit)
        else:
            self.services.enable(self.plan.agent_unit, on=True)
            self.services.start(self.plan.agent_unit)

    def _stop_agent(self) -> None:
        """Undo a start. A plugin of the runtime is removed, because the runtime and its supervisor would start it again."""
        self._end_agent(enabled=self.plan.agent_was_enabled)

    def _stop_agent_for_good(self) -> None:
        self._end_agent(enabled=False)
        self.host.wait_for_end_of_agent(self.plan)

    def _end_agent(self, *, enabled: bool) -> None:
        plan = self.plan
        if plan.plugin is not None:
            self.host.remove_plugin(plan.plugin)
            self.services.restart(plan.agent_unit)
        else:
            self.services.stop(plan.agent_unit)
            self.services.enable(plan.agent_unit, on=enabled)

    def _start_agent_again(self) -> None:
        plan = self.plan
        if plan.plugin is not None:
            self.host.restore_plugin(plan.plugin)
            self.services.restart(plan.agent_unit)
        else:
            self.services.enable(plan.agent_unit, on=plan.agent_was_enabled)
            self.services.start(plan.agent_unit)

    def _check_agent(self) -> None:
        self.host.wait_for_agent(self.plan, self._node())
        self._verify()

    def _policy(self, path: str) -> str:
        policy = read_state_policy(self.host.view, path)
        return policy.lower() if isinstance(policy, str) else ""

    def _move_state_files(self) -> None:
        for path in self.plan.state_files:
            place = self.host.place(path)
            if self._policy(path) != "none":
                self.host.move(place, f"{place}.{ASIDE}")

    def _restore_state_files(self) -> None:
        """Give the kubelet its allocations back, with those that the agent has made since."""
        for path in self.plan.state_files:
            place = self.host.place(path)
            if self._policy(path) in ("", "none"):
                self.host.move(f"{place}.{ASIDE}", place)
        if self.plan.way != "daemonset" and self.plan.state_files:
            # What the kubelet cannot take as it is now, it gets as it was.
            with suppress(Exception):
                self._export_newer()

    def _export_newer(self) -> None:
        config = self.host.config(self.plan)
        state, files = exportable(config, build_node(config, None))
        theirs = read_allocations(self.host.place(self.plan.kubelet_dir)).cpus
        ours = {key: one.cpus for key, one in state.allocations.items() if one.cpus}
        if not awaiting_agent(state) and ours.items() - theirs.items():
            self._write_state_files(files)

    def _export(self) -> None:
        config = self.host.config(self.plan)
        refuse_while_agent_runs(config.state_dir)
        self._write_exported(exportable(config, build_node(config, None))[1])

    def _write_state_files(self, files: dict[str, bytes]) -> None:
        folder = self.host.place(self.plan.kubelet_dir)
        for name, data in files.items():
            write_whole(os.path.join(folder, name), data, replace=True)

    def _write_exported(self, files: dict[str, bytes]) -> None:
        self._write_state_files(files)
        folder = self.host.place(self.plan.kubelet_dir)
        for name in {CPU_FILE, MEMORY_FILE} - set(files):
            # Of the policy None, or left over: a kubelet writes a new one.
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))

    def _remove_exported(self) -> None:
        """A kubelet without managers writes new files, which hold nothing."""
        for name in (CPU_FILE, MEMORY_FILE):
            path = os.path.join(self.plan.kubelet_dir, name)
            if self._policy(path) != "none":
                with suppress(FileNotFoundError):
                    os.unlink(self.host.place(path))

    def _verify(self) -> None:
        moved, others = moves(self.plan.before, self.host.cpusets(), CPUSet.parse(self.plan.exclusive))
        for line in others:
            if line not in self.told:
                self.say(f"   note: {line}")
        self.told.update(others)
        if moved:
            raise HostError("cgroups", "; ".join(moved))


def moves(before: dict[str, str], after: dict[str, str], exclusive: CPUSet) -> tuple[list[str], list[str]]:
    """Containers on other CPUs than before: those with exclusive CPUs, and others. Ended and new ones are none of them."""
    moved: list[str] = []
    others: list[str] = []
    for path, cpus in before.items():
        now = after.get(path, cpus)
        if now != cpus:
            had = CPUSet.parse(cpus)
            which = moved if had and had <= exclusive else others
            which.append(f"{path} ran on CPUs {cpus or 'none'} and runs on {now or 'none'}")
    return moved, others
