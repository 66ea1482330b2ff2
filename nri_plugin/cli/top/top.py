"""`nri-pin top`: watch containers, their CPUs and the changes.

The command samples the agent, reads the CPU time and the start of each container from its cgroup, and draws a picture
for each sample. --once prints one picture and ends; -o json writes a line for every change.
"""

import os
import select
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from nri_plugin.cli.output import FOR_PROGRAMS, columns, echo, format_option, render, wants_colour
from nri_plugin.cli.state.rows import StateRow, rows_of
from nri_plugin.cli.state.show import container_facts, pod_facts
from nri_plugin.cli.state.source import (
    AgentNow,
    Seen,
    WrongUsageError,
    cgroup_root_here,
    machine_option,
    root_option,
    runtime_facts,
    state_dir_option,
)
from nri_plugin.cli.top.model import Model, Sample, TopFeed, TopRow, drifted, refused
from nri_plugin.cli.top.screen import Screen, Text, frame
from nri_plugin.core.hint_providers import tables_of
from nri_plugin.host.cgroup import Cgroups
from nri_plugin.model.bounds import visible_line
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import REGISTRY, Node
from nri_plugin.model.records import ContainerRecord
from nri_plugin.policy.alignment import of_machine

USEC = "usage_usec "
TICKS = os.sysconf("SC_CLK_TCK")


class Usage:
    """CPU use of containers between two reads of their cgroups, and their ages.

    Args:
        root: of the cgroup tree.
    """

    def __init__(self, root: str) -> None:
        try:
            self._cgroups: Cgroups | None = Cgroups.open(root)
        except HostError:
            self._cgroups = None
        self._before: dict[str, tuple[float, int]] = {}
        self._began: dict[str, float] = {}
        self.cpus_used: dict[str, float] = {}

    def read(self, records: Iterable[ContainerRecord], now: float) -> bool:
        """Read the CPU time of all containers; returns whether any was found.

        Args:
            records: the containers.
            now: seconds of a monotonic clock.
        """
        found: dict[str, tuple[float, int]] = {}
        used: dict[str, float] = {}
        for record in records:
            time_us = self._time_us(record)
            if time_us is None:
                continue
            found[record.id] = now, time_us
            before = self._before.get(record.id)
            if before is not None and now > before[0]:
                used[record.id] = max(0.0, (time_us - before[1]) / 1e6 / (now - before[0]))
        self._before, self.cpus_used = found, used
        return bool(found)

    def age_s(self, record: ContainerRecord, uptime_s: float) -> float | None:
        """Seconds since its first process began; None where processes are not visible."""
        began = self._began.get(record.id)
        if began is None:
            began = self._first_process(record)
            if began is None:
                return None
            self._began[record.id] = began
        return max(0.0, uptime_s - began)

    def _time_us(self, record: ContainerRecord) -> int | None:
        text = self._text(record, "cpu.stat")
        for line in (text or "").splitlines():
            if line.startswith(USEC):
                return int(line.removeprefix(USEC))
        return None

    def _first_process(self, record: ContainerRecord) -> float | None:
        pids = (self._text(record, "cgroup.procs") or "").split()
        if not pids:
            return None
        try:
            with open(f"/proc/{pids[0]}/stat", encoding="utf-8", errors="replace") as file:
                return int(file.read().rpartition(")")[2].split()[19]) / TICKS
        except (OSError, ValueError, IndexError):
            return None

    def _text(self, record: ContainerRecord, name: str) -> str | None:
        if self._cgroups is None:
            return None
        try:
            with open(os.path.join(self._cgroups.directory(record.cgroup), name), encoding="ascii") as file:
                return file.read()
        except (OSError, HostError, UnicodeDecodeError):
            return None


def uptime_s() -> float:
    """Seconds since the machine started."""
    try:
        with open("/proc/uptime", encoding="ascii") as file:
            return float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0


FIRST_USE_S = 0.25
"""The time between the two reads of CPU use with --once."""

