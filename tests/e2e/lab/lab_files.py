"""Machines and scenarios by name: those of the lab, those the product ships, or files."""

from importlib import resources
from pathlib import Path

from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.simulator.machine.machine import is_description
from tests.lab.scenario.scenario import Scenario, parse

from .qemu_machine import GuestMachine, guest_machine
from .shell import WrongUse

_HERE = Path(__file__).resolve().parents[1]
MACHINES, SCENARIOS = _HERE / "machines", _HERE / "scenarios"
REPORTS = _HERE
RECORDED = _HERE.parent / "machines"


def machine_text(word: str) -> tuple[str, str]:
    """Text and name of a machine; words with a colon or a comma are the description itself.

    Raises:
        WrongUse: there is none of that name, or it is no text.
    """
    if is_description(word):
        return word, "described"
    shipped = resources.files("nri_plugin.simulator") / "machines" / f"{word}.yaml"
    own = MACHINES / f"{word}.yaml"
    for found in (own, Path(word)):
        if found.is_file():
            return _text(found), found.stem
    if "/" not in word and shipped.is_file():
        return shipped.read_text("utf-8"), word
    raise WrongUse(
        f"there is no machine {word}; `hack/lab list` names the lab's, `nri-pin topology --list` the shipped, "
        'and a description is a synthetic string of hwloc: "pack:1 core:4 pu:1"'
    )


def machine_named(word: str) -> GuestMachine:
    """A machine as a guest gets it.

    Raises:
        WrongUse: there is none, or QEMU cannot be given it.
    """
    return guest_machine(*machine_text(word))


def machine_names() -> list[str]:
    """The lab's own machines."""
    return sorted(path.stem for path in MACHINES.glob("*.yaml"))


def scenario_names() -> list[str]:
    """The lab's scenarios."""
    return sorted(path.stem for path in SCENARIOS.glob("*.yaml"))


def scenario_named(word: str) -> tuple[str, Scenario]:
    """Name and content of a scenario.

    Raises:
        WrongUse: there is none, or it is wrong; the text names the file as it was named.
    """
    own = SCENARIOS / f"{word}.yaml"
    is_own = own.is_file()
    path = own if is_own else Path(word)
    if not path.is_file():
        raise WrongUse(f"there is no scenario {word}; `hack/lab list` names the lab's")
    try:
        return path.stem, parse(_text(path), path.name if is_own else word)
    except (ConfigError, HostError) as error:
        raise WrongUse(str(error)) from error


def _text(path: Path) -> str:
    """What a file holds.

    Raises:
        WrongUse: it cannot be read, or is no text.
    """
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise WrongUse(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WrongUse(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}") from error


def scenarios_by_machine() -> dict[str, list[str]]:
    """The lab's scenarios by the machine each of them names."""
    found: dict[str, list[str]] = {}
    for name in scenario_names():
        found.setdefault(scenario_named(name)[1].machine, []).append(name)
    return dict(sorted(found.items()))
