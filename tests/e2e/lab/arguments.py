"""The words that `hack/lab` takes."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from .lab_files import RECORDED, REPORTS
from .session import COLUMNS
from .setting_up import default_work

FLOOR_PARTS = {
    "kills": "a new container meets nobody whenever the agent is killed",
    "calls": "an answer waits for the slices alone",
    "threads": "a slice is written beside many threads",
}
"""The scenarios of `floor`."""

Command = Callable[[argparse.Namespace], int]

_IN_CHECKOUT = "tests/e2e of the checkout"
_NAMES = [column.name for column in COLUMNS]
_EPILOG = """examples:
  hack/lab list
  hack/lab run four-nodes pool-squeezed-and-regrown --runtime containerd-2
  hack/lab run "pack:2 numa:1 l3:1 core:4 pu:2" mine.yaml --json result.json
  hack/lab shell kep3545-8-nodes
  hack/lab all --missing --guests 2
  hack/lab record four-nodes --to /tmp/recorded
  hack/lab floor --only calls
  hack/lab measure
"""
_ALL = """Play every scenario on its machine under every runtime and write the report.

Where guests are emulated on two CPUs this takes two hours and more; each result is kept at once, and --missing goes
on where a former run was broken off.
"""


def parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The command line, with what does each command."""
    whole = argparse.ArgumentParser(
        prog="hack/lab",
        description="Described machines as guests with a real kernel, a real containerd and the agent of this checkout.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places = whole.add_subparsers(required=True, metavar="COMMAND")
    for name, (words, add) in _COMMANDS.items():
        own = places.add_parser(name, help=words)
        add(own)
        own.set_defaults(do=commands[name])
    return whole


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--work", type=Path, default=default_work(), metavar="DIR",
        help="roots, disks and results, kept, some 2 GB; or NRI_PIN_E2E_WORK  [default: %(default)s]",
    )  # fmt: skip


def _add_measure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin", type=Path, metavar="FILE",
        help="a program that takes the NRI socket's path: a plugin to measure in turns with ours",
    )  # fmt: skip
    _common(parser)


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


def _add_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("machines", nargs="+", metavar="machine", help="as for run")
    parser.add_argument(
        "--to", type=Path, default=RECORDED, metavar="DIR", help="where lab-NAME.json.gz goes"
    )
    _common(parser)


def _add_all(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--machine", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--runtime", action="append", choices=_NAMES, help="only this one; may be repeated")
    parser.add_argument("--scenario", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument(
        "--embedded-only", action="store_true", help="no guest: the embedded runtime alone, needs no root"
    )
    parser.add_argument(
        "--missing", action="store_true", help="leave out what the kept results show passed with today's code"
    )
    parser.add_argument(
        "--guests", type=int, choices=range(1, 17), default=1, metavar="N",
        help="so many at once; each keeps a CPU busy and takes its machine's memory  [default: 1]",
    )  # fmt: skip
    parser.add_argument(
        "--report", type=Path, metavar="DIR",
        help=f"where report.md and report.html go  [default: {_IN_CHECKOUT}; report/ of the work folder where not all was asked for]",
    )  # fmt: skip
    parser.description = _ALL
    _common(parser)


def report_folder(arguments: argparse.Namespace) -> Path:
    """Where the report goes: not over the committed one unless everything was asked for, or that place."""
    is_narrow = any(
        getattr(arguments, name, None) for name in ("machine", "runtime", "scenario", "embedded_only")
    )
    chosen: Path = arguments.report or (arguments.work / "report" if is_narrow else REPORTS)
    return chosen


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report", type=Path, metavar="DIR",
        help=f"where report.md and report.html go  [default: {_IN_CHECKOUT}]",
    )  # fmt: skip
    _common(parser)


def _add_shell(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("machine", help="one of the lab's, a shipped one, a file, or a description")
    parser.add_argument(
        "--runtime", choices=_NAMES, default=_NAMES[0], help="the one in the guest  [default: %(default)s]"
    )
    _common(parser)


def _add_floor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", action="append", choices=[*FLOOR_PARTS],
        help="kills: the agent is killed before each step. calls: system calls before an answer are counted. threads: "
        "writes to a slice are timed. May be repeated  [default: all, some 20 minutes where guests are emulated]",
    )  # fmt: skip
    _common(parser)


def _add_list(_parser: argparse.ArgumentParser) -> None:
    """It takes no words."""


_COMMANDS: Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "run": ("boot a machine once and play scenarios in it, compared with the embedded runtime", _add_run),
    "shell": ("boot a machine and give its console to this terminal", _add_shell),
    "floor": (
        "kill the agent around the writes of the pool floor, and count what an answer waits for",
        _add_floor,
    ),
    "all": ("every scenario on its machine under every runtime, and the report", _add_all),
    "report": ("write the report anew from the results that were kept", _add_report),
    "record": ("record what a real kernel shows of machines, as test data", _add_record),
    "measure": ("what the plugin costs a creation, on this machine itself", _add_measure),
    "list": ("name the lab's machines, scenarios and runtimes", _add_list),
}
