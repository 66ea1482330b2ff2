"""nrt/apiserver_exchanges: our client makes the recorded request and understands the recorded answer.

The tests' own API server is judged by the same recording in tests/unit/test_kube_api_server.py.
"""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2

from nri_plugin.kube.api_client import JSON, APIResource, KubeClient
from nri_plugin.model.errors import KubeAPIError
from tests.vectors.judges.verdict import Case, Document, Judged, compare


class Recorded:
    """A server that gives one recorded answer and keeps what it was asked."""

    def __init__(self, response: Case) -> None:
        self.response = response
        self.asked: dict[str, Any] = {}

    def client(self) -> KubeClient:
        return KubeClient(httpx2.Client(transport=httpx2.MockTransport(self.answer), base_url="http://api"))

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        content_type = request.headers.get("Content-Type")
        self.asked = {
            "method": request.method,
            "path": request.url.path,
            "query": dict(parse_qsl(request.url.query.decode())),
            "contentType": content_type,
            "body": request.content.decode(),
        }
        return httpx2.Response(self.response["status"], content=text_of(self.response["body"]))


def text_of(body: object) -> str:
    if isinstance(body, list):
        return "".join(f"{json.dumps(line)}\n" for line in body)
    return body if isinstance(body, str) else json.dumps(body)


def judge(document: Document) -> Iterator[Judged]:
    """Each exchange alone: the client holds nothing between them."""
    for number, exchange in enumerate(document["cases"]):
        yield judged(f"{number} {exchange['note']}", exchange["request"], exchange["response"])


def judged(label: str, request: Case, response: Case) -> Judged:
    recorded = Recorded(response)
    parts = urlsplit(request["path"])
    query = dict(parse_qsl(parts.query))
    if query.get("watch"):
        return compare(label, outcome(watched, recorded.client(), parts.path, query), expected(response))
    ours = outcome(sent, recorded.client(), request, parts.path, query)
    asked = {
        "method": request["method"],
        "path": parts.path,
        "query": query,
        "contentType": request["contentType"],
        "body": request["body"],
    }
    seen = recorded.asked
    if request["body"] is None:
        seen["body"] = seen["body"] or None
    elif not isinstance(request["body"], str):
        seen["body"] = json.loads(seen["body"])
    return compare(label, (ours, seen), (expected(response), asked))


def sent(client: KubeClient, request: Case, path: str, query: dict[str, str]) -> object:
    body = request["body"].encode() if isinstance(request["body"], str) else request["body"]
    return client.send(request["method"], path, query, body=body, content_type=request["contentType"] or JSON)


def watched(client: KubeClient, path: str, query: dict[str, str]) -> object:
    _, _, group, version, plural = path.split("/")
    rest = {key: value for key, value in query.items() if key not in ("watch", "resourceVersion")}
    resource = APIResource(version, plural, group)
    return list(client.watch(resource, query.get("resourceVersion", ""), parameters=rest))


def outcome(call: Any, *arguments: Any) -> object:
    try:
        return call(*arguments)
    except KubeAPIError as error:
        return {
            "status": error.status,
            "reason": error.reason,
            "message": error.detail,
            "causes": [*error.causes],
        }


def expected(response: Case) -> object:
    body = response["body"]
    if response["status"] < 300:
        return body
    if isinstance(body, str):
        text = f"status {response['status']}: {body.strip()}"
        return {"status": response["status"], "reason": "", "message": text, "causes": []}
    causes = [(one["field"], one["message"]) for one in body.get("details", {}).get("causes", ())]
    return {"status": body["code"], "reason": body["reason"], "message": body["message"], "causes": causes}