EXAMPLES = """\b
Examples:
  nri-pin top
  nri-pin top --interval 0.5
  nri-pin top --once
  nri-pin top -o json | jq -c 'select(.what == "refused")'
  nri-pin top --state-dir /var/lib/nri-pin --cgroup-root /host/sys/fs/cgroup

Keys: q quit, s sort by the next of name, cpus, use, numa, age, n show only
names that hold what you type, p pause, up, down, page up, page down, home and
end.

\b
CPUS     its exclusive CPUs, or the shared pool
NUMA     and CACHE: where these lie
MEMS     its memory nodes
ALIGNED  N one NUMA node, S one socket, U one uncore cache, C whole cores
USE      CPUs it used since the last look, from its cgroup
AGE      since its first process began
*        changed within the last seconds
!        unplaced, or CPUs are offline: nri-pin state show tells
"""


@click.command(name="top", epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-n",
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two reads of CPU use and of a checkpoint; reports of the agent are shown at once.",
)
@click.option("--once", is_flag=True, help="Print one picture on standard output and exit.")
@state_dir_option
@machine_option
@root_option
@click.option(
    "--cgroup-root",
    metavar="DIR",
    help="The host's cgroup tree, for USE and AGE; /sys/fs/cgroup or below /host.",
)
@format_option()
def command(
    interval_s: float,
    *,
    once: bool,
    state_dir: str,
    machine: str | None,
    root: str | None,
    cgroup_root: str | None,
    output_format: str,
) -> None:
    """Watch containers, their CPUs and changes, as reported by the agent's status socket.

    While no agent answers, its checkpoint is shown. The header says so, and also when no runtime is connected to it.
    -o json writes one line now and one for every change; "connected" there means that an agent answers and a runtime
    asks it.

    Exit code: 0; 1 when there is neither agent nor checkpoint; 2 when the options are wrong or there is no terminal.
    """
    if not once and output_format == "text" and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WrongUsageError(
            "there is no terminal to draw on; --once prints one picture, -o json tells changes"
        )
    feed, usage = TopFeed(state_dir, machine, root), Usage(cgroup_root or cgroup_root_here())
    try:
        model = Model(feed.first())
        if once:
            _look_twice(usage, model)
            _print_once(model, usage, output_format)
        elif output_format in FOR_PROGRAMS:
            _tell(feed, model, interval_s, output_format)
        else:
            _watch(feed, model, usage, interval_s)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the reader has closed the pipe: discard the rest
    finally:
        feed.close()


def _look_twice(usage: Usage, model: Model) -> None:
    records = list(model.sample.seen.state.containers.values())
    if usage.read(records, time.monotonic()):
        time.sleep(FIRST_USE_S)
        usage.read(records, time.monotonic())


def _print_once(model: Model, usage: Usage, output_format: str) -> None:
    now, lines = time.time(), _lines(model, usage)
    if output_format in FOR_PROGRAMS:
        echo(render(present(model.sample, lines, now), output_format, is_one_of_many=True))
    else:
        echo("\n".join(visible_line(line.text) for line in frame(model, lines, columns(), None, now)))


def _lines(model: Model, usage: Usage) -> list[TopRow]:
    uptime = uptime_s()

    def age_of(row: StateRow) -> float | None:
        return usage.age_s(row.record, uptime)

    return model.lines(usage.cpus_used, age_of, time.time())


def _tell(feed: TopFeed, model: Model, interval_s: float, output_format: str) -> None:
    """Print one line now, and one for each change, until the process is stopped."""
    lines = [TopRow(row, None, None, is_fresh=False) for row in rows_of(model.sample.seen)]
    _say(present(model.sample, lines, time.time()), output_format)
    while True:
        if feed.fileno() >= 0:
            select.select([feed.fileno()], [], [], interval_s)
        else:
            time.sleep(interval_s)
        sample = feed.next()
        for one in model.take(sample, time.time()) if sample else ():
            _say({"at": _when(one.at), **one.facts}, output_format)


