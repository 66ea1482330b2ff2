"""The agent as it is built for a node, on a disk and a cgroup tree that fail; it can be killed at any step."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from nri_plugin.agent.cpusets import CpusetWriter
from nri_plugin.agent.repair.unreported import target_of
from nri_plugin.agent.repair.watches import ENDED_PAUSE_S, LostRemovals
from nri_plugin.agent.serving.checkpoint_saver import CheckpointSaver, DirectStore, open_store
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.recorder import DirectSink, Recorder
from nri_plugin.agent.start import load_state
from nri_plugin.checkpoint import directory
from nri_plugin.checkpoint import file as checkpoint
from nri_plugin.checkpoint.format import decode
from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.drift import CpusetsObserved, MachineChanged, Target, targets
from nri_plugin.core.engine import decide
from nri_plugin.host.cgroup import WriteOutcome, cgroup_path, container_at, is_told
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import Node
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.recording.file import RecordingFile
from nri_plugin.simulator.simulate.pods import ToldFacts
from nri_plugin.wire.nri import codec, events
from tests.chaos.disk import Disk
from tests.chaos.faults import Fault, Faults, Killed
from tests.lab.runtime import codec as runtime_codec
from tests.lab.runtime.cgroup_tree import CgroupTree, CgroupWriteError, CpusetFile, parent_of
from tests.lab.runtime.runtime import PluginRefusedError

DIRECTORY = "/state"
LEAST_JOURNAL = 1 << 10
"""A small one, so that a life of a few hundred events has many of them."""

LOOKS = 3
"""Looks at lost removals in one of the agent's: it finds all that is there, and drops what is gone at two."""

TIME_S = 2.0
PORTION = 2
STALLED_TIME_S = 0.02
"""A hundredth of the runtimes' default, so that a stall of a hundredth of 5 s is beyond it as well."""

SILENT = logging.Logger("chaos", logging.CRITICAL + 1)  # noqa: LOG001 - of this agent alone
SILENT.addHandler(logging.NullHandler())


class TreeCgroups:
    """`CgroupFiles` on a tree that has the kernel's rules."""

    def __init__(self, tree: CgroupTree, faults: Faults) -> None:
        self.tree = tree
        self.faults = faults
        self.writes = 0

    def write_cpus(self, ref: CgroupRef, cpus: CPUSet, *, compare: bool = True) -> WriteOutcome:
        path = cgroup_path(ref)
        self._step("cgroup read", path)
        if path not in self.tree:
            return WriteOutcome.MISSING
        if compare and self.tree.own_cpus(path) == cpus:
            return WriteOutcome.UNCHANGED
        self._step("cgroup write", path)
        try:
            self.tree.write(path, CpusetFile.CPUS, str(cpus))
        except CgroupWriteError as error:
            raise HostError(path, str(error)) from None
        self.writes += 1
        return WriteOutcome.WRITTEN

    def read_cpus(self, ref: CgroupRef) -> CPUSet | None:
        path = cgroup_path(ref)
        self._step("cgroup read", path)
        return self.tree.own_cpus(path) if path in self.tree else None

    def read_effective(self, ref: CgroupRef) -> CPUSet | None:
        path = cgroup_path(ref)
        return self.tree.effective_cpus(path) if path in self.tree else None

    def observe(self, ref: CgroupRef) -> tuple[CPUSet | None, CPUSet | None] | None:
        path = cgroup_path(ref)
        return (self.tree.own_cpus(path), self.tree.effective_cpus(path)) if path in self.tree else None

    def directories(self, ref: CgroupRef) -> list[str]:
        return [cgroup_path(ref)]

    def make_room(self, ref: CgroupRef, cpus: CPUSet) -> None:
        parts = cgroup_path(ref).split("/")[:-1]
        for count in range(1, len(parts) + 1):
            above = "/".join(parts[:count])
            held = self.tree.own_cpus(above) if above in self.tree else cpus
            if not cpus <= held and (held or self.tree.version == 1):
                self._step("cgroup write", above)
                self.tree.write(above, CpusetFile.CPUS, str(held | cpus))

    def is_removed(self, ref: CgroupRef) -> bool:
        path = cgroup_path(ref)
        return path not in self.tree and parent_of(path) in self.tree

    def missing_error(self, ref: CgroupRef) -> HostError:
        return HostError(cgroup_path(ref), "no such cgroup")

    def _step(self, name: str, path: str) -> None:
        try:
            self.faults.at_cgroup(name)
        except OSError as error:
            raise HostError(path, f"{name}: {error.strerror}") from None


