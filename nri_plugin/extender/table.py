"""All nodes of a cluster as columns: one operation computes the answers for thousands of nodes.

Invariant: a row holds the values of `numa_zones` and `node_policy` for its node, less the charges. `stamps` grow with
every change of a row, so that answers are computed again only for rows that changed since. Amounts are thousandths and
are limited to 2^62, more than any node has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nri_plugin.extender.nodes import UNKNOWN_COST, Costs, NodePolicy, Zones

Amounts = NDArray[np.int64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.intp]

MOST = 1 << 62
SPARE_COSTS = 256
"""Tables of distances that are kept in addition to two for each node."""

NO_ID = MOST
"""The id of a missing zone, which sorts last."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A copy of some rows, for subtractions.

    Attributes:
        available: by resource name, row and position; 0 for a zone that does not list the resource.
        listed: whether the zone lists the resource.
        ids: by row and position, `NO_ID` for a missing zone.
        is_single, is_pod_scope, pod_level_managers, prefers_closest, has_nrt: by row.
        max_numa_nodes: by row.
        cost_index: by row, into `ClusterTable.costs`.
    """

    available: dict[str, Amounts]
    listed: dict[str, Flags]
    ids: Amounts
    is_single: Flags
    is_pod_scope: Flags
    pod_level_managers: Flags
    prefers_closest: Flags
    has_nrt: Flags
    max_numa_nodes: Amounts
    cost_index: Rows

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def exists(self) -> Flags:
        """Whether there is a zone, by row and position."""
        return np.asarray(self.ids != NO_ID)

    def take(self, rows: Rows | Flags) -> "Batch":
        """Return a copy of some of its rows."""
        return Batch(
            {name: column[rows] for name, column in self.available.items()},
            {name: column[rows] for name, column in self.listed.items()},
            *(getattr(self, name)[rows] for name in _PER_ROW),
        )

    def narrowed(self, width: int) -> "Batch":
        """Return the same rows with `width` zones, which must be enough for them."""
        per_row = {name: getattr(self, name) for name in _PER_ROW}
        per_row["ids"] = self.ids[:, :width]
        return Batch(
            {name: column[:, :width] for name, column in self.available.items()},
            {name: column[:, :width] for name, column in self.listed.items()},
            **per_row,
        )


_PER_ROW = (
    "ids",
    "is_single",
    "is_pod_scope",
    "pod_level_managers",
    "prefers_closest",
    "has_nrt",
    "max_numa_nodes",
    "cost_index",
)


class ClusterTable:
    """The columns. They grow with nodes, zones and resources."""

    def __init__(self) -> None:
        self.row_by_node: dict[str, int] = {}  # row 0 stands for unknown nodes
        self.costs: list[Costs] = []
        self.renumbered = 0  # how often the costs were numbered again
        self.stamp = 1
        self._cost_index_by_table: dict[Costs, int] = {}
        self._free: list[int] = []
        self._size, self._width = 64, 2
        self._available: dict[str, Amounts] = {}
        self._listed: dict[str, Flags] = {}
        self.stamps = np.zeros(self._size, np.int64)
        self.stamps[0] = 1
        self._per_row: dict[str, NDArray[Any]] = {
            "ids": np.full((self._size, self._width), NO_ID, np.int64),
            "is_single": np.zeros(self._size, np.bool_),
            "is_pod_scope": np.zeros(self._size, np.bool_),
            "pod_level_managers": np.zeros(self._size, np.bool_),
            "prefers_closest": np.zeros(self._size, np.bool_),
            "has_nrt": np.zeros(self._size, np.bool_),
            "max_numa_nodes": np.full(self._size, 8, np.int64),
            "cost_index": np.zeros(self._size, np.intp),
        }

    @property
    def size(self) -> int:
        """The number of rows, used or not."""
        return self._size

    def row_of(self, node: str) -> int:
        """Return the node's row; a new row is empty."""
        row = self.row_by_node.get(node)
        if row is None:
            row = self._free.pop() if self._free else len(self.row_by_node) + 1
            self._make_room(row + 1, self._width)
            self.row_by_node[node] = row
            self._touch(row)
        return row

    def rows_of(self, nodes: Sequence[str]) -> Rows:
        """Return the rows of nodes, in their order; row 0 for unknown nodes."""
        known = self.row_by_node
        return np.array([known.get(node, 0) for node in nodes], np.intp)

    def put(self, node: str, how: NodePolicy, zones: Zones) -> None:
        """Set a node's policy and its NUMA nodes, less the charges."""
        row = self.row_of(node)
        self._clear(row)
        self._fill(row, how, zones)
        self._touch(row)

    def forget(self, node: str) -> None:
        """Forget a node and reuse its row."""
        row = self.row_by_node.pop(node, None)
        if row is not None:
            self._clear(row)
            self._free.append(row)

    def batch(self, rows: Rows, names: Sequence[str]) -> Batch:
        """Return a copy of some rows with the columns of some resources."""
        width = self._width
        nothing: Amounts = np.zeros((len(rows), width), np.int64)
        nowhere: Flags = np.zeros((len(rows), width), np.bool_)
        return Batch(
            {n: self._available[n][rows] if n in self._available else nothing.copy() for n in names},
            {n: self._listed[n][rows] if n in self._listed else nowhere for n in names},
            *(self._per_row[name][rows] for name in _PER_ROW),
        )

    def _touch(self, row: int) -> None:
        self.stamp += 1
        self.stamps[row] = self.stamp

    def _clear(self, row: int) -> None:
        for amounts in self._available.values():
            amounts[row] = 0
        for flags in self._listed.values():
            flags[row] = False
        self._per_row["ids"][row] = NO_ID
        self._per_row["has_nrt"][row] = False
        self._per_row["is_single"][row] = False

    def _fill(self, row: int, how: NodePolicy, zones: Zones) -> None:
        self._make_room(self._size, len(zones))
        names = {name for zone in zones for name in zone.available}
        for name in names:
            self._columns_of(name)
            have = [zone.available.get(name) for zone in zones]
            self._listed[name][row, : len(zones)] = [one is not None for one in have]
            self._available[name][row, : len(zones)] = [max(-MOST, min(one or 0, MOST)) for one in have]
        values: Mapping[str, object] = {
            "is_single": how.is_single,
            "is_pod_scope": how.is_pod_scope,
            "pod_level_managers": how.pod_level_managers,
            "prefers_closest": how.prefers_closest,
            "has_nrt": True,
            "max_numa_nodes": how.max_numa_nodes,
            "cost_index": self._cost_index(cost_table(zones)),
        }
        self._per_row["ids"][row, : len(zones)] = [min(zone.id, NO_ID - 1) for zone in zones]
        for name, value in values.items():
            self._per_row[name][row] = value

    def _cost_index(self, costs: Costs) -> int:
        index = self._cost_index_by_table.get(costs)
        if index is None:
            # Some nodes publish new distances every time, and no event reports an unused table.
            if len(self.costs) >= 2 * len(self.row_by_node) + SPARE_COSTS:
                self._drop_unused_costs()
            index = self._cost_index_by_table[costs] = len(self.costs)
            self.costs.append(costs)
        return index

    def _drop_unused_costs(self) -> None:
        """Drop distances that no row uses. Otherwise they would accumulate, because nodes come and go."""
        column = self._per_row["cost_index"]
        used, places = np.unique(np.where(self._per_row["has_nrt"], column, 0), return_inverse=True)
        self.costs[:] = [self.costs[index] for index in used]
        self._per_row["cost_index"] = places.astype(np.intp)
        self._cost_index_by_table = {costs: index for index, costs in enumerate(self.costs)}
        self.renumbered += 1

    def _columns_of(self, name: str) -> None:
        if name not in self._available:
            self._available[name] = np.zeros((self._size, self._width), np.int64)
            self._listed[name] = np.zeros((self._size, self._width), np.bool_)

    def _make_room(self, size: int, width: int) -> None:
        if size <= self._size and width <= self._width:
            return
        # Powers of two, so that a growing cluster copies each column a few times only.
        self._size = max(self._size, 1 << (size - 1).bit_length()) if size > self._size else self._size
        self._width = max(self._width, width)
        for table in (self._available, self._listed, self._per_row):
            for name, column in table.items():
                table[name] = self._grown(column, NO_ID if name == "ids" else _BLANK.get(name, 0))
        self.stamps = self._grown(self.stamps, 0)

    def _grown(self, column: NDArray[Any], blank: int) -> NDArray[Any]:
        shape = (self._size,) if column.ndim == 1 else (self._size, self._width)
        grown = np.full(shape, blank, column.dtype)
        grown[tuple(slice(0, length) for length in column.shape)] = column
        return grown


_BLANK = {"max_numa_nodes": 8}


def cost_table(zones: Zones) -> Costs:
    """Return the distances by position; an unknown distance counts as the farthest."""
    return tuple(tuple(one.costs.get(other.id, UNKNOWN_COST) for other in zones) for one in zones)
