"""Saves the state to the checkpoint, and knows which allocations only the memory holds.

`CheckpointSaver` belongs to the thread that answers the runtime. `CheckpointWriter` puts a time limit on the saves to a
disk that may stall.

Invariant: `trouble` is the reason why the last save failed, and is empty once the checkpoint holds the memory again.
A checkpoint that was removed or replaced is written anew as a whole; nothing is read from it or merged.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol

from nri_plugin.checkpoint.file import CheckpointFile, removed_mount, unsafe
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.state import Allocation, State, named
from nri_plugin.process.logs import say
from nri_plugin.process.loop import Loop

# A disk that may stall. One thread writes, always the newest state. A caller waits until its state is on disk or the time
# is up. In the second case the save has failed; the thread may still be writing the refused state, so the last state
# that is known to be on disk is queued behind it.


IDLE_LOOK_PAUSE_S = 2.0
"""Between two looks of an idle thread at whether the file is still in its place."""


class CheckpointWriter:
    """A `CheckpointFile` whose saves have a time limit; from now on the file is this object's alone.

    Args:
        file: loaded before, so that generations go on counting.
        saved: the state in the file; empty where there is no file.
    """

    def __init__(self, file: CheckpointFile, saved: State | None = None) -> None:
        self._file = file
        self._changed = threading.Condition()
        self._saved = saved or State()
        self._wanted: State | None = None
        self._asked = 0
        self._done = 0
        self._error: CheckpointError | None = None
        self._closing = False
        self._intact = True
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def path(self) -> str:
        """The checkpoint's file."""
        return self._file.path

    def save(self, state: State, timeout_s: float) -> None:
        """Wait until `state` is on disk.

        Raises:
            CheckpointError: it could not be written, or not within `timeout_s` seconds; the checkpoint
                holds the former state, or will as soon as the disk answers.
        """
        with self._changed:
            ticket = self._ask(state)
            if not self._changed.wait_for(lambda: self._done >= ticket, timeout_s):
                self._ask(self._saved)
                raise CheckpointError(
                    self.path,
                    "not on disk in time; a state directory in memory such as /run/nri-pin never stalls",
                )
            if self._error is not None:
                raise self._error

    def is_intact(self) -> bool:
        """Whether the file was still in its place when the thread looked last; no look waits for the disk."""
        return self._intact

    def close(self, timeout_s: float) -> bool:
        """Finish what is queued and end the thread; returns whether that took less than `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(timeout_s=5)

    def _ask(self, state: State) -> int:
        self._wanted = state
        self._asked += 1
        self._changed.notify_all()
        return self._asked

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted is not None or self._closing, IDLE_LOOK_PAUSE_S)
                state, ticket = self._wanted, self._asked
                self._wanted = None
                is_over = state is None and self._closing
            if is_over:
                return
            if state is not None:
                self._report(state, ticket, self._attempt(state))
            self._intact = self._file.is_intact()

    def _attempt(self, state: State) -> CheckpointError | None:
        try:
            self._file.save(state)
        except CheckpointError as error:
            return error
        except Exception as error:  # noqa: BLE001 - without this thread no container could be created any more
            return CheckpointError(self.path, f"internal error: {type(error).__name__}: {error}")
        return None

    def _report(self, state: State, ticket: int, error: CheckpointError | None) -> None:
        with self._changed:
            self._done, self._error = ticket, error
            # A save that timed out is not taken back by the disk's late success.
            if error is None and ticket == self._asked:
                self._saved = state
            self._changed.notify_all()


DEFAULT_SAVE_S = 1.0
"""A save may take this long when the runtime set no deadline: half of the runtimes' default of 2 s."""

IN_TROUBLE_S = 0.05
"""Waiting time for a save that nothing depends on, while the last one failed: a stalled disk delays no pod again."""

RETRY_S = 0.25
"""Waiting time for a save by the clock while the last one failed: longer than a slow disk takes that works again."""

LOOK_PAUSE_S = 2.0
"""Between two looks by the clock. A look at an intact checkpoint is one `stat`."""


class CheckpointStore(Protocol):
    """Where the state outlives the process."""

    def save(self, state: State, timeout_s: float) -> None:
        """Keep `state`.

        Raises:
            CheckpointError: it was not kept, or not in time.
        """

    def is_intact(self) -> bool:
        """Whether the file that was saved last is still in its place."""

    def close(self, timeout_s: float) -> bool:
        """Finish what is queued; returns whether that was done in time."""


