"""What the words of a command line select; what does not exist or selects nothing is refused before anything runs."""

from collections.abc import Iterable, Mapping, Sequence

from .lab_files import machine_text, scenario_named, scenario_names, scenarios_by_machine
from .qemu_machine import guest_machine
from .rules import MACHINE as RULES
from .shell import LabError, WrongUse


def selected(machines: Sequence[str] | None, scenarios: Sequence[str] | None) -> dict[str, list[str]]:
    """Scenarios by machine; a machine without scenarios plays the table of kernel rules.

    Raises:
        WrongUse: a name is unknown, or no scenario of that name plays on a machine of that name.
    """
    every = scenarios_by_machine() | {RULES: []}
    _known("machine with scenarios of the lab", machines or [], every)
    _known("scenario of the lab", scenarios or [], [*scenario_names(), RULES])
    chosen = {machine: every[machine] for machine in machines or every}
    if scenarios:
        chosen = _only(chosen, scenarios)
    if not chosen:
        raise WrongUse(f"{', '.join(scenarios or [])} plays on none of {', '.join(machines or [])}")
    return chosen


def check_run(machine: str, scenarios: Sequence[str]) -> None:
    """Everything that is wrong with what one boot is asked to play, at once.

    Raises:
        WrongUse: something is.
    """
    wrong, names = [], []
    try:
        guest_machine(*machine_text(machine))
    except LabError as error:
        wrong.append(str(error))
    for word in scenarios:
        try:
            names.append(scenario_named(word)[0])
        except LabError as error:
            wrong.append(str(error))
    twice = sorted({name for name in names if names.count(name) > 1})
    wrong += [f"there are two scenarios named {name}; one boot plays each name once" for name in twice]
    if wrong:
        raise WrongUse("\n          ".join(wrong))


def _known(what: str, names: Sequence[str], known: Iterable[str]) -> None:
    if unknown := [name for name in names if name not in known]:
        raise WrongUse(f"there is no {what} {', '.join(unknown)}; `hack/lab list` names them")


def _only(chosen: Mapping[str, list[str]], scenarios: Sequence[str]) -> dict[str, list[str]]:
    found = {machine: [name for name in names if name in scenarios] for machine, names in chosen.items()}
    return {
        machine: names
        for machine, names in found.items()
        if names or (machine == RULES and RULES in scenarios)
    }
