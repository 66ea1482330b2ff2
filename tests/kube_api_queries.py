"""Part of the tests' API server: which queries and which types of bodies it refuses."""

import json
import re
from typing import Any

from tests.kube_api_kinds import Kind
from tests.kube_api_rules import Cause, invalid_value
from tests.kube_api_store import RefusedError, failure, invalid_of

OPTIONS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}
VALIDATIONS = ("", "Ignore", "Strict", "Warn")
MANAGER_BYTES = 128


def check_query(method: str, query: dict[str, str]) -> None:
    """Refuse options that are none."""
    causes: list[Cause] = []
    if method == "GET":
        _check_list_query(query)
    if method not in OPTIONS:
        return
    if query.get("dryRun", "All") != "All":
        causes.append(_unsupported("dryRun", json.dumps([query["dryRun"]]), ("All",)))
    manager = query.get("fieldManager", "")
    if len(manager.encode()) > MANAGER_BYTES:
        text = f"Too long: may not be more than {MANAGER_BYTES} bytes"
        causes.append({"reason": "FieldValueTooLong", "message": text, "field": "fieldManager"})
    position = next((index for index, sign in enumerate(manager) if not sign.isprintable()), None)
    if position is not None:
        text = f"invalid character U+{ord(manager[position]):04X} (at position {position})"
        causes.append(invalid_value("fieldManager", manager, text))
    if query.get("fieldValidation", "") not in VALIDATIONS:
        given = json.dumps(query["fieldValidation"])
        causes.append(_unsupported("fieldValidation", given, VALIDATIONS))
    if causes:
        raise invalid_of("meta.k8s.io", OPTIONS[method], "", causes)


def _unsupported(field: str, given: str, supported: tuple[str, ...]) -> Cause:
    names = ", ".join(map(json.dumps, supported))
    text = f"Unsupported value: {given}: supported values: {names}"
    return {"reason": "FieldValueNotSupported", "message": text, "field": field}


def _check_list_query(query: dict[str, str]) -> None:
    for clause in filter(None, query.get("labelSelector", "").split(",")):
        if not re.fullmatch(r"!?[\w./-]+|[\w./-]+(=|==|!=)[\w.-]*|[\w./-]+ (not)?in \(.*\)", clause):
            raise RefusedError(400, "BadRequest", f"unable to parse requirement: {clause}")
    if query.get("limit", "0") and not query.get("limit", "0").isdecimal():
        text = f'strconv.ParseInt: parsing "{query["limit"]}": invalid syntax'
        raise RefusedError(400, "BadRequest", text)
    version = query.get("resourceVersion", "")
    if version and not version.isdecimal():
        text = f'resourceVersion: Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax'
        if query.get("watch"):
            raise failure(text)
        raise RefusedError(400, "BadRequest", f"invalid resource version: {text}")
    if query.get("continue") and not query["continue"].startswith("eyJ"):
        text = "continue key is not valid: illegal base64 data at input byte 0"
        raise RefusedError(400, "BadRequest", f"invalid continue token: {text}")


def check_type(kind: Kind, version: str, body: bytes, obj: Any) -> None:
    """Refuse what is no object, or one of another kind or version than the address says."""
    wanted = f"the object provided is unrecognized (must be of type {kind.kind}): "
    if not isinstance(obj, dict):
        raise RefusedError(400, "BadRequest", f"{wanted}couldn't get version/kind; json parse error")
    for name in ("kind", "apiVersion"):
        if not obj.get(name):
            text = f"Object '{name.title()}' is missing in '{body.decode()}'"
            raise RefusedError(400, "BadRequest", wanted + text)
    wanted = kind.api_version(version)
    if obj["apiVersion"] != wanted:
        text = f"the API version in the data ({obj['apiVersion']}) does not match the expected API version ({wanted})"
        raise RefusedError(400, "BadRequest", text)
    if obj["kind"] != kind.kind:
        cause = invalid_value("kind", obj["kind"], f"must be {kind.kind}")
        raise invalid_of(kind.group, obj["kind"], obj.get("metadata", {}).get("name", ""), [cause])