class CheckpointSaver:
    """Saves states and tracks the results. One thread calls it; others may read `trouble` and `unsaved`.

    Args:
        store: where states are saved.
        saved: the state that the store holds.
        log: one line for each change of condition, and one for each allocation that only the memory holds.
        serves: an allocation that cannot be saved is kept in memory (`onCheckpointFailure: serve`).
        directory: where the store is; says more about a failure than the error of a save.

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
    ) -> None:
        self.serves = serves
        self.trouble = ""
        self._store, self._log, self._directory = store, log, directory
        self._exact: State | None = saved
        self._last = saved
        self._told: frozenset[str] = frozenset()

    def is_saved(self, state: State) -> bool:
        """Whether the checkpoint is known to hold `state`."""
        return state is self._exact or state == self._exact

    @property
    def is_unknown(self) -> bool:
        """Whether a failed save, or another machine, left the checkpoint in need of a save."""
        return self._exact is None

    def doubt(self, trouble: str) -> None:
        """Expect that nothing can be saved; the next save shows whether that is so."""
        self._exact = None
        self._tell(trouble)

    def outdate(self) -> None:
        """Make the next save even for the same state: the facts of the node beside it have changed."""
        self._exact = None

    def save(self, state: State, timeout_s: float) -> CheckpointError | None:
        """Save `state`; returns why that failed, None where the checkpoint holds it."""
        if self.is_saved(state):
            return None
        try:
            self._store.save(state, timeout_s)
        except CheckpointError as error:
            self._exact = None  # the file holds the former state or this one
            cause = removed_mount(self._directory)
            error = CheckpointError(self._directory, cause) if cause else error
            self._tell(str(error))
            return error
        self._exact = self._last = state
        self._succeeded(state)
        return None

    def look(self, state: State) -> None:
        """By the clock: save what could not be saved, and notice that the checkpoint is gone."""
        if not self._store.is_intact():
            self._exact, self._last = None, State()
        self.save(state, RETRY_S if self.trouble else DEFAULT_SAVE_S)
        self.tell_unsaved(state)

    def unsaved(self, state: State) -> Mapping[str, Allocation]:
        """Allocations of `state` that the checkpoint does not hold, by key."""
        if state is self._exact:
            return {}
        saved = self._last.allocations
        return {key: held for key, held in state.allocations.items() if saved.get(key) != held}

    def stuck(self) -> str:
        """Why only a restart of the agent can make the checkpoint work again; empty where that is not so."""
        return self.trouble if self.trouble and removed_mount(self._directory) else ""

    def unready(self) -> str:
        """Why the checkpoint cannot be relied on; empty where it can."""
        if self.trouble:
            return f"the checkpoint cannot be saved: {self.trouble}"
        danger = unsafe(self._directory)
        return f"{self._directory}: {danger}" if danger else ""

    def tell_unsaved(self, state: State) -> None:
        """Log each allocation that is new among those that only the memory holds."""
        unsaved = self.unsaved(state) if self.trouble else {}
        for key in unsaved.keys() - self._told:
            self._name(state, key, "an allocation is kept in memory only, the checkpoint cannot be saved")
        self._told = frozenset(unsaved)

    def close(self, state: State) -> None:
        """Try once more, and name what a restart will not find in the checkpoint."""
        self.save(state, DEFAULT_SAVE_S)
        for key in self.unsaved(state):
            self._name(state, key, "the agent ends with an allocation that no checkpoint holds")
        self._store.close(DEFAULT_SAVE_S)

    def _name(self, state: State, key: str, text: str) -> None:
        held = state.allocations[key]
        say(
            self._log,
            logging.WARNING,
            text,
            name=named(state.pods, key),
            cpus=held.cpus or None,
            memory_nodes=held.mems or None,
        )

    def _tell(self, trouble: str) -> None:
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

    def _succeeded(self, state: State) -> None:
        if self.trouble:
            self.trouble, self._told = "", frozenset()
            say(self._log, logging.INFO, "the checkpoint is saved again", allocations=len(state.allocations))


def look_by_the_clock(loop: Loop, look: Callable[[], None]) -> None:
    """Call `look` now and then, from the next round of the loop on."""

    def again() -> None:
        look()
        loop.set_timer("checkpoint", loop.clock() + LOOK_PAUSE_S, again)

    loop.set_timer("checkpoint", loop.clock() + LOOK_PAUSE_S, again)
