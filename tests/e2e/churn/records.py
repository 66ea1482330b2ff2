"""What a run writes, a JSON object on a line: `tree` cpusets and who is alive, `pods` of the API server, `did` what was done to pods,
`faults`, `rounds`, `dumps`. The judge reads nothing else but `oci`, which the rig's helper writes."""

import datetime as dt
import json
import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SCHEDULED = "-scheduled"
"""How the names of pods end that the scheduler places."""

FILES = ("tree", "pods", "did", "faults", "rounds", "dumps", "oci")


def now() -> float:
    """The time of all rows."""
    return round(time.time(), 3)


class Notes:
    """Appends to the files of one node; safe from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()

    def add(self, name: str, /, **row: Any) -> None:
        """Add a row, stamped with the time unless it has one."""
        with self._lock, (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps({"t": now(), **row}) + "\n")


_RUNTIME = (
    ("starting containerd", "starts"),
    ("containerd successfully booted", "boots"),
    ("closing plugin", "drops"),
    ("connection to plugin", "drops"),
    ("connected and synchronized", "serves"),
)
_TIME = re.compile(r'time="([^"]+)".* msg="?(.*)')


def runtime_rows(log: str) -> list[Row]:
    """When the runtime, by its own log, had a plugin and when not."""
    found = []
    for stamp, words in _TIME.findall(log):
        what = next((what for mark, what in _RUNTIME if mark in words), "")
        if what:
            found.append({"t": dt.datetime.fromisoformat(stamp).timestamp(), "what": what})
    return found


def read_rows(folder: Path) -> dict[str, list[Row]]:
    """All rows by file; a line that was cut off by the end of the run is left out."""
    found: dict[str, list[Row]] = {}
    for name in FILES:
        path = folder / f"{name}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found[name] = [json.loads(line) for line in lines if line.endswith("}")]
    log = folder / "containerd.log"
    found["runtime"] = runtime_rows(log.read_text(errors="replace")) if log.exists() else []
    return found


def cpus(text: str | None) -> frozenset[int]:
    """CPUs of a list as the kernel writes it."""
    found: set[int] = set()
    for word in filter(None, (text or "").strip().split(",")):
        first, _, last = word.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def shown(found: Iterable[int]) -> str:
    """The list of such CPUs, short."""
    words: list[list[int]] = []
    for cpu in sorted(found):
        if words and words[-1][1] == cpu - 1:
            words[-1][1] = cpu
        else:
            words.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in words)


def milli(amount: object) -> int:
    """Thousandths of a CPU of a Kubernetes quantity."""
    words = str(amount)
    return int(words[:-1]) if words.endswith("m") else int(float(words) * 1000)
