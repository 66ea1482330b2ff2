"""Identifiers of the parts of a machine, kept apart by the type checker.

All are the numbers the kernel uses, except `CoreID` and `UncoreCacheID`: those
kernel numbers repeat across sockets, so a core is named by its lowest online
CPU and a cache by its position in the order of lowest online CPUs.
"""

from typing import NewType

CPUID = NewType("CPUID", int)
CoreID = NewType("CoreID", int)
SocketID = NewType("SocketID", int)
UncoreCacheID = NewType("UncoreCacheID", int)
NUMANodeID = NewType("NUMANodeID", int)
