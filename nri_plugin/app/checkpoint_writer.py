"""Saving to a disk that may stall, without stalling the runtime for longer than agreed.

One thread writes, always the newest state it was given. Whoever saves waits until that state is on disk,
or until the time is up: then the save has failed, and because the thread may still be in the middle of
writing the refused state, the last state known to be on disk is queued behind it.
"""

import threading
from types import TracebackType

from nri_plugin.errors import CheckpointError
from nri_plugin.host.checkpoint import CheckpointFile
from nri_plugin.state import State

LOOK_PAUSE_S = 2.0
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
                self._changed.wait_for(lambda: self._wanted is not None or self._closing, LOOK_PAUSE_S)
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
