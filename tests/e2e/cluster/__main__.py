"""Command line of `hack/cluster`.

Exit status: 0 everything held, 1 something did not, 2 wrong arguments, 77 this machine cannot do it, 130 interrupted.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.e2e.lab.progress import say
from tests.e2e.lab.setting_up import CANNOT_RUN, check_machine, take_lock
from tests.e2e.lab.shell import CannotRun, LabError

from .components import CONTROL_PLANE, DEFAULT_VERSION, LEAN, programs, programs_work
from .control_plane import ControlPlane
from .node_life_scenarios import NODE_SCENARIOS
from .report import REPORTS, write_report
from .running import ALL_SCENARIOS, LEAN_SCENARIOS, Result, kept, run_scenarios
from .scenarios import SCENARIOS

_INTERRUPTED = 130
_EPILOG = """examples:
  hack/cluster run                             every scenario, with a cluster of its own
  hack/cluster run foreign-edits-are-taken-back
  hack/cluster up; hack/cluster shell; hack/cluster down
  hack/cluster run --lean                      what CI plays, built in a few minutes
  hack/cluster run --kubernetes 1.34.6
  hack/cluster report
"""


def main() -> int:
    """Do what was asked for; return the exit status."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended then, too
    try:
        return int(arguments.do(arguments))
    except CannotRun as error:
        print(f"hack/cluster: CANNOT RUN HERE, NOTHING WAS TESTED: {error}", flush=True)  # noqa: T201
        return CANNOT_RUN
    except LabError as error:
        print(f"hack/cluster: {error}", flush=True)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="hack/cluster",
        description="A real cluster on this machine: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places = whole.add_subparsers(required=True, metavar="COMMAND")
    commands: dict[str, tuple[str, Callable[[argparse.Namespace], int]]] = {
        "up": ("bring a control plane up, and leave it running", _up),
        "run": ("play scenarios, in the cluster that is up or one for the purpose", _run),
        "list": ("name the scenarios", _list),
        "shell": ("a shell with KUBECONFIG and kubectl of the cluster that is up", _shell),
        "down": ("end everything that `up` started", _down),
        "report": ("write the report of all kept results", _report),
    }
    for name, (words, do) in commands.items():
        own = places.add_parser(name, help=words)
        own.set_defaults(do=do)
        own.add_argument(
            "--work", type=Path, default=programs_work(), metavar="DIR",
            help="programs and results, kept; or NRI_PIN_CLUSTER_WORK  [default: %(default)s]",
        )  # fmt: skip
        if name in ("up", "run"):
            own.add_argument(
                "--kubernetes", default=DEFAULT_VERSION, metavar="VERSION", help="[default: %(default)s]"
            )
        if name == "up":
            own.add_argument("--bare", action="store_true", help="only etcd and the API server")
        if name == "run":
            own.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="[default: all]")
            own.add_argument(
                "--lean", action="store_true",
                help="without controllers and nodes, whose building takes longest: the scenarios that need neither",
            )  # fmt: skip
        if name == "report":
            own.add_argument("--to", type=Path, default=REPORTS, metavar="DIR", help="[default: tests/e2e]")
    return whole


def _lasting(arguments: argparse.Namespace, version: str = DEFAULT_VERSION) -> ControlPlane:
    folder = arguments.work / "up"
    note = folder / "version"
    version = note.read_text() if note.exists() else version
    return ControlPlane(folder, arguments.work / f"kubernetes-{version}", is_lasting=True)


def _up(arguments: argparse.Namespace) -> int:
    arguments.work.mkdir(parents=True, exist_ok=True)
    with take_lock(arguments.work / "lock"):
        programs(arguments.kubernetes, CONTROL_PLANE, arguments.work)
        cluster = _lasting(arguments, arguments.kubernetes)
        if cluster.is_up:
            raise LabError("a cluster is up already; hack/cluster down ends it")
        try:
            cluster.up(bare=arguments.bare)
        except BaseException:
            cluster.down(arguments.work / "logs")
            raise
        (cluster.folder / "version").write_text(arguments.kubernetes)
    say(f"Kubernetes {arguments.kubernetes} is up; export KUBECONFIG={cluster.admin}, or hack/cluster shell")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    if not (arguments.work / "up").exists():
        say("nothing is up")
        return 0
    _lasting(arguments).down(arguments.work / "logs")
    say(f"everything has ended; logs are in {arguments.work / 'logs'}")
    return 0


def _shell(arguments: argparse.Namespace) -> int:
    cluster = _lasting(arguments)
    if not cluster.is_up:
        raise LabError("nothing is up; hack/cluster up brings a cluster up")
    path = f"{cluster.programs}:{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(cluster.admin), "PATH": path}
    return subprocess.run([os.environ.get("SHELL", "bash")], env=environment, check=False).returncode


def _list(_arguments: argparse.Namespace) -> int:
    for name, play in ALL_SCENARIOS.items():
        print(f"{name:45} {(play.__doc__ or '').splitlines()[0]}")  # noqa: T201
    return 0


def _run(arguments: argparse.Namespace) -> int:
    names = arguments.scenarios or _usual(arguments.lean)
    if unknown := [name for name in names if name not in ALL_SCENARIOS]:
        print(f"hack/cluster: there is no scenario {unknown[0]}; hack/cluster list names them")  # noqa: T201
        return 2
    arguments.work.mkdir(parents=True, exist_ok=True)
    with take_lock(arguments.work / "lock"):
        lasting = _lasting(arguments)
        if lasting.is_up:
            version = (lasting.folder / "version").read_text()
            return _conclude(run_scenarios(names, lasting, version, arguments.work))
        wanted = LEAN if arguments.lean else CONTROL_PLANE
        folder = programs(arguments.kubernetes, wanted, arguments.work)
        cluster = ControlPlane(arguments.work / "run", folder)
        shutil.rmtree(
            cluster.folder, ignore_errors=True
        )  # of a command that was killed, whose programs ended with it
        try:
            cluster.up(lean=arguments.lean)
            results = run_scenarios(names, cluster, arguments.kubernetes, arguments.work)
        finally:
            cluster.down(arguments.work / "logs")
    return _conclude(results)


def _usual(lean: bool) -> list[str]:
    """The scenarios that nobody had to name: without those that this machine cannot play, which are said."""
    if lean:
        return list(LEAN_SCENARIOS)
    try:
        check_machine()
    except CannotRun as error:
        say(f"NOT RUN: {len(NODE_SCENARIOS)} scenarios on a real node: {error}")
        return list(SCENARIOS)
    return list(ALL_SCENARIOS)


def _conclude(results: list[Result]) -> int:
    lines = [f"FAILED {one.scenario}: {text}" for one in results for text in one.failures]
    lines += [
        f"{'ok' if not one.failures else 'FAILED':8}{one.seconds:6.0f} s  {one.scenario}" for one in results
    ]
    held, failed = (sum(len(getattr(one, what)) for one in results) for what in ("held", "failures"))
    print("\n".join(["", *lines, f"{held} facts held, {failed} did not"]), flush=True)  # noqa: T201
    return 1 if failed or not held else 0


def _report(arguments: argparse.Namespace) -> int:
    for path in write_report(kept(arguments.work), arguments.to):
        say(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
