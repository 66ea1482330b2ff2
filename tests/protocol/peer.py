"""Two sessions talking to each other in memory, and a peer that can say anything."""

import contextlib
import socket
from collections.abc import Iterator

from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.codec import PLUGIN_SERVICE
from nri_plugin.wire.nri.events import (
    ConfigureResponse,
    EventMask,
    NRIEvent,
    NRIResponse,
    Request,
    SessionEvent,
    SynchronizeResponse,
)
from nri_plugin.wire.nri.messages import Container, Pod, Resources
from nri_plugin.wire.nri.mux import PLUGIN_CONNECTION, RUNTIME_CONNECTION, MuxReader, mux_frames
from nri_plugin.wire.nri.session import PluginSession
from nri_plugin.wire.ttrpc.connection import Call, CallRefused, ClientConnection, Reply, ServerConnection
from tests.lab.runtime.profile import CONTAINERD_2_4, Answered, RuntimeEvent, RuntimeProfile
from tests.lab.runtime.session import RuntimeSession

PINNING = EventMask(0x06FF)
POD = Pod("p1", "web", "uid-1", "default", cgroup_parent="/kubepods.slice")
CONTAINER = Container("c1", "p1", "app", resources=Resources(cpu_shares=2048, cpu_quota_us=-1))


def plugin(wanted: EventMask = PINNING, **options: bool | float) -> PluginSession:
    return PluginSession("nri-pin", "10", wanted, **options)  # type: ignore[arg-type]


class Link:
    """A plugin and a runtime with nothing but bytes between them."""

    def __init__(
        self,
        profile: RuntimeProfile = CONTAINERD_2_4,
        session: PluginSession | None = None,
        runtime: RuntimeSession | None = None,
        chunk: int = 1 << 20,
    ) -> None:
        self.session = session or plugin()
        self.runtime = runtime or RuntimeSession(profile)
        self.now = 0.0
        self.moved_bytes = 0
        self._chunk = chunk

    def to_plugin(self) -> list[SessionEvent]:
        data = self.runtime.data_to_send()
        self.moved_bytes += len(data)
        events: list[SessionEvent] = []
        for start in range(0, len(data), self._chunk):
            events += self.session.receive_data(data[start : start + self._chunk], self.now)
        return events

    def to_runtime(self) -> list[RuntimeEvent]:
        data = self.session.data_to_send()
        self.moved_bytes += len(data)
        events: list[RuntimeEvent] = []
        for start in range(0, len(data), self._chunk):
            events += self.runtime.receive_data(data[start : start + self._chunk], self.now)
        return events

    def exchange(self) -> tuple[list[SessionEvent], list[RuntimeEvent]]:
        """Carries bytes both ways until nobody has any."""
        seen: list[SessionEvent] = []
        heard: list[RuntimeEvent] = []
        self.moved_bytes = -1
        while self.moved_bytes:
            self.moved_bytes = 0
            seen += self.to_plugin()
            heard += self.to_runtime()
        return seen, heard

    def ask(self, event: NRIEvent) -> Request | None:
        """Has the runtime call; returns what reached the plugin."""
        if self.runtime.call(event, self.now) is None:
            return None
        seen, _ = self.exchange()
        (request,) = seen
        assert isinstance(request, Request)
        return request

    def answer(self, request: Request, response: NRIResponse) -> Answered:
        """Has the plugin answer; returns what the runtime made of it."""
        self.session.respond(request.call, response, self.now)
        _, heard = self.exchange()
        (answered,) = heard
        assert isinstance(answered, Answered)
        return answered

    def register(self) -> list[RuntimeEvent]:
        self.session.register(self.now)
        return self.exchange()[1]

    def configure(self, config: str = "") -> Request:
        self.runtime.configure(self.now, config)
        requests = [event for event in self.exchange()[0] if isinstance(event, Request)]
        (request,) = requests
        return request

    def synchronize(self, pods: tuple[Pod, ...] = (), containers: tuple[Container, ...] = ()) -> Request:
        self.runtime.synchronize(pods, containers, self.now)
        (request,) = self.exchange()[0]
        assert isinstance(request, Request)
        return request

    def establish(self) -> "Link":
        """From nothing to ready."""
        self.register()
        self.session.respond(self.configure().call, ConfigureResponse(), self.now)
        self.exchange()
        self.session.respond(self.synchronize().call, SynchronizeResponse(), self.now)
        self.exchange()
        assert self.runtime.is_ready
        return self


