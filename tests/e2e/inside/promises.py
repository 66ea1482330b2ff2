"""What the agent promised, read from its checkpoint by its own command line."""

from dataclasses import dataclass
from typing import Any

from .observe import parse_list


@dataclass(frozen=True, slots=True)
class Promise:
    """One container's part of the checkpoint; `mems` is empty where its memory is not bound."""

    cpus: set[int]
    mems: set[int]
    exclusive: bool


def promises(shown: dict[str, Any]) -> dict[str, Promise]:
    """Read `state show -o json` into promises by the runtime's container id."""
    return {
        container["id"]: Promise(
            parse_list(container["cpuset"]), parse_list(container["mems"]), container["kind"] == "exclusive"
        )
        for container in shown["containers"]
    }
