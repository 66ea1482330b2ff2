"""The tests' API server answers as the real one did."""

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.kube_api_exchanges import crd, exchanges, settled
from tests.kube_api_server import KubeAPI

BEFORE_FIRST = 207
"""The recording began with one object of version 208."""


@pytest.fixture
def api() -> Iterator[KubeAPI]:
    server = KubeAPI([crd()], first_version=BEFORE_FIRST)
    server.behaviour.ends_watches_at_once = True
    yield server
    server.close()


def ask(api: KubeAPI, request: dict[str, Any]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(api.url).netloc)
    body = request["body"]
    content = None if body is None else body if isinstance(body, str) else json.dumps(body)
    headers = {"User-Agent": "Python-urllib/3.11"}
    if request["contentType"]:
        headers["Content-Type"] = request["contentType"]
    connection.request(request["method"], request["path"], content, headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    if "watch=1" in request["path"]:
        return response.status, [json.loads(line) for line in text.splitlines()]
    return response.status, json.loads(text) if text.startswith("{") else text


def test_every_recorded_exchange_is_answered_alike(api: KubeAPI) -> None:
    recorded = exchanges()
    leftover = recorded[0]["response"]["body"]["items"][0]
    wanted = json.loads(json.dumps(leftover))
    wanted["metadata"] = {"name": "n1"}
    api.put(wanted)
    api.store.objects["topology.node.k8s.io", "noderesourcetopologies", "", "n1"] = leftover
    uids: dict[str, str] = {}
    for number, exchange in enumerate(recorded):
        request = json.loads(replaced(json.dumps(exchange["request"]), uids))
        status, body = ask(api, request)
        label = f"{number} {exchange['note']}"
        assert status == exchange["response"]["status"], (label, body)
        assert settled(body) == settled(exchange["response"]["body"]), label
        if isinstance(body, dict) and "uid" in body.get("metadata", {}):
            uids[exchange["response"]["body"]["metadata"]["uid"]] = body["metadata"]["uid"]
    assert number == 45


def replaced(text: str, uids: dict[str, str]) -> str:
    for recorded, ours in uids.items():
        text = text.replace(recorded, ours)
    return text
