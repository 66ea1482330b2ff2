"""The API server's audit log: who asked for what, and how it was answered."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One answered request.

    Attributes:
        user: its name; empty where nobody was recognized.
        verb: get, list, watch, create, update, patch, delete, deletecollection.
        what: resource with subresource, as `pods/status`.
        name: of the object; empty for lists.
        status: of the answer.
        agent: the client's User-Agent.
    """

    user: str
    verb: str
    what: str
    name: str
    status: int
    agent: str

    def __str__(self) -> str:
        return f"{self.user or 'nobody'}: {self.verb} {self.what} {self.name} -> {self.status}"


def read_audit(log: Path, offset: int = 0) -> Iterator[Asked]:
    """The answered requests behind that byte of the log; of a watch the end counts, and its begin where it fails."""
    with log.open("rb") as file:
        file.seek(offset)
        for line in file:
            if line.endswith(b"\n"):
                row = json.loads(line)
                if row["stage"] == "ResponseComplete" or (row["stage"] == "Panic"):
                    yield _asked(row)


def _asked(row: dict[str, Any]) -> Asked:
    about = row.get("objectRef") or {}
    what = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
    return Asked(
        row.get("user", {}).get("username", ""),
        row["verb"],
        what or row["requestURI"],
        about.get("name", ""),
        (row.get("responseStatus") or {}).get("code", 0),
        row.get("userAgent", ""),
    )


def refusals(asked: Iterator[Asked], user: str) -> Counter[str]:
    """How often each kind of request of a user was answered with a status from 400 on."""
    return Counter(
        f"{one.verb} {one.what} {one.status}" for one in asked if one.user == user and one.status >= 400
    )
