"""Part of the tests' API server: what a stored object's fields must be, and which manager owns which of them.

Ownership is kept by path, and a list is one field: that is how custom resources behave whose schema says nothing
of lists. Only owner references are fields of their own, named by their uids. A structural schema prunes what it does not
know; kinds without one keep everything.
"""

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Object = dict[str, Any]
Path = tuple[str, ...]

OWNERS = ("metadata", "ownerReferences")
UNTRACKED = {"apiVersion", "kind"}
UNTRACKED_METADATA = {
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink",
}  # fmt: skip


def checked(value: Any, schema: Mapping[str, Any], where: str = "") -> Iterator[dict[str, str]]:
    """A cause for each field that is not what `schema` says."""
    kind = schema.get("type")
    if kind == "object" and isinstance(value, dict):
        yield from _checked_object(value, schema, where)
    elif kind == "array" and isinstance(value, list):
        for number, one in enumerate(value):
            yield from checked(one, schema["items"], f"{where}[{number}]")
    elif kind in ("object", "array") or (kind == "string" and not isinstance(value, str)):
        yield _wrong_type(where, kind, value)
    elif kind == "integer" and (not isinstance(value, int) or isinstance(value, bool)):
        yield _wrong_type(where, "integer", value)
    pattern = schema.get("pattern")
    if pattern and isinstance(value, str) and not re.search(pattern, value):
        text = f"Invalid value: \"{value}\": {where} in body should match '{pattern}'"
        yield {"reason": "FieldValueInvalid", "message": text, "field": where}


def _checked_object(value: Object, schema: Mapping[str, Any], where: str) -> Iterator[dict[str, str]]:
    for name in schema.get("required", ()):
        if value.get(name) is None:
            field = f"{where}.{name}".strip(".")
            yield {"reason": "FieldValueRequired", "message": "Required value", "field": field}
    for name, part in schema.get("properties", {}).items():
        if value.get(name) is not None and (where or name not in ("apiVersion", "kind", "metadata")):
            yield from checked(value[name], part, f"{where}.{name}".strip("."))


def _wrong_type(where: str, wanted: str, value: Any) -> dict[str, str]:
    names = {str: "string", bool: "boolean", int: "integer", list: "array", dict: "object"}
    found = names.get(type(value), type(value).__name__)
    text = f'Invalid value: "{found}": {where} in body must be of type {wanted}: "{found}"'
    return {"reason": "FieldValueTypeInvalid", "message": text, "field": where}


def pruned(value: Any, schema: Mapping[str, Any], where: str = "") -> tuple[Any, list[str]]:
    """The value without what the schema does not know, and the names of that."""
    if schema.get("type") == "array" and isinstance(value, list):
        parts = [pruned(one, schema["items"], f"{where}[{number}]") for number, one in enumerate(value)]
        return [part for part, _ in parts], [name for _, names in parts for name in names]
    known = schema.get("properties")
    if not isinstance(value, dict) or known is None:
        return value, []
    kept, unknown = {}, []
    for name, part in value.items():
        path = f"{where}.{name}".strip(".")
        if name not in known:
            unknown.append(path)
            continue
        kept[name], inner = pruned(part, known[name] if where or name != "metadata" else {}, path)
        unknown += inner
    return kept, unknown


def leaves(obj: Mapping[str, Any]) -> dict[Path, Any]:
    """Every owned field of an object by path."""
    rest = {key: value for key, value in obj.items() if key not in UNTRACKED and key != "metadata"}
    metadata = {key: value for key, value in obj.get("metadata", {}).items() if key not in UNTRACKED_METADATA}
    if metadata:
        rest["metadata"] = metadata
    return dict(_leaves(rest, ()))


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and (value or not path):
        for key, part in value.items():
            yield from _leaves(part, (*path, key))
    elif path == OWNERS and isinstance(value, list):
        for reference in value:
            yield (*path, _element(reference)), reference
    else:
        yield path, value


