"""The tests' API server refuses what a real one refuses, and takes what a real one takes."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from tests.kube_api_player import RECORDER, compared, played, recorded
from tests.kube_api_requests import requests
from tests.kube_api_server import KubeAPI


def test_every_recorded_rule_is_kept(api: KubeAPI) -> None:
    connection = http.client.HTTPConnection(urlsplit(api.url).netloc)

    def ask(method: str, path: str, body: bytes | None, content_type: str | None) -> tuple[int, Any]:
        headers = {"User-Agent": RECORDER} | ({"Content-Type": content_type} if content_type else {})
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        return response.status, json.loads(text) if text.startswith("{") else text

    exchanges = recorded()
    answers = played(ask, [exchange["request"] for exchange in exchanges])
    rows = [
        (request["note"], *(compared(request["note"], one) for one in (exchange["answer"], answer)))
        for exchange, (request, answer) in zip(exchanges, answers, strict=True)
    ]
    connection.close()
    wrong = [row for row in rows if row[1] != row[2]]
    assert not wrong, "\n".join(map(str, wrong))


def test_the_recording_holds_what_is_asked_today() -> None:
    assert [exchange["request"] for exchange in recorded()] == list(requests())
