"""Command line of `hack/churn`.

Exit status: 0 everything held, 1 something did not, 2 wrong arguments, 77 this machine cannot do it, 130 interrupted.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from nri_plugin.model.errors import NriPinError
from nri_plugin.simulator.machine.machine import is_description, load, parse
from tests.e2e.cluster.components import LEAN, programs, programs_work
from tests.e2e.lab.progress import say
from tests.e2e.lab.ready import CHECKOUT
from tests.e2e.lab.setting_up import CANNOT_RUN, take_lock
from tests.e2e.lab.shell import DIES_WITH_US, CannotRun, LabError, run
from tests.e2e.node_rig.cgroups import remove_cgroups, remove_left_behind
from tests.e2e.node_rig.programs import KUBELET, node_programs, prepare_machine

from . import refused
from .faults import FAULTS, MIXED, NONE, REFUSED
from .judge import judge
from .report import REPORT, write_report

_INTERRUPTED = 130
MACHINE = "topology: pack:2 numa:1(memory=8GiB) l3:2 core:2 pu:2(indexes=core)"
"""Two sockets, each a NUMA node with two L3 of four CPUs: 16 CPUs."""

CGROUP = "churn-"
ROUND_S = 45.0
_AROUND_S = 30.0
"""Quiet, and emptying: what a round takes besides."""


def main() -> int:
    """Do what was asked for; return the exit status."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _play(arguments)
    except CannotRun as error:
        print(f"hack/churn: CANNOT RUN HERE, NOTHING WAS TESTED: {error}", flush=True)  # noqa: T201
        return CANNOT_RUN
    except LabError as error:
        print(f"hack/churn: {error}", flush=True)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hack/churn",
        description="Plays real pods on a real kubelet and containerd while each part fails in turn, and judges from outside.",
        epilog=f"Faults: {', '.join([*FAULTS, MIXED, NONE, REFUSED])}.",
    )
    add = parser.add_argument
    add(
        "--minutes",
        type=float,
        default=5.0,
        help="how long pods come and go, builds aside [default: %(default)g]",
    )
    add(
        "--seed",
        type=int,
        default=None,
        help="what is drawn; printed, so that a run can be repeated [default: another each time]",
    )
    add(
        "--faults",
        default="",
        help="a list with commas, played in turn [default: all, in an order that the seed draws]",
    )
    add(
        "--machine",
        default=None,
        help="a shipped machine, a file, or the text of a description [default: 16 CPUs, 2 NUMA nodes; 256 for refused]",
    )
    add(
        "--kubelet",
        default=KUBELET,
        metavar="VERSION",
        help="also of the control plane [default: %(default)s]",
    )
    add(
        "--nodes",
        type=int,
        default=2,
        help="two make a busy machine later, which finds most [default: %(default)s]",
    )
    add("--config", default="{}", metavar="JSON", help="keys of the agent's configuration that are not drawn")
    add(
        "--other",
        type=Path,
        default=None,
        metavar="DIR",
        help="the checkout that agent-upgrade changes to and fro [default: a copy of this one]",
    )
    add(
        "--work", type=Path, default=programs_work(), help="programs, logs and records [default: %(default)s]"
    )
    add(
        "--judge",
        type=Path,
        default=None,
        metavar="DIR",
        help="play nothing; judge the records of an earlier run",
    )
    add("--report", action="store_true", help="write tests/e2e/churn-report.md")
    arguments = parser.parse_args()
    arguments.faults = arguments.faults.split(",") if arguments.faults else []
    for fault in arguments.faults:
        if fault not in (*FAULTS, MIXED, NONE, REFUSED):
            parser.error(f"there is no fault {fault}; there are {', '.join([*FAULTS, MIXED, NONE, REFUSED])}")
    arguments.machine = arguments.machine or (refused.MACHINE if REFUSED in arguments.faults else MACHINE)
    try:
        arguments.config = json.loads(arguments.config)
        parse(arguments.machine) if is_description(arguments.machine) else load(arguments.machine)
    except (ValueError, NriPinError) as error:
        parser.error(str(error))
    if arguments.minutes <= 0 or arguments.nodes < 1:
        parser.error("--minutes and --nodes are above 0")
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(10**6)
    return arguments


