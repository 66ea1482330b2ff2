"""The table of kernel rules on both sides: the simulated cgroup tree, and a guest's kernel (cgroup v2)."""

import json
from contextlib import AbstractContextManager
from pathlib import Path

from tests.cpuset_table import Case, cases, contradiction, tree_for

from .cells import Cell, Listener
from .guest import Guest
from .lab_files import machine_named
from .prepare import inside
from .ready import Lab
from .session import EMBEDDED, Column, booted
from .shell import LabError

MACHINE = SCENARIO = "cpuset-rules"


def perform_rules(column: Column, lab: Lab, place: Path) -> list[Cell]:
    """Play the table on the tree, then on a guest's kernel."""
    table = cases()
    cell = Cell(
        MACHINE, SCENARIO, column.name, limitation="the guest's kernel alone, without a container runtime"
    )
    listener = Listener({SCENARIO: cell}, place / "output.log")
    try:
        _play(table, cell, listener, booted(machine_named(MACHINE), column, lab, place), place / "cases.json")
    except (LabError, OSError) as error:
        cell.failures.append(str(error))
    if SCENARIO not in listener.ended:
        cell.failures.append(f"it broke off; see {listener.log}")
    return [rules_on_the_tree(table), cell]


def _play(
    table: list[Case], cell: Cell, listener: Listener, booting: AbstractContextManager[Guest], file: Path
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(table))
    with booting as guest:
        guest.put(file, "/run/cases.json")
        status = guest.run(" ".join(inside("kernel_rules", "/run/cases.json")), listener.hear)
        cell.figures = {"boot seconds": guest.seconds_to_boot, "kernel": listener.versions.get("kernel", "?")}
    if status:
        raise LabError(f"playing the table ended with status {status}; see {listener.log}")


def rules_on_the_tree(table: list[Case]) -> Cell:
    """The same on the embedded runtime's tree."""
    cell = Cell(MACHINE, SCENARIO, EMBEDDED)
    for case in table:
        if 2 in case["versions"]:
            tree = tree_for(case, 2)
            wrong = [said for line in case["play"] if (said := contradiction(tree, line))]
            cell.passed += not wrong
            cell.failures += [f"{case['sentence']}: {wrong[0]}"] if wrong else []
    return cell