class _Rounds:
    """A loop that comes round at once."""

    clock = time.monotonic

    def set_timer(self, name: str, when: float | None, action: Callable[[], None]) -> None:
        action()


def recorder(path: str) -> Recorder:
    """Appends to a file what happens, as an agent's process does."""
    return Recorder([DirectSink(RecordingFile(path), SILENT, time.monotonic)], _Rounds(), SILENT)


def over_the_wire(event: events.NRIEvent, node: Node) -> events.NRIEvent:
    """The event as it is read from its bytes."""
    if isinstance(event, events.Synchronize):
        method = "Synchronize"
        payload = runtime_codec.encode_synchronize(event.pods, event.containers, more=False)
    else:
        method, payload = runtime_codec.encode_event(event)
    read = codec.decode_request(method, payload, node.options.annotation_namespaces.__contains__)
    assert read is not None
    return read.read() if isinstance(read, codec.SynchronizePart) else read  # type: ignore[return-value]


def informed(event: events.NRIEvent, told: ToldFacts) -> events.NRIEvent | InformedCreate:
    """The event with the facts that the exporter tells now."""
    if not isinstance(event, events.CreateContainer):
        return event
    facts = told.facts(f"{event.pod.namespace}/{event.pod.name}", event.pod.uid)
    return event if facts is None else InformedCreate(event, facts=facts)


