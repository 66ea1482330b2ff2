"""Judges what the largest pods cost: bytes that are kept and work that is done, counted, never timed.

Work is the number of bytecodes that are executed (loops of C code are seen by the memory they take). Kept bytes are those of the
objects of the state, of the checkpoint and of each line of the history. The judge has numbers of its own: those of
`nri_plugin.model.bounds` are what it judges.
"""

import gc
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from msgspec.structs import replace

from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.recorder import DirectSink, Recorder
from nri_plugin.agent.start import build_handler
from nri_plugin.config.loading import load_text
from nri_plugin.core.decision import ExporterAnswer
from nri_plugin.model.bounds import Cut
from nri_plugin.recording.file import BoundedRecording, RecordingFile
from nri_plugin.wire.nri import codec, events
from nri_plugin.wire.nri.messages import Container, Pod, Resources
from tests.agent_fakes import Clock, recording_log
from tests.agent_process import config_text, machine_root
from tests.lab.runtime import codec as runtime_codec
from tests.largest_pods import TRUSTED

POD_KEPT = 16 << 10
CONTAINER_KEPT = 21 << 6
WORK = 80_000
"""Bytecodes beyond those of an ordinary pod: 5 ms take more than 100,000 on a slow machine."""

DEVICE_WORK = 3000
"""The same for each of the 256 device nodes that may be looked up."""

FACT_WORK = 300
"""The same for each of 256 devices that the exporter knows."""

TRANSIENT = 256 << 10
"""Bytes that a request may take in passing, beyond its own size."""

EVENT_KEPT = 256 << 10
"""What is left of a request while it is decided."""

VARIABLES, ENVIRONMENT_CHARS, DEVICES = 64, 32 << 10, 512
LONG_REQUEST = 3 << 20


@dataclass(slots=True)
class Cost:
    """What one request took.

    Attributes:
        work: bytecodes.
        peak: most bytes of Python objects at once.
    """

    work: int
    peak: int


def cost_of(call: Callable[[], Any]) -> tuple[Any, Cost]:
    """What a call answers, and what it took."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        answer = call()
    finally:
        sys.settrace(before)
    tracemalloc.start()
    try:
        call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return answer, Cost(count, peak)


def deep_size(*roots: object, known: set[int] | None = None) -> int:
    """Bytes of everything that these hold, each object once; `known` were there before."""
    seen, waiting, size = set(known or ()), list(roots), 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        waiting += gc.get_referents(one)
    return size


def reachable(*roots: object) -> set[int]:
    """The ids of everything that these hold."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, (type, ModuleType, FunctionType)):
            seen.add(id(one))
            waiting += gc.get_referents(one)
    return seen


