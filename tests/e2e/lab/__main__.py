"""Command line of `hack/lab`.

Exit status: 0 everything held, 1 something did not, 2 wrong usage, 77 this machine cannot do it and nothing was tested.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.cpuset_table import cases

from .boots import boots, perform_boots
from .cells import Cell
from .figures import ROOTS, measure, measured
from .lab_files import (
    RECORDED,
    REPORTS,
    machine_names,
    machine_text,
    scenario_named,
    scenario_names,
    scenarios_by_machine,
)
from .qemu_machine import guest_machine
from .ready import Lab
from .report import write_report
from .results import keep, kept
from .rules import MACHINE, rules_on_the_tree
from .session import (
    COLUMNS,
    EMBEDDED,
    booted,
    column_named,
    perform,
    perform_embedded,
    record,
    session,
)
from .setting_up import CANNOT_RUN, MACHINE_LOCK, check_machine, default_work, prepare, take_lock
from .shell import CannotRun, LabError
from .terminal import attach

_NAMES = [column.name for column in COLUMNS]
_EPILOG = """examples:
  hack/lab list
  hack/lab run four-nodes pool-squeezed-and-regrown --runtime containerd-2
  hack/lab run "2 sockets, 4 cores each, SMT 2" mine.yaml --json result.json
  hack/lab shell kep3545-8-nodes
