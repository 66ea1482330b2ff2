"""Machines and scenarios by name: those of the lab, those the product ships, or files."""

from importlib import resources
from pathlib import Path

from nri_plugin.errors import ConfigError, HostError
from nri_plugin.simulator.scenario import Scenario, parse

from .qemu_machine import GuestMachine, guest_machine
from .shell import LabError

_HERE = Path(__file__).resolve().parents[1]
MACHINES, SCENARIOS = _HERE / "machines", _HERE / "scenarios"
REPORTS = _HERE
RECORDED = _HERE.parent / "machines"


def machine_text(word: str) -> tuple[str, str]:
    """Text and name of a machine; words with a comma are the description itself.

    Raises:
        LabError: there is none of that name.
    """
    if "," in word or "\n" in word:
        return word, "described"
    shipped = resources.files("nri_plugin.simulator") / "machines" / f"{word}.txt"
    own = MACHINES / f"{word}.txt"
    for found in (own, Path(word)):
        if found.is_file():
            return found.read_text("utf-8"), found.stem
    if "/" not in word and shipped.is_file():
        return shipped.read_text("utf-8"), word
    raise LabError(
        f"there is no machine {word}; `hack/lab list` names the lab's, `nri-pin topology --list` the shipped"
    )


def machine_named(word: str) -> GuestMachine:
    """A machine as a guest gets it.

    Raises:
        LabError: there is none, or QEMU cannot be given it.
    """
    return guest_machine(*machine_text(word))


def machine_names() -> list[str]:
    """The lab's own machines."""
    return sorted(path.stem for path in MACHINES.glob("*.txt"))


def scenario_names() -> list[str]:
    """The lab's scenarios."""
    return sorted(path.stem for path in SCENARIOS.glob("*.yaml"))


def scenario_named(word: str) -> tuple[str, Scenario]:
    """Name and content of a scenario.

    Raises:
        LabError: there is none, or it is wrong.
    """
    own = SCENARIOS / f"{word}.yaml"
    path = own if own.is_file() else Path(word)
    try:
        return path.stem, parse(path.read_text("utf-8"), path.name)
    except ConfigError as error:
        raise LabError(str(error)) from error
    except (OSError, HostError) as error:
        raise LabError(f"there is no scenario {word}; `hack/lab list` names the lab's") from error


def scenarios_by_machine() -> dict[str, list[str]]:
    """The lab's scenarios by the machine each of them names."""
    found: dict[str, list[str]] = {}
    for name in scenario_names():
        found.setdefault(scenario_named(name)[1].machine, []).append(name)
    return dict(sorted(found.items()))