def _say(facts: Mapping[str, Any], output_format: str) -> None:
    echo(render(facts, output_format, is_one_of_many=True))
    sys.stdout.flush()


def present(sample: Sample, lines: Sequence[TopRow], at: float) -> dict[str, Any]:
    """The whole state, for programs."""
    node, state = sample.seen.node, sample.seen.state
    return {
        "at": _when(at),
        "what": "now",
        "source": sample.source,
        "agent": sample.is_connected,
        "connected": sample.is_placing,
        "version": sample.agent or None,
        "runtime": runtime_facts(sample.runtime),
        "policies": policies(node) if node is not None and sample.is_connected else None,
        "exclusive": state.exclusive,
        "shared_pool": node and state.shared_pool(node),
        "allocatable": node and node.allocatable,
        "available": node and state.available(node),
        "available_by_numa_node": None
        if node is None
        else {numa.id: numa.cpus & state.available(node) for numa in node.topology.nodes},
        "fragmentation": fragmented(sample.seen),
        "refused": refused(sample) if sample.is_connected else None,
        "drifts": drifted(sample) if sample.is_connected else None,
        "incomplete": [f"{one.namespace}/{one.pod}" for one in sample.incomplete],
        "pods": [
            pod_facts(state, uid, AgentNow(incomplete=sample.incomplete))
            for uid in dict.fromkeys(line.row.record.pod_uid for line in lines)
        ],
        "containers": [
            container_facts(state, line.row) | {"cpus_used": line.used, "age_s": line.age_s} for line in lines
        ],
    }


def policies(node: Node) -> dict[str, str]:
    """The policies and the scope, by their names in the configuration."""
    return {one.name: one.text(node.options) for one in REGISTRY.values() if one.is_policy}


def fragmented(found: Seen) -> dict[str, float] | None:
    """Shares of the available CPUs that lie in uncore caches, and in cores, that others use in part."""
    node = found.node
    if node is None or not found.has_parts:
        return None
    caches, cores = of_machine(tables_of(node), node.allocatable, found.state.available(node))
    return {"uncore_caches": round(caches, 4), "cores": round(cores, 4)}


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _watch(feed: TopFeed, model: Model, usage: Usage, interval_s: float) -> None:
    """Draw until the reader quits."""
    prompt: str | None = None
    next_look = 0.0
    with Screen(colour=wants_colour()) as screen:
        while True:
            if time.monotonic() >= next_look:
                usage.read(model.sample.seen.state.containers.values(), time.monotonic())
                next_look = time.monotonic() + interval_s
            width, height = screen.size
            picture: list[Text] = frame(model, _lines(model, usage), width, height, time.time(), prompt)
            screen.draw(picture)
            others = [feed.fileno()] if feed.fileno() >= 0 and not model.is_paused else []
            for key in screen.wait(next_look - time.monotonic(), others):
                if key == "gone" or (key == "q" and prompt is None):
                    return
                prompt = _pressed(model, key, prompt, height)
            if not model.is_paused:
                sample = feed.next()
                if sample is not None:
                    model.take(sample, time.time())


def _pressed(model: Model, key: str, prompt: str | None, height: int) -> str | None:
    """Apply a key; returns the filter text that is being typed."""
    if prompt is not None:
        return _typed(model, key, prompt)
    if key == "s":
        model.next_sort()
    elif key == "p":
        model.is_paused = not model.is_paused
    elif key in {"n", "/"}:
        return model.pattern
    steps = {
        "up": -1,
        "down": 1,
        "page up": -height // 2,
        "page down": height // 2,
        "home": -(10**9),
        "end": 10**9,
    }
    model.scroll = max(0, model.scroll + steps.get(key, 0))
    return None


def _typed(model: Model, key: str, prompt: str) -> str | None:
    if key == "escape":
        return None
    if key == "enter":
        model.pattern, model.scroll = prompt, 0
        return None
    if key == "backspace":
        return prompt[:-1]
    return prompt + key if len(key) == 1 and key.isprintable() else prompt
