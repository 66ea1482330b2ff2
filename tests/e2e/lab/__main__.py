"""Command line of `hack/lab`.

Exit status: 0 everything held, 1 something did not, 2 wrong usage, 77 this machine cannot do it and nothing was tested.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cpuset_table import cases

from .arguments import FLOOR_PARTS, parser, report_folder
from .boots import boots, perform_boots
from .cells import Cell, Listener
from .code_state import code_state
from .figures import ROOTS, measure, measured
from .lab_files import machine_names, machine_text, scenario_named, scenario_names
from .prepare import inside
from .qemu_machine import guest_machine
from .ready import Lab
from .report import write_report
from .results import keep, kept, passed
from .rules import MACHINE as RULES
from .rules import rules_on_the_tree
from .selection import check_run, selected
from .session import COLUMNS, EMBEDDED, booted, column_named, perform, perform_embedded, record, session
from .setting_up import CANNOT_RUN, MACHINE_LOCK, check_machine, prepare, take_lock
from .shell import CannotRun, LabError, WrongUse
from .terminal import attach
from .writing import make_folder, write_whole

_NAMES = [column.name for column in COLUMNS]
FLOOR = "four-nodes"
"""The machine of `floor`."""
PYTHON = "/opt/nri-pin/bin/python3"
"""The one that has the product."""


def main(words: list[str]) -> int:
    """Do what the words say; return the exit status."""
    arguments = parser(_COMMANDS).parse_args(words)
    try:
        return int(arguments.do(arguments))
    except CannotRun as error:
        return _refuse(f"CANNOT RUN HERE, NOTHING WAS TESTED: {error}", CANNOT_RUN)
    except WrongUse as error:
        return _refuse(str(error), 2)
    except LabError as error:
        return _refuse(str(error), 1)
    except BrokenPipeError:
        return 1  # whoever read has left, and hears no reasons
    except OSError as error:
        return _refuse(f"{error.filename or 'this machine'}: {error.strerror or error}", 1)
    except KeyboardInterrupt:
        return _refuse("interrupted; what was broken off is not kept", 130)


def _refuse(reason: str, status: int) -> int:
    print(f"hack/lab: {reason}", file=sys.stderr)  # noqa: T201
    return status


def _run(arguments: argparse.Namespace) -> int:
    check_run(arguments.machine, arguments.scenarios)
    if arguments.json:
        make_folder(arguments.json.parent)
    columns = [column_named(name) for name in arguments.runtime or _NAMES[:1]]
    sessions = [session(arguments.machine, column, arguments.scenarios) for column in columns]
    if arguments.embedded_only:
        return _conclude([cell for asked in sessions for cell in perform_embedded(asked)[0]], arguments.json)
    cells: list[Cell] = []
    with _ready(arguments.work, [column.root for column in columns]) as lab:
        for asked in sessions:
            place = arguments.work / "runs" / f"lab-{Path(asked.machine).stem[:40]}-{asked.column.name}"
            cells += perform(asked, lab, place)
    return _conclude(cells, arguments.json)


def _all(arguments: argparse.Namespace) -> int:
    """One boot for every machine and runtime; each result is kept at once, so that an interrupted run is not lost."""
    chosen = selected(arguments.machine, arguments.scenario)
    if not arguments.embedded_only:
        check_machine()
    make_folder(report_folder(arguments))
    make_folder(arguments.work)
    code_state()
    play = _on_embedded if arguments.embedded_only else _in_guests
    cells = play(chosen, arguments)
    if not cells:
        print("nothing is missing: all of it passed with today's code")  # noqa: T201
    _report(arguments)
    return _conclude(cells, None)


def _in_guests(chosen: Mapping[str, Sequence[str]], arguments: argparse.Namespace) -> list[Cell]:
    columns = [column_named(name) for name in arguments.runtime or _NAMES]
    asked = boots(chosen, columns, arguments.work if arguments.missing else None)
    if not asked:
        return []
    with _ready(arguments.work, [boot.column.root for boot in asked]) as lab:
        return perform_boots(asked, lab, arguments.guests)


def _on_embedded(chosen: Mapping[str, Sequence[str]], arguments: argparse.Namespace) -> list[Cell]:
    """The same on the embedded runtime alone."""
    cells = []
    results = kept(arguments.work) if arguments.missing else []
    for machine, names in chosen.items():
        done = passed(results, machine, EMBEDDED)
        wanted = [name for name in names if name not in done]
        found = perform_embedded(session(machine, COLUMNS[0], wanted))[0] if wanted else []
        if not names and RULES not in done:
            found = [rules_on_the_tree(cases())]
        keep(arguments.work, machine, EMBEDDED, found, "")
        cells += found
    return cells


def _report(arguments: argparse.Namespace) -> int:
    folder = report_folder(arguments)
    make_folder(folder)
    results = kept(arguments.work)
    if not results:
        raise LabError("no results are kept; hack/lab all makes them")
    for path in write_report(results, folder, _figures(arguments.work)):
        print(path)  # noqa: T201
    return 0


def _figures(work: Path) -> dict[str, dict[str, Any]]:
    try:
        return measured(work)
    except (ValueError, AttributeError) as error:
        raise LabError(
            f"a file in {work / 'figures'} is damaged ({error}); delete it and measure again"
        ) from error


def _record(arguments: argparse.Namespace) -> int:
    make_folder(arguments.to)
    for word in arguments.machines:
        text, name = machine_text(word)
        target = arguments.to / f"lab-{name}.json.gz"
        with _ready(arguments.work, [COLUMNS[0].root]) as lab:
            place = arguments.work / "runs" / f"record-{name}"
            with booted(guest_machine(text, name), COLUMNS[0], lab, place) as running:
                record(running, target)
        print(f"{target}: {target.stat().st_size} bytes")  # noqa: T201
    return 0


def _measure(arguments: argparse.Namespace) -> int:
    check_machine()
    with take_lock(MACHINE_LOCK), _ready(arguments.work, list(ROOTS), guests=False) as lab:
        for root in ROOTS:
            measure(lab, root, arguments.plugin)
    return 0


def _floor(arguments: argparse.Namespace) -> int:
    """Play `inside/pool_floor.py` on a guest's kernel."""
    place = arguments.work / "runs" / f"floor-{FLOOR}"
    only = "the guest's kernel and the agent, without a container runtime"
    parts = arguments.only or [*FLOOR_PARTS]
    cells = {
        name: Cell(FLOOR, name, "none", limitation=only) for name in [FLOOR_PARTS[part] for part in parts]
    }
    shutil.rmtree(place, ignore_errors=True)
    make_folder(place)
    listener = Listener(cells, place / "output.log")
    with (
        _ready(arguments.work, [COLUMNS[0].root]) as lab,
        booted(guest_machine(*machine_text(FLOOR)), COLUMNS[0], lab, place) as running,
    ):
        status = running.run(" ".join(inside("pool_floor", *parts, python=PYTHON)), listener.hear)
    for cell in cells.values():
        if cell.scenario not in listener.ended:
            cell.failures.append(f"it did not end, status {status}; see {listener.log}")
        for what, value in cell.figures.items():
            print(f"{what}: {value}")  # noqa: T201
    return _conclude([*cells.values()], None)


