"""Runs scenarios one after the other and keeps what they found."""

import contextlib
import json
import shutil
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tests.e2e.lab.progress import say
from tests.e2e.lab.ready import CHECKOUT
from tests.e2e.lab.shell import CannotRun, LabError, run
from tests.e2e.lab.writing import write_whole

from .control_plane import ControlPlane
from .guest_node import Guests
from .kubelet_recording import NODE_SCENARIOS
from .scenarios import SCENARIOS
from .stage import Facts, Stage

ALL_SCENARIOS = {**SCENARIOS, **NODE_SCENARIOS}
LEAN_SCENARIOS = (
    "what-is-placed-is-published",
    "refusals-are-events",
    "foreign-edits-are-taken-back",
    "an-exporter-writes-its-own-node-only",
    "an-api-server-that-dies-is-survived",
    "the-extender-chooses-nodes",
)
"""Those that need no controller and no node, and take a minute at most: exporter, events, extender, the object's life."""


@dataclass
class Result(Facts):
    """What one scenario found with one version.

    Attributes:
        scenario: its name.
        title: what it shows.
        version: of Kubernetes.
        seconds: how long it took.
        played: the day, and the commit that was checked out.
    """

    scenario: str = ""
    title: str = ""
    version: str = ""
    seconds: float = 0.0
    played: str = ""


def run_scenarios(names: Sequence[str], cluster: ControlPlane, version: str, work: Path) -> list[Result]:
    """Play them; a scenario that breaks off has failed, and the others go on."""
    guests = Guests(cluster, work)
    today = _today()  # files may be edited while it runs
    try:
        return [_run(name, cluster, guests, version, work, today) for name in names]
    finally:
        guests.close()


def _run(name: str, cluster: ControlPlane, guests: Guests, version: str, work: Path, today: str) -> Result:
    play = ALL_SCENARIOS[name]
    title = (play.__doc__ or name).splitlines()[0].rstrip(".")
    say(f"{name}: {title}")
    folder = cluster.folder / name
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    with Stage(cluster, folder, guests) as stage:
        try:
            play(stage)
        except CannotRun:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            stage.failures.append(f"it broke off: {type(error).__name__}: {error}")
            say("".join(traceback.format_exception(error)))
        stage.judge_audit()
    found = {each.name: getattr(stage, each.name) for each in fields(Facts)}
    seconds = round(time.monotonic() - began, 1)
    result = Result(**found, scenario=name, title=title, version=version, seconds=seconds, played=today)
    say(f"{name}: {len(result.held)} facts held, {len(result.failures)} did not, {result.seconds:.0f} s")
    keep(result, work)
    return result


def _today() -> str:
    commit = ""
    with contextlib.suppress(LabError):  # it is no clone
        commit = run(["git", "-C", CHECKOUT, "describe", "--always", "--dirty", "--abbrev=8"]).strip()
    return f"{time.strftime('%Y-%m-%d', time.gmtime())}, {commit or 'no commit'}"


def keep(result: Result, work: Path) -> None:
    """Keep a result for the report."""
    folder = work / "results"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{result.scenario}@{result.version}.json", json.dumps(asdict(result), indent=1))


def kept(work: Path) -> list[Result]:
    """All results that are kept."""
    return [Result(**json.loads(file.read_text())) for file in sorted((work / "results").glob("*.json"))]