class SocketLink(Link):
    """The same through a real pair of connected sockets, in reads of any size."""

    def __init__(
        self,
        profile: RuntimeProfile = CONTAINERD_2_4,
        session: PluginSession | None = None,
        runtime: RuntimeSession | None = None,
        chunk: int = 65536,
    ) -> None:
        super().__init__(profile, session, runtime, chunk)
        self.plugin_socket, self.runtime_socket = socket.socketpair()
        for each in (self.plugin_socket, self.runtime_socket):
            each.setblocking(False)

    def to_plugin(self) -> list[SessionEvent]:
        events: list[SessionEvent] = []
        for data in self._carry(self.runtime.data_to_send(), self.runtime_socket, self.plugin_socket):
            events += self.session.receive_data(data, self.now)
        return events

    def to_runtime(self) -> list[RuntimeEvent]:
        events: list[RuntimeEvent] = []
        for data in self._carry(self.session.data_to_send(), self.plugin_socket, self.runtime_socket):
            events += self.runtime.receive_data(data, self.now)
        return events

    def _carry(self, data: bytes, source: socket.socket, target: socket.socket) -> Iterator[bytes]:
        unsent = memoryview(data)
        self.moved_bytes += len(data)
        while True:
            if unsent:
                with contextlib.suppress(BlockingIOError):
                    unsent = unsent[source.send(unsent) :]
            try:
                yield target.recv(self._chunk)
            except BlockingIOError:
                if not unsent:
                    return

    def close(self) -> None:
        self.plugin_socket.close()
        self.runtime_socket.close()


class RawPeer:
    """A runtime without manners: sends any method with any payload, reads whatever comes back."""

    def __init__(self, session: PluginSession) -> None:
        self.session = session
        self.client = ClientConnection(max_send=1 << 30)
        self.server = ServerConnection()
        self._mux = MuxReader()

    def say(
        self, method: str, payload: bytes = b"", service: str = PLUGIN_SERVICE, now: float = 0.0
    ) -> list[SessionEvent]:
        self.client.call(service, method, payload, now, 2.0)
        return self.session.receive_data(self.wire(), now)

    def wire(self) -> bytes:
        plugin_frames = [
            part for frame in self.client.frames_to_send() for part in mux_frames(PLUGIN_CONNECTION, frame)
        ]
        own_frames = [
            part for frame in self.server.frames_to_send() for part in mux_frames(RUNTIME_CONNECTION, frame)
        ]
        return b"".join(plugin_frames + own_frames)

    def hear(self) -> list[Call | CallRefused | Reply]:
        heard: list[Call | CallRefused | Reply] = []
        for connection_id, part in self._mux.feed(self.session.data_to_send()):
            if connection_id == PLUGIN_CONNECTION:
                heard += self.client.receive_data(part)
            else:
                heard += self.server.receive_data(part, 0.0)
        return heard

    def bring_up(self) -> "RawPeer":
        self.session.register(0.0)
        for method, response in (("Configure", ConfigureResponse()), ("Synchronize", SynchronizeResponse())):
            (request,) = self.say(
                method,
                pb.ConfigureRequest(runtime_name="containerd").SerializeToString()
                if method == "Configure"
                else b"",
            )
            assert isinstance(request, Request)
            self.session.respond(request.call, response, 0.0)
        self.hear()
        return self
