"""A long life in which nothing fails but reports of removals: what stays is what the agent never drops."""

import gc
import os
from collections.abc import Iterator

from tests.chaos.life import Life, Tally

LOST = 0.03
"""The part of the reports of ended containers and pods that the runtime loses."""

LOOK_EVERY = 100
"""Events between two looks of the agent by the clock."""


def churn(seed: int, events: int) -> tuple[list[str], int]:
    """Play so many events, then end all pods; return a line for each tenth and for the end, and what was left or broken."""
    life, lines = Life(seed, Tally()), list[str]()
    life.runtime.loses = LOST
    for part in range(10):
        for _ in _played(life, events * (part + 1) // 10):
            _look(life)
        lines.append(_line(life))
    while life.keys():
        life.remove_pod()
    for _ in range(20):
        _look(life)
    assert life.agent is not None
    state = life.agent.handler.state
    left = len(state.pods) + len(state.containers) + len(state.allocations)
    lines.append(f"at the end: {_line(life)}, reports lost {life.runtime.lost}")
    return [*lines, *life.judge.stories], left + sum(life.judge.broken.values())


def _played(life: Life, until: int) -> Iterator[None]:
    assert life.agent is not None
    next_look = life.agent.events + LOOK_EVERY
    while life.agent.events < until:
        life.something()
        if life.agent.events >= next_look:
            next_look = life.agent.events + LOOK_EVERY
            yield


def _look(life: Life) -> None:
    assert life.agent is not None
    life.agent.look()
    life.look(None)


def _line(life: Life) -> str:
    assert life.agent is not None
    gc.collect()
    state = life.agent.handler.state
    with open("/proc/self/statm", encoding="ascii") as file:
        mib = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    return (
        f"{life.agent.events:,} events: pods {len(state.pods)} of {len(life.keys())}, containers {len(state.containers)}, "
        f"allocations {len(state.allocations)}, {mib} MiB, descriptors {len(os.listdir('/proc/self/fd'))}"
    )
