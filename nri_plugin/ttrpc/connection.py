"""The two ends of a ttrpc connection, without I/O and without a clock.

Either end is fed bytes and the time, and says what happened; what it wants to send waits in whole frames.
Stream ids are the client's: odd, growing by two, never used twice. A reply may come in any order.
A connection that carries calls both ways (as NRI's multiplexer does) has one of each end per direction.

A plain call is a request and a response. A streaming call has messages of its own in between: it ends with a
response when the client alone sent messages or when it failed, else with the end of the server's messages.

Differs: messages of a stream are reported as they come; bounding how many wait is left to the user, who alone
knows whether to stop reading the socket.
"""

from nri_plugin.ttrpc.client import ClientConnection
from nri_plugin.ttrpc.happenings import (
    Call,
    ClientHappening,
    Refused,
    Reply,
    ServerHappening,
    StreamEnd,
    StreamMessage,
)
from nri_plugin.ttrpc.server import ServerConnection

__all__ = [
    "Call",
    "ClientConnection",
    "ClientHappening",
    "Refused",
    "Reply",
    "ServerConnection",
    "ServerHappening",
    "StreamEnd",
    "StreamMessage",
]
