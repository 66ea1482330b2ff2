"""Tasks in processes of their own, a few at a time, that have everything loaded which their parent has."""

import os
import pickle
import resource
import selectors
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

MEMORY_BYTES = 4 << 30

Say: TypeAlias = Callable[[Any], None]
Task: TypeAlias = tuple[Any, Callable[[Say], None]]
"""What the task is about, and the task: it says what it knows, the last word counts."""


@dataclass
class _Running:
    about: Any
    pid: int
    said: bytearray = field(default_factory=bytearray)

    def last_word(self) -> Any:
        word, rest = None, bytes(self.said)
        while len(rest) >= 4 and len(rest) >= (end := 4 + int.from_bytes(rest[:4], "big")):
            word, rest = pickle.loads(rest[4:end]), rest[end:]
        return word


def run_apart(tasks: Iterable[Task], jobs: int, *, quiet: bool = True) -> Iterator[tuple[Any, Any]]:
    """Run the tasks, `jobs` at a time; yields (what it is about, its last word), in the order they end.

    The last word of a task that died before it said anything is None.
    """
    with selectors.DefaultSelector() as selector:
        for about, task in tasks:
            while len(selector.get_map()) >= jobs:
                yield from _ended(selector)
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                _live(task, writing, quiet=quiet)
            os.close(writing)
            selector.register(reading, selectors.EVENT_READ, _Running(about, pid))
        while selector.get_map():
            yield from _ended(selector)


def _ended(selector: selectors.BaseSelector) -> Iterator[tuple[Any, Any]]:
    for key, _ in selector.select():
        said = os.read(key.fd, 1 << 16)
        key.data.said += said
        if not said:
            selector.unregister(key.fd)
            os.close(key.fd)
            os.waitpid(key.data.pid, 0)
            yield key.data.about, key.data.last_word()


def _live(task: Callable[[Say], None], writing: int, *, quiet: bool) -> None:
    """The whole life of a process; it ends without any of the endings of its parent."""

    def say(word: Any) -> None:
        body = pickle.dumps(word)
        rest = memoryview(len(body).to_bytes(4, "big") + body)
        while rest:
            rest = rest[os.write(writing, rest) :]

    if quiet:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        task(say)
    except BaseException:  # noqa: BLE001  # whatever it is, it must not go on in the parent's code
        traceback.print_exc()
    os._exit(0)


def limit_time(seconds: float) -> None:
    """Let this process die when it has used so many seconds of CPU from now on, or waited far longer."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 60 + 10 * seconds)
