"""The table of kernel rules, played on the kernel that runs here: what the simulated cgroup tree is judged by.

    python3 -m e2e.inside.kernel_rules CASES.json

The table's language is explained at its head. Its paths are below a cgroup of our own. CPUs are switched off and on
where a case says so, so this belongs into a guest; `tests/host` plays on this machine what needs no such thing.
"""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .observe import parse_list
from .report import Expectations, tell

Json = dict[str, Any]

_CPUS = Path("/sys/devices/system/cpu")
_EFFECTIVE = {1: "cpuset.effective_{}", 2: "cpuset.{}.effective"}


class KernelCpusets:
    """A cgroup at `base` with everything that is made in it; `version` is 1 or 2."""

    def __init__(self, base: Path, version: int, cpus: str = "0-1", mems: str = "0") -> None:
        self.base, self.version = base, version
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        base.mkdir()
        for name, value in (("cpus", cpus), ("mems", mems)):
            if value:
                put(base / f"cpuset.{name}", value)

    def do(self, verb: str, path: str, *rest: str) -> None:
        """Do what one line of the table says."""
        directory = self.base / path
        if verb == "make":
            self.make(directory)
        elif verb == "write":
            put(directory / f"cpuset.{rest[0]}", rest[1])
        elif verb == "see":
            self.see(directory, *rest)
        elif verb == "attach":
            self.attach(directory, path)
        elif verb == "detach":
            self.end(path)
        elif verb == "online":
            switch(path)
        else:
            directory.rmdir()

    def see(self, directory: Path, what: str, wanted: str) -> None:
        """Compare a file with what it should hold; after a switch of CPUs the kernel follows a moment later.

        Raises:
            AssertionError: it holds something else.
        """
        name, _, effective = what.partition(".")
        file = directory / (_EFFECTIVE[self.version].format(name) if effective else f"cpuset.{name}")
        deadline = time.monotonic() + 3
        while file.read_text().strip() != wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        seen = file.read_text().strip()
        if seen != wanted:
            raise AssertionError(f"{file.name} of {directory.name} holds '{seen}', not '{wanted}'")

    def make(self, directory: Path) -> None:
        """Make a cgroup and those above it, with cpusets handed down."""
        if not directory.exists():
            self.make(directory.parent)
            if self.version == 2:
                put(directory.parent / "cgroup.subtree_control", "+cpuset")
            directory.mkdir()

    def attach(self, directory: Path, path: str) -> None:
        """Put a process of its own into the cgroup."""
        if path not in self.processes:  # it is still outside when it was not let in
            self.processes[path] = subprocess.Popen(["sleep", "300"])
        put(directory / "cgroup.procs", str(self.processes[path].pid))

    def end(self, path: str) -> None:
        """End that process."""
        process = self.processes.pop(path)
        process.kill()
        process.wait()

    def close(self) -> None:
        """Remove everything that was made."""
        for path in list(self.processes):
            self.end(path)
        for directory, _, _ in os.walk(self.base, topdown=False):
            Path(directory).rmdir()


def put(file: Path, text: str) -> None:
    """Write with one call, as the kernel wants it."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def switch(online: str) -> None:
    """Exactly these CPUs are online from now on; the first has no switch."""
    wanted = parse_list(online)
    for path in _CPUS.glob("cpu[0-9]*/online"):
        value = str(int(int(path.parent.name[3:]) in wanted))
        if path.read_text().strip() != value:
            path.write_text(value)


def play(kernel: KernelCpusets, line: str) -> None:
    """Play one line of the table.

    Raises:
        AssertionError: the kernel does something else.
        OSError: it refuses where the table has it accept.
    """
    action, _, error = line.partition(" -> ")
    words = [word if word != "-" else "" for word in action.split()]
    try:
        kernel.do(*words)
    except OSError as refused:
        if errno.errorcode.get(refused.errno or 0) != error:
            raise
        return
    if error:
        raise AssertionError(f"'{action}' was accepted, not refused with {error}")


def _play_case(facts: Expectations, case: Json, number: int) -> None:
    """One case: on the whole machine where it names one, else on CPUs 0-1 and node 0."""
    machine = case.get("machine")
    online = (_CPUS / "online").read_text().strip()
    if machine:
        switch(machine["online"])
    base = Path("/sys/fs/cgroup") / f"rules-{number}"
    kernel = KernelCpusets(base, 2, *(("", "") if machine else ("0-1", "0")))
    line = ""
    try:
        for line in case["play"]:
            play(kernel, line)
        facts.expect(case["sentence"], True)
    except (AssertionError, OSError) as wrong:
        facts.expect(case["sentence"], False, f"{line}: {wrong}")
    finally:
        switch(online)
        kernel.close()


def main(file: str) -> None:
    """Play all cases that hold for cgroup v2."""
    facts = Expectations()
    facts.scenario = "cpuset-rules"
    began = time.monotonic()
    tell("runtime", version="", kernel=os.uname().release)
    put(Path("/sys/fs/cgroup/cgroup.subtree_control"), "+cpuset")
    for number, case in enumerate(json.loads(Path(file).read_text())):
        if 2 in case["versions"]:
            _play_case(facts, case, number)
    tell("end", scenario=facts.scenario, seconds=round(time.monotonic() - began, 1))


if __name__ == "__main__":
    main(sys.argv[1])
