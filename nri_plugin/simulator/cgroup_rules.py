"""Why a kernel rejects a write to `cpuset.cpus` or `cpuset.mems`: one row per reason, in the kernel's order.

The first row whose question is answered with yes gives the error; when none is, the write is accepted.
The same rows hold for CPUs and for memory nodes, which is why both are plain masks here.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass

V1 = 1
V2 = 2
BOTH = frozenset({V1, V2})
ONLY_V1 = frozenset({V1})


@dataclass(frozen=True, slots=True)
class Write:
    """A write and what it meets; all sets are masks.

    Attributes:
        is_root: it goes to the root cgroup.
        wanted: the set that was asked for, None when the text is no list.
        current: the cgroup's own set before.
        top: the machine's set; on v1 nothing may leave it.
        parent: the parent's own set.
        children: union of the own sets of all children.
        ids: how many ids the kernel knows; higher ones cannot be named.
        is_populated: a process lives here or below.
    """

    is_root: bool
    wanted: int | None
    current: int
    top: int
    parent: int
    children: int
    ids: int
    is_populated: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason for a rejection.

    Attributes:
        name: short, for reports.
        sentence: the rule as a person would say it.
        versions: cgroup versions it holds for.
        error: the errno of the rejected write.
        rejects: whether the rule forbids this write.
    """

    name: str
    sentence: str
    versions: frozenset[int]
    error: int
    rejects: Callable[[Write], bool]


def _wanted(write: Write) -> int:
    return write.wanted or 0


RULES: tuple[Rule, ...] = (
    Rule(
        "root",
        "the root's sets are the machine's own and cannot be written",
        BOTH,
        errno.EACCES,
        lambda write: write.is_root,
    ),
    Rule(
        "list",
        "the text must be a list such as 0-3,8",
        BOTH,
        errno.EINVAL,
        lambda write: write.wanted is None,
    ),
    Rule(
        "range",
        "an id beyond the possible ones cannot be named",
        BOTH,
        errno.ERANGE,
        lambda write: _wanted(write) >> write.ids != 0,
    ),
    Rule(
        "top",
        "on v1 a set names only CPUs that are online and nodes that have memory",
        ONLY_V1,
        errno.EINVAL,
        lambda write: _wanted(write) & ~write.top != 0,
    ),
    Rule(
        "children",
        "on v1 a parent cannot shrink below what one of its children holds",
        ONLY_V1,
        errno.EBUSY,
        lambda write: write.children & ~_wanted(write) != 0,
    ),
    Rule(
        "parent",
        "on v1 a child holds nothing that its parent does not hold",
        ONLY_V1,
        errno.EACCES,
        lambda write: _wanted(write) & ~write.parent != 0,
    ),
    Rule(
        "clearing",
        "a set, once given, cannot be cleared while a process lives in the cgroup",
        BOTH,
        errno.ENOSPC,
        lambda write: write.is_populated and write.current != 0 and _wanted(write) == 0,
    ),
)


def verdict(version: int, write: Write) -> Rule | None:
    """The first rule that rejects the write, None when it is accepted."""
    for rule in RULES:
        if version in rule.versions and rule.rejects(write):
            return rule
    return None
