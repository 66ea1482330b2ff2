"""Runs scenarios one after the other and keeps what they found."""

import json
import shutil
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.e2e.lab.progress import say
from tests.e2e.lab.writing import write_whole

from .control_plane import ControlPlane
from .scenarios import SCENARIOS
from .stage import Stage


@dataclass
class Result:
    """What one scenario found with one version.

    Attributes:
        scenario: its name.
        title: what it shows.
        version: of Kubernetes.
        seconds: how long it took.
        held: facts that held.
        failures: what did not, with what was seen instead.
        figures: what was measured; nobody judges it.
        seen: what the report lists beside the table.
    """

    scenario: str
    title: str
    version: str
    seconds: float = 0.0
    held: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)


def run_scenarios(names: Sequence[str], cluster: ControlPlane, version: str, work: Path) -> list[Result]:
    """Play them; a scenario that breaks off has failed, and the others go on."""
    return [_run(name, cluster, version, work) for name in names]


def _run(name: str, cluster: ControlPlane, version: str, work: Path) -> Result:
    play = SCENARIOS[name]
    title = (play.__doc__ or name).splitlines()[0].rstrip(".")
    say(f"{name}: {title}")
    result = Result(name, title, version)
    folder = cluster.folder / name
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    with Stage(cluster, folder) as stage:
        try:
            play(stage)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            stage.failures.append(f"it broke off: {type(error).__name__}: {error}")
            say("".join(traceback.format_exception(error)))
        stage.judge_audit()
    result.seconds = round(time.monotonic() - began, 1)
    result.held, result.failures, result.figures, result.seen = (
        stage.held,
        stage.failures,
        stage.figures,
        stage.seen,
    )
    say(f"{name}: {len(result.held)} facts held, {len(result.failures)} did not, {result.seconds:.0f} s")
    keep(result, work)
    return result


def keep(result: Result, work: Path) -> None:
    """Keep a result for the report."""
    folder = work / "results"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{result.scenario}@{result.version}.json", json.dumps(asdict(result), indent=1))


def kept(work: Path) -> list[Result]:
    """All results that are kept."""
    return [Result(**json.loads(file.read_text())) for file in sorted((work / "results").glob("*.json"))]
