"""Whether an agent works on a state directory: who changes files there must not meet one."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from nri_plugin.cli.state_source import FailedError

LOCK_FILE = "lock"


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
