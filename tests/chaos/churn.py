"""A long life in which nothing fails but reports of removals: what stays is what the agent never drops."""

import functools
import gc
import os
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType

from nri_plugin.model import bounds
from tests.chaos.life import Life, Tally

LOST = 0.03
"""The part of the reports of ended containers and pods that the runtime loses."""

LOOK_EVERY = 100
"""Events between two looks of the agent by the clock."""

MAY_GROW = 128 << 10
"""Bytes: a refusal is remembered with the state it was decided on, some 50 KiB. A short text of each event of half of them is more."""

_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType)
_NOT_THE_AGENT = ("tests", "nri_plugin.simulator", "logging", "threading", "_thread")


def churn(seed: int, events: int) -> tuple[list[str], int]:
    """Play so many events and end all pods in the middle and at the end; return lines, and what was left or broken."""
    life, lines, at_rest = Life(seed, Tally()), list[str](), list[int]()
    life.runtime.loses = LOST
    for part in range(10):
        for _ in _played(life, events * (part + 1) // 10):
            _look(life)
        lines.append(_line(life))
        if part in (4, 9):
            _end_all(life)
            at_rest.append(_kept(life))
    assert life.agent is not None
    state = life.agent.handler.state
    left = len(state.pods) + len(state.containers) + len(state.allocations)
    lines.append(f"at the end: {_line(life)}, reports lost {life.runtime.lost}")
    before, after = at_rest
    lines.append(
        f"without pods the agent keeps {before >> 10:,} KiB in the middle and {after >> 10:,} KiB at the end, "
        f"caches of a bounded size left out; {MAY_GROW >> 10} KiB more would be a leak"
    )
    grown = max(0, after - before - MAY_GROW)
    return [*lines, *life.judge.stories], left + grown + sum(life.judge.broken.values())


def _end_all(life: Life) -> None:
    while life.keys():
        life.remove_pod()
    for _ in range(20):
        _look(life)


def _kept(life: Life) -> int:
    """Bytes of all that the agent and the modules of the product refer to, without code and the played node."""
    modules = [one for name, one in sys.modules.items() if name.startswith("nri_plugin") and _is_ours(name)]
    values = [value for one in modules for value in vars(one).values()]
    bounds._shared_names.clear()
    for cache in values:
        if (
            isinstance(cache, functools._lru_cache_wrapper)
            and cache.cache_parameters()["maxsize"] is not None
        ):
            cache.cache_clear()
    gc.collect()
    waiting, seen, size = [life.agent, *values], set[int](), 0
    while waiting:
        one = waiting.pop()
        if (
            id(one) not in seen
            and not isinstance(one, _CODE)
            and (one is life.agent or _is_ours(type(one).__module__))
        ):
            seen.add(id(one))
            size += sys.getsizeof(one)
            waiting += gc.get_referents(one)
    return size


def _is_ours(module: str) -> bool:
    return not module.startswith(_NOT_THE_AGENT)


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
