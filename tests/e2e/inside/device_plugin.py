"""A small device plugin on the kubelet's real API: devices that are nothing, each near a NUMA node.

    python3 device_plugin.py RESOURCE ID=NUMA...

The container gets the ids of its devices in the environment variable DEVICES. The messages are few and small, so they are
written by hand. Source: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto.
"""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc  # type: ignore[import-untyped]

_FOLDER = Path("/var/lib/kubelet/device-plugins")
_SERVICE = "v1beta1.DevicePlugin"


def _field(number: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    assert len(data) < 128, "longer lengths take another byte"
    return bytes((number << 3 | 2, len(data))) + data


def _number(number: int, value: int) -> bytes:
    assert value < 128, "larger numbers take another byte"
    return bytes((number << 3, value))


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that has only short strings and messages."""
    at = 0
    while at < len(data):
        end = at + 2 + data[at + 1]
        yield data[at] >> 3, data[at + 2 : end]
        at = end


def _devices(numa_by_id: dict[str, int]) -> bytes:
    rows = (
        _field(1, name) + _field(2, "Healthy") + _field(3, _field(1, _number(1, numa)))
        for name, numa in numa_by_id.items()
    )
    return b"".join(_field(1, row) for row in rows)


def _allocated(request: bytes) -> bytes:
    answers = []
    for _, container in _fields(request):
        ids = ",".join(sorted(name.decode() for _, name in _fields(container)))
        answers.append(_field(1, _field(1, _field(1, "DEVICES") + _field(2, ids))))
    return b"".join(answers)


def serve(resource: str, numa_by_id: dict[str, int]) -> None:
    """Register with the kubelet and answer it for ever."""
    lasting = threading.Event()

    def watched(_request: bytes, _context: object) -> Iterator[bytes]:
        yield _devices(numa_by_id)
        lasting.wait()

    handlers = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(watched),
        "Allocate": grpc.unary_unary_rpc_method_handler(lambda request, _context: _allocated(request)),
    }
    socket = _FOLDER / "lab.sock"
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    with grpc.insecure_channel(f"unix://{_FOLDER}/kubelet.sock") as channel:
        register = channel.unary_unary("/v1beta1.Registration/Register")
        register(_field(1, "v1beta1") + _field(2, socket.name) + _field(3, resource), wait_for_ready=True)
    server.wait_for_termination()


if __name__ == "__main__":
    serve(sys.argv[1], {name: int(numa) for name, _, numa in (word.partition("=") for word in sys.argv[2:])})
