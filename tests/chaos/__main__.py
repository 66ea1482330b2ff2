"""Random life against the embedded runtime with every fault: `hack/chaos --minutes N --seed S`.

Prints events played, faults injected by kind, and what broke. Exit code: 0 nothing broke, 1 something did.
"""

import argparse
import sys
import time

from tests.chaos.churn import churn
from tests.chaos.faults import Fault
from tests.chaos.life import Life, Tally

EVENTS_A_LIFE = 400


def main() -> int:
    parser = argparse.ArgumentParser(prog="hack/chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to play  [default: 1]")
    parser.add_argument("--events", type=int, help="play so many events instead")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first life; the next has the next  [default: 1]"
    )
    parser.add_argument(
        "--churn", action="store_true", help="one long life in which only reports of removals are lost"
    )
    arguments = parser.parse_args()
    if arguments.churn:
        lines, broken = churn(arguments.seed, arguments.events or 180_000)
        sys.stdout.write("\n".join(lines) + "\n")
        return 1 if broken else 0
    tally = play(arguments.seed, arguments.minutes, arguments.events)
    sys.stdout.write(report(tally) + "\n")
    return 1 if tally.broken else 0


def play(seed: int, minutes: float, events: int | None) -> Tally:
    """Lives one after another until the time is up or the events are played."""
    tally = Tally()
    until = time.monotonic() + minutes * 60
    told = time.monotonic()
    while tally.events < events if events else time.monotonic() < until:
        Life(seed + tally.lives, tally).play(EVENTS_A_LIFE)
        if sys.stderr.isatty() and time.monotonic() > told + 1:
            told = time.monotonic()
            sys.stderr.write(f"\r{tally.events} events, {sum(tally.broken.values())} broken")
    return tally


def report(tally: Tally) -> str:
    """The table, as Markdown."""
    lines = [
        f"{tally.events:,} events in {tally.lives} lives, {sum(tally.injected.values()):,} faults",
        "",
        "| fault | times injected | lost | overlaps | moved | leaks | stale | unsaved | half admitted | worst recovery |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for fault in Fault:
        broken = [
            tally.broken_by[fault, kind]
            for kind in ("lost", "overlap", "moved", "leak", "stale", "unsaved", "half")
        ]
        took = tally.recovery_s.get(fault)
        shown = "-" if took is None else f"{took * 1000:.1f} ms"
        lines.append(f"| {fault} | {tally.injected[fault]} | {' | '.join(map(str, broken))} | {shown} |")
    lines += [
        "",
        f"pods admitted as a whole: {tally.admitted}",
        f"Guaranteed containers that ran on CPUs of others while nobody was there: {tally.overlapped}, each until Synchronize",
        f"allocations of running containers that only the memory held when an agent ended: {tally.unsaved}",
        f"interrupts: {', '.join(f'{what} {count}' for what, count in sorted(tally.interrupts.items()))}",
        f"broken in all: {sum(tally.broken.values())} {dict(tally.broken) or ''}".rstrip(),
        *tally.stories,
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
