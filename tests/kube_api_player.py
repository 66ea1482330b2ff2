"""Plays requests against an API server and makes its answers comparable: a real one when the recording is made, the
tests' own afterwards.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.kube_api_exchanges import UID
from tests.kube_api_requests import Object, Request
from tests.kube_api_store import PREFIX_CHARACTERS

RULES = Path(__file__).with_name("kube_api_rules.json.gz")
NAMED = re.compile(r"\$\{(\w+)\.(\w+)\}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")

RECORDER = "nri-pin-recorder"
"""The User-Agent of the recording, which ends up in field managers."""

UNSTABLE = {
    "topologies with labelSelector=a%20b": "the words of the parser of selectors",
    "topologies with labelSelector=a%3Db%3Dc": "the words of the parser of selectors",
    "a body that is a list": "the words of Go's JSON decoder",
    "a body that is a text": "the words of Go's JSON decoder",
    "no kind": "ends in a part of the body",
    "a zone of numbers": "its two parts come in any order",
    "two things wrong": "its two parts come in any order",
    "another node": "ends in a difference of Go values",
    "another container": "ends in a difference of Go values",
}
"""Requests whose answer's text is not compared, and why."""

Ask = Callable[[str, str, bytes | None, str | None], tuple[int, Any]]
"""Method, path with query, body and its type; answers status and body."""


def played(ask: Ask, requests: Iterable[Request]) -> Iterable[tuple[Request, Object]]:
    """Each request with its answer, made comparable."""
    saved: dict[str, Object] = {}
    for request in requests:
        text = json.dumps(request["body"], ensure_ascii=False)
        text = NAMED.sub(lambda found: saved[found[1]][found[2]], text)
        body = json.loads(text)
        content = body if isinstance(body, str) else None if body is None else json.dumps(body)
        status, answer = ask(
            request["method"], request["path"], content and content.encode(), request["contentType"]
        )
        if request["save"]:
            saved[request["save"]] = answer["metadata"]
        yield request, comparable(status, answer, (body or {}) if isinstance(body, dict) else {})


def comparable(status: int, answer: Any, sent: Object) -> Object:
    """What of an answer is the same in every run: of a refusal all of it, of an object what was given."""
    if not isinstance(answer, dict):
        return {"status": status, "text": str(answer).strip()}
    metadata = sent.get("metadata") or {}
    prefix = metadata.get("generateName", "")[:PREFIX_CHARACTERS] if not metadata.get("name") else ""
    made = re.compile(re.escape(prefix) + r"[bcdfghjklmnpqrstvwxz2456789]{5}(?![a-z0-9])") if prefix else None

    def settled(value: Any) -> Any:
        if isinstance(value, dict):
            return {settled(key): settled(part) for key, part in value.items()}
        if isinstance(value, list):
            return [settled(part) for part in value]
        if not isinstance(value, str):
            return value
        value = TIME.sub("TIME", UID.sub("UID", value))
        return made.sub(f"{prefix}*", value) if made else value

    if answer.get("kind") == "Status" and answer.get("status") == "Failure":
        details = answer.get("details") or {}
        causes = {(one.get("field"), one.get("reason")) for one in details.get("causes") or ()}
        refusal = {key: answer.get(key) for key in ("code", "reason", "message")}
        about = {key: details[key] for key in ("name", "group", "kind") if key in details}
        return settled({"status": status, **refusal, "causes": sorted(map(list, causes)), "details": about})
    found = answer.get("metadata") or {}
    kept = {key: found[key] for key in ("name", "namespace", "labels", "ownerReferences") if key in found}
    result = {"status": status, "kind": answer.get("kind"), "metadata": kept}
    if answer.get("kind") == "NodeResourceTopology":
        managers = {f"{row['operation']} {row['manager']}" for row in found.get("managedFields", ())}
        fields = [row["fieldsV1"] for row in found.get("managedFields", ()) if row["manager"] == "nri-pin"]
        result |= {"managers": sorted(managers), "generation": found.get("generation"), "ours": fields}
    return settled(result)


def compared(note: str, answer: Object) -> Object:
    """What of an answer to that request is compared."""
    return {**answer, "message": ""} if note in UNSTABLE else answer


def recorded() -> list[dict[str, Any]]:
    """Requests and answers of the recording, in their order."""
    return json.loads(gzip.decompress(RULES.read_bytes()))["exchanges"]