def _element(reference: Mapping[str, Any]) -> str:
    """An owner reference in a path."""
    return "k:" + json.dumps({"uid": reference.get("uid", "")}, separators=(",", ":"))


def shown_path(path: Path) -> str:
    """As a conflict names it."""
    parts = (
        f"[uid={json.dumps(json.loads(key[2:])['uid'])}]" if key.startswith("k:") else f".{key}"
        for key in path
    )
    return "".join(parts)


def applied(target: Object, patch: Object) -> Object:
    """The target with an applied object: as merged, but the owner references of others stay."""
    result = merged(target, patch)
    had, new = (obj.get("metadata", {}).get("ownerReferences") or [] for obj in (target, patch))
    by_uid = {reference.get("uid"): reference for reference in (*had, *new)}
    if by_uid:
        result["metadata"]["ownerReferences"] = list(by_uid.values())
    return result


def without(obj: Object, paths: Iterable[Path]) -> Object:
    """A copy of the object without the fields at `paths`."""
    left = copy.deepcopy(obj)
    for path in paths:
        inner: Any = left
        for key in path[:-1]:
            inner = inner.get(key, {}) if isinstance(inner, dict) else {}
        if isinstance(inner, dict):
            inner.pop(path[-1], None)
        elif isinstance(inner, list) and path[:-1] == OWNERS:
            inner[:] = [reference for reference in inner if _element(reference) != path[-1]]
    return left


def merged(target: Any, patch: Any) -> Any:
    """The target with a merge patch: null removes, lists are replaced."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class Ownership:
    """Who owns what of one object; read from and written to its `managedFields`."""

    def __init__(self, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self.owned: dict[tuple[str, str], set[Path]] = {}
        self.times: dict[tuple[str, str], str] = {}
        self.versions: dict[tuple[str, str], str] = {}
        for entry in entries:
            key = (entry["operation"], entry["manager"])
            self.owned[key] = set(_paths(entry["fieldsV1"], ()))
            self.times[key], self.versions[key] = entry["time"], entry["apiVersion"]

    def take(self, operation: str, manager: str, paths: set[Path], api_version: str, now: str) -> None:
        """Give `paths` to this manager; Update adds to what it has, Apply replaces it."""
        key = (operation, manager)
        before = self.owned.get(key, set())
        self.owned[key] = paths if operation == "Apply" else before | paths
        if self.owned[key] != before:
            self.times[key], self.versions[key] = now, api_version

    def drop(self, paths: set[Path], keep: tuple[str, str] | None = None) -> None:
        """Take `paths` from everybody but `keep`."""
        for key in list(self.owned):
            if key != keep:
                self.owned[key] = self.owned[key] - paths
                if not self.owned[key]:
                    del self.owned[key]

    def others(self, key: tuple[str, str], path: Path) -> list[str]:
        """The managers besides `key` that own `path`, as a conflict calls them."""
        return sorted(
            self._called(other) for other, paths in self.owned.items() if other != key and path in paths
        )

    def _called(self, key: tuple[str, str]) -> str:
        applied = key[0] == "Apply"
        return f'"{key[1]}"' + ("" if applied else f" using {self.versions[key]}")

    def entries(self) -> list[Object]:
        """As `managedFields`: those who apply first, then by name."""
        return [
            {
                "apiVersion": self.versions[key],
                "fieldsType": "FieldsV1",
                "fieldsV1": _tree(self.owned[key]),
                "manager": key[1],
                "operation": key[0],
                "time": self.times[key],
            }
            for key in sorted(self.owned)
            if self.owned[key]
        ]


def _tree(paths: Iterable[Path]) -> Object:
    tree: Object = {}
    for path in sorted(paths):
        inner = tree
        for key in path:
            inner = inner.setdefault(key if key.startswith("k:") else f"f:{key}", {})
    return tree


def _paths(tree: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for key, part in tree.items():
        name = key if key.startswith("k:") else key[2:]
        if part:
            yield from _paths(part, (*path, name))
        else:
            yield (*path, name)
