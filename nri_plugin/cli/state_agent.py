"""Whether an agent works on a state directory, and whether a runtime asks it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nri_plugin.cli.state_source import FailedError
from nri_plugin.errors import HostError
from nri_plugin.host.state_directory import LOCK_FILE

if TYPE_CHECKING:
    from nri_plugin.app.status_rows import RuntimeRow

SOCKET = "agent.sock"
ANSWER_S = 2.0
"""An agent that is there tells everything within milliseconds of being asked."""

NO_RUNTIME = "no runtime is connected to the agent: containers that are created now are not placed"
LOOK_CLOSER = "nri-pin doctor tells why"


@dataclass(frozen=True, slots=True)
class AgentNow:
    """The agent at this moment.

    Attributes:
        answers: whether it answers on its status socket.
        runtime: who asks it; None for nobody.
    """

    answers: bool = False
    runtime: "RuntimeRow | None" = None

    @property
    def has_no_runtime(self) -> bool:
        """It answers, and places nothing."""
        return self.answers and self.runtime is None

    def facts(self) -> dict[str, object]:
        """For programs."""
        return {"answers": self.answers, "runtime": runtime_facts(self.runtime)}


def agent_now(state_dir: str) -> AgentNow:
    """The agent of a state directory; one that does not answer in time is none."""
    path = os.path.join(state_dir, SOCKET)
    if not os.path.exists(path):
        return AgentNow()
    from nri_plugin.app.status_client import read_status  # most checkpoints are shown without an agent

    try:
        return AgentNow(answers=True, runtime=read_status(path, ANSWER_S).runtime)
    except HostError:
        return AgentNow()


def runtime_facts(runtime: "RuntimeRow | None") -> dict[str, str] | None:
    """A runtime for programs; None for none."""
    return None if runtime is None else {"name": runtime.name, "version": runtime.version}


def refuse_while_agent_runs(state_dir: str) -> None:
    """See that nobody holds the directory's lock at this moment; a directory that never had one is no agent's.

    Raises:
        FailedError: an agent runs; names it.
    """
    if os.path.lexists(os.path.join(state_dir, LOCK_FILE)):
        with locked(state_dir):
            pass


@contextmanager
def locked(state_dir: str) -> Iterator[None]:
    """Keep agents from starting on the directory meanwhile.

    Raises:
        FailedError: an agent runs; names it.
    """
    path = os.path.join(state_dir, LOCK_FILE)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise FailedError(f"{path}: cannot be opened: {error.strerror}; run as root") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        who = f"the agent with process id {holder}" if holder.isdecimal() else "an agent"
        raise FailedError(f"{state_dir}: {who} works on it; stop it first") from None
    finally:
        os.close(descriptor)
