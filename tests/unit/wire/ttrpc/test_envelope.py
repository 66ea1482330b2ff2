"""Envelopes: what peers rely on, byte for byte."""

import pytest

from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.ttrpc.frame import (
    MAX_STATUS_TEXT,
    Code,
    Detail,
    RequestEnvelope,
    ResponseEnvelope,
    RPCStatus,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)


@pytest.mark.parametrize(
    "request_",
    [
        RequestEnvelope("s", "m"),
        RequestEnvelope("s", "m", b"\0\xff", 1_999_999_999, (("traceparent", "a"), ("traceparent", "b"))),
        RequestEnvelope("", "", b"", -1),
    ],
)
def test_request_round_trip(request_):
    assert decode_request(encode_request(request_)) == request_


@pytest.mark.parametrize(
    "response",
    [
        ResponseEnvelope(None, b"payload"),
        ResponseEnvelope(RPCStatus(Code.UNIMPLEMENTED, "method Foo")),
        ResponseEnvelope(RPCStatus(77, "a code nobody named", (Detail("type.googleapis.com/x", b"\1"),))),
    ],
)
def test_response_round_trip(response):
    assert decode_response(encode_response(response)) == response


def test_success_with_an_empty_message_is_no_bytes():
    assert encode_response(ResponseEnvelope()) == b""
    assert decode_response(b"") == ResponseEnvelope()


def test_status_ok_is_success():
    assert encode_response(ResponseEnvelope(RPCStatus(Code.OK), b"x")) == encode_response(
        ResponseEnvelope(None, b"x")
    )
    assert decode_response(bytes.fromhex("0a00")) == ResponseEnvelope()


def test_an_error_carries_no_payload():
    assert decode_response(
        encode_response(ResponseEnvelope(RPCStatus(2, "no"), b"lost"))
    ) == ResponseEnvelope(RPCStatus(2, "no"))


def test_unknown_fields_are_skipped():
    unknown = bytes.fromhex("f80701") + bytes.fromhex("fa0702") + b"zz"  # fields 127, varint and bytes
    assert decode_request(encode_request(RequestEnvelope("s", "m")) + unknown) == RequestEnvelope("s", "m")


def test_status_text_is_cut_and_made_valid():
    status = decode_response(encode_response(ResponseEnvelope(RPCStatus(2, "\udcff" + "x" * 200_000)))).status
    assert status is not None
    assert status.message.startswith("?x")
    assert len(status.message) == MAX_STATUS_TEXT


@pytest.mark.parametrize("data", [b"\x0a\xff", b"\x00", b"\x0a\x01\xff", b"\xff" * 20])
def test_garbage_is_refused(data):
    with pytest.raises(RemoteProtocolError, match="cannot be decoded"):
        decode_request(data)


def test_a_name_that_is_no_text_is_refused_before_sending():
    with pytest.raises(LocalProtocolError, match="cannot be encoded"):
        encode_request(RequestEnvelope("\udcff", "m"))
