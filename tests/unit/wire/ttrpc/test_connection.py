"""The two ends of a connection against each other."""

from nri_plugin.wire.ttrpc.connection import Call, ClientConnection, Reply, ServerConnection
from nri_plugin.wire.ttrpc.frame import Code, RPCStatus


def test_a_call_and_its_reply():
    client, server = ClientConnection(), ServerConnection()
    stream = client.call("svc", "Method", b"argument", now=10.0, timeout=2.0)
    (call,) = server.receive_data(client.data_to_send(), now=100.0)
    assert call == Call(1, "svc", "Method", b"argument", 102.0)
    assert server.reply(call.stream_id, b"result") is None
    assert client.receive_data(server.data_to_send()) == [Reply(stream, None, b"result")]


def test_stream_ids_are_odd_and_rising_and_replies_may_come_in_any_order():
    client, server = ClientConnection(), ServerConnection()
    streams = [client.call("s", "m", b"", 0.0) for _ in range(3)]
    assert streams == [1, 3, 5]
    server.receive_data(client.data_to_send(), 0.0)
    for stream in (5, 1, 3):
        server.reply(stream, bytes([stream]))
    assert [reply.stream_id for reply in client.receive_data(server.data_to_send())] == [5, 1, 3]


def test_an_error_status_reaches_the_caller():
    client, server = ClientConnection(), ServerConnection()
    client.call("s", "m", b"", 0.0)
    server.receive_data(client.data_to_send(), 0.0)
    server.fail(1, RPCStatus(Code.NOT_FOUND, "no such thing"))
    assert client.receive_data(server.data_to_send()) == [
        Reply(1, RPCStatus(Code.NOT_FOUND, "no such thing"))
    ]
