"""Reads the agent's status socket: once, or for as long as the agent lives and again when it comes back."""

import logging
import socket
from collections.abc import Callable, Iterator

from nri_plugin.app.logs import say
from nri_plugin.app.status_rows import LINE_BYTES, Status, decode
from nri_plugin.errors import HostError

ANSWER_S = 5.0
"""An agent that is there tells everything within milliseconds of being asked."""

AGAIN_S = 1.0
"""Between two attempts to reach an agent that is not there."""


def read_status(path: str, timeout_s: float = ANSWER_S) -> Status:
    """What the agent tells now.

    Raises:
        HostError: nobody is there, or what answers is no agent of ours.
    """
    try:
        return next(read_lines(path, timeout_s))
    except StopIteration:
        raise HostError(path, "the agent hung up without a word; ask again") from None


def read_lines(path: str, timeout_s: float | None = None) -> Iterator[Status]:
    """Everything the agent tells, until it ends.

    Args:
        path: of its socket.
        timeout_s: how long to wait for a line; None for ever.

    Raises:
        HostError: nobody is there, or what answers is no agent of ours.
    """
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.settimeout(timeout_s)
        peer.connect(path)
        with peer.makefile("rb") as lines:
            while line := lines.readline(LINE_BYTES):
                if not line.endswith(b"\n"):
                    return
                yield decode(line)
    except TimeoutError:
        raise HostError(path, f"the agent said nothing for {timeout_s:g} s; look at its log") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise HostError(path, f"{why}; is the agent running, and is this its state directory?") from None
    except ValueError as error:
        raise HostError(path, f"{error}; use the same version of both programs") from None
    finally:
        peer.close()


def follow(
    path: str,
    tell: Callable[[Status], None],
    pause: Callable[[float], bool],
    log: logging.Logger,
    lost: Callable[[], None] = lambda: None,
) -> None:
    """Call `tell` with everything the agent says, until `pause` returns that it is time to stop; `lost` when it ends."""
    trouble = ""
    while not pause(0.0):
        try:
            for status in read_lines(path):
                if trouble:
                    say(log, logging.INFO, "the agent is there again", socket=path)
                trouble = ""
                tell(status)
                if pause(0.0):
                    return
            found = "the agent ended; what it promised still holds"
        except HostError as error:
            found = str(error)
        lost()
        if found != trouble:
            say(log, logging.WARNING, "the agent is not there", err=found)
        trouble = found
        if pause(AGAIN_S):
            return
