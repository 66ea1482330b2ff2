"""A plugin that does as the recorder's containers tell it, by annotations: size, dup, refuse, late."""

import os
import socket
import sys
import time

from nri_plugin.wire.nri import events
from nri_plugin.wire.nri.events import EventMask
from nri_plugin.wire.nri.messages import ContainerUpdate, Resources
from nri_plugin.wire.nri.session import PluginSession


def answer(event):
    """Returns what to answer."""
    if isinstance(event, events.Configure):
        return events.ConfigureResponse()
    if isinstance(event, events.Synchronize):
        return events.SynchronizeResponse((ContainerUpdate("c0", Resources(cpus="0")),))
    if isinstance(event, events.UpdateContainer):
        return events.UpdateContainerResponse((ContainerUpdate("new", Resources(cpus="3")),))
    if not isinstance(event, events.CreateContainer):
        return events.EmptyResponse()
    wishes = event.container.annotations
    if "late" in wishes:
        time.sleep(2.2)
    halves = (ContainerUpdate("c1", Resources(cpus="1")), ContainerUpdate("c1", Resources(mems="0")))
    size = int(wishes["size"])
    return events.CreateContainerResponse(
        Resources(cpus="0-1", mems="0"),
        env={"A": "x" * size} if size else {},
        updates=halves if "dup" in wishes else (),
    )


def serve(trunk, session, record):
    """Answers until the end of the connection."""
    session.register(time.monotonic())
    trunk.sendall(session.data_to_send())
    while data := trunk.recv(1 << 16):
        record.write(data)
        for event in session.receive_data(data, time.monotonic()):
            if not isinstance(event, events.Request):
                continue
            if (
                isinstance(event.event, events.CreateContainer)
                and "refuse" in event.event.container.annotations
            ):
                session.refuse(event.call, 2, "TopologyAffinityError: no", time.monotonic())
            else:
                session.respond(event.call, answer(event.event), time.monotonic())
        try:
            trunk.sendall(session.data_to_send())
        except BrokenPipeError:
            return


def connect(path):
    """Waits for the runtime's socket."""
    while True:
        trunk = socket.socket(socket.AF_UNIX)
        try:
            trunk.connect(path)
        except OSError:
            trunk.close()
            time.sleep(0.05)
        else:
            return trunk


if __name__ == "__main__":
    launched = "NRI_PLUGIN_SOCKET" in os.environ
    name, index = os.environ.get("NRI_PLUGIN_NAME", "nri-pin"), os.environ.get("NRI_PLUGIN_IDX", "10")
    plugin_session = PluginSession(name, index, EventMask(0x1FFF), prelaunched=launched)
    if launched:
        serve(socket.socket(fileno=3), plugin_session, open(os.devnull, "wb"))  # noqa: SIM115 (as long as the process)
    else:
        with open(sys.argv[2], "wb") as recording:
            serve(connect(sys.argv[1]), plugin_session, recording)
