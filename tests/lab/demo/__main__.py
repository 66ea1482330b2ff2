"""`hack/demo`: a day in the life of a node, played on a described machine with the real agent.

Runtime, hardware and cgroup tree are stand-ins. The agent is a separate process that is started as on a node. The demo
checks the cgroup files after every step and fails where they are wrong.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import click

from nri_plugin import __main__ as entry
from nri_plugin.checkpoint.file import FILE_NAME, read_checkpoint
from nri_plugin.cli.completion import scenario_names
from nri_plugin.cli.main import run_command_line
from nri_plugin.cli.output import columns, format_option, wants_colour
from nri_plugin.cli.state.verify import findings
from nri_plugin.host.cgroup import discover_reachable
from nri_plugin.model.errors import ConfigError, HostError, NriPinError
from nri_plugin.model.options import SMTOddCounts
from nri_plugin.simulator.machine import machine
from nri_plugin.simulator.simulate.steps import Say
from tests.lab.demo.day import day
from tests.lab.demo.report import JSONReport, Report, TextReport
from tests.lab.runtime.profile import BEHAVIOURS
from tests.lab.scenario.player import LATE_S, Player, StepOutcome
from tests.lab.scenario.scenario import Scenario, load
from tests.lab.scenario.stage import ScenarioNode, described, stage

DEFAULT_MACHINE = "demo"
NARROWEST, NARROW, WIDEST = 40, 80, 100
"""Columns: the least, those for a file, and the most."""

PAUSE_S = 0.3
"""The pause between paragraphs, for a reader at a terminal."""

LOOK_S = 0.02
"""The pause between two looks at cgroups that the agent may still write."""

EPILOG = """\b
Examples:
  hack/demo
  hack/demo --machine epyc7742-2p-64c-smt-nps4 --runtime cri-o
  hack/demo --scenario devices
  hack/demo --scenario ./mine.yaml --keep /tmp/node

\b
nri-pin topology --list names the machines. A scenario file begins like this:
  machine: laptop
  config:
    reservedSystemCPUs: "0,4"
  steps:
    - run: default/db
      containers:
        db: {cpu: 2, memory: 1Gi}
    - expect: default/db/db
      exclusive: 2
