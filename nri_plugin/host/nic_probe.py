"""A helper process that reports where network interfaces are attached: `python -m nri_plugin.host.nic_probe`.

Each line of input is a JSON list of names. Each line of output is a JSON object of name to [bus, device] or null. The first
line of output is {} when the process is ready, or {"error": why}. The process ends with its input.

It is not part of the agent, because its library has 300 modules and 20 MB and blocks while it loads. It sees only the
interfaces of its own network namespace, which must be the host's.

Source: Linux, include/uapi/linux/if_link.h: IFLA_PARENT_DEV_BUS_NAME and IFLA_PARENT_DEV_NAME (since 5.14).
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

Link = Mapping[str, Any]
"""Attributes of an interface by their kernel names."""

Find = Callable[..., Link | None]
"""Called with `ifname` or `index`; returns None if there is no such interface."""

DEEPEST = 8
"""The kernel's limit on stacked interfaces. Source: Linux, MAX_NEST_DEV."""


def parent(find: Find, name: str) -> tuple[str, str] | None:
    """Bus and device of an interface, or of the interface below a VLAN or the like; None for a virtual one."""
    link = find(ifname=name)
    for _ in range(DEEPEST):
        if link is None:
            return None
        bus, device = link.get("IFLA_PARENT_DEV_BUS_NAME"), link.get("IFLA_PARENT_DEV_NAME")
        if bus and device:
            return str(bus), str(device)
        # An index of another network namespace means another interface here.
        below = None if link.get("IFLA_LINK_NETNSID") is not None else link.get("IFLA_LINK")
        link = find(index=below) if below else None
    return None


def answer(find: Find, line: str) -> str:
    """The line of output for a line of input; {} for one that cannot be read."""
    try:
        names = [name for name in json.loads(line) if isinstance(name, str)]
    except (ValueError, TypeError):
        names = []
    return json.dumps({name: parent(find, name) for name in names})


def serve(questions: IO[str], answers: IO[str], find: Find) -> None:
    """Answer until there are no more questions."""
    print("{}", file=answers, flush=True)
    for line in questions:
        print(answer(find, line), file=answers, flush=True)


def main() -> int:
    """Serve standard input and output."""
    try:
        from pyroute2 import IPRoute, NetlinkError

        route = IPRoute()
    except (ImportError, OSError) as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        return 1

    def find(**which: str | int) -> Link | None:
        try:
            found = list(route.link("get", **which))
        except NetlinkError:
            return None
        return dict(found[0]["attrs"]) if found else None

    with route:
        serve(sys.stdin, sys.stdout, find)
    return 0


if __name__ == "__main__":
    sys.exit(main())
