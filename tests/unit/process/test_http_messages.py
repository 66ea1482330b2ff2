"""Heads of requests, byte by byte."""

import pytest

from nri_plugin.process.http_messages import Head, RequestError, parse_head


def head(text: str) -> Head:
    return parse_head([line.encode("latin-1") for line in text.split("\n")])


def test_what_kube_scheduler_sends():
    text = "POST /filter?x=1 HTTP/1.1\nHost: a:1\nUser-Agent: kube-scheduler/v1.35\nContent-Length: 12\nContent-Type: application/json"
    assert head(text) == Head("POST", "/filter", 12)


@pytest.mark.parametrize(
    ("text", "keeps_alive"),
    [
        ("GET / HTTP/1.1", True),
        ("GET / HTTP/1.1\nConnection: Close", False),
        ("GET / HTTP/1.1\nConnection: upgrade, close", False),
        ("GET / HTTP/1.0", False),
        ("GET / HTTP/1.0\nConnection: keep-alive", True),
    ],
)
def test_whether_another_request_may_follow(text: str, keeps_alive: bool):
    assert head(text).keeps_alive is keeps_alive


def test_a_client_that_waits_before_it_sends_its_body():
    assert head("POST / HTTP/1.1\nExpect: 100-Continue").expects_continue
    assert not head("POST / HTTP/1.0\nExpect: 100-continue").expects_continue


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", 400),
        ("GET /", 400),
        ("GET / HTTP/2.0", 400),
        ("get / HTTP/1.1", 400),
        ("GET  / HTTP/1.1", 400),
        ("GET / HTTP/1.1 ", 400),
        (f"GET /{'a' * 8192} HTTP/1.1", 400),
        ("GET / HTTP/1.1\nno colon", 400),
        ("GET / HTTP/1.1\nA : b", 400),
        ("GET / HTTP/1.1\nA: b\n folded", 400),
        ("GET / HTTP/1.1\n: b", 400),
        ("POST / HTTP/1.1\nContent-Length: -1", 400),
        ("POST / HTTP/1.1\nContent-Length: 1e3", 400),
        ("POST / HTTP/1.1\nContent-Length: \u00b2", 400),
        ("POST / HTTP/1.1\nContent-Length: 1\nContent-Length: 2", 400),
        (f"POST / HTTP/1.1\nContent-Length: {'9' * 16}", 400),
        ("POST / HTTP/1.1\nTransfer-Encoding: chunked", 411),
    ],
)
def test_what_is_no_request(text: str, status: int):
    with pytest.raises(RequestError) as refused:
        head(text)
    assert refused.value.status == status


def test_a_length_said_twice_is_one_length():
    assert head("POST / HTTP/1.1\nContent-Length: 2\ncontent-length: 2").body_bytes == 2
