"""A small process beside an agent that the runtime started; it brings the agent back as an ordinary plugin.

The runtime starts a plugin once: one that ended, or that it dropped and killed because an answer was late, is gone until
the runtime itself restarts. So the agent forks before it loads anything large. The child has a session of its own and
none of the runtime's descriptors, so it outlives whatever ends the agent. It ends, too, when the agent says that it
ended on purpose, and when the plugin was uninstalled; a newer agent of the same runtime makes it say so.

The agent holds one end of a socket: its end closes it, however that came about. A silent agent is stuck and is killed.

This module is loaded before everything else and stays in memory; it imports no other module of ours.
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
"""Variable with the number of the agent's end of the socket."""

CONFIG = "NRI_PIN_DROP_IN"
"""Variable with the number of a file that holds the text of the drop-in."""

FORMER = "NRI_PIN_FORMER"
"""Variable with the process id of the agent that ended; for the log."""

PLUGIN = "NRI_PIN_PLUGIN"
"""Variable with the path of the plugin's executable, where it is not the program's own name."""

KEPT: Sequence[str] = ("NRI_PLUGIN_NAME", "NRI_PLUGIN_IDX")
"""The name that the runtime gave to the plugin; the agent that comes back registers under it, too."""

NAME = b"nri-pin-watcher"
"""Shown by ps; the kernel keeps 15 bytes."""

ALIVE, QUIT, DROP_IN = b"a", b"q", b"c"
BEAT_S = 5.0
"""Between two signs of life."""

SILENT_S = 30.0
"""After this time without one the agent is stuck, as in `nri_plugin.process.loop`."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
HEALTHY_S = 60.0
"""An agent that lived so long is started again at once, a shorter life after a growing pause."""

MAX_MESSAGE = 1 << 18
"""What such a socket takes at most; a drop-in has a few hundred bytes."""

_PLUGIN_FILE = re.compile(r"\d\d-.+\Z")


def begin(environment: Mapping[str, str]) -> str:
    """Start the supervisor of this process; returns the number of the descriptor for `Life`, empty when none started.

    To be called before any thread starts. In the child it does not return.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = os.pidfd_open(os.getpid())
    try:
        child = os.fork()
    except OSError:  # no process is to be had; the agent serves without
        os.close(agent)
        ours.close()
        theirs.close()
        return ""
    if not child:
        try:
            os.setsid()
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
    """Listen until the agent ends; returns whether it meant to, and the newest text of the drop-in.

    Args:
        life: the socket.
        agent: a descriptor of the process.
        text: the drop-in configuration.
        plugin: file without which the agent has to end; empty for none.
    """
    silences, is_meant = 0, False
    while True:
        if not select.select([life], [], [], SILENT_S / 2)[0]:
            # Two halves: after both were frozen together the agent gets the second one to speak.
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

    Returns its socket, its process id and a descriptor of it; None when no process is to be had at the moment.
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
    """The executable in the runtime's plugin folder; empty when the program was started otherwise."""
    path = environment.get(PLUGIN) or os.path.abspath(sys.argv[0])
    return path if _PLUGIN_FILE.match(os.path.basename(path)) else ""


def _is_uninstalled(plugin: str) -> bool:
    return bool(plugin) and not os.path.lexists(plugin)


def _signal(agent: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(agent, number)


def _let_go_of_all_but(*kept: int) -> None:
    """Close every other descriptor: the runtime must see the end of its connection when the agent ends."""
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
    """The agent's end: signs of life, what it was configured with, and that it ends on purpose.

    Args:
        descriptor: as `begin` or the variable `LIFE` tells it.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._socket.setblocking(False)

    def beat(self) -> bool:
        """Give a sign of life; returns False when there is nobody to hear it any more."""
        return self._send(ALIVE)

    def drop_in(self, text: str) -> None:
        """Tell the configuration that the runtime handed over."""
        self._send(DROP_IN + text.encode())

    def quit(self) -> None:
        """Tell that the agent ends and is not to come back."""
        self._send(QUIT)

    def close(self) -> None:
        """Hang up; the supervisor takes that for the end of the agent."""
        self._socket.close()

    def _send(self, message: bytes) -> bool:
        try:
            self._socket.send(message)
        except BlockingIOError:
            return True  # it is there, and stopped
        except OSError:
            return False
        return True
