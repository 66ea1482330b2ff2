"""Step 5 of a request: saves the state to the checkpoint, and knows which allocations only the memory holds.

From the outside in:

* `CheckpointSaver` decides whether a save is needed, and tracks whether saves succeed. It belongs to the thread that
  answers the runtime.
* A `CheckpointStore` writes. `DirectStore` writes at once, to a file system in memory. `CheckpointWriter` writes in a
  thread, with a time limit, to a disk that may stall.
* `checkpoint.file.CheckpointFile` knows the format and the steps of a safe write.

A save appends what has changed; nothing here goes over all allocations, unless a save has failed. Invariant: `trouble` is the reason why the last save failed. It is empty again once the checkpoint holds the memory.
A checkpoint that was removed or replaced is written again as a whole; nothing is read from it or merged.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from nri_plugin.checkpoint.directory import removed_mount, unsafe
from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.records import Allocation, named
from nri_plugin.model.state import State
from nri_plugin.process.logs import say
from nri_plugin.process.loop import StartThread

DEFAULT_SAVE_S = 1.0
"""Time limit of a save when the runtime set no deadline: half of the runtimes' default of 2 s."""

IN_TROUBLE_S = 0.05
"""Time limit of a save that no answer depends on, while the last save failed: a stalled disk must not delay pods."""

RETRY_S = 0.25
"""Time limit of a save by the clock while the last save failed: longer than a slow disk takes that works again."""

LOOK_PAUSE_S = 2.0
"""Seconds between two checks by the clock. A check of an intact checkpoint is one `stat`."""


class CheckpointStore(Protocol):
    """Keeps a state longer than the process lives."""

    def save(self, state: State, timeout_s: float) -> None:
        """Keep `state`.

        Raises:
            CheckpointError: it was not kept, or not in time.
        """

    def is_intact(self) -> bool:
        """Return whether the file that was saved last is still in its place."""

    def compact(self) -> None:
        """Compact the file if that is due; no answer waits for it."""

    def close(self, timeout_s: float) -> None:
        """Finish the queued saves, or give up after `timeout_s`."""