class Agent:
    """One process of the agent.

    Raises:
        Killed: while it starts.
    """

    def __init__(
        self,
        node: Node,
        tree: CgroupTree,
        disk: Disk,
        faults: Faults,
        *,
        durable: bool,
        threaded: bool,
        serves: bool = False,
        record: str = "",
        facts: ToldFacts | None = None,
    ) -> None:
        told = facts or ToldFacts()
        self.disk, self.faults = disk, faults
        self.cgroups = TreeCgroups(tree, faults)
        self.is_alive = True
        self.events = 0
        self._goes_on = threading.Event()
        self._unstarted: list[threading.Thread] = []
        self._looked = 0
        disk.stalls = lambda: self._goes_on.wait(1) and None
        with self._working():
            self._file = checkpoint.CheckpointFile(DIRECTORY, node, durable=durable)
            state = load_state(self._file, SILENT)
            self._store = (
                open_store(self._file, self._file.held, self._start)
                if threaded
                else _Inline(self._file, faults)
            )
            self.handler = Handler(
                node,
                state,
                decide=decide,
                cpusets=CpusetWriter(self.cgroups),
                checkpoint=CheckpointSaver(self._store, self._file.held, SILENT, serves=serves),
                log=SILENT,
                clock=time.monotonic,
                inform=lambda _node, request: informed(request.event, told),
                history=recorder(record) if record else None,
            )
            self._lost_removals = LostRemovals(self.handler)

    def _start(self, thread: threading.Thread) -> None:
        """Start it, or later where the node has no thread left."""
        if self.faults.planned is Fault.NO_THREAD:
            self.faults.struck(Fault.NO_THREAD)
            self._unstarted.append(thread)
        else:
            thread.start()

    def ask(self, event: events.NRIEvent) -> events.NRIResponse | None:
        """The answer the runtime hears; None when the agent died over it.

        Raises:
            RefusedError: the agent refused.
        """
        if not self.is_alive:
            return None
        self.events += 1
        stalled = self.faults.planned is Fault.STALL or bool(self._unstarted)
        self._goes_on.clear()
        limit = STALLED_TIME_S if stalled else TIME_S
        try:
            with self._working():
                read = over_the_wire(event, self.handler.node)
                answer = self.handler.answer(events.Request(self.events, time.monotonic() + limit, read))
                self.faults.at_reply()
                self.handler.account()
                # The loop may come round before the next request, or not.
                for _ in range(self.events % 3):
                    self.handler.write_waiting(PORTION)
        except Killed:
            self.end()
            return None
        finally:
            self._goes_on.set()
        if answer.refusal:
            raise PluginRefusedError(answer.refusal)
        return answer.response

    @property
    def believes_saved(self) -> bool:
        """Whether it would not save again without a change."""
        return self.handler.checkpoint.is_saved(self.handler.state)

    @property
    def is_damage_harmless(self) -> bool:
        """Whether all that a damaged checkpoint could leave holds the same promises."""
        inode = self.disk.names.get(checkpoint.FILE_NAME)
        readings = [self._read(f"{checkpoint.FILE_NAME}.previous")]
        data = b"" if inode is None else bytes(inode.data)
        for at, char in enumerate(data):
            if char == ord(b"\n"):
                with suppress(ValueError):
                    readings.append(decode(data[: at + 1]).state)
        promises = self.handler.state.allocations
        return all(one is not None and one.allocations == promises for one in readings)

    def on_disk(self) -> State | None:
        """What a new process would read; None where that is nothing it can use."""
        return self._read(checkpoint.FILE_NAME)

    @property
    def has_lost_previous(self) -> bool:
        """Whether a file that was replaced without a fault is not there as the generation before."""
        replaced = self._store.replaced if isinstance(self._store, _Inline) else None
        return replaced is not None and self._read(f"{checkpoint.FILE_NAME}.previous") != replaced

    def _read(self, name: str) -> State | None:
        inode = self.disk.names.get(name)
        try:
            found = decode(bytes(inode.data)) if inode else None
        except ValueError:
            return None
        return found.state if found else None

    def look(self) -> None:
        """What the agent does by the clock: the checkpoint, pods that ended untold, then all cgroups."""
        while self._unstarted:
            self._unstarted.pop().start()
        with self._working(), suppress(Killed):
            self.handler.checkpoint.look(self.handler.state)
            self.handler.release_ended()
            for _ in range(LOOKS):
                self._looked += 1
                self._lost_removals(self._looked * ENDED_PAUSE_S)
            self._settle()
            known = targets(self.handler.node, self.handler.state)
            found = map(self.handler.cpusets.observe, (*known, *self._unreported()))
            self.handler.put_right(CpusetsObserved(tuple(filter(None, found))))

    def _unreported(self) -> Iterator[Target]:
        """The containers in the tree that nobody told of."""
        for path in self.cgroups.tree:
            one = container_at(path)
            if one is not None and not is_told(self.handler.state, one):
                yield target_of(one)

    def settle(self) -> None:
        """The loop comes round until nothing waits."""
        with self._working(), suppress(Killed):
            self._settle()

    def _settle(self) -> None:
        while self.handler.write_waiting(PORTION):
            pass

    def forget_generations(self) -> None:
        """What was saved before now is not there any more."""
        if isinstance(self._store, _Inline):
            self._store.replaced = None

    def follow(self, node: Node) -> None:
        """The machine is another one now."""
        with self._working():
            self.handler.change_node(node)
            self.handler.put_right(MachineChanged())

    def stop(self) -> None:
        """The process ends in an orderly way; something may fail on this way, too."""
        with suppress(Killed), self._working():
            self.handler.close()
        self.is_alive = False

    def end(self) -> None:
        """The process is gone."""
        self.is_alive = False
        self._goes_on.set()
        if not isinstance(self._store, _Inline):
            with self._working():
                self._store.close(1)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """The checkpoint's code sees our disk where it says `os`."""
        real, least = checkpoint.os, checkpoint.LEAST_JOURNAL
        checkpoint.os = directory.os = self.disk  # type: ignore[assignment]
        checkpoint.LEAST_JOURNAL = LEAST_JOURNAL
        try:
            yield
        except Killed:
            self.is_alive = False
            raise
        finally:
            checkpoint.os = directory.os = real
            checkpoint.LEAST_JOURNAL = least


class _Inline(DirectStore):
    """Saves at once, on whatever disk: each step of a save can be the last of the process.

    Attributes:
        replaced: the state in the file that was replaced last, where that met no fault.
    """

    def __init__(self, file: checkpoint.CheckpointFile, faults: Faults) -> None:
        super().__init__(file)
        self._faults = faults
        self.replaced: State | None = None

    def save(self, state: State, timeout_s: float) -> None:
        with self._watching():
            super().save(state, timeout_s)

    def compact(self) -> None:
        with self._watching():
            super().compact()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        file, injected = self._file, self._faults.injected.total()
        held, journal, is_sound = file.held, file._journal, file._mark is not None and file.is_intact()
        replaced, self.replaced = self.replaced, None
        yield
        if self._faults.injected.total() == injected:
            is_other = file._journal is not journal
            self.replaced = (held if is_sound else None) if is_other else replaced