def _shell(arguments: argparse.Namespace) -> int:
    text, name = machine_text(arguments.machine)
    guest, column = guest_machine(text, name), column_named(arguments.runtime)
    place = arguments.work / "runs" / f"shell-{name}"
    with _ready(arguments.work, [column.root]) as lab, tempfile.TemporaryDirectory() as directory:
        terminal = f"{directory}/terminal"
        with booted(guest, column, lab, place, terminal) as running:
            attach(running, terminal, column.words)
    return 0


def _list(_arguments: argparse.Namespace) -> int:
    width = max(map(len, [*machine_names(), *scenario_names()])) + 2
    lines = ["machines"]
    lines += [
        f"  {name:<{width}}{machine_text(name)[0].splitlines()[0].lstrip('# ')}" for name in machine_names()
    ]
    lines += ["", "scenarios"]
    lines += [f"  {name:<{width}}{scenario_named(name)[1].name}" for name in scenario_names()]
    lines += ["", "runtimes", *(f"  {name}" for name in _NAMES)]
    print("\n".join(lines))  # noqa: T201
    return 0


@contextlib.contextmanager
def _ready(work: Path, roots: list[str], *, guests: bool = True) -> Iterator[Lab]:
    """The lab, built where it is not, and this machine's lock."""
    mirror = check_machine()
    make_folder(work)
    with take_lock(work / "lock"):
        yield prepare(roots, sorted(set(roots)) if guests else [], mirror, work)


def _conclude(cells: list[Cell], file: Path | None) -> int:
    if file is not None:
        write_whole(file, json.dumps([cell.as_dict() for cell in cells], indent=1) + "\n")
    width = max((len(cell.scenario) for cell in cells), default=0)
    lines = [""]
    for cell in cells:
        lines.append(
            f"{cell.verdict:<8} {cell.scenario:<{width}}  {cell.runtime:<23} {cell.passed:4} facts  {cell.seconds:6.1f} s"
        )
        lines += [f"         {reason}" for reason in cell.reasons]
    verdicts = [cell.verdict for cell in cells]
    failed, slow = verdicts.count("FAILED"), verdicts.count("TOO SLOW")
    counts = f"{verdicts.count('ok')} passed, {failed} failed"
    counts += f", {slow} not judged because the host is too slow" if slow else ""
    print("\n".join([*lines, "", counts]), flush=True)  # noqa: T201
    return 1 if failed else CANNOT_RUN if slow else 0


_COMMANDS = {
    "run": _run,
    "shell": _shell,
    "floor": _floor,
    "all": _all,
    "report": _report,
    "record": _record,
    "measure": _measure,
    "list": _list,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