class CheckpointSaver:
    """Saves states and tracks the results. One thread calls it; others may read `trouble` and `unsaved`.

    Args:
        store: where states are saved.
        saved: the state that the store holds.
        log: takes one line for each change of `trouble`, and one for each allocation that only the memory holds.
        serves: keep allocations that cannot be saved in memory (`onCheckpointFailure: serve`).
        directory: of the store; a removed mount explains a failure better than the error of the save.
        took: called with the seconds of each save, also of one that failed.

    Attributes:
        serves: as given; a reload changes it.
        trouble: why the checkpoint cannot be saved; empty while it can.
    """

    def __init__(
        self,
        store: CheckpointStore,
        saved: State,
        log: logging.Logger,
        *,
        serves: bool = False,
        directory: str = "",
        took: Callable[[float], None] | None = None,
    ) -> None:
        self.serves = serves
        self.trouble = ""
        self._store, self._log, self._directory, self._took = store, log, directory, took
        # The state in the checkpoint: exactly, or None after a failed save, when it holds the former state or the new one.
        self._exact: State | None = saved
        # The last state whose save was confirmed.
        self._confirmed = saved
        self._told: frozenset[str] = frozenset()

    # Saves

    def is_saved(self, state: State) -> bool:
        """Return whether the checkpoint is known to hold `state`."""
        return state is self._exact or state == self._exact

    def save(self, state: State, timeout_s: float) -> CheckpointError | None:
        """Save `state`; returns why that failed, None once the checkpoint holds it."""
        if self.is_saved(state):
            return None
        began = time.monotonic()
        try:
            self._store.save(state, timeout_s)
        except CheckpointError as error:
            self._exact = None
            cause = removed_mount(self._directory)
            error = CheckpointError(self._directory, cause) if cause else error
            self._set_trouble(str(error))
            return error
        finally:
            if self._took is not None:
                self._took(time.monotonic() - began)
        self._exact = self._confirmed = state
        if self.trouble:
            self.trouble, self._told = "", frozenset()
            say(self._log, logging.INFO, "the checkpoint is saved again", allocations=len(state.allocations))
        return None

    def look(self, state: State) -> None:
        """Check by the clock: save a state that could not be saved, or whose file was removed; compact the file."""
        if not self._store.is_intact():
            self._exact, self._confirmed = None, State()
        self.save(state, RETRY_S if self.trouble else DEFAULT_SAVE_S)
        self.tell_unsaved(state)
        self._store.compact()

    def outdate(self) -> None:
        """Let the next save write the same state again: the facts of the node beside it have changed."""
        self._exact = None

    def doubt(self, trouble: str) -> None:
        """Expect that nothing can be saved; the next save shows whether that is so."""
        self._exact = None
        self._set_trouble(trouble)

    def close(self, state: State) -> None:
        """Try once more, and log the allocations that a restart will not find in the checkpoint."""
        self.save(state, DEFAULT_SAVE_S)
        for key in self.unsaved(state):
            self._warn(state, key, "the agent ends with an allocation that no checkpoint holds")
        self._store.close(DEFAULT_SAVE_S)

    # Allocations that are not saved

    def unsaved(self, state: State) -> Mapping[str, Allocation]:
        """Return the allocations of `state` that the checkpoint does not hold, by key."""
        if state is self._exact:
            return {}
        changes = state.changed_allocations(self._confirmed)
        return {one.key: one.after for one in changes if one.after is not None and one.after != one.before}

    def tell_unsaved(self, state: State) -> None:
        """Log each allocation that is new among those that only the memory holds."""
        unsaved = self.unsaved(state) if self.trouble else {}
        for key in unsaved.keys() - self._told:
            self._warn(state, key, "an allocation is kept in memory only, the checkpoint cannot be saved")
        self._told = frozenset(unsaved)

    # Probes

    def stuck(self) -> str:
        """Return why only a restart of the agent can make the checkpoint work again; empty otherwise."""
        return self.trouble if self.trouble and removed_mount(self._directory) else ""

    def unready(self) -> str:
        """Return why the checkpoint cannot be relied on; empty where it can."""
        if self.trouble:
            return f"the checkpoint cannot be saved: {self.trouble}"
        danger = unsafe(self._directory)
        return f"{self._directory}: {danger}" if danger else ""

    def _warn(self, state: State, key: str, text: str) -> None:
        held = state.allocations[key]
        say(
            self._log,
            logging.WARNING,
            text,
            name=named(state.pods, key),
            cpus=held.cpus or None,
            memory_nodes=held.mems or None,
        )

    def _set_trouble(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            allocations = "kept in memory only" if self.serves else "refused"
            say(
                self._log,
                logging.ERROR,
                "the checkpoint cannot be saved",
                new_allocations=allocations,
                err=trouble,
            )


# Stores


def open_store(
    file: CheckpointFile, saved: State, start: StartThread = threading.Thread.start
) -> CheckpointStore:
    """Return the store for `file`, which holds `saved`: with a thread where the disk may stall."""
    return CheckpointWriter(file, saved, start) if file.durable else DirectStore(file)


class DirectStore:
    """Writes to a file system in memory: a save takes microseconds and is done at once."""

    def __init__(self, file: CheckpointFile) -> None:
        self._file = file

    def save(self, state: State, timeout_s: float) -> None:  # noqa: ARG002 - nothing to wait for
        """Keep `state`.

        Raises:
            CheckpointError: it was not kept.
        """
        self._file.append(state)

    def is_intact(self) -> bool:
        """Return whether the file is still in its place."""
        return self._file.is_intact()

    def compact(self) -> None:
        """Compact the file if that is due."""
        self._file.compact()

    def close(self, timeout_s: float) -> None:  # noqa: ARG002 - nothing to wait for
        """Close the file."""
        self._file.close()


IDLE_LOOK_PAUSE_S = 2.0
"""Seconds between two checks of an idle thread whether the file is still in its place."""


class CheckpointWriter:
    """A store whose saves have a time limit. From its start on, only its thread uses the file.

    The thread always writes the newest state. A caller waits until its state is on disk or the time is up. In the second
    case the save has failed, but the thread may still be writing the refused state. So the last state that is known to
    be on disk is queued behind it.

    Args:
        file: loaded before, so that generations go on counting.
        saved: the state in the file; empty where there is no file.
        start: starts the thread. Until it runs, no save is in time.
    """

    def __init__(
        self,
        file: CheckpointFile,
        saved: State | None = None,
        start: StartThread = threading.Thread.start,
    ) -> None:
        self._file = file
        self._changed = threading.Condition()
        # The condition guards all of these. Requests are numbered: `_asked` is the newest, `_done` the newest that was
        # written or has failed, with `_error`.
        self._saved = saved or State()
        self._wanted: State | None = None
        self._asked = 0
        self._done = 0
        self._error: CheckpointError | None = None
        self._closing = False
        self._intact = True
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        start(self._thread)

    @property
    def path(self) -> str:
        """The path of the checkpoint."""
        return self._file.path

    def save(self, state: State, timeout_s: float) -> None:
        """Wait until `state` is on disk.

        Raises:
            CheckpointError: it could not be written, or not within `timeout_s` seconds; the checkpoint
                holds the former state, or will as soon as the disk answers.
        """
        with self._changed:
            number = self._ask(state)
            if not self._changed.wait_for(lambda: self._done >= number, timeout_s):
                # The caller goes on as if nothing was saved, so the disk must end with the former state.
                self._ask(self._saved)
                raise CheckpointError(
                    self.path,
                    "not on disk in time; a state directory in memory such as /run/nri-pin never stalls",
                )
            if self._error is not None:
                raise self._error

    def is_intact(self) -> bool:
        """Return whether the file was in its place at the thread's last check; no call waits for the disk."""
        return self._intact

    def compact(self) -> None:
        """Do nothing: the thread compacts the file by itself."""

    def close(self, timeout_s: float) -> None:
        """Finish the queued save and end the thread, or give up after `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _ask(self, state: State) -> int:
        self._wanted = state
        self._asked += 1
        self._changed.notify_all()
        return self._asked

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted is not None or self._closing, IDLE_LOOK_PAUSE_S)
                state, number = self._wanted, self._asked
                self._wanted = None
                is_over = state is None and self._closing
            if is_over:
                self._file.close()
                return
            # The condition is not held during I/O, so a caller can run out of time.
            if state is not None:
                self._report(state, number, self._write(state))
            with suppress(Exception):  # as in `_write`; the next round tries again
                self._file.compact()
                self._intact = self._file.is_intact()

    def _write(self, state: State) -> CheckpointError | None:
        try:
            self._file.append(state)
        except CheckpointError as error:
            return error
        except Exception as error:  # noqa: BLE001 - without this thread no container could be created any more
            return CheckpointError(self.path, f"internal error: {type(error).__name__}: {error}")
        return None

    def _report(self, state: State, number: int, error: CheckpointError | None) -> None:
        with self._changed:
            self._done, self._error = number, error
            # A save that ran out of time has failed for its caller, even if the disk finished it late.
            if error is None and number == self._asked:
                self._saved = state
            self._changed.notify_all()