class _Timers:
    """Runs what is to be done once the answer is out."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] = Clock()
        self.actions: dict[str, Callable[[], None]] = {}

    def set_timer(self, name: str, when: float | None, action: Callable[[], None]) -> None:
        self.actions[name] = action

    def run(self) -> None:
        actions, self.actions = self.actions, {}
        for action in actions.values():
            action()


class _Client:
    """An exporter that knows what it is told."""

    path = "/exporter.sock"

    def __init__(self) -> None:
        self.known = ExporterAnswer()

    def ask(self, *_: object, **__: object) -> ExporterAnswer:
        return self.known


class JudgedAgent:
    """An agent from the bytes of a request to its answer, with checkpoint and history."""

    def __init__(self, folder: Path, **config: str) -> None:
        specification(machine_root(folder))
        words = {"topologyManagerPolicy": "restricted", "annotationNamespaces": f"[{TRUSTED}]", **config}
        loaded = load_text(config_text(folder, **words), "test")
        self.folder, self.timers, self.client = folder, _Timers(), _Client()
        self.record = folder / "record.jsonl"
        self.log, self.lines = recording_log()
        files = (
            BoundedRecording(str(folder / "history"), loaded.history_bytes),
            RecordingFile(str(self.record)),
        )
        # Written at once: what a thread has not written yet would not be judged.
        keepers = [DirectSink(file, self.log, self.timers.clock) for file in files]
        recorder = Recorder(keepers, self.timers, self.log)
        self.handler: Handler = build_handler(loaded, self.log, self.timers.clock, history=recorder)
        self.handler._inform._client = self.client  # type: ignore[attr-defined]
        self.faults: list[str] = []
        self._known = reachable(self.handler.node)
        self._calls = 0

    def hears(self, namespace: str) -> bool:
        return namespace in self.handler.node.options.annotation_namespaces

    def read(self, event: events.NRIEvent) -> tuple[Any, Cost, int]:
        """The event as it is decoded, what that took, and the bytes of the request."""
        if isinstance(event, events.Synchronize):
            method = "Synchronize"
            payload = runtime_codec.encode_synchronize(event.pods, event.containers, more=False)
        else:
            method, payload = runtime_codec.encode_event(event)

        def decode() -> Any:
            decoded = codec.decode_request(method, payload, self.hears)
            return decoded.read() if isinstance(decoded, codec.SynchronizePart) else decoded

        decoded, cost = cost_of(decode)
        return decoded, cost, len(payload)

    def decide(self, event: Any, size: int) -> Cost:
        """Let it be answered; each call is another request."""
        handler, before = self.handler, self.handler.state
        self._calls += 2

        def ask() -> None:
            handler.state = before
            handler.handle(events.Request(self._calls, None, event, size))
            self.timers.run()

        ask()  # files of the host are read and parsed once
        return cost_of(ask)[1]

    def kept(self) -> int:
        """Bytes of the state."""
        return deep_size(self.handler.state, known=self._known)

    def on_disk(self) -> int:
        """Bytes of the checkpoint."""
        path = self.folder / "state" / "state.json"
        return path.stat().st_size if path.exists() else 0

    def history(self) -> list[bytes]:
        """Lines of events."""
        lines = self.record.read_bytes().splitlines() if self.record.exists() else []
        return [line for line in lines if b'"event"' in line[:400]]

    def close(self) -> None:
        self.handler.close()

    # ------------------------------------------------------------------ judging

    def judge(self, event: events.NRIEvent, ordinary: events.NRIEvent, devices: int = 0) -> None:
        """Compare a request of the largest pod with the same one of an ordinary pod."""
        name = type(event).__name__
        decoded, reading, size = self.read(event)
        _, usual_reading, usual_size = self.read(ordinary)
        before = self.handler.state
        usual = self.decide(self.read(ordinary)[0], usual_size)
        self.handler.state = before
        taken = self.decide(decoded, size)
        allowed = WORK * max(1, _containers(event)) + devices * DEVICE_WORK
        self._expect(name, "bytecodes to read", reading.work - usual_reading.work, allowed)
        self._expect(name, "bytes in passing", reading.peak - usual_reading.peak, 2 * size + TRANSIENT)
        self._expect(name, "bytecodes to decide", taken.work - usual.work, allowed)
        self._expect(name, "bytes of the event", deep_size(decoded), EVENT_KEPT * max(1, _containers(event)))
        for one in _each_container(decoded):
            self._expect(name, "variables", len(one.env), VARIABLES)
            self._expect(name, "characters of variables", sum(map(len, one.env)), ENVIRONMENT_CHARS)
            self._expect(
                name, "devices", len(one.devices) + len(one.cdi_devices) + len(one.net_devices), DEVICES
            )
            if name == "CreateContainer" and size > LONG_REQUEST and Cut.ENVIRONMENT not in one.cut:
                self.faults.append(f"{name}: the environment of a request of {size} bytes was read")

    def judge_facts(self, create: events.CreateContainer, known: ExporterAnswer) -> None:
        """Compare a creation of which the exporter knows much with one of which it knows nothing."""
        decoded, _, size = self.read(create)
        before = self.handler.state
        usual = self.decide(decoded, size)
        self.handler.state, self.client.known = before, known
        taken = self.decide(decoded, size)
        # A device may be told twice: as the container's, and among those of its pod.
        most = WORK + sum(
            min(sum(len(one.devices) for one in told or ()), 256) * FACT_WORK
            for told in (known.devices, known.pod_devices)
        )
        self._expect("CreateContainer", "bytecodes to decide on facts", taken.work - usual.work, most)

    def judge_kept(self, usual_kept: int, usual_disk: int, containers: int) -> None:
        """What is kept now, over what was kept before the pod came."""
        most = POD_KEPT + CONTAINER_KEPT * containers
        self._expect("kept", "bytes in memory", self.kept() - usual_kept, most)
        self._expect("kept", "bytes of the checkpoint", self.on_disk() - usual_disk, most)
        longest = max(map(len, self.history()), default=0)
        self._expect("kept", "bytes of a line of the history", longest, most)

    def _expect(self, where: str, what: str, found: int, most: int) -> None:
        if found > most:
            self.faults.append(f"{where}: {found} {what}, at most {most}")


def specification(root: Path) -> None:
    """Twenty CDI names of 300 device nodes each."""
    nodes = [{"path": f"/dev/{number}", "major": 99, "minor": 0} for number in range(300)]
    devices = [{"name": str(number), "containerEdits": {"deviceNodes": nodes}} for number in range(20)]
    (root / "etc/cdi").mkdir(parents=True)
    (root / "etc/cdi/x.json").write_text(
        json.dumps({"kind": "v.com/x", "devices": devices}, separators=(",", ":"))
    )


def _containers(event: Any) -> int:
    return len(event.containers) if isinstance(event, events.Synchronize) else 1


def _each_container(event: Any) -> Iterable[Container]:
    if isinstance(event, events.Synchronize):
        return event.containers
    one = getattr(event, "container", None)
    return () if one is None else (one,)


def life(of: Pod, containers: tuple[Container, ...]) -> Iterator[events.NRIEvent]:
    """The requests of a pod, one of each kind."""
    one = containers[0]
    yield events.RunPodSandbox(of)
    yield events.CreateContainer(of, one)
    yield events.PostCreateContainer(of, one)
    yield events.StartContainer(of, one)
    yield events.UpdateContainer(of, one, one.resources)
    yield events.UpdatePodSandbox(of, None, of.resources or Resources(cpu_shares=2))
    yield events.StopContainer(of, one)
    yield events.Synchronize((of,), containers)


def ordinary_life(containers: int) -> Iterator[events.NRIEvent]:
    """The same of a pod that has nothing."""
    of = Pod("o" * 64, "ordinary", "ordinary-uid", TRUSTED, cgroup_parent="/kubepods/besteffort/podordinary")
    one = Container("d" * 64, of.id, "c", cgroups_path=f"{of.cgroup_parent}/{'d' * 64}")
    return life(
        of, tuple(replace(one, id=f"{number:064}", name=f"c{number}") for number in range(containers))
    )


def judged(folder: Path, of: Pod, containers: tuple[Container, ...], **config: str) -> list[str]:
    """What the pod costs too much of; nothing is right."""
    agent = JudgedAgent(folder, **config)
    try:
        one = containers[0]
        most = min(256, len(one.devices) + len(one.cdi_devices) + len(one.net_devices))
        kept, disk = agent.kept(), agent.on_disk()
        for event, ordinary in zip(life(of, containers), ordinary_life(len(containers)), strict=True):
            agent.judge(event, ordinary, most)
        agent.judge_kept(kept, disk, len(containers))
        return agent.faults
    finally:
        agent.close()
