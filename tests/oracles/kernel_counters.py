"""A slow and obvious reader of /proc/interrupts, /proc/softirqs and /proc/stat: one cell at a time, by the words of a line."""

import re
import string

WRAP = 2**32


def cell(text: str, label: str, cpu: int) -> int | None:
    """The count of a CPU in the line that begins with this label; None where the text has no such line or column."""
    head = text.splitlines()[0].split()
    if f"CPU{cpu}" not in head:
        return None
    for line in text.splitlines()[1:]:
        words = line.split()
        if words and words[0] == f"{label}:":
            value = words[1 + head.index(f"CPU{cpu}")]
            assert set(value) <= set(string.digits)
            return int(value)
    return None


def rise(before: str, after: str, label: str, cpu: int) -> int | None:
    """How far the counter of a CPU went on between two texts, if it went around at most once."""
    first, last = cell(before, label, cpu), cell(after, label, cpu)
    if first is None or last is None:
        return None
    return (last - first) % WRAP


def ticks(text: str, cpu: int) -> tuple[int, int] | None:
    """The busy and the stolen ticks of a CPU in /proc/stat; None where it is offline."""
    found = re.search(rf"^cpu{cpu} (.*)$", text, re.MULTILINE)
    if found is None:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, found[1].split())
    return user + nice + system + irq + softirq, steal
