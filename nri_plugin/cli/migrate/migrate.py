"""`nri-pin migrate`: the plan of a migration, and its execution."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import click

from nri_plugin.cli.doctor.view import NodeView, is_in_pod
from nri_plugin.cli.migrate.host import (
    DIRECTORY,
    TO_KUBELET,
    TO_PLUGIN,
    Host,
    MigrationRecord,
    RecordFile,
    Systemd,
)
from nri_plugin.cli.migrate.planning import Choices, Decided, Way, decide_to_kubelet, decide_to_plugin
from nri_plugin.cli.migrate.steps import (
    START_KUBELET,
    STOP_KUBELET,
    Step,
    handling,
    is_finished_forward,
    run,
    steps_of,
    undo,
)
from nri_plugin.cli.output import FOR_PROGRAMS, echo, format_option, render
from nri_plugin.cli.state.source import FailedError, usage_errors
from nri_plugin.config.checks import HOST_MOUNT, present
from nri_plugin.model.errors import NriPinError
from nri_plugin.model.records import named, owner_of

EXAMPLES = """\b
Examples:
  nri-pin migrate to-plugin                  the plan: every step, and the lines that change
  nri-pin migrate to-plugin --yes            carry it out
  nri-pin migrate to-kubelet --yes           and back
  kubectl debug node/NODE -it --profile=sysadmin --image=REGISTRY/nri-pin:0.1.0 -- \\
    nri-pin migrate to-plugin --yes          where a DaemonSet brings the agent
