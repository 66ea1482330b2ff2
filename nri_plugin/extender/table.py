"""All nodes of a cluster as columns: one operation computes the answers for thousands of nodes.

Invariant: a row holds the values of `numa_zones` and `node_policy` for its node, less the charges. `stamps` grow with
every change of a row, so that answers are computed again only for rows that changed since. Amounts are thousandths and
are limited to 2^62, more than any node has.

A column has a cell for each zone of each node, one node after the other, so a node with many zones costs only its own
cells. A resource gets a column when a pod requests it, and loses it when no node lists it or other columns need the
room. So one node cannot use much memory, whatever its object holds.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nri_plugin.extender.nodes import UNKNOWN_COST, Costs, NodePolicy, Zones
from nri_plugin.model.errors import KubeObjectError

Amounts = NDArray[np.int64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.intp]

MOST = 1 << 62

NO_ID = MOST
"""The id of a missing zone, which sorts last."""

MOST_COLUMNS = 256
"""Columns at once: 90 MiB on 5,000 nodes of eight zones. Pods of a cluster request a few."""

LEAST_ROOM = 4
"""Cells of a node with few zones, so that most nodes of a cluster are in one batch."""

BATCH_CELLS = 1 << 17
"""Most zones of a batch, so that temporary tables of large nodes stay small."""


class Column(NamedTuple):
    """One resource in all zones: amounts, 0 where it is not listed, and whether it is listed."""

    available: Amounts
    listed: Flags


class Columns(dict[str, Column]):
    """Columns by resource. A resource that no node lists has no column of its own.

    Args:
        columns: by resource.
        blank: the column of every other resource.
    """

    def __init__(self, columns: Mapping[str, Column], blank: Column) -> None:
        super().__init__(columns)
        self.blank = blank

    def __missing__(self, name: str) -> Column:
        return self.blank

    def take(self, rows: Rows | Flags) -> "Columns":
        """Return a copy of some rows."""
        taken = {name: Column(one.available[rows], one.listed[rows]) for name, one in self.items()}
        return Columns(taken, Column(self.blank.available[rows], self.blank.listed[rows]))


@dataclass(slots=True)
class CostTable:
    """The distances of one or more nodes.

    Attributes:
        costs: by position.
        rows: how many rows have them.
        sums: the sum of each set of NUMA nodes and the least of them, by size and width; `cluster_scores` computes them.
        least_by_size: the least sum of a size whose sets are too many to list.
    """

    costs: Costs
    rows: int = 0
    sums: dict[tuple[int, int], tuple[Amounts, int]] = field(default_factory=dict)
    least_by_size: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """A copy of some rows, for subtractions.

    Attributes:
        columns: by resource; amounts and flags by row and position.
        ids: by row and position, `NO_ID` for a missing zone.
        is_single, is_pod_scope, pod_level_managers, prefers_closest, has_nrt: by row.
        max_numa_nodes: by row.
        cost_index: by row, into `ClusterTable.costs`.
    """

    columns: Columns
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

    def available(self, name: str) -> Amounts:
        """Return the resource's amounts by row and position; 0 for a zone that does not list it."""
        return self.columns[name].available

    def listed(self, name: str) -> Flags:
        """Return whether the zone lists the resource, by row and position."""
        return self.columns[name].listed

    def take(self, rows: Rows | Flags) -> "Batch":
        """Return a copy of some of its rows."""
        return Batch(
            self.columns.take(rows), self.ids[rows], *(getattr(self, name)[rows] for name in _PER_ROW)
        )


_PER_ROW: Mapping[str, tuple[type, object]] = {
    "is_single": (np.bool_, False),
    "is_pod_scope": (np.bool_, False),
    "pod_level_managers": (np.bool_, False),
    "prefers_closest": (np.bool_, False),
    "has_nrt": (np.bool_, False),
    "max_numa_nodes": (np.int64, 8),
    "cost_index": (np.intp, 0),
}
"""Type and blank value of each column with one cell for each node."""


