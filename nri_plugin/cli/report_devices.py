"""Devices in the picture of a machine: a chip for each, with the letter and colour of who has it."""

from collections.abc import Iterable, Sequence

from nri_plugin.cli.report_marks import Marks, Row
from nri_plugin.cli.report_markup import Markup, element

FREE = "·"


def devices_of_node(devices: Sequence[Row], node: int, marks: Marks) -> list[Markup]:
    """A line for each resource of which the NUMA node has devices."""
    return _lines((device for device in devices if node in device["numa_nodes"]), marks)


def devices_elsewhere(devices: Sequence[Row], shown: frozenset[int], marks: Marks) -> list[Markup]:
    """Lines of devices that are at none of the NUMA nodes that have a box."""
    rest = [device for device in devices if shown.isdisjoint(device["numa_nodes"])]
    return (
        [element("div", "At no NUMA node with CPUs: ", *_lines(rest, marks), class_="aside")] if rest else []
    )


def _lines(devices: Iterable[Row], marks: Marks) -> list[Markup]:
    by_resource: dict[str, list[Row]] = {}
    for device in devices:
        by_resource.setdefault(device["resource"], []).append(device)
    return [
        element("p", element("span", resource), *(_chip(device, marks) for device in group), class_="devices")
        for resource, group in by_resource.items()
    ]


def _chip(device: Row, marks: Marks) -> Markup:
    """Joined to its container; one that has no CPUs of its own has no letter, and a ring instead."""
    key = device["container"]
    look = "free" if not key else marks.colour(key) or "sharing"
    words = f"{device['resource']} {device['id']}: {key or 'free'}"
    letter = (marks.letter(key) or "o") if key else FREE
    return element(
        "b",
        letter,
        class_=f"device {look}",
        data_c=marks.number(key) if key else None,
        title=words,
        role="img",
        aria_label=words,
    )