"""


def main(words: list[str]) -> int:
    """Do what the words say; return the exit status."""
    arguments = _parser().parse_args(words)
    try:
        return int(arguments.do(arguments))
    except CannotRun as error:
        print(f"hack/lab: CANNOT RUN HERE, NOTHING WAS TESTED: {error}", file=sys.stderr)  # noqa: T201
        return CANNOT_RUN
    except LabError as error:
        print(f"hack/lab: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hack/lab",
        description="Described machines as guests with a real kernel, a real containerd and the agent of this checkout.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(
        commands.add_parser(
            "run", help="boot a machine once and play scenarios in it, compared with the embedded runtime"
        )
    )
    _add_shell(commands.add_parser("shell", help="boot a machine and give its console to this terminal"))
    _add_all(
        commands.add_parser("all", help="every scenario on its machine under every runtime, and the report")
    )
    _add_report(commands.add_parser("report", help="write the report anew from the results that were kept"))
    _add_record(
        commands.add_parser("record", help="record what a real kernel shows of machines, as test data")
    )
    figures = commands.add_parser("measure", help="what the plugin costs a creation, on this machine itself")
    figures.set_defaults(do=_measure)
    _common(figures)
    listing = commands.add_parser("list", help="name the lab's machines, scenarios and runtimes")
    listing.set_defaults(do=_list)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--work", type=Path, default=default_work(), metavar="DIR", help="roots, disks and reports (kept)"
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("machine", help="one of the lab's, a shipped one, a file, or a description")
    parser.add_argument("scenarios", nargs="+", metavar="scenario", help="one of the lab's, or a file")
    parser.add_argument(
        "--runtime", action="append", choices=_NAMES, help=f"may be repeated  [default: {_NAMES[0]}]"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was seen after every step")
    parser.add_argument(
        "--embedded-only", action="store_true", help="no guest: the embedded runtime alone, needs no root"
    )
    _common(parser)
    parser.set_defaults(do=_run)


def _add_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("machines", nargs="+", metavar="machine", help="as for run")
    parser.add_argument(
        "--to", type=Path, default=RECORDED, metavar="DIR", help="where lab-NAME.json.gz goes"
    )
    _common(parser)
    parser.set_defaults(do=_record)


def _add_all(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--machine", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--runtime", action="append", choices=_NAMES, help="only this one; may be repeated")
    parser.add_argument("--scenario", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument(
        "--embedded-only", action="store_true", help="no guest: the embedded runtime alone, needs no root"
    )
    parser.add_argument(
        "--missing", action="store_true", help="leave out what passed according to the results that are kept"
    )
    parser.add_argument(
        "--guests", type=int, choices=range(1, 17), default=1, metavar="N",
        help="so many at once; each keeps a CPU busy and takes its machine's memory  [default: 1]",
    )  # fmt: skip
    _add_report(parser)
    parser.set_defaults(do=_all)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report", type=Path, default=REPORTS, metavar="DIR", help="where report.md and report.html go"
    )
    _common(parser)
    parser.set_defaults(do=_report)


def _add_shell(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("machine", help="one of the lab's, a shipped one, a file, or a description")
    parser.add_argument("--runtime", choices=_NAMES, default=_NAMES[0])
    _common(parser)
    parser.set_defaults(do=_shell)


def _run(arguments: argparse.Namespace) -> int:
    columns = [column_named(name) for name in arguments.runtime or _NAMES[:1]]
    sessions = [session(arguments.machine, column, arguments.scenarios) for column in columns]
    guest_machine(*machine_text(arguments.machine))
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
    wanted = scenarios_by_machine() | {MACHINE: []}
    for name in arguments.machine or []:
        if name not in wanted:
            raise LabError(f"no scenario plays on {name}; they do on {', '.join(wanted)}")
    chosen = {machine: wanted[machine] for machine in arguments.machine or wanted}
    if arguments.scenario:
        chosen = {
            machine: [name for name in names if name in arguments.scenario]
            for machine, names in chosen.items()
        }
        chosen = {machine: names for machine, names in chosen.items() if names}
    if arguments.embedded_only:
        cells = [
            cell for machine, names in chosen.items() for cell in _on_embedded(machine, names, arguments.work)
        ]
    else:
        cells = _in_guests(chosen, arguments)
    _report(arguments)
    return _conclude(cells, None)


def _in_guests(chosen: Mapping[str, Sequence[str]], arguments: argparse.Namespace) -> list[Cell]:
    columns = [column_named(name) for name in arguments.runtime or _NAMES]
    asked = boots(chosen, columns, arguments.work if arguments.missing else None)
    if not asked:
        return []
    with _ready(arguments.work, [boot.column.root for boot in asked]) as lab:
        return perform_boots(asked, lab, arguments.guests)


def _on_embedded(machine: str, names: Sequence[str], work: Path) -> list[Cell]:
    """Every scenario of a machine on the embedded runtime alone."""
    found = (
        perform_embedded(session(machine, COLUMNS[0], names))[0] if names else [rules_on_the_tree(cases())]
    )
    work.mkdir(parents=True, exist_ok=True)
    keep(work, machine, EMBEDDED, found, "")
    return found


def _report(arguments: argparse.Namespace) -> int:
    results = kept(arguments.work)
    if not results:
        raise LabError("no results are kept; hack/lab all makes them")
    for path in write_report(results, arguments.report, measured(arguments.work)):
        print(path)  # noqa: T201
    return 0


def _record(arguments: argparse.Namespace) -> int:
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
    with take_lock(MACHINE_LOCK), _ready(arguments.work, list(ROOTS), guests=False) as lab:
        for root in ROOTS:
            measure(lab, root)
    return 0


def _shell(arguments: argparse.Namespace) -> int:
    text, name = machine_text(arguments.machine)
    guest, column = guest_machine(text, name), column_named(arguments.runtime)
    place = arguments.work / "runs" / f"shell-{name}"
    with _ready(arguments.work, [column.root]) as lab, booted(guest, column, lab, place) as running:
        attach(running)
    return 0


def _list(_arguments: argparse.Namespace) -> int:
    lines = ["machines"]
    lines += [f"  {name:<28}{machine_text(name)[0].splitlines()[0].lstrip('# ')}" for name in machine_names()]
    lines += ["", "scenarios"]
    lines += [f"  {name:<28}{scenario_named(name)[1].name}" for name in scenario_names()]
    lines += ["", "runtimes", *(f"  {name}" for name in _NAMES)]
    print("\n".join(lines))  # noqa: T201
    return 0


@contextlib.contextmanager
def _ready(work: Path, roots: list[str], *, guests: bool = True) -> Iterator[Lab]:
    """The lab, built where it is not, and this machine's lock."""
    mirror = check_machine()
    work.mkdir(parents=True, exist_ok=True)
    with take_lock(work / "lock"):
        yield prepare(roots, sorted(set(roots)) if guests else [], mirror, work)


def _conclude(cells: list[Cell], file: Path | None) -> int:
    if file is not None:
        file.write_text(json.dumps([cell.as_dict() for cell in cells], indent=1) + "\n")
    width = max((len(cell.scenario) for cell in cells), default=0)
    lines = [""]
    for cell in cells:
        verdict = "FAILED" if cell.failures else "ok"
        lines.append(
            f"{verdict:<7} {cell.scenario:<{width}}  {cell.runtime:<23} {cell.passed:4} facts  {cell.seconds:6.1f} s"
        )
        lines += [f"        {failure}" for failure in cell.failures]
    failed = sum(bool(cell.failures) for cell in cells)
    print("\n".join([*lines, "", f"{len(cells) - failed} passed, {failed} failed"]), flush=True)  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
