"""The supervisor: a small process beside an agent that the runtime started. It starts the agent again after its end.

The runtime starts a plugin once. A plugin that ended, or that the runtime killed because an answer was late, is gone until
the runtime restarts. So the agent forks a supervisor before it loads anything large. The supervisor is in another session
and has none of the runtime's descriptors, so it survives the end of the agent. It ends when the agent reports that it ends
on purpose, also because a newer agent of the same runtime takes over, and when the plugin was uninstalled.

Agent and supervisor share a socket pair. The kernel closes the agent's end when the agent ends for any reason. An agent
that sends no sign of life is stuck, and is killed.

This module is loaded first and stays in memory, so it imports no other module of the package.
"""

import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

LIFE = "NRI_PIN_LIFE"
"""Environment variable with the descriptor of the agent's end of the socket pair."""

CONFIG = "NRI_PIN_DROP_IN"
"""Environment variable with the descriptor of a file that holds the text of the drop-in."""

FORMER = "NRI_PIN_FORMER"
"""Environment variable with the process id of the agent that ended; for the log."""

PLUGIN = "NRI_PIN_PLUGIN"
"""Environment variable with the path of the plugin's executable, where the program has another name."""

KEPT: Sequence[str] = ("NRI_PLUGIN_NAME", "NRI_PLUGIN_IDX")
"""The name and index that the runtime gave to the plugin; a successor registers under them, too."""

NAME = b"nri-pin-watcher"
"""Shown by ps; the kernel keeps 15 bytes."""

ALIVE, QUIT, DROP_IN = b"a", b"q", b"c"
BEAT_S = 5.0
"""Seconds between two signs of life."""

SILENT_S = 30.0
"""Seconds without a sign of life after which the agent counts as stuck, as in `nri_plugin.process.loop`."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
HEALTHY_S = 60.0
"""An agent that lived this long is started again after the shortest pause, another one after a growing pause."""

MAX_MESSAGE = 1 << 18
"""The most bytes of a message; a drop-in has a few hundred."""

_PLUGIN_FILE = re.compile(r"\d\d-.+\Z")


def begin(environment: Mapping[str, str]) -> str:
    """Start the supervisor of this process; returns the descriptor for `Life` as text, empty when it could not start.

    Call it before any thread starts. In the child it does not return.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = os.pidfd_open(os.getpid())
    try:
        child = os.fork()
    except OSError:  # no process available; the agent serves without a supervisor
        os.close(agent)
        ours.close()
        theirs.close()
        return ""
    if not child:
        try:
            os.setsid()
            # The second fork makes init the parent: the agent does not have to wait for the supervisor.
            if not os.fork():
                _supervise(theirs.detach(), agent, dict(environment))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(agent)
    theirs.close()
    ours.setblocking(False)
    return str(ours.detach())


def _supervise(life: int, agent: int, environment: dict[str, str]) -> None:
    _let_go_of_all_but(life, agent)
    with suppress(OSError), open("/proc/self/comm", "wb") as comm:
        comm.write(NAME)
    plugin = _plugin_file(environment)
    former = str(os.getppid())
    kept: dict[str, str] = {name: environment[name] for name in KEPT if name in environment}
    text: bytes | None = None
    pause_s, pid, started_at = FIRST_PAUSE_S, 0, time.monotonic()
    while True:
        is_meant, text = _follow(life, agent, text, plugin if pid else "")
        os.close(life)
        os.close(agent)
        if pid:
            os.waitpid(pid, 0)
        if is_meant:
            return
        pause_s = FIRST_PAUSE_S if time.monotonic() - started_at >= HEALTHY_S else pause_s
        started = None
        while started is None:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if _is_uninstalled(plugin):
                return
            started = _start({**kept, FORMER: former, PLUGIN: plugin}, text)
        started_at = time.monotonic()
        life, pid, agent = started
        former = str(pid)


def _follow(life: int, agent: int, text: bytes | None, plugin: str) -> tuple[bool, bytes | None]:
    """Listen until the agent ends; returns whether it ended on purpose, and the newest text of the drop-in.

    Args:
        life: the supervisor's end of the socket pair.
        agent: a pidfd of the agent.
        text: the drop-in configuration; None before the agent has sent one.
        plugin: a file without which the agent has to end; empty for none.
    """
    silences, is_meant = 0, False
    while True:
        if not select.select([life], [], [], SILENT_S / 2)[0]:
            # In two halves: when both processes were frozen, the agent still has the second half for a sign of life.
            silences += 1
            if silences >= 2:
                _signal(agent, signal.SIGKILL)
            continue
        silences = 0
        try:
            said = os.read(life, MAX_MESSAGE)
        except OSError:
            said = b""
        if not said:
            return is_meant, text
        is_meant = is_meant or said == QUIT
        if said.startswith(DROP_IN):
            text = said[1:]
        if plugin and _is_uninstalled(plugin):
            _signal(agent, signal.SIGTERM)


def _start(environment: dict[str, str], text: bytes | None) -> tuple[int, int, int] | None:
    """Start an agent by the command that the runtime used.

    Returns the supervisor's end of the socket pair, the process id and a pidfd; None when no process is available.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        environment[LIFE] = str(theirs.fileno())
        os.set_inheritable(theirs.fileno(), True)
        drop_in = os.memfd_create("drop-in") if text is not None else None
        try:
            if drop_in is not None and text is not None:
                os.pwrite(drop_in, text, 0)
                os.set_inheritable(drop_in, True)
                environment[CONFIG] = str(drop_in)
            pid = os.posix_spawn(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
        except OSError:
            return None
        finally:
            if drop_in is not None:
                os.close(drop_in)
        return ours.detach(), pid, os.pidfd_open(pid)


def _plugin_file(environment: Mapping[str, str]) -> str:
    """Return the executable in the runtime's plugin directory; empty when the program was started in another way."""
    path = environment.get(PLUGIN) or os.path.abspath(sys.argv[0])
    return path if _PLUGIN_FILE.match(os.path.basename(path)) else ""


def _is_uninstalled(plugin: str) -> bool:
    return bool(plugin) and not os.path.lexists(plugin)


def _signal(agent: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(agent, number)


def _let_go_of_all_but(*kept: int) -> None:
    """Close every other descriptor, so that the runtime sees the end of its connection when the agent ends."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number not in kept:
            with suppress(OSError):
                os.close(number)
    os.chdir("/")


class Life:
    """The agent's end of the socket pair: sends signs of life, the configuration, and the end on purpose.

    Args:
        descriptor: from `begin`, or from the environment variable `LIFE`.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._socket.setblocking(False)

    def beat(self) -> bool:
        """Send a sign of life; returns False when the supervisor has ended."""
        return self._send(ALIVE)

    def drop_in(self, text: str) -> None:
        """Send the configuration that the runtime sent."""
        self._send(DROP_IN + text.encode())

    def quit(self) -> None:
        """Report that the agent ends and must not be started again."""
        self._send(QUIT)

    def close(self) -> None:
        """Close the socket; the supervisor takes that for the end of the agent."""
        self._socket.close()

    def _send(self, message: bytes) -> bool:
        try:
            self._socket.send(message)
        except BlockingIOError:
            return True  # the supervisor exists, but is stopped
        except OSError:
            return False
        return True
