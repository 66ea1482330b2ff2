"""The kubelet's static Memory Manager, slowly: one dictionary a node, and every rule written out.

Written from the rules, not from the fast code; amounts are small whole numbers. What its init containers leave
to a pod stays with the pod, as in the reference.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.oracles.memory import hints

Block = tuple[frozenset[int], str, int]
"""NUMA nodes, resource, size."""


class RefusedError(Exception):
    """The reference would not allocate."""


@dataclass
class SlowMemoryManager:
    """A machine and what was promised of it.

    Attributes:
        allocatable: by resource and node.
    """

    allocatable: Mapping[str, Mapping[int, int]]
    promised: dict[tuple[str, int], int] = field(default_factory=dict)
    assignments: dict[int, int] = field(default_factory=dict)
    groups: dict[int, frozenset[int]] = field(default_factory=dict)
    blocks: dict[tuple[str, str], list[Block]] = field(default_factory=dict)
    reusable: dict[str, dict[tuple[frozenset[int], str], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.allocatable["memory"]:
            self.assignments[node], self.groups[node] = 0, frozenset({node})

    def free(self, resource: str, node: int) -> int:
        return self.allocatable[resource][node] - self.promised.get((resource, node), 0)

    def hints(self, pod: str, request: Mapping[str, int]) -> list[tuple[frozenset[int], bool]]:
        """Sets of nodes that could hold the request, and hold it with what the pod may reuse there."""
        could = hints(self.allocatable, self.allocatable, self.assignments, self.groups, request)
        left = self.reusable.get(pod, {})
        return [
            (nodes, preferred)
            for nodes, preferred in could
            if all(
                self.room(nodes, name) + left.get((nodes, name), 0) >= size for name, size in request.items()
            )
        ]

    def room(self, nodes: Iterable[int], resource: str) -> int:
        return sum(self.free(resource, node) for node in nodes)

    def allocate(
        self,
        pod: str,
        container: str,
        request: Mapping[str, int],
        hint: tuple[frozenset[int] | None, bool],
        *,
        init: bool,
        earlier_inits: Iterable[str],
    ) -> None:
        """Promise memory.

        Raises:
            RefusedError: there is no place for it, or none as good as the hint promised.
        """
        nodes, preferred = hint
        if nodes is None:
            nodes, preferred = self._best(pod, request, frozenset(), strictly=preferred)
        if any(self.room(nodes, name) < size for name, size in request.items()):
            nodes, preferred = self._best(pod, request, nodes, strictly=preferred)
        if len(nodes) > 1 and any(self.assignments[n] and self.groups[n] != nodes for n in nodes):
            raise RefusedError
        taken = [(nodes, name, size) for name, size in sorted(request.items())]
        for _, name, size in taken:
            self._take(nodes, name, max(0, size - self.reusable.get(pod, {}).get((nodes, name), 0)))
        self._leave(pod, taken, init=init)
        self._shrink(pod, taken, earlier_inits)
        self.blocks[pod, container] = taken

    def _best(
        self, pod: str, request: Mapping[str, int], within: frozenset[int], *, strictly: bool
    ) -> tuple[frozenset[int], bool]:
        found = [hint for hint in self.hints(pod, request) if within <= hint[0]]
        if not found:
            raise RefusedError
        best = min(found, key=lambda hint: (not hint[1], len(hint[0]), sum(1 << node for node in hint[0])))
        if strictly and not best[1]:
            raise RefusedError
        return best

    def _take(self, nodes: frozenset[int], resource: str, size: int) -> None:
        for node in sorted(nodes):
            self.assignments[node] += 1
            self.groups[node] = nodes
            here = min(size, self.free(resource, node))
            self.promised[resource, node] = self.promised.get((resource, node), 0) + here
            size -= here

    def _leave(self, pod: str, taken: list[Block], *, init: bool) -> None:
        left = dict(self.reusable.get(pod, {}))
        for nodes, name, size in taken:
            before = left.get((nodes, name), 0)
            left[nodes, name] = max(before, size) if init else max(0, before - size)
        self.reusable = {pod: left}

    def _shrink(self, pod: str, taken: list[Block], earlier_inits: Iterable[str]) -> None:
        over = {(nodes, name): size for nodes, name, size in taken}
        for container in earlier_inits:
            shrunk = []
            for nodes, name, size in self.blocks[pod, container]:
                used = min(over.get((nodes, name), 0), size)
                if used:
                    over[nodes, name] -= used
                shrunk.append((nodes, name, size - used))
            self.blocks[pod, container] = shrunk

    def remove(self, pod: str, container: str) -> None:
        """Give back what a container holds: from the lowest node on, as much as is promised there."""
        for nodes, name, size in self.blocks.pop((pod, container)):
            left = size
            for node in sorted(nodes):
                back = min(left, self.promised.get((name, node), 0))
                self.promised[name, node] = self.promised.get((name, node), 0) - back
                left -= back
                self.assignments[node] -= 1
                if not self.assignments[node]:
                    self.groups[node] = frozenset({node})
