"""The distances between NUMA nodes in lstopo's XML, of both versions."""

import re
from collections.abc import Iterator, Sequence

from nri_plugin.simulator.hwloc_xml import Element

LATENCY = 1 << 2
"""Source: hwloc/distances.h, HWLOC_DISTANCES_KIND_MEANS_LATENCY."""
_INTEGERS = re.compile(r"[0-9]{1,19}(?: [0-9]{1,19})*\Z")
_DECIMAL = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?\Z")


def latencies(root: Element, nodes: Sequence[int]) -> dict[int, str]:
    """The row of each node as its kernel file would say it; empty where there is no table of all nodes.

    Args:
        root: the element `topology`.
        nodes: ascending numbers.
    """
    for ids, values in [*_second(root), *_first(root, nodes)]:
        size = len(ids)
        if sorted(ids) == list(nodes) and len(values) == size * size:
            place = {node: position for position, node in enumerate(ids)}
            return {
                one: " ".join(str(values[place[one] * size + place[other]]) for other in nodes)
                for one in nodes
            }
    return {nodes[0]: "10"} if len(nodes) == 1 else {}  # lstopo writes no table of one


def _second(root: Element) -> Iterator[tuple[list[int], list[int]]]:
    """Version 2: a table of its own, indexed by kernel number, or by number in the file."""
    for table in root.named("distances2"):
        kind = table.attributes.get("kind", "0")
        if table.attributes.get("type") != "NUMANode" or not (kind.isdecimal() and int(kind) & LATENCY):
            continue
        ids = _integers(table, "indexes")
        if table.attributes.get("indexing") == "gp":
            numbers = _numbers_by_gp(root)
            ids = [numbers.get(str(index), -1) for index in ids]
        yield ids, _integers(table, "u64values")


def _first(root: Element, nodes: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Version 1: below an object, as factors of a base, in the order in which the nodes stand in the file."""
    order = [number for number in _node_numbers(root) if number in nodes]
    for element in _objects(root):
        for table in element.named("distances"):
            base = table.attributes.get("latency_base", "")
            factors = [value.attributes.get("value", "") for value in table.named("latency")]
            if _DECIMAL.match(base) and all(map(_DECIMAL.match, factors)):
                yield order, [round(float(factor) * float(base)) for factor in factors]


def _integers(table: Element, name: str) -> list[int]:
    words = " ".join(" ".join(part.text.split()) for part in table.named(name)).strip()
    return [int(word) for word in words.split()] if _INTEGERS.match(words) else []


def _objects(element: Element) -> Iterator[Element]:
    for child in element.named("object"):
        yield child
        yield from _objects(child)


def _node_numbers(root: Element) -> Iterator[int]:
    for element in _objects(root):
        number = element.attributes.get("os_index", "")
        if element.attributes.get("type") == "NUMANode" and number.isdecimal():
            yield int(number)


def _numbers_by_gp(root: Element) -> dict[str, int]:
    return {
        element.attributes.get("gp_index", ""): int(element.attributes.get("os_index", "0"))
        for element in _objects(root)
        if element.attributes.get("type") == "NUMANode" and element.attributes.get("os_index", "").isdecimal()
    }
