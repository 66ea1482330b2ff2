"""Part of the tests' API server: the objects, their versions, who owns their fields, and what changed when."""

import copy
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests import kube_api_rules as rules
from tests.kube_api_fields import Object, Ownership, applied, checked, leaves, pruned, shown_path, without
from tests.kube_api_kinds import Kind
from tests.kube_api_rules import Cause

TIME = "2026-01-02T03:04:05Z"
Key = tuple[str, str, str, str]
"""Group, plural, namespace, name."""

PREFIX_CHARACTERS, SUFFIX_CHARACTERS = 58, 5
"""Of a name that the server makes of `generateName`."""
LETTERS = "bcdfghjklmnpqrstvwxz2456789"
NAMESPACES = ("", "namespaces")
SYSTEM_NAMESPACES = {"", "default", "kube-system", "kube-public", "kube-node-lease"}


class RefusedError(Exception):
    """An answer that is no success: the status object, its `code` included."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self.status |= {"message": message, **({"reason": reason} if reason else {}), "code": code}
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
                suffix = "".join(random.choices(LETTERS, k=SUFFIX_CHARACTERS))
                metadata["name"] = metadata["generateName"][:PREFIX_CHARACTERS] + suffix
            self._check_namespace(kind, namespace, metadata)
            if metadata.get("resourceVersion"):
                raise failure("resourceVersion should not be set on objects to be created")
            metadata.setdefault("name", "")
            if kind.kind == "Namespace":
                name_label = {"kubernetes.io/metadata.name": metadata["name"]}
                metadata["labels"] = {**(metadata.get("labels") or {}), **name_label}
            key = (kind.group, kind.plural, namespace, metadata["name"])
            if key in self.objects:
                self._accepted(kind, key, None, obj, write)
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
            uid, found = obj["metadata"].get("uid"), before["metadata"]["uid"]
            if uid not in (None, found):
                raise conflict(kind, key[3], precondition_failed(kind, key, uid, found))
            if sent != before["metadata"]["resourceVersion"]:
                raise self._stale(kind, key)
            return self._store(kind, key, before, obj, write)

    def modify(
        self, kind: Kind, key: Key, change: Callable[[Object], Object], write: Write
    ) -> tuple[Object, list[str]]:
        with self.changed:
            before = self.get(kind, key)
            after = change(copy.deepcopy(before))
            check_name(after.get("metadata", {}).get("name"), key[3])
            sent = after.get("metadata", {}).get("resourceVersion")
            if sent != before["metadata"]["resourceVersion"]:
                raise self._stale(kind, key)
            return self._store(kind, key, before, after, write)

    def apply(self, kind: Kind, key: Key, obj: Object, write: Write) -> tuple[Object, list[str], bool]:
        """The object, warnings, and whether it is new."""
        with self.changed:
            before = self.objects.get(key)
            known, unknown = pruned(obj, kind.schemas.get(write.version, {}))
            if unknown:
                which = f"/{key[3]}; {kind.api_version(write.version)}, Kind={kind.kind}"
                text = f".{unknown[0]}: field not declared in schema"
                raise failure(f"failed to create typed patch object ({which}): {text}")
            wanted = leaves(known)
            if before is None:
                obj["metadata"].pop("resourceVersion", None)
                stored, warnings = self._store(kind, key, None, obj, write)
                return stored, warnings, True
            ownership, mine = Ownership(before["metadata"].get("managedFields", ())), ("Apply", write.manager)
            current = leaves(before)
            differing = [path for path, value in wanted.items() if path in current and current[path] != value]
            conflicts = [(path, name) for path in differing for name in ownership.others(mine, path)]
            if conflicts and not write.force:
                raise conflict_of(conflicts)
            if obj["metadata"].get("resourceVersion") not in (None, before["metadata"]["resourceVersion"]):
                raise self._stale(kind, key)
            given_up = {
                path
                for path in ownership.owned.get(mine, set()) - set(wanted)
                if not ownership.others(mine, path)
            }
            after = applied(without(before, given_up), obj)
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
        fields: set[tuple[str, ...]] | None = None,
    ) -> tuple[Object, list[str]]:
        after, unknown = self._accepted(kind, key, before, sent, write)
        after |= {"apiVersion": kind.api_version(kind.stored_as), "kind": kind.kind}
        if kind.with_status:
            after = _only_part(before, after, write.subresource)
        self._stamp(kind, key, before, after, write, fields)
        if after != before and not write.dry_run:
            self.version += 1
            after["metadata"]["resourceVersion"] = str(self.version)
            self.objects[key] = after
            self._tell("MODIFIED" if before else "ADDED", key, after)
        return copy.deepcopy(after), [f'unknown field "{name}"' for name in unknown]

    def _accepted(
        self, kind: Kind, key: Key, before: Object | None, sent: Object, write: Write
    ) -> tuple[Object, list[str]]:
        """The object as it may be stored, and the names of the fields that were left out of it."""
        schema = kind.schemas.get(write.version, {})
        refusal = f'{kind.kind} in version "{write.version}" cannot be handled as a {kind.kind}: '
        why = rules.undecodable(kind.kind, sent)
        if why:
            raise RefusedError(400, "BadRequest", refusal + why)
        after, unknown = pruned(copy.deepcopy(sent), schema)
        after, also_unknown = rules.unknown_fields(kind.kind, after)
        unknown = sorted(unknown) + also_unknown
        if unknown and write.strict:
            text = ", ".join(f'unknown field "{name}"' for name in unknown)
            raise RefusedError(400, "BadRequest", f"{refusal}strict decoding error: {text}")
        if kind.is_namespaced:
            after["metadata"]["namespace"] = key[2]
        causes = list(self._causes(kind, before, after, schema, write.subresource))
        if causes:
            raise invalid(kind, after["metadata"].get("name", ""), causes)
        return after, unknown

    def _causes(
        self, kind: Kind, before: Object | None, after: Object, schema: Mapping[str, Any], subresource: str
    ) -> Iterator[Cause]:
        metadata = after["metadata"]
        if kind.kind == "Event":
            yield from rules.event_first(after)
        if before is None:
            yield from rules.name_causes(kind.kind, metadata)
        elif metadata.get("uid") not in (None, before["metadata"]["uid"]):
            yield rules.invalid_value("metadata.uid", metadata["uid"], rules.IMMUTABLE)
        yield from rules.metadata_causes(metadata)
        yield from checked(after, schema)
        if before is None:
            yield from rules.created(kind.kind, after)
        elif not subresource:
            yield from rules.updated(kind.kind, before, after)

    def _check_namespace(self, kind: Kind, namespace: str, metadata: Object) -> None:
        """Namespaces are looked at once somebody has made one; until then every one counts as there."""
        if not kind.is_namespaced:
            return
        if metadata.get("namespace") not in (None, "", namespace):
            text = "the namespace of the provided object does not match the namespace sent on the request"
            raise RefusedError(400, "BadRequest", text)
        known = {key[3] for key in self.objects if key[:2] == NAMESPACES}
        if known and namespace not in known | SYSTEM_NAMESPACES:
            details = {"name": namespace, "kind": "namespaces"}
            raise RefusedError(404, "NotFound", f'namespaces "{namespace}" not found', details)

    def _stamp(
        self,
        kind: Kind,
        key: Key,
        before: Object | None,
        after: Object,
        write: Write,
        fields: set[tuple[str, ...]] | None,
    ) -> None:
        """Fill in what only the server says in `metadata`."""
        metadata = after.setdefault("metadata", {})
        old = before["metadata"] if before else {}
        metadata["name"] = key[3]
        if kind.is_namespaced:
            metadata["namespace"] = key[2]
        else:
            metadata.pop("namespace", None)
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
        paths = differing if write.operation == "Update" else (set(now) if fields is None else fields)
        if paths or write.operation == "Apply":
            ownership.take(write.operation, write.manager, paths, kind.api_version(write.version), TIME)
        metadata["managedFields"] = ownership.entries()

    def _stale(self, kind: Kind, key: Key) -> RefusedError:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        return conflict(kind, key[3], why)

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
    group = {"group": kind.group} if kind.group else {}
    return {"name": name, **group, "kind": kind.plural}


def not_found(kind: Kind, name: str) -> RefusedError:
    return RefusedError(404, "NotFound", f'{kind.full_name} "{name}" not found', details_of(kind, name))


def failure(text: str) -> RefusedError:
    """What the server did not expect: a status without a reason."""
    return RefusedError(500, "", text)


def conflict(kind: Kind, name: str, why: str, resource: str = "") -> RefusedError:
    text = f'Operation cannot be fulfilled on {resource or kind.full_name} "{name}": {why}'
    details = details_of(kind, name)
    return RefusedError(409, "Conflict", text, details | ({"kind": resource} if resource else {}))


def precondition_failed(kind: Kind, key: Key, wanted: str, found: str) -> str:
    path = "/".join(filter(None, ("/registry", kind.group, *key[1:])))
    text = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    return (
        f"StorageError: invalid object, Code: 4, Key: {path}, ResourceVersion: 0, AdditionalErrorMsg: {text}"
    )


def check_name(given: str | None, name: str) -> None:
    if given != name:
        text = f"the name of the object ({given}) does not match the name on the URL ({name})"
        raise RefusedError(400, "BadRequest", text)


def invalid(kind: Kind, name: str, causes: list[Cause]) -> RefusedError:
    """Events are spoken of without their group: the server stores them as core/v1."""
    group = "" if kind.kind == "Event" else kind.group
    return invalid_of(group, kind.kind, name, causes)


def invalid_of(group: str, kind: str, name: str, causes: list[Cause]) -> RefusedError:
    details: Object = {"name": name, "group": group, "kind": kind, "causes": causes}
    details = {key: value for key, value in details.items() if value}
    texts = list(dict.fromkeys(f"{cause['field']}: {cause['message']}" for cause in causes))
    said = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    full = f"{kind}.{group}" if group else kind
    return RefusedError(422, "Invalid", f'{full} "{name}" is invalid: {said}', details)


def conflict_of(conflicts: list[tuple[tuple[str, ...], str]]) -> RefusedError:
    """Source: apimachinery pkg/util/managedfields/internal/conflict.go."""
    rows = sorted((name, shown_path(path)) for path, name in conflicts)
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {name}", "field": field}
        for name, field in rows
    ]
    if len(rows) == 1:
        text = f"1 conflict: conflict with {rows[0][0]}: {rows[0][1]}"
    else:
        managers = {name: [field for other, field in rows if other == name] for name, _ in rows}
        lists = (
            "\n".join([f"conflicts with {name}:", *(f"- {field}" for field in fields)])
            for name, fields in managers.items()
        )
        text = f"{len(rows)} conflicts: " + "\n".join(lists)
    return RefusedError(409, "Conflict", f"Apply failed with {text}", {"causes": causes})


def shown(kind: Kind, obj: Object, version: str) -> Object:
    """The object as readers of `version` see it."""
    schema: Any = kind.schemas.get(version, {})
    return {**pruned(obj, schema)[0], "apiVersion": kind.api_version(version)}
