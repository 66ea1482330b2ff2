"""What scenarios showed, kept beside the disks, one file for each under each runtime; a later run replaces its own."""

import json
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .cells import Cell
from .code_state import checkout, state_of
from .shell import LabError, first_line
from .writing import make_folder, write_whole

_CELL = {field.name for field in fields(Cell)}


@dataclass(frozen=True, slots=True)
class Result:
    """One scenario under one runtime.

    Attributes:
        cells: of that runtime, and of the embedded one playing it.
        about: under which circumstances they came about; `state` says with which code, `column` under which runtime.
    """

    cells: tuple[Cell, ...]
    about: dict[str, Any]

    @property
    def column(self) -> str:
        """The runtime that was played, also by the embedded one; empty in results that do not say."""
        return str(self.about.get("column", ""))

    def is_current(self, cell: Cell) -> bool:
        """Whether nothing has changed since that could change this cell."""
        return self.about.get("state") == state_of(cell.machine, cell.scenario)


def keep(work: Path, machine: str, column: str, cells: list[Cell], accelerator: str) -> None:
    """Write what a boot of a machine under a runtime showed.

    Raises:
        LabError: it could not be written; earlier results are still there.
    """
    folder = work / "results"
    make_folder(folder)
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "checkout": checkout(),
        "host": f"{os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}",
        "load": f"{os.getloadavg()[1]:.1f}",
        "qemu": first_line("qemu-system-x86_64", "--version"),
        "accelerator": accelerator,
        "column": column,
    }
    for scenario in {cell.scenario for cell in cells}:
        shown = [cell.as_dict() for cell in cells if cell.scenario == scenario]
        said = {"about": about | {"state": state_of(machine, scenario)}, "cells": shown}
        write_whole(folder / f"{machine}.{column}.{scenario}.json", json.dumps(said, indent=1) + "\n")


def passed(results: Iterable[Result], machine: str, column: str) -> set[str]:
    """Scenarios of a machine that were played under a runtime with today's code, showed something and failed nowhere."""
    return {
        cell.scenario
        for result in results
        for cell in result.cells
        if (cell.machine, cell.runtime) == (machine, column)
        if cell.passed and not cell.failures and result.is_current(cell)
    }


def kept(work: Path) -> list[Result]:
    """All results, oldest first.

    Raises:
        LabError: one is damaged; the text names the file.
    """
    found = [_read(path) for path in sorted((work / "results").glob("*.json"))]
    return sorted(found, key=lambda result: str(result.about["date"]))


def _read(path: Path) -> Result:
    """One result; what other versions of the lab have noted beside is passed over."""
    try:
        read = json.loads(path.read_text("utf-8"))
        cells = [{name: value for name, value in cell.items() if name in _CELL} for cell in read["cells"]]
        return Result(tuple(Cell(**cell) for cell in cells), {"date": "", **read["about"]})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(f"{path} is damaged ({error}); delete it and play its scenario again") from error
