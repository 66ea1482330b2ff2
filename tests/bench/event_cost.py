"""What one event costs, counted and never timed: `python -m tests.bench.event_cost PODS` prints JSON.

In a process of its own, because the counts need the interpreter's hooks for themselves. Counted from the arrival of the
event to the first byte of its answer, and to the end of what follows the answer.
"""

import gc
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from tests.bench.agent import MEDIUM, in_memory, site_in
from tests.bench.whole_agent import WholeAgent, crowd, life

EACH = 5
"""Containers of a pod of the crowd."""

LIVES = 4
"""Lives of each kind that are counted: how deep a name lies in a mapping is chance."""

MOVES_THE_POOL = ("CreateContainer exclusive", "StopPodSandbox exclusive")
"""After the answer, the cpuset of each shared container follows: what is written then is counted, the work is not."""

Costs = Mapping[str, Mapping[str, tuple[int, int]]]
"""By event and by what was counted, in all lives: until the answer, and until the agent has nothing left to do."""


class Counter(Protocol):
    """Counts something from `start` on."""

    def start(self) -> None: ...

    def read(self) -> int: ...

    def stop(self) -> None: ...


class _Calls:
    """Calls of Python functions, and from Python of those in C."""

    count = 0

    def start(self) -> None:
        self.count = 0
        sys.setprofile(self._note)

    def _note(self, _frame: FrameType, event: str, _: Any) -> None:
        self.count += event in ("call", "c_call")

    def read(self) -> int:
        return self.count

    def stop(self) -> None:
        sys.setprofile(None)


class _Bytecodes:
    """Bytecodes of all functions: loops that call nothing are seen, too."""

    count = 0

    def start(self) -> None:
        self.count = 0
        sys.settrace(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self._note

    def read(self) -> int:
        return self.count

    def stop(self) -> None:
        sys.settrace(None)


class _Allocated:
    """The most bytes of new objects at once: a copy of something large is as large."""

    def start(self) -> None:
        tracemalloc.start()

    def read(self) -> int:
        return tracemalloc.get_traced_memory()[1]  # 0 once it is stopped

    def stop(self) -> None:
        tracemalloc.stop()


class _Written:
    """Bytes that were written to files: checkpoint, history, log, cgroups. Source: proc_pid_io(5)."""

    before = 0

    def start(self) -> None:
        self.before = self._now()

    def read(self) -> int:
        return self._now() - self.before

    def stop(self) -> None:
        pass

    def _now(self) -> int:
        lines = Path("/proc/thread-self/io").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


COUNTERS: Mapping[str, Callable[[], Counter]] = {
    "calls": _Calls,
    "bytecodes": _Bytecodes,
    "bytes at once": _Allocated,
    "bytes written": _Written,
}


def costs(pods: int) -> Costs:
    """Count each event of the lives of two pods beside a crowd, in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.event_cost", str(pods)]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: Costs = json.loads(done.stdout)
    return found


def _counted(pods: int) -> Costs:
    found: dict[str, dict[str, tuple[int, int]]] = {}
    with site_in(in_memory(), MEDIUM) as base:
        agent = WholeAgent(base, crowd(pods, EACH))
        _live(agent, 0, None, "", {})  # files of the host are read and modules loaded once
        gc.collect()
        gc.disable()  # as in the agent
        counted = [(what, counter) for what, counter in COUNTERS.items() for _ in range(LIVES)]
        for number, (what, counter) in enumerate(counted, 1):
            _live(agent, number, counter(), what, found)
    return found


def _live(
    agent: WholeAgent,
    number: int,
    counter: Counter | None,
    what: str,
    into: dict[str, dict[str, tuple[int, int]]],
) -> None:
    for exclusive in (False, True):
        for step in life(2 * number + exclusive, exclusive=exclusive):
            agent.put(step.event)
            seen: list[int] = []
            if counter is not None:
                agent.on_answer = lambda: seen.append(counter.read())  # noqa: B023 - done within this round
                counter.start()
            agent.loop.run_once()
            is_over = step.name in MOVES_THE_POOL and not isinstance(counter, _Written)
            if counter is not None and is_over:
                counter.stop()
            agent.do_the_rest()
            if counter is not None:
                agent.on_answer = lambda: None
                total = counter.read()
                counter.stop()
                former = into.setdefault(step.name, {}).get(what, (0, 0))
                into[step.name][what] = (former[0] + seen[0], former[1] + total)
            agent.finish(step.event)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_counted(int(sys.argv[1]))))