class ClusterTable:
    """The columns. They grow with nodes and zones, and with the resources that pods request."""

    def __init__(self) -> None:
        self.row_by_node: dict[str, int] = {}  # row 0 stands for unknown nodes
        self.stamp = 1
        self.costs: dict[int, CostTable] = {}
        self._cost_index_by_table: dict[Costs, int] = {}
        self._free_costs: list[int] = []
        self._amounts_by_row: dict[int, Sequence[Mapping[str, int]]] = {}
        self._rows_by_name: dict[str, set[int]] = {}
        self._free_rows: list[int] = []
        size = 64
        self.stamps = np.zeros(size, np.int64)
        self.stamps[0] = 1
        self._per_row: dict[str, NDArray[Any]] = {
            name: np.full(size, blank, kind) for name, (kind, blank) in _PER_ROW.items()
        }
        # The cells of a row: the first one, those with a zone, and those that are reserved. The first room is blank.
        self._first = np.zeros(size, np.intp)
        self._zones = np.ones(size, np.intp)
        self._room = np.full(size, LEAST_ROOM, np.intp)
        self._cells = LEAST_ROOM
        self._free_cells: dict[int, list[int]] = {}
        self._ids: Amounts = np.full(size, NO_ID, np.int64)
        self._columns: OrderedDict[str, Column] = OrderedDict()

    @property
    def size(self) -> int:
        """The number of rows, used or not."""
        return len(self.stamps)

    def row_of(self, node: str) -> int:
        """Return the node's row; a new row is empty."""
        row = self.row_by_node.get(node)
        if row is None:
            row = self._free_rows.pop() if self._free_rows else len(self.row_by_node) + 1
            if row >= self.size:
                self._add_rows()
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
        cost_index = self._cost_index(cost_table(zones))  # first, so that distances in use are kept
        self._empty(row, keeps=len(zones))
        self._fill(row, zones)
        values: Mapping[str, object] = {
            "is_single": how.is_single,
            "is_pod_scope": how.is_pod_scope,
            "pod_level_managers": how.pod_level_managers,
            "prefers_closest": how.prefers_closest,
            "has_nrt": True,
            "max_numa_nodes": how.max_numa_nodes,
            "cost_index": cost_index,
        }
        for name, value in values.items():
            self._per_row[name][row] = value
        self._touch(row)

    def forget(self, node: str) -> None:
        """Forget a node and reuse its row."""
        row = self.row_by_node.pop(node, None)
        if row is not None:
            self._empty(row)
            self._free_rows.append(row)

    def batches(self, rows: Rows, names: Sequence[str]) -> Iterator[tuple[Rows, Batch]]:
        """Yield some rows and a copy of them with the columns of some resources, rows with as many zones together.

        Raises:
            KubeObjectError: nodes list more of the resources than there is room for.
        """
        listed = [name for name in names if name in self._rows_by_name]
        if len(listed) > MOST_COLUMNS:
            raise KubeObjectError(
                f"the pod requests {len(listed)} resources of NUMA nodes, at most {MOST_COLUMNS} are considered"
            )
        columns = {name: self._column(name) for name in listed}
        rooms = self._room[rows]
        for room in np.unique(rooms).tolist():
            alike = rows[rooms == room]
            most = max(1, BATCH_CELLS // room)
            for start in range(0, len(alike), most):
                some = alike[start : start + most]
                yield some, self._batch(some, columns)

    def _batch(self, rows: Rows, columns: Mapping[str, Column]) -> Batch:
        width = int(self._zones[rows].max())
        cells = self._first[rows][:, None] + np.arange(width)
        blank = Column(np.zeros(cells.shape, np.int64), np.zeros(cells.shape, np.bool_))
        taken = {name: Column(one.available[cells], one.listed[cells]) for name, one in columns.items()}
        return Batch(
            Columns(taken, blank), self._ids[cells], *(self._per_row[name][rows] for name in _PER_ROW)
        )

    def _touch(self, row: int) -> None:
        self.stamp += 1
        self.stamps[row] = self.stamp

    # Columns

    def _column(self, name: str) -> Column:
        """Return the column of a resource, which is filled if it is new."""
        column = self._columns.get(name)
        if column is not None:
            self._columns.move_to_end(name)
            return column
        if len(self._columns) >= MOST_COLUMNS:
            self._columns.popitem(last=False)
        shape = self._ids.shape
        column = self._columns[name] = Column(np.zeros(shape, np.int64), np.zeros(shape, np.bool_))
        self._write(column, name, self._rows_by_name[name])
        return column

    def _write(self, column: Column, name: str, rows: Iterable[int]) -> None:
        """Write the cells of rows, which are blank."""
        found = {
            cell: amounts[name]
            for row in rows
            for cell, amounts in enumerate(self._amounts_by_row[row], int(self._first[row]))
            if name in amounts
        }
        cells = np.fromiter(found, np.intp, len(found))
        column.listed[cells] = True
        column.available[cells] = _limited(found.values())

    # Rows

    def _empty(self, row: int, *, keeps: int = 0) -> None:
        """Empty a row; it keeps its cells if they are as many as `keeps` zones get."""
        cells = slice(self._first[row], self._first[row] + self._room[row])
        for name in _names(self._amounts_by_row.pop(row, ())):
            rows = self._rows_by_name[name]
            rows.discard(row)
            column = self._columns.get(name)
            if not rows:
                del self._rows_by_name[name]
                self._columns.pop(name, None)
            elif column is not None:
                column.available[cells] = 0
                column.listed[cells] = False
        if self._first[row]:
            self._ids[cells] = NO_ID
            if _room_for(keeps) != self._room[row]:
                self._free_cells.setdefault(int(self._room[row]), []).append(int(self._first[row]))
                self._first[row], self._room[row] = 0, LEAST_ROOM
        self._zones[row] = 1
        if self._per_row["has_nrt"][row]:
            self._release_costs(int(self._per_row["cost_index"][row]))
        for name, (_, blank) in _PER_ROW.items():
            self._per_row[name][row] = blank

    def _fill(self, row: int, zones: Zones) -> None:
        if not zones:
            return
        room = _room_for(len(zones))
        if not self._first[row]:
            self._first[row], self._room[row] = self._reserved(room), room
        self._zones[row] = len(zones)
        first = self._first[row]
        self._ids[first : first + len(zones)] = [min(zone.id, NO_ID - 1) for zone in zones]
        self._amounts_by_row[row] = [zone.available for zone in zones]
        for name in _names(self._amounts_by_row[row]):
            self._rows_by_name.setdefault(name, set()).add(row)
            column = self._columns.get(name)
            if column is not None:
                self._write(column, name, (row,))

    def _reserved(self, room: int) -> int:
        """Return the first of `room` cells that no row has."""
        free = self._free_cells.get(room)
        if free:
            return free.pop()
        first, self._cells = self._cells, self._cells + room
        if self._cells > len(self._ids):
            # Powers of two, so that a growing cluster copies each column a few times only.
            size = 1 << (self._cells - 1).bit_length()
            self._ids = _grown(self._ids, size, NO_ID)
            for name, column in self._columns.items():
                self._columns[name] = Column(
                    _grown(column.available, size, 0), _grown(column.listed, size, False)
                )
        return first

    def _add_rows(self) -> None:
        size = 2 * self.size
        for name, (_, blank) in _PER_ROW.items():
            self._per_row[name] = _grown(self._per_row[name], size, blank)
        self.stamps = _grown(self.stamps, size, 0)
        self._first, self._room = _grown(self._first, size, 0), _grown(self._room, size, LEAST_ROOM)
        self._zones = _grown(self._zones, size, 1)

    # Distances

    def _cost_index(self, costs: Costs) -> int:
        index = self._cost_index_by_table.get(costs)
        if index is None:
            index = self._free_costs.pop() if self._free_costs else len(self.costs)
            self._cost_index_by_table[costs] = index
            self.costs[index] = CostTable(costs)
        self.costs[index].rows += 1
        return index

    def _release_costs(self, index: int) -> None:
        """Drop distances that no row has, with all sums: some nodes publish new ones every time."""
        table = self.costs[index]
        table.rows -= 1
        if not table.rows:
            del self.costs[index], self._cost_index_by_table[table.costs]
            self._free_costs.append(index)


def _room_for(zones: int) -> int:
    """Return how many cells a row of so many zones gets: a power of two, so that freed cells fit other rows."""
    return max(LEAST_ROOM, 1 << max(zones - 1, 0).bit_length())


def _limited(amounts: Collection[int]) -> Amounts:
    try:
        return np.fromiter(amounts, np.int64, len(amounts)).clip(-MOST, MOST)
    except OverflowError:
        return np.array([max(-MOST, min(one, MOST)) for one in amounts], np.int64)


def _names(amounts: Sequence[Mapping[str, int]]) -> set[str]:
    return {name for zone in amounts for name in zone}


def _grown(column: NDArray[Any], size: int, blank: object) -> NDArray[Any]:
    grown = np.full(size, blank, column.dtype)
    grown[: len(column)] = column
    return grown


def cost_table(zones: Zones) -> Costs:
    """Return the distances by position; an unknown distance counts as the farthest."""
    return tuple(tuple(one.costs.get(other.id, UNKNOWN_COST) for other in zones) for one in zones)
