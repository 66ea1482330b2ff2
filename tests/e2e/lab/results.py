"""What scenarios showed, kept beside the disks, one file for each under each runtime; a later run replaces its own."""

import json
import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cells import Cell
from .ready import CHECKOUT


@dataclass(frozen=True, slots=True)
class Result:
    """One scenario under one runtime: its cells and under which circumstances they came about."""

    cells: tuple[Cell, ...]
    about: dict[str, Any]


def keep(work: Path, machine: str, column: str, cells: list[Cell], accelerator: str) -> None:
    """Write what a boot of a machine under a runtime showed."""
    folder = work / "results"
    folder.mkdir(exist_ok=True)
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "checkout": _checkout(),
        "host": f"{os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}",
        "load": f"{os.getloadavg()[1]:.1f}",
        "qemu": _first_line("qemu-system-x86_64", "--version"),
        "accelerator": accelerator,
    }
    for scenario in {cell.scenario for cell in cells}:
        shown = [cell.as_dict() for cell in cells if cell.scenario == scenario]
        text = json.dumps({"about": about, "cells": shown}, indent=1)
        (folder / f"{machine}.{column}.{scenario}.json").write_text(text + "\n")


def passed(work: Path, machine: str, column: str) -> set[str]:
    """Scenarios of a machine that were played under a runtime, and nothing failed."""
    return {
        cell.scenario
        for result in kept(work)
        for cell in result.cells
        if (cell.machine, cell.runtime) == (machine, column) and not cell.failures
    }


def kept(work: Path) -> list[Result]:
    """All results, oldest first."""
    found = []
    for path in sorted((work / "results").glob("*.json")):
        read = json.loads(path.read_text())
        found.append(Result(tuple(Cell(**cell) for cell in read["cells"]), read["about"]))
    return sorted(found, key=lambda result: str(result.about["date"]))


def _checkout() -> str:
    said = subprocess.run(
        ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty"],
        check=False,
        capture_output=True,
        text=True,
    )
    return said.stdout.strip() or "unknown"


def _first_line(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.partition("\n")[0].split("(")[0].strip()
