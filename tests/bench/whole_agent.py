"""An agent with all its parts in this process, and a runtime that speaks to it through a socket pair.

Agent and runtime take turns, so whatever is counted or timed between two turns is the agent's alone. Its clock stands
still: no watch comes between, and what the agent does after an answer is done as soon as it is let.
"""

import dataclasses
import logging
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from msgspec.structs import replace

from nri_plugin.agent.start import Assembly
from nri_plugin.config.loading import load
from nri_plugin.process.logs import TextFormatter
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.events import NRIEvent, Synchronize
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod, Resources
from tests.agent_fakes import Clock
from tests.agent_runtime import Rig, is_synchronized
from tests.bench.agent import make_cgroups
from tests.lab.runtime.profile import CONTAINERD_2_1, Answered

PATIENT = dataclasses.replace(CONTAINERD_2_1, request_timeout=600.0)
EXCLUSIVE_PODS = 4
BURSTABLE, BEST_EFFORT, GUARANTEED = "/kubepods/burstable", "/kubepods/besteffort", "/kubepods"
LEAST_SHARES = 2
MEMORY_BYTES = 4 << 20
ENVIRONMENT = tuple(f"VARIABLE_NUMBER_{number}=some value of a usual length {number}" for number in range(60))


class WholeAgent(Rig):
    """The agent of the files in `base` (`tests.bench.agent.site_in`), synchronized with a crowd.

    Attributes:
        on_answer: called right before the first byte of an answer is sent.
    """

    def __init__(self, base: Path, truth: Synchronize) -> None:
        self._base, self._call = base, None
        self.on_answer: Callable[[], None] = lambda: None
        log = logging.Logger("nri-pin", logging.INFO)  # noqa: LOG001 - of this agent alone
        handler = logging.FileHandler(base / "log")
        handler.setFormatter(TextFormatter())
        log.addHandler(handler)
        super().__init__(SimpleNamespace(clock=Clock(), log=log, handler=None), profile=PATIENT)  # type: ignore[arg-type]
        make_cgroups(base, truth)
        Assembly(load(str(base / "config.yaml")), log, self.loop, self.link).make_handler()
        self.listed = (truth.pods, truth.containers)
        self.start()
        if not is_synchronized(self.peer):
            raise RuntimeError(f"the agent was not synchronized: {self.peer.session.lost}")
        self.do_the_rest()

    def put(self, event: NRIEvent) -> None:
        """Let the event arrive at the agent's socket; `loop.run_once` lets the agent answer it."""
        self._call = self.peer.session.call(event, self.bench.clock.now)
        self.peer.sock.sendall(self.peer.session.data_to_send())

    def do_the_rest(self) -> None:
        """Let the agent do what follows the answer, whichever rounds of its loop it leaves that for."""
        while any(when <= self.loop.clock() for when, _ in self.loop._timers.values()):
            self.turn()

    def finish(self, event: NRIEvent) -> None:
        """Take the answer and do what a runtime does then: make the cgroup of the container, or remove it.

        Raises:
            RuntimeError: the event was refused, or never answered.
        """
        self.settle()
        self.do_the_rest()
        answer = next((one for one in self.peer.of(Answered) if one.call == self._call), None)  # type: ignore[attr-defined]
        if not isinstance(answer, Answered) or answer.error:
            raise RuntimeError(f"{type(event).__name__}: {answer.error if answer else 'no answer'}")
        self.peer.events.clear()
        if isinstance(event, nri.CreateContainer):
            make_cgroups(self._base, Synchronize((event.pod,), (event.container,)))
            response = answer.response
            given = response.resources if isinstance(response, nri.CreateContainerResponse) else None
            if given is not None and given.cpus is not None:
                place = self._base / "cgroup" / event.container.cgroups_path.strip("/") / "cpuset.cpus"
                place.write_text(f"{given.cpus}\n")
        if isinstance(event, nri.RemovePodSandbox):
            shutil.rmtree(self._base / "cgroup" / event.pod.cgroup_parent.strip("/"), ignore_errors=True)

    def _open(self) -> socket.socket:
        return _Watched(super()._open(), self._tell)

    def _tell(self) -> None:
        self.on_answer()


class _Watched(socket.socket):
    """Tells before it sends."""

    def __init__(self, of: socket.socket, tell: Callable[[], None]) -> None:
        super().__init__(of.family, of.type, of.proto, of.detach())
        self._tell = tell

    def send(self, data: bytes, flags: int = 0) -> int:  # type: ignore[override]
        self._tell()
        return super().send(data, flags)


def crowd(pods: int, each: int) -> Synchronize:
    """A full node: a few Guaranteed pods with exclusive CPUs, the others Burstable, every third BestEffort."""
    all_pods, containers = [], []
    for number in range(pods):
        parent = GUARANTEED if number < EXCLUSIVE_PODS else BEST_EFFORT if number % 3 == 1 else BURSTABLE
        of = pod(f"crowd-{number:05}", parent)
        all_pods.append(of)
        cpu = {GUARANTEED: 1.0, BEST_EFFORT: 0.0, BURSTABLE: 0.005}[parent]
        containers += [container(of, f"c{one}", cpu) for one in range(each)]
    return Synchronize(tuple(all_pods), tuple(containers))


def pod(name: str, parent: str) -> Pod:
    """A pod of the QoS class that has this cgroup."""
    return Pod(f"{name:0<64}", name, f"uid-{name}", "default", cgroup_parent=f"{parent}/poduid-{name}", pid=1)


def container(of: Pod, name: str, cpu: float) -> Container:
    """A container of it with labels, annotations and environment of usual lengths."""
    return Container(
        f"{of.name}{name}".ljust(64, "0"),
        of.id,
        name,
        ContainerState.RUNNING,
        labels={f"label/{number}": "value" * 6 for number in range(10)},
        annotations={f"io.kubernetes.annotation/{number}": "value" * 8 for number in range(12)},
        env=ENVIRONMENT,
        resources=Resources(cpu_shares=max(LEAST_SHARES, int(cpu * 1024)), memory_limit_bytes=MEMORY_BYTES),
        cgroups_path=f"{of.cgroup_parent}/{of.name}{name}",
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a pod's life, and its name in a table."""

    name: str
    event: NRIEvent


def life(number: int, *, exclusive: bool) -> Iterator[Step]:
    """All events of a pod with one container, with names of one length whatever the number."""
    of = pod(f"new-{number:05}", GUARANTEED if exclusive else BURSTABLE)
    one = container(of, "app", 4 if exclusive else 0.5)
    kind = "exclusive" if exclusive else "shared"
    for event in (
        nri.RunPodSandbox(of),
        nri.CreateContainer(of, replace(one, state=ContainerState.UNKNOWN)),
        nri.PostCreateContainer(of, one),
        nri.StartContainer(of, one),
        nri.PostStartContainer(of, one),
        nri.UpdateContainer(of, one, one.resources),
        nri.PostUpdateContainer(of, one),
        nri.StopContainer(of, one),
        nri.RemoveContainer(of, one),
        nri.StopPodSandbox(of),
        nri.RemovePodSandbox(of),
    ):
        yield Step(f"{type(event).__name__} {kind}", event)
