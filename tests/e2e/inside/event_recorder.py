"""An NRI plugin that notes every event, answers as the script says, and decides nothing.

It runs with the product's Python: `-m e2e.inside.event_recorder SOCKET FILE [NAME INDEX]` ends with the connection. `noted`,
`asked` and `answer_to` serve the tests of the embedded runtime and of what stands in for the kubelet, too. Under the name
`kubelet` it notes what the kubelet asked for, and gives no CPUs.
"""

import json
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nri_plugin.wire.nri import codec, events
from nri_plugin.wire.nri.events import EventMask
from nri_plugin.wire.nri.messages import Container, Pod, Resources
from nri_plugin.wire.nri.session import PluginSession
from nri_plugin.wire.ttrpc.connection import Call
from tests.lab.runtime.codec import decode_fully

from .event_script import BROKEN, CPUS, NO_CPUS, REFUSED

KUBELET = "kubelet"
_EVERY_EVENT = EventMask(0x1FFF)
_DETAILED = (events.RunPodSandbox, events.CreateContainer)


class RefusedError(Exception):
    """The plugin refuses the container."""


def answer_to(event: events.NRIEvent) -> events.NRIResponse:
    """The plugin's answer.

    Raises:
        RefusedError: it refuses the container.
    """
    if not isinstance(event, events.CreateContainer):
        return events.empty_response(event)
    if event.pod.name == REFUSED:
        raise RefusedError("refused by the recorder")
    return events.CreateContainerResponse(Resources(cpus=NO_CPUS if event.pod.name == BROKEN else CPUS))


def asked(event: events.NRIEvent) -> Iterator[dict[str, object]]:
    """The line about a new pod or container, with all that the kubelet decides."""
    if not isinstance(event, _DETAILED):
        return
    container = getattr(event, "container", None)
    one = container or event.pod
    (line,) = noted(event)
    line |= {"uid": event.pod.uid, "namespace": event.pod.namespace, "sandbox": event.pod.id}
    line |= {"labels": dict(one.labels), "annotations": dict(one.annotations)}
    if container is not None:
        limits = container.resources.hugepage_limits if container.resources else ()
        line |= {"hugepages": dict(limits), "score": container.oom_score_adj}
    yield line


def noted(event: events.NRIEvent) -> Iterator[dict[str, object]]:
    """The lines about an event; Synchronize has one for each pod and container that it lists."""
    name = type(event).__name__
    if isinstance(event, events.Synchronize):
        yield {"event": name}
        # Runtimes list them in any order.
        pods = [{"listed": "pod", **_pod(one)} for one in event.pods]
        containers = [{"listed": "container", **_container(one, ())} for one in event.containers]
        yield from sorted([*pods, *containers], key=json.dumps)
        return
    pod, container = getattr(event, "pod", None), getattr(event, "container", None)
    if pod is None:
        return
    line: dict[str, object] = {"event": name, **_pod(pod)}
    ids = (pod.id, container.id if container else "")
    if container is not None:
        line |= _container(container, ids)
    if isinstance(event, events.UpdateContainer):
        line["asked"] = _resources(event.resources)
    if isinstance(event, _DETAILED):
        line["annotations"] = _own_keys((container or pod).annotations)
    yield line


def _pod(pod: Pod) -> dict[str, object]:
    return {
        "pod": pod.name,
        "pod_has_pid": pod.pid > 0,
        "parent": pod.cgroup_parent,
        "pod_path": _without(pod.cgroups_path, (pod.id,)),
        "total": _resources(pod.resources),
    }


def _container(one: Container, ids: tuple[str, ...]) -> dict[str, object]:
    return {
        "container": one.name,
        "state": one.state.name,
        "has_pid": one.pid > 0,
        "path": _without(one.cgroups_path, (*ids, one.id)),
        "resources": _resources(one.resources),
    }


def _resources(one: Resources | None) -> dict[str, object] | None:
    """The amounts that are told. Runtimes send an absent limit as nothing or as 0, which is the same to a plugin."""
    if one is None:
        return None
    told = {
        "shares": one.cpu_shares,
        "quota": one.cpu_quota_us,
        "period": one.cpu_period_us,
        "memory": one.memory_limit_bytes,
        "cpus": one.cpus,
        "mems": one.mems,
    }
    return {name: value for name, value in told.items() if value}


def _without(text: str, ids: tuple[str, ...]) -> str:
    for one in filter(None, ids):
        text = text.replace(one, "ID")
    return text


def _own_keys(annotations: Mapping[str, str]) -> list[str]:
    """Annotations that the runtime adds by itself."""
    return sorted(key for key in annotations if key.startswith("io.kubernetes.cri"))


class RecordingSession(PluginSession):
    """A session that reads labels, annotations and environment too."""

    def _decoded(self, call: Call) -> codec.Decoded | None:
        return decode_fully(call.method, call.payload)


def serve(path: str, name: str, index: str, notes: Any, answer: Any = answer_to) -> None:
    """Serve one connection; `notes` is called with each event, and `answer` makes the answer."""
    session = RecordingSession(name, index, _EVERY_EVENT)
    with socket.socket(socket.AF_UNIX) as trunk:
        trunk.connect(path)
        session.register(time.monotonic())
        trunk.sendall(session.data_to_send())
        while data := trunk.recv(1 << 16):
            for request in session.receive_data(data, time.monotonic()):
                if isinstance(request, events.Request):
                    notes(request.event)
                    _answer(session, request, answer)
            trunk.sendall(session.data_to_send())


def _answer(session: PluginSession, request: events.Request, answer: Any) -> None:
    try:
        session.respond(request.call, answer(request.event), time.monotonic())
    except RefusedError as error:
        session.refuse(request.call, 2, str(error), time.monotonic())


def main(path: str, file: str, name: str = "recorder", index: str = "10") -> None:
    """Serve one connection and write its lines to `file`."""
    lines_of = asked if name == KUBELET else noted
    with Path(file).open("a", encoding="utf-8") as output:

        def write(event: events.NRIEvent) -> None:
            output.writelines(json.dumps(line) + "\n" for line in lines_of(event))
            output.flush()

        serve(path, name, index, write, events.empty_response if name == KUBELET else answer_to)


if __name__ == "__main__":
    main(*sys.argv[1:])