"""


class DemoError(NriPinError):
    """An expectation of the scenario was not met; the log of the agent is kept."""

    def __init__(self, what: str, log: Path) -> None:
        super().__init__(f"{what}; the agent's log is kept in {log}")


class WrongMachineError(click.ClickException):
    """There is no such machine, or its description is wrong."""

    exit_code = 2


PROGRAM = "hack/demo"


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--machine", "machine_name", metavar="NAME|FILE", help="Play on this machine.  [default: demo]")
@click.option(
    "--scenario",
    "file",
    type=click.Path(path_type=Path),
    metavar="NAME|FILE",
    help="Play this instead of the built-in day: devices, example, or a file.",
)
@click.option("--runtime", type=click.Choice(list(BEHAVIOURS)), help="The runtime whose behaviour is played.")
@click.option("--fast", is_flag=True, help="No pauses for reading.")
@click.option("--no-color", is_flag=True, help="No colours; NO_COLOR=1 does the same.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep the files of the simulated node here.",
)
@format_option()
def command(
    machine_name: str | None,
    file: Path | None,
    runtime: str | None,
    fast: bool,
    no_color: bool,
    keep: Path | None,
    output_format: str,
) -> None:
    """Watch a node fill up: container creations, cpusets, a refusal, a crash. Needs no root.

    The agent, the protocol, the decisions and the checkpoint are the production code. The container
    runtime, the hardware and the cgroup tree are stand-ins.

    Exit code: 0; 1 when an expectation of the scenario was not met; 2 for wrong usage.
    """
    scenario = chosen(machine_name, file, runtime)
    report = new_report(scenario, output_format, fast=fast, no_color=no_color)
    with ended_by_signals():
        play(scenario, report, keep)


def chosen(machine_name: str | None, file: Path | None, runtime: str | None) -> Scenario:
    """The scenario that the options select.

    Raises:
        UsageError: options exclude each other.
        WrongMachineError: the machine is wrong.
        ConfigError: the file is absent or wrong.
    """
    if file is not None:
        if machine_name is not None or runtime is not None:
            raise click.UsageError(
                "--scenario names machine and runtime itself; leave --machine and --runtime out"
            )
        return _loaded(file)
    name = machine_name or DEFAULT_MACHINE
    try:
        topology = machine.build_topology(described(name))
    except HostError as error:
        raise WrongMachineError(str(error)) from error
    return day(name, topology, runtime or "containerd-2.1")


def _loaded(file: Path) -> Scenario:
    if file.name == str(file) and not file.exists() and str(file) not in scenario_names():
        known = [name for name in scenario_names() if is_played(name)]
        raise ConfigError(
            str(file),
            f"is neither a file nor a scenario that comes with nri-pin; name one of {', '.join(known)}",
        )
    return load(file)


def is_played(name: str) -> bool:
    """Whether the shipped scenario has steps; others have only pods."""
    folder = resources.files("nri_plugin.simulator") / "scenarios"
    return "\nsteps:" in (folder / f"{name}.yaml").read_text("utf-8")


def new_report(scenario: Scenario, output_format: str, *, fast: bool, no_color: bool) -> Report:
    """The report for the output format."""
    if output_format == "json":
        return JSONReport(scenario)
    width = max(min(columns() or NARROW, WIDEST), NARROWEST)
    colour = wants_colour() and not no_color
    pause_s = PAUSE_S if sys.stdout.isatty() and not fast else 0.0
    return TextReport(scenario, width=width, colour=colour, pause_s=pause_s)


def play(scenario: Scenario, report: Report, keep: Path | None) -> None:
    """Play the whole scenario and report it.

    Raises:
        DemoError: an expectation was not met.
    """
    with stage(scenario, keep) as node:
        try:
            problems = perform(scenario, node, report)
        except NriPinError as error:
            raise DemoError(str(error), kept_log(node)) from error
        if problems:
            more = f", and {len(problems) - 1} more" if problems[1:] else ""
            raise DemoError(f"not as expected: {problems[0]}{more}", kept_log(node))


def perform(scenario: Scenario, node: ScenarioNode, report: Report) -> list[str]:
    """Start the agent, do every step, show the end; returns the unmet expectations."""
    report.begin(node)
    began = time.monotonic()
    node.start_agent()
    report.started(node, time.monotonic() - began)
    player = Player(
        node,
        gives_exclusive=scenario.config.get("cpuManagerPolicy") != "none",
        has_pod_managers=bool(scenario.config.get("featureGates", {}).get("PodLevelResourceManagers")),
        never_refused=scenario.config.get("neverRefuse", ()),
        odd_counts=SMTOddCounts(scenario.config.get("smtOddCounts", SMTOddCounts.KUBELET)),
    )
    problems: list[str] = []
    for step in scenario.steps:
        if isinstance(step, Say):
            report.say(step.text)
            continue
        outcome = player.play(step)
        report.outcome(outcome, player)
        problems += [place_of(scenario, outcome, problem) for problem in outcome.problems]
    problems += lasting_contradictions(node)
    # The agent is asked for pods that run in part, which no checkpoint tells.
    report.end(node, player, time.monotonic() - began, problems)
    node.stop_agent()
    return problems


def lasting_contradictions(node: ScenarioNode) -> list[str]:
    """Contradictions that stay: the agent may still write what could wait until its last answer was out."""
    deadline = time.monotonic() + LATE_S
    while (found := contradictions(node)) and node.agent_pid and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return found


def contradictions(node: ScenarioNode) -> list[str]:
    """Contradictions between checkpoint, machine and cgroups, as `nri-pin state verify` finds them."""
    checkpoint = read_checkpoint(str(node.places.state / FILE_NAME))
    if checkpoint is None:
        return [] if not node.runtime.placements() else ["the agent has written no checkpoint"]
    cgroups = str(node.places.cgroups)
    return findings(checkpoint, discover_reachable(str(node.places.machine), cgroups), cgroups)


def place_of(scenario: Scenario, outcome: StepOutcome, problem: str) -> str:
    """A problem with the line of the scenario it belongs to."""
    return f"{scenario.file}:{outcome.step.line}: {problem}"


def kept_log(node: ScenarioNode) -> Path:
    """A copy of the agent's log that is not removed with the node."""
    descriptor, name = tempfile.mkstemp(prefix="nri-pin-demo-", suffix=".log")
    os.close(descriptor)
    kept = Path(name)
    if node.places.log.exists():
        shutil.copyfile(node.places.log, kept)
    return kept


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo like Ctrl-C, so that the agent ends, too."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(entry.main(begin=lambda args, _environment: run_command_line(args, command, PROGRAM)))