def _play(arguments: argparse.Namespace) -> int:
    if arguments.judge is not None:
        return _conclude(arguments, arguments.judge)
    work = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    with take_lock(work / "lock"):
        prepare_machine(work)
        control = programs(arguments.kubelet, LEAN, work)
        node = node_programs(arguments.kubelet, work)
    remove_left_behind(CGROUP)
    folder = work / "churn" / time.strftime("%m%d-%H%M%S")
    folder.mkdir(parents=True)
    plan = plan_of(arguments, folder, control, node)
    (folder / "plan.json").write_text(json.dumps(plan, indent=1))
    say(f"seed {arguments.seed}; logs and records are in {folder}")
    command = [
        *DIES_WITH_US,
        "unshare",
        "-n",
        "-m",
        "-p",
        "-f",
        "--kill-child",
        sys.executable,
        "-P",
        "-m",
        "tests.e2e.churn.world",
    ]
    process = subprocess.Popen([*command, folder / "plan.json"], stdin=subprocess.DEVNULL)
    try:
        status = process.wait()
    finally:
        process.kill()
        process.wait()
        remove_cgroups(plan["cgroup"])
    broke = "\n".join(file.read_text() for file in folder.glob("node-*/broke"))
    if status:
        say(f"the rig broke: {broke or 'see the logs'}")
    return _conclude(arguments, folder) or (1 if status else 0)


def plan_of(arguments: argparse.Namespace, folder: Path, control: Path, node: Path) -> dict[str, object]:
    """What world and nodes are told."""
    draw = random.Random(arguments.seed)
    count = max(1, round(arguments.minutes * 60 / (ROUND_S + _AROUND_S)))
    rounds = []
    for _ in range(arguments.nodes):
        kinds = arguments.faults or draw.sample([*FAULTS, MIXED], len(FAULTS) + 1)
        rounds.append([kinds[index % len(kinds)] for index in range(count)])
    # copies, as the checkout may be edited while it runs
    checkouts = {"ours": CHECKOUT, "other": arguments.other or CHECKOUT}
    for name, checkout in checkouts.items():
        shutil.copytree(
            checkout / "nri_plugin",
            folder / name / "nri_plugin",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return {
        "folder": str(folder), "cluster": str(folder / "cluster"), "control": str(control), "programs": str(node),
        "machine": arguments.machine, "nodes": arguments.nodes, "rounds": rounds, "faults": sorted({kind for kinds in rounds for kind in kinds}),
        "round_s": ROUND_S, "seed": arguments.seed, "config": arguments.config, "checkouts": [str(folder / name) for name in checkouts],
        "cgroup": f"{CGROUP}{os.getpid()}", "kubelet": arguments.kubelet,
        "commit": run(["git", "-C", CHECKOUT, "describe", "--always", "--dirty", "--abbrev=8"]).strip() if (CHECKOUT / ".git").exists() else "",
    }  # fmt: skip


def _conclude(arguments: argparse.Namespace, folder: Path) -> int:
    """Judge the records, print, and write the report."""
    verdicts = [judge(node) for node in sorted(folder.glob("node-*"))]
    for verdict in verdicts:
        print("\n".join(verdict.lines()), flush=True)  # noqa: T201
    text = write_report(json.loads((folder / "plan.json").read_text()), verdicts, folder / "report.md")
    if arguments.report:
        REPORT.write_text(text)
    violations = sum(len(verdict.violations) for verdict in verdicts)
    print(f"{violations} violations; records and logs: {folder}", flush=True)  # noqa: T201
    return 1 if violations or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