"""


@click.group(name="migrate", epilog=EXAMPLES)
def group() -> None:
    """Move this node from the kubelet's static managers to nri-pin, or back; containers keep running and are not moved.

    A step that fails is undone together with those before it, and the kubelet runs as before. After a SIGKILL or a
    power failure, run the command again: it finishes the migration or undoes it.
    """


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            click.option("--plan", is_flag=True, help="Print the plan and change nothing. The default."),
            click.option("--yes", is_flag=True, help="Carry the plan out."),
            click.option(
                "--agent",
                "way",
                type=click.Choice(("unit", "runtime", "daemonset")),
                help="What starts the agent: its unit nri-pin.service, the container runtime, or a DaemonSet.  [default: "
                "daemonset in a pod, else as installed]",
            ),
            click.option(
                "--config",
                default="",
                metavar="FILE",
                help="The agent's configuration, on the node.  [default: that of its unit or plugin]",
            ),
            click.option(
                "--kubelet-unit",
                default="kubelet.service",
                show_default=True,
                metavar="UNIT",
                help="The unit of systemd that starts the kubelet.",
            ),
            click.option(
                "--root",
                metavar="DIR",
                help="The directory of the node's root file system.  [default: /host if it holds sys, else /]",
            ),
            click.option(
                "--timeout",
                "timeout_s",
                default=120.0,
                show_default=True,
                metavar="SECONDS",
                type=click.FloatRange(min=1),
                help="How long to wait for the agent, and for the kubelet.",
            ),
            format_option(),
        )
    ):
        command = option(command)
    return command


@group.command(name=TO_PLUGIN, epilog=EXAMPLES)
@_options
@click.option(
    "--containers",
    default="",
    metavar="FILE",
    help="The output of `crictl ps -o json`: only these containers are imported.",
)
@click.option(
    "--without-memory",
    is_flag=True,
    help="Leave out allocated memory where memoryManagerPolicy is not Static in the agent's configuration.",
)
def to_plugin(containers: str, *, without_memory: bool, **more: Any) -> None:
    """Move the node from the kubelet's static managers to nri-pin.

    Exit code: 0 done, planned or nothing to do; 1 refused, failed and undone, or an interrupted one was undone; 2 a file
    or the machine cannot be read.
    """
    _main(TO_PLUGIN, containers=containers, without_memory=without_memory, **more)


@group.command(name=TO_KUBELET, epilog=EXAMPLES)
@_options
def to_kubelet(**more: Any) -> None:
    """Move the node from nri-pin to the kubelet's static managers.

    The kubelet gets the agent's policies, options and reserved CPUs.

    Exit code: 0 done, planned or nothing to do; 1 refused, failed and undone, or an interrupted one was undone; 2 a file
    or the machine cannot be read.
    """
    _main(TO_KUBELET, **more)


def _main(
    direction: str,
    *,
    plan: bool,
    yes: bool,
    way: str | None,
    config: str,
    kubelet_unit: str,
    root: str | None,
    timeout_s: float,
    output_format: str,
    containers: str = "",
    without_memory: bool = False,
) -> None:
    if plan and yes:
        raise click.UsageError("--plan and --yes exclude each other; give one")
    top = root or next(present(HOST_MOUNT, "/sys/devices/system/cpu"), "/")
    view = NodeView(top, in_pod=is_in_pod())
    host = Host(view, Systemd(view.root), timeout_s)
    unit = kubelet_unit if "." in kubelet_unit else f"{kubelet_unit}.service"
    choices = Choices(cast("Way | None", way), config, unit, containers, without_memory)
    file = RecordFile(os.path.join(view.root, DIRECTORY.lstrip("/")))
    with usage_errors():
        migrate(direction, host, file, choices, yes=yes, output_format=output_format)


def migrate(
    direction: str, host: Host, file: RecordFile, choices: Choices, *, yes: bool, output_format: str = "text"
) -> None:
    """Print a plan, or carry it out; first end what was interrupted.

    Raises:
        NriPinError: nothing was changed, or everything is undone.
        FailedError: the same.
    """
    say = _say if output_format == "text" else _silent
    if not yes:
        record = file.read()
        if record is not None:
            what = "finishes" if is_finished_forward(record) else "undoes"
            echo(f"a migration {record.plan.direction} was interrupted; --yes {what} it first", err=True)
        _show(_decided(direction, host, choices), host, output_format)
        return
    # SIGTERM undoes. A hang-up is passed over: the terminal of a pod may end with the kubelet.
    with file.locked(), handling({signal.SIGHUP: signal.SIG_IGN, signal.SIGTERM: _terminated}):
        record = file.read()
        if record is not None:
            _take_up(record, host, file, say)
            _say_done(output_format, record.plan.direction, "done")
            return
        decided = _decided(direction, host, choices)
        if decided is None:
            _say_done(output_format, direction, "nothing to do")
            return
        for note in decided.notes:
            say(f"note: {note}")
        steps = steps_of(decided.plan, host, say)
        run(file, MigrationRecord(decided.plan), steps, say)
        count = len(decided.plan.before)
        words = f"{count} container cgroups compared, none with exclusive CPUs was moved"
        _say_done(output_format, direction, words, decided.after)


def _decided(direction: str, host: Host, choices: Choices) -> Decided | None:
    return decide_to_plugin(host, choices) if direction == TO_PLUGIN else decide_to_kubelet(host, choices)


def _take_up(record: MigrationRecord, host: Host, file: RecordFile, say: Callable[[str], None]) -> None:
    """Finish or undo a migration that was interrupted.

    Raises:
        FailedError: it was undone, or could not be.
    """
    steps = steps_of(record.plan, host, say)
    if is_finished_forward(record):
        say(
            f"a migration {record.plan.direction} was interrupted after the kubelet's start had begun; finishing it"
        )
        begun = record.begun[: record.begun.index(START_KUBELET) + 1]
        run(file, MigrationRecord(record.plan, begun), steps, say)
        return
    say(f"a migration {record.plan.direction} was interrupted; undoing it")
    if STOP_KUBELET in record.begun:
        # A kubelet that started with the machine has read files of both sides.
        with suppress(NriPinError):
            host.services.stop(record.plan.kubelet_unit)
    left = undo(file, record, steps, say)
    if left:
        raise FailedError(f"not undone: {'; '.join(left)}; correct that, and run the command again")
    raise FailedError(
        f"an interrupted migration {record.plan.direction} was undone, and the kubelet runs as before; run the command "
        "again to migrate"
    )


def _terminated(*_: object) -> None:
    raise SystemExit(1)


# ---- output


def _say(line: str) -> None:
    # The terminal may be gone; the migration goes on.
    with suppress(OSError):
        echo(line)


def _silent(_: str) -> None:
    pass


def _show(decided: Decided | None, host: Host, output_format: str) -> None:
    if output_format in FOR_PROGRAMS:
        echo(render(_facts(decided, host), output_format))
        return
    if decided is None:
        echo("nothing to do: the node is there already")
        return
    echo("\n".join(_text(decided, host)))


def _text(decided: Decided, host: Host) -> Iterator[str]:
    plan = decided.plan
    yield f"plan of {plan.direction}; nothing was changed, and --yes carries it out"
    for command in decided.before:
        yield f"  before: {command}"
    for number, step in enumerate(steps_of(plan, host, _silent), 1):
        yield f"  {number}. {step.says}"
        lines = _allocations(decided) if step.name in ("import", "export") else step.changes
        yield from (f"       {line}" for line in lines)
    for command in decided.after:
        yield f"  after: {command}"
    yield from (f"note: {note}" for note in decided.notes)


def _allocations(decided: Decided) -> list[str]:
    rows = decided.state.allocations.items()
    found = [
        f"{_named(decided, key)}  CPUs {one.cpus or '-'}" + (f"  memory nodes {one.mems}" if one.mems else "")
        for key, one in rows
    ]
    return found or ["no allocations"]


def _named(decided: Decided, key: str) -> str:
    """NAMESPACE/POD/CONTAINER of an allocation, as far as the state or the node knows it."""
    uid, container = owner_of(key)
    pod = decided.names.get(uid)
    if pod is None or uid in decided.state.pods:
        return named(decided.state.pods, key)
    return f"{pod}/{container}" if container else pod


def _facts(decided: Decided | None, host: Host) -> dict[str, Any]:
    if decided is None:
        return {"steps": []}
    steps: tuple[Step, ...] = steps_of(decided.plan, host, _silent)
    return {
        "direction": decided.plan.direction,
        "agent": decided.plan.way,
        "before": decided.before,
        "steps": [{"name": one.name, "says": one.says, "changes": one.changes} for one in steps],
        "after": decided.after,
        "allocations": [
            {"container": key, "cpus": str(one.cpus), "mems": str(one.mems)}
            for key, one in decided.state.allocations.items()
        ],
        "notes": decided.notes,
    }


def _say_done(output_format: str, direction: str, words: str, after: tuple[str, ...] = ()) -> None:
    if output_format in FOR_PROGRAMS:
        echo(render({"direction": direction, "result": words, "after": after}, output_format))
        return
    _say(f"{direction}: {words}")
    for command in after:
        _say(f"next: {command}")
