"""Forwards the service address of the API server to the machine outside, as kube-proxy would do.

    python3 -S api_forwarder.py ADDRESS PORT TARGET_ADDRESS TARGET_PORT

Standard library only: it runs in a guest beside the kubelet.
"""

import contextlib
import socket
import sys
import threading

_PART = 1 << 16


def listening(address: tuple[str, int]) -> socket.socket:
    """A socket that takes connections there."""
    return socket.create_server(address)


def forward(server: socket.socket, target: tuple[str, int]) -> None:
    """Accept connections until the socket is closed."""
    with contextlib.suppress(OSError):
        while True:
            client, _ = server.accept()
            threading.Thread(target=join, args=(client, target), daemon=True).start()


def join(client: socket.socket, target: tuple[str, int]) -> None:
    """Carry both directions of one connection until both have ended; where nobody listens, the client comes again."""
    with client, contextlib.suppress(OSError), socket.create_connection(target) as other:
        back = threading.Thread(target=_pour, args=(other, client))
        back.start()
        _pour(client, other)
        back.join()


def _pour(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_PART):
            target.sendall(data)
    for one, what in ((source, socket.SHUT_RD), (target, socket.SHUT_WR)):
        with contextlib.suppress(OSError):
            one.shutdown(what)


if __name__ == "__main__":
    address, port, target_address, target_port = sys.argv[1:]
    forward(listening((address, int(port))), (target_address, int(target_port)))
