"""Part of the tests' API server: the objects, their versions, who owns their fields, and what changed when."""

import copy
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.kube_api_fields import InvalidError, Object, Ownership, checked, leaves, merged, pruned, without
from tests.kube_api_kinds import Kind

TIME = "2026-01-02T03:04:05Z"
Key = tuple[str, str, str, str]
"""Group, plural, namespace, name."""


class RefusedError(Exception):
    """An answer that is no success: the status object, its `code` included."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self.status |= {"message": message, "reason": reason, "code": code}
        if details is not None:
            self.status["details"] = details


@dataclass(frozen=True)
class Change:
    """One line of history."""

    version: int
    type: str
    key: Key
    object: Object


@dataclass(frozen=True)
class Write:
    """How a write was asked for."""

    manager: str
    version: str
    operation: str = "Update"
    force: bool = False
    dry_run: bool = False
    strict: bool = False
    subresource: str = ""


class Store:
    """All objects of the server; one lock, one counter of versions.

    Args:
        first_version: of the next change, less one.
    """

    def __init__(self, first_version: int = 100) -> None:
        self.version = first_version
        self.oldest = 0
        self.objects: dict[Key, Object] = {}
        self.history: list[Change] = []
        self.changed = threading.Condition(threading.RLock())

    def get(self, kind: Kind, key: Key) -> Object:
        with self.changed:
            if key not in self.objects:
                raise not_found(kind, key[3])
            return copy.deepcopy(self.objects[key])

    def all_of(self, kind: Kind, namespace: str) -> list[Object]:
        with self.changed:
            return [
                copy.deepcopy(obj)
                for key, obj in sorted(self.objects.items())
                if key[:2] == (kind.group, kind.plural) and namespace in ("", key[2])
            ]

    def create(self, kind: Kind, namespace: str, obj: Object, write: Write) -> tuple[Object, list[str]]:
        with self.changed:
            metadata = obj.setdefault("metadata", {})
            if metadata.get("generateName") and not metadata.get("name"):
                metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
            if not metadata.get("name"):
                why = "name or generateName is required"
                cause = {
                    "reason": "FieldValueRequired",
                    "message": f"Required value: {why}",
                    "field": "metadata.name",
                }
                raise invalid(kind, "", cause)
            key = (kind.group, kind.plural, namespace, metadata["name"])
            if key in self.objects:
                text = f'{kind.full_name} "{key[3]}" already exists'
                raise RefusedError(409, "AlreadyExists", text, details_of(kind, key[3]))
            return self._store(kind, key, None, obj, write)

    def update(self, kind: Kind, key: Key, obj: Object, write: Write) -> tuple[Object, list[str]]:
        with self.changed:
            before = self.get(kind, key)
            sent = obj.get("metadata", {}).get("resourceVersion")
            if sent is None:
                text = "Invalid value: 0: must be specified for an update"
                cause = {"reason": "FieldValueInvalid", "message": text, "field": "metadata.resourceVersion"}
                raise RefusedError(
                    422,
                    "Invalid",
                    f'{kind.full_name} "{key[3]}" is invalid: metadata.resourceVersion: {text}',
                    details_of(kind, key[3]) | {"causes": [cause]},
                )
            if sent != before["metadata"]["resourceVersion"]:
                raise self._stale(kind, key)
            return self._store(kind, key, before, obj, write)

    def modify(
        self, kind: Kind, key: Key, change: Callable[[Object], Object], write: Write
    ) -> tuple[Object, list[str]]:
        with self.changed:
            before = self.get(kind, key)
            after = change(copy.deepcopy(before))
            sent = after.get("metadata", {}).get("resourceVersion")
            if sent != before["metadata"]["resourceVersion"]:
                raise self._stale(kind, key)
            return self._store(kind, key, before, after, write)

    def apply(self, kind: Kind, key: Key, obj: Object, write: Write) -> tuple[Object, list[str], bool]:
        """The object, warnings, and whether it is new."""
        with self.changed:
            before = self.objects.get(key)
            wanted = leaves(pruned(obj, kind.schemas.get(write.version, {}))[0])
            if before is None:
                stored, warnings = self._store(kind, key, None, obj, write)
                return stored, warnings, True
            ownership, mine = Ownership(before["metadata"].get("managedFields", ())), ("Apply", write.manager)
            current = leaves(before)
            differing = [path for path, value in wanted.items() if path in current and current[path] != value]
            conflicts = [(path, name) for path in differing for name in ownership.others(mine, path)]
            if conflicts and not write.force:
                raise conflict_of(conflicts)
            given_up = {
                path
                for path in ownership.owned.get(mine, set()) - set(wanted)
                if not ownership.others(mine, path)
            }
            after = merged(without(before, given_up), obj)
            stored, warnings = self._store(kind, key, before, after, write, set(wanted))
            return stored, warnings, False

    def delete(self, kind: Kind, key: Key, options: Object, write: Write) -> Object:
        with self.changed:
            before = self.get(kind, key)
            wanted, found = options.get("preconditions", {}).get("uid"), before["metadata"]["uid"]
            if wanted not in (None, found):
                name, full = key[3], f"{kind.kind}.{kind.group}"
                text = (
                    f'Operation cannot be fulfilled on {full} "{name}": the UID in the precondition ({wanted}) does '
                    f"not match the UID in record ({found}). The object might have been deleted and then recreated"
                )
                raise RefusedError(409, "Conflict", text, details_of(kind, name) | {"kind": kind.kind})
            if not write.dry_run:
                del self.objects[key]
                self.version += 1
                gone = copy.deepcopy(before)
                gone["metadata"]["resourceVersion"] = str(self.version)
                self._tell("DELETED", key, gone)
            return before

    def compact(self) -> None:
        """Forget what was before now: watches from older versions are refused."""
        with self.changed:
            self.oldest = self.version
            self.history.clear()
            self.changed.notify_all()

    def _store(
        self,
        kind: Kind,
        key: Key,
        before: Object | None,
        sent: Object,
        write: Write,
        applied: set[tuple[str, ...]] | None = None,
    ) -> tuple[Object, list[str]]:
        schema = kind.schemas.get(write.version, {})
        after, unknown = pruned(copy.deepcopy(sent), schema)
        if unknown and write.strict:
            text = ", ".join(f'unknown field "{name}"' for name in unknown)
            raise RefusedError(
                400,
                "BadRequest",
                f'{kind.kind} in version "{write.version}" cannot be handled as a {kind.kind}: strict decoding '
                f"error: {text}",
            )
        try:
            checked(after, schema)
        except InvalidError as error:
            raise invalid(kind, key[3], error.cause) from None
        after |= {"apiVersion": kind.api_version(kind.stored_as), "kind": kind.kind}
        if kind.with_status:
            after = _only_part(before, after, write.subresource)
        self._stamp(kind, key, before, after, write, applied)
        if after != before and not write.dry_run:
            self.version += 1
            after["metadata"]["resourceVersion"] = str(self.version)
            self.objects[key] = after
            self._tell("MODIFIED" if before else "ADDED", key, after)
        return copy.deepcopy(after), [f'unknown field "{name}"' for name in unknown]

    def _stamp(
        self,
        kind: Kind,
        key: Key,
        before: Object | None,
        after: Object,
        write: Write,
        applied: set[tuple[str, ...]] | None,
    ) -> None:
        """Fill in what only the server says in `metadata`."""
        metadata = after.setdefault("metadata", {})
        old = before["metadata"] if before else {}
        metadata["name"] = key[3]
        if kind.is_namespaced:
            metadata["namespace"] = key[2]
        metadata["uid"] = old.get("uid") or str(uuid.uuid4())
        metadata["creationTimestamp"] = old.get("creationTimestamp", TIME)
        metadata["resourceVersion"] = old.get("resourceVersion", "")
        is_same = before is not None and _content(before) == _content(after)
        metadata["generation"] = old.get("generation", 0) + (not is_same)
        ownership = Ownership(old.get("managedFields", ()))
        was, now = leaves(before) if before else {}, leaves(after)
        differing = {path for path in now if path not in was or was[path] != now[path]}
        ownership.drop(set(was) - set(now))
        ownership.drop(differing, keep=(write.operation, write.manager))
        paths = differing if write.operation == "Update" else (set(now) if applied is None else applied)
        if paths or write.operation == "Apply":
            ownership.take(write.operation, write.manager, paths, kind.api_version(write.version), TIME)
        metadata["managedFields"] = ownership.entries()

    def _stale(self, kind: Kind, key: Key) -> RefusedError:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        text = f'Operation cannot be fulfilled on {kind.full_name} "{key[3]}": {why}'
        return RefusedError(409, "Conflict", text, details_of(kind, key[3]))

    def _tell(self, what: str, key: Key, obj: Object) -> None:
        self.history.append(Change(self.version, what, key, copy.deepcopy(obj)))
        self.changed.notify_all()


def _content(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def _only_part(before: Object | None, after: Object, subresource: str) -> Object:
    """A write of the object leaves its status, a write of its status leaves the rest."""
    if before is None:
        return after
    if subresource == "status":
        return {**before, "status": after.get("status", {}), "metadata": after["metadata"]}
    kept = {key: value for key, value in after.items() if key != "status"}
    return kept | ({"status": before["status"]} if "status" in before else {})


def details_of(kind: Kind, name: str) -> Object:
    return {"name": name, "group": kind.group, "kind": kind.plural}


def not_found(kind: Kind, name: str) -> RefusedError:
    return RefusedError(404, "NotFound", f'{kind.full_name} "{name}" not found', details_of(kind, name))


def invalid(kind: Kind, name: str, cause: Object) -> RefusedError:
    full = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    details: Object = {"group": kind.group, "kind": kind.kind, "causes": [cause]}
    if name:
        details["name"] = name
    text = f'{full} "{name}" is invalid: {cause["field"]}: {cause["message"]}'
    return RefusedError(422, "Invalid", text, details)


def conflict_of(conflicts: list[tuple[tuple[str, ...], str]]) -> RefusedError:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f"conflict with {name}",
            "field": f".{'.'.join(path)}",
        }
        for path, name in conflicts
    ]
    rows = "; ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    count = f"{len(causes)} conflict{'s' * (len(causes) != 1)}"
    return RefusedError(409, "Conflict", f"Apply failed with {count}: {rows}", {"causes": causes})


def shown(kind: Kind, obj: Object, version: str) -> Object:
    """The object as readers of `version` see it."""
    schema: Any = kind.schemas.get(version, {})
    return {**pruned(obj, schema)[0], "apiVersion": kind.api_version(version)}
