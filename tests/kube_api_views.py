"""Part of the tests' API server: lists, pages, selectors and watches."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.kube_api_fields import Object
from tests.kube_api_kinds import Kind
from tests.kube_api_store import Change, Key, RefusedError, shown

if TYPE_CHECKING:
    from tests.kube_api_server import KubeAPI

PATIENCE_S = 30.0
"""The longest a watch stays open; only ever waited for by a failing test."""


@dataclass(frozen=True)
class Target:
    """What an address names."""

    kind: Kind
    version: str
    namespace: str
    name: str
    subresource: str

    @property
    def key(self) -> Key:
        return (self.kind.group, self.kind.plural, self.namespace, self.name)


def listed(api: "KubeAPI", target: Target, query: dict[str, str]) -> Object:
    """A list or one page of it."""
    field_clauses(query, target.kind.kind)
    with api.store.changed:
        items = [
            shown(target.kind, obj, target.version) for obj in api.store.all_of(target.kind, target.namespace)
        ]
        version = str(api.store.version)
    items = [obj for obj in items if selects(query, obj)]
    metadata: Object = {"continue": "", "resourceVersion": version}
    if query.get("continue"):
        token = query["continue"]
        position = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        items = [obj for obj in items if obj["metadata"]["name"] > position["start"].strip("/\0")]
        metadata["resourceVersion"] = str(position["rv"])
    limit = int(query.get("limit") or 0)
    if 0 < limit < len(items):
        metadata["remainingItemCount"] = len(items) - limit
        items = items[:limit]
        start = f"/{items[-1]['metadata']['name']}\0"
        position = {"v": "meta.k8s.io/v1", "rv": int(metadata["resourceVersion"]), "start": start}
        text = json.dumps(position, separators=(",", ":"))
        metadata["continue"] = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    kind = f"{target.kind.kind}List"
    api_version = target.kind.api_version(target.version)
    return {"apiVersion": api_version, "items": items, "kind": kind, "metadata": metadata}


def selects(query: dict[str, str], obj: Object) -> bool:
    """Whether the selectors of a request take this object."""
    for name, is_unequal, value in field_clauses(query, obj["kind"]):
        part, _, key = name.partition(".")
        if (obj.get(part, {}).get(key, "") == value) is bool(is_unequal):
            return False
    labels = obj["metadata"].get("labels", {})
    clauses = filter(None, query.get("labelSelector", "").split(","))
    return all(labels.get(clause.partition("=")[0]) == clause.partition("=")[2] for clause in clauses)


def field_clauses(query: dict[str, str], kind: str) -> list[tuple[str, str, str]]:
    """Name, whether it is `!=`, value of each; refuses fields that objects cannot be selected by."""
    found = []
    for clause in filter(None, query.get("fieldSelector", "").split(",")):
        if "=" not in clause:
            text = f"invalid selector: '{clause}'; can't understand '{clause}'"
            raise RefusedError(400, "BadRequest", text)
        name, is_unequal, value = clause.partition("!=") if "!=" in clause else split_equal(clause)
        is_pod_field = kind == "Pod" and name in ("spec.nodeName", "status.phase")
        if name not in ("metadata.name", "metadata.namespace") and not is_pod_field:
            raise RefusedError(400, "BadRequest", f"field label not supported: {name}")
        found.append((name, is_unequal, value))
    return found


def split_equal(clause: str) -> tuple[str, str, str]:
    """Name, nothing, value."""
    name, _, value = clause.replace("==", "=").partition("=")
    return name, "", value


def watch_events(api: "KubeAPI", target: Target, query: dict[str, str]) -> Iterator[Object | None]:
    """The lines of a watch; None asks for what was written to be sent."""
    store, kind = api.store, target.kind
    asked_for = query.get("resourceVersion", "")
    with store.changed:
        seen = store.version if asked_for in ("", "0") else int(asked_for)
        is_fresh = asked_for in ("", "0")
        first = listed(api, target, query)["items"] if is_fresh else []
        api.watches += 1
        store.changed.notify_all()
    yield None
    if not is_fresh and seen < store.oldest:
        text = f"too old resource version: {seen} ({store.oldest})"
        yield {"type": "ERROR", "object": RefusedError(410, "Expired", text).status}
        return
    for obj in first:
        yield {"type": "ADDED", "object": obj}
    if query.get("sendInitialEvents") == "true":
        yield bookmark(target, seen, {"k8s.io/initial-events-end": "true"})
    while True:
        with store.changed:
            news = [change for change in store.history if change.version > seen]
            if not news and not api.behaviour.ends_watches_at_once and not api.is_closing:
                if not store.changed.wait(min(PATIENCE_S, float(query.get("timeoutSeconds") or PATIENCE_S))):
                    return
                news = [change for change in store.history if change.version > seen]
        for change in news:
            if _concerns(change, target) and selects(query, change.object):
                yield {"type": change.type, "object": shown(kind, change.object, target.version)}
            seen = change.version
        yield None
        if api.behaviour.ends_watches_at_once or api.is_closing:
            return


def bookmark(target: Target, version: int, annotations: dict[str, str]) -> Object:
    metadata: Object = {"resourceVersion": str(version)}
    if annotations:
        metadata["annotations"] = annotations
    obj = {
        "apiVersion": target.kind.api_version(target.version),
        "kind": target.kind.kind,
        "metadata": metadata,
    }
    return {"type": "BOOKMARK", "object": obj}


def _concerns(change: Change, target: Target) -> bool:
    group, plural, namespace, _ = change.key
    return (group, plural) == (target.kind.group, target.kind.plural) and target.namespace in ("", namespace)
