"""What is told of while CPUs are chosen, to whoever wants to know how the choice came about.

A note is either where CPUs are taken from now on, with those on offer there, or what was taken in one step. The
same code chooses with and without anybody listening, so that what is told is what happened.
"""

from collections.abc import Callable
from enum import StrEnum


class Stage(StrEnum):
    """What a note is about."""

    NODES_OF_HINT = "nodes-of-hint"
    SOCKETS_OF_HINT = "sockets-of-hint"
    SHARE_OF_DEVICES = "share-of-devices"
    EQUAL_SHARE = "equal-share"
    ANYWHERE = "anywhere"

    WHOLE_NODE = "whole-numa-node"
    WHOLE_SOCKET = "whole-socket"
    WHOLE_CACHE = "whole-uncore-cache"
    PART_OF_CACHE = "part-of-uncore-cache"
    WHOLE_CORE = "whole-core"
    SINGLE_CPUS = "single-cpus"
    BEST_FIT = "best-fit"
    ONE_CACHE = "one-uncore-cache"


PLACES = frozenset(
    {Stage.NODES_OF_HINT, Stage.SOCKETS_OF_HINT, Stage.SHARE_OF_DEVICES, Stage.EQUAL_SHARE, Stage.ANYWHERE}
)
"""Those that say where CPUs are taken from now on; the others say what was taken."""

Note = Callable[[Stage, int], None]
"""Told of a stage, and the mask of CPUs on offer or taken."""
